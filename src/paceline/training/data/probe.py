"""How a loader's class iterates: over the batches that it is leased, or in a way of its own that none can replace."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.errors import ConfigError
from paceline.training.replaced import class_like
from paceline.training.seeding import randomness_kept

ENDLESS = 0
"""The number of passes of a class that chains them without an end."""
PASSES = 100
"""A class that goes through an empty sampler so often, and gives nothing, chains its passes without an end."""
SECONDS = 30.0
"""A class that gives nothing for so long waits for batches that an empty sampler does not have."""


def leased_passes(loader: DataLoader[Any]) -> int | None:
    """See `passes_of`. None: the loader's batches are not leased, and each worker iterates all of it.

    Raises ConfigError if its class iterates in a way of its own, and nothing says how long.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    if (passes := passes_of(loader)) is not None:
        return passes
    try:
        len(loader)
    except Exception as error:  # whatever a user's class raises
        raise ConfigError(
            f"prepare() got a {type(loader).__name__}, whose batches don't come of its batch sampler alone, and which "
            "has no length, so it may never end: give the class a __len__, or prepare a DataLoader over the same data"
        ) from error
    return None


def passes_of(loader: DataLoader[Any]) -> int | None:
    """Return how many passes over its batch sampler a loop over the loader makes, `ENDLESS` if that never ends.

    None: not all that the loader gives comes of the batches that its sampler gives.

    A class that iterates in its own way is tried over an empty sampler. It must give nothing then, and end, or begin
    another pass. The trial has no processes, changes none of the loader's attributes, prints nothing, and draws nothing
    that the script would miss. In the main thread it takes at most `SECONDS`.
    """
    own = type(loader)
    if own.__iter__ is DataLoader.__iter__ and own._get_iterator is DataLoader._get_iterator:
        return None if "_get_iterator" in vars(loader) else 1
    if any(map(_is_ready, vars(loader).values())):
        return None
    quiet = io.StringIO()
    with randomness_kept(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            emptied = _emptied(loader)
            with _at_most(SECONDS):
                gives_nothing = next(iter(emptied), quiet) is quiet
            return max(1, emptied.batch_sampler.passes) if gives_nothing else None  # type: ignore[union-attr]
        except _Chained:
            return ENDLESS
        except (Exception, _Waits):  # whatever a user's class raises where there is nothing to iterate over
            return None


class _Chained(BaseException):
    """The class begins one pass after another. Not an Exception: the class might go on after one."""


class _Waits(BaseException):
    """The class waits for a batch, where there is none. So it would where a worker gets few batches."""


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_Waits` in what takes longer. Another thread than the main one can't be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise _Waits

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:  # the script has set an alarm
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), every)


class _Empty:
    """The user's batch sampler in all but the batches, of which it gives none."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.passes = 0

    def __iter__(self) -> Iterator[list[Any]]:
        self.passes += 1
        if self.passes > PASSES:
            raise _Chained
        return _Nothing()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_sampler" not in vars(self):
            raise AttributeError(name)
        return getattr(self._sampler, name)


class _Nothing:
    """One pass over no batches."""

    def __init__(self) -> None:
        self._asked = 0

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        self._asked += 1
        if self._asked > PASSES:
            raise _Waits
        raise StopIteration


def _emptied(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy of the loader that iterates over nothing, in this process."""
    own, copied = type(loader), _Copies()
    # The copy's end is not the loader's: what it closes then, the loader still needs.
    emptied: DataLoader[Any] = object.__new__(class_like(own, (own,), {"__slots__": (), "__del__": lambda _: None}))
    held = vars(emptied)
    held.update({name: copied.of(value) for name, value in vars(loader).items() if name != "generator"})
    for name, value in slots_of(loader).items():
        object.__setattr__(emptied, name, copied.of(value))
    held.update(
        batch_sampler=_Empty(copied.of(loader.batch_sampler)),
        generator=None,
        num_workers=0,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory=False,
        timeout=0,
        _iterator=None,
    )
    return emptied


def slots_of(one: Any) -> dict[str, Any]:
    """Return what the object has in slots of its class, outside of its dictionary of attributes."""
    names = [name for kind in type(one).__mro__ for name, slot in vars(kind).items() if type(slot) is _SLOT]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}


class _Slotted:
    __slots__ = ("one",)


_SLOT = type(vars(_Slotted)["one"])


class _Copies:
    """Copies of what the loader has, so that counters and lists of it, of its data and its sampler stay as they are."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def of(self, value: Any, levels: int = 3) -> Any:
        """A copy of the object, and of what is in its attributes; the value itself if it can't be copied."""
        if id(value) not in self._made:
            self._made[id(value)] = value  # also for what refers to itself
            with contextlib.suppress(Exception):
                self._made[id(value)] = self._copied(value, levels)
        return self._made[id(value)]

    def _copied(self, value: Any, levels: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if kind.__module__ == "random" or kind.__module__.startswith("numpy.random"):
            return copy.deepcopy(value)
        if isinstance(value, list | dict | set | itertools.count) or kind.__module__ == "collections":
            return copy.copy(value)
        makes: Any = kind.__new__
        if levels == 0 or makes is not object.__new__ or not isinstance(getattr(value, "__dict__", None), dict):
            return value
        if hasattr(kind, "__del__") or slots_of(value) or isinstance(value, type | torch.nn.Module):
            return value
        made = object.__new__(kind)  # calls nothing of the user's, such as a __getstate__ that closes files
        self._made[id(value)] = made
        for name, part in vars(value).items():
            vars(made)[name] = self.of(part, levels - 1)
        return made


def _is_ready(value: Any) -> bool:
    """Whether it gives items as it is: an iterator that was made before `prepare`. A counter, or a file, is none."""
    return isinstance(value, Iterator) and not isinstance(value, itertools.count | io.IOBase)
