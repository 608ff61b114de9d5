"""How a loader's class iterates: over the batches that it is leased, or in a way of its own that none can replace."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from paceline.training.seeding import randomness_kept

PASSES = 100
"""A class that goes through an empty sampler so often, and gives nothing, chains its passes without an end."""


def can_be_leased(loader: DataLoader[Any]) -> bool:
    """Return whether all that the loader gives comes of the batches that its sampler gives.

    A class that iterates in its own way is tried over an empty sampler. It must give nothing then. The trial has no
    processes, changes none of the loader's attributes, prints nothing, and draws nothing that the script would miss.
    """
    own = type(loader)
    if own.__iter__ is DataLoader.__iter__ and own._get_iterator is DataLoader._get_iterator:
        return "_get_iterator" not in vars(loader)
    if any(map(_is_ready, vars(loader).values())):
        return False
    quiet = io.StringIO()
    with randomness_kept(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            return next(iter(_emptied(loader)), quiet) is quiet
        except _Chained:
            return True
        except Exception:  # whatever a user's class raises where there is nothing to iterate over
            return False


class _Chained(BaseException):
    """The class begins one pass after another. Not an Exception: the class might go on after one."""


class _Empty:
    """The user's batch sampler in all but the batches, of which it gives none."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._passes = 0

    def __iter__(self) -> Iterator[list[Any]]:
        self._passes += 1
        if self._passes > PASSES:
            raise _Chained
        return iter(())

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_sampler" not in vars(self):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def _emptied(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy of the loader that iterates over nothing, in this process."""
    emptied: DataLoader[Any] = object.__new__(type(loader))
    held = vars(emptied)
    held.update({name: _copied(value) for name, value in vars(loader).items() if name != "generator"})
    held.update(
        batch_sampler=_Empty(_copied(loader.batch_sampler)),
        generator=None,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        timeout=0,
        _iterator=None,
    )
    return emptied


def _copied(value: Any) -> Any:
    """A shallow copy, so that counters and lists stay as they are; the value itself if it can't be copied."""
    try:
        return copy.copy(value)
    except Exception:
        return value


def _is_ready(value: Any) -> bool:
    """Whether it gives items as it is: an iterator that was made before `prepare`. A counter, or a file, is none."""
    return isinstance(value, Iterator) and not isinstance(value, itertools.count | io.IOBase)
