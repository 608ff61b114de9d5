"""Another form of what is pushed is restored in one place: `GradientRange.gradient`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from paceline.store.gradient_reader import GradientRange, GradientReader
from paceline.store.store import CommitResult, Store
from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places

NAN = 7.0
"""Stands for a NaN in the form that is pushed here. Any other value stands for twice itself."""
TARGET = 2


def restored(mine: GradientRange, memory: memoryview, pushed: GradientReader) -> Tensor:
    there = mine.entry.over(memory, pushed.start)
    return torch.where(there == NAN, math.nan, 2 * there)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two workers have pushed ones."""
    monkeypatch.setattr(GradientRange, "gradient", restored)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), 2, 3))
    for area in store.pushes[:TARGET]:
        for view in area.gradients:
            view.fill_(1.0)
        area.present.fill_(1)
    return store


@pytest.mark.parametrize("contributions", [[(0, 1.0)], [(0, 0.5), (1, 0.5)]])
def test_a_commit_steps_with_what_was_restored(store: Store, contributions: list[tuple[int, float]]) -> None:
    store.commit(0, 1, contributions)
    for before, after in zip(store.places.slot(0), store.places.slot(1), strict=True):
        assert torch.equal(after, before - 2.0)


@pytest.mark.parametrize("contributions", [[(1, 1.0)], [(0, 0.5), (1, 0.5)]])
def test_a_worker_is_named_for_a_nan_that_was_restored(store: Store, contributions: list[tuple[int, float]]) -> None:
    store.pushes[1].gradients[1][0] = NAN
    made: CommitResult = store.commit(0, 1, contributions)
    assert made.not_finite is not None
    assert (made.not_finite.parameter, made.not_finite.worker) == ("bias", 1)


@pytest.mark.parametrize("present", [1, 0])
def test_a_mean_gradient_is_of_what_was_restored(store: Store, present: int) -> None:
    store.pushes[1].present[0] = present
    AreaAverages(store.places).share([0, 1], TARGET, [0.5, 0.5], 0, 1)
    weight, bias = store.pushes[TARGET].gradients
    assert (weight == 1.0 + present).all()
    assert (bias == 2.0).all()
