"""What a loader in a script that runs alone has beside what torch gives it: `last`, and nothing else that is seen."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.training.data.one_ahead import with_last

DATA = TensorDataset(torch.arange(6.0).reshape(6, 1))


class Closes(DataLoader[Any]):
    closed = 0

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        finally:
            self.closed += 1


class SetsLast(DataLoader[Any]):
    last: Any

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.last = batch
            yield batch


class HasLast(DataLoader[Any]):
    @property
    def last(self) -> str:
        return "the script's"


def lasts(loader: Any) -> Iterator[Any]:
    with_last(loader)
    return (loader.last for _ in loader)


def test_a_loop_that_is_left_early_ends_its_iterator_at_once() -> None:
    loader = Closes(DATA, batch_size=2)
    with_last(loader)
    assert not loader.last  # type: ignore[attr-defined]
    for _ in loader:
        break
    assert loader.closed == 1
    assert loader.last  # type: ignore[attr-defined]


def test_what_the_script_calls_last_itself_comes_first() -> None:
    assert list(lasts(DataLoader(DATA, batch_size=2))) == [False, False, True]
    assert [batch[0].sum().item() for batch in lasts(SetsLast(DATA, batch_size=2))] == [1.0, 5.0, 9.0]
    assert list(lasts(HasLast(DATA, batch_size=3))) == ["the script's"] * 2


def test_a_loader_that_was_prepared_alone_is_the_same_one_and_its_copies_are_plain() -> None:
    model = torch.nn.Linear(1, 1)
    plain = DataLoader(DATA, batch_size=4)
    _, _, loader = paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), plain)
    assert loader is plain
    assert [loader.last for _ in loader] == [False, True]
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(copied) is DataLoader
        assert len(list(copied)) == 2
