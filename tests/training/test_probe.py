"""Which loaders can be leased, as a trial over an empty sampler shows. The script notices nothing of the trial."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.errors import ConfigError
from paceline.training.loader import is_leased

DATA = TensorDataset(torch.arange(8.0))


class Plain(DataLoader[Any]):
    """It has nothing of its own."""


class Changes(DataLoader[Any]):
    """It does something with each batch, counts its passes, and prints and draws as one begins."""

    passes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[str] = []

    def __iter__(self) -> Any:
        print("a pass begins")
        self.passes += 1
        self.log.append("a pass")
        torch.rand(1), numpy.random.rand(), random.random()
        for (x,) in super().__iter__():
            yield x + 1


class Chains(DataLoader[Any]):
    """It never ends."""

    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class OwnIterator(DataLoader[Any]):
    """It has an iterator of its own."""

    def _get_iterator(self) -> Any:
        return (x + 1 for (x,) in super()._get_iterator())


class Ready(DataLoader[Any]):
    """It holds an iterator that was made beforehand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        return self.iterator


class Adds(DataLoader[Any]):
    """It gives a batch more than its sampler."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield torch.zeros(1)


class Counts(DataLoader[Any]):
    """It relies on its length."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        for _ in range(len(self)):
            yield next(batches)


class Unsized(Adds):
    """It has no length."""

    def __len__(self) -> int:
        raise TypeError("no length")


@pytest.mark.parametrize(
    ("kind", "leased"),
    [
        (DataLoader, True),
        (Plain, True),
        (Changes, True),
        (Chains, True),
        (OwnIterator, True),
        (Ready, False),
        (Adds, False),
        (Counts, False),
    ],
)
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_is_leased_if_it_gives_nothing_over_an_empty_sampler(
    kind: Callable[..., DataLoader[Any]], leased: bool, processes: int
) -> None:
    loader = kind(DATA, batch_size=2, num_workers=processes if kind is not Ready else 0)
    assert is_leased(loader) is leased


def test_the_trial_changes_prints_and_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    loader = Changes(DATA, batch_size=2, shuffle=True)
    drawn = []
    for tries in (False, True):
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        if tries:
            is_leased(loader)
        drawn.append((torch.rand(1).item(), numpy.random.rand(), random.random()))
    assert drawn[0] == drawn[1]
    assert (loader.passes, loader.log, capsys.readouterr().out) == (0, [], "")


def test_a_ready_iterator_loses_nothing_to_the_trial() -> None:
    loader = Ready(DATA, batch_size=2)
    is_leased(loader)
    assert len(list(loader)) == 4


def test_a_stream_without_a_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prepare.. got a Unsized, .*give the class a __len__"):
        is_leased(Unsized(DATA, batch_size=2))
