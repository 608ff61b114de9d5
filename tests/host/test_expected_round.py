"""Which rounds are begun while their members compute, and which of these count."""

from __future__ import annotations

import pytest

from paceline.core.items import Update
from paceline.host.orders.expected_round import ExpectedRound, Gradients
from paceline.host.overlap import Computing

HALVES = {0: 0.5, 1: 0.5}


class Case:
    """Workers 0 and 1. What was begun is named by its number."""

    def __init__(self) -> None:
        self.begun: list[Gradients] = []
        self.dropped: list[int] = []
        self.early: ExpectedRound[int] = ExpectedRound(self._begin, self.dropped.append)
        self.step = -1

    def _begin(self, gradients: Gradients) -> int:
        self.begun.append(gradients)
        return len(self.begun) - 1

    def compute(self, *workers: int) -> None:
        self.step += 1
        for worker in workers:
            self.early.computes(worker, self.step)

    def order(self, weights: dict[int, float]) -> int | None:
        return self.early.begun_of((worker, self.step, weight) for worker, weight in weights.items())

    def round(self, weights: dict[int, float]) -> int | None:
        self.compute(*weights)
        return self.order(weights)


@pytest.fixture
def case() -> Case:
    """Two rounds were alike, and a third one is computed."""
    case = Case()
    assert case.round(HALVES) is None
    assert case.round(HALVES) is None
    assert not case.begun
    case.compute(0, 1)
    assert case.begun == [{0: (2, 0.5), 1: (2, 0.5)}]
    return case


def test_what_two_rounds_had_is_begun_once_all_compute_and_is_what_is_ordered(case: Case) -> None:
    assert case.order(HALVES) == 0
    case.step += 1
    case.early.computes(0, 3)
    assert len(case.begun) == 1
    case.early.computes(1, 3)
    assert case.order(HALVES) == 1
    assert not case.dropped


@pytest.mark.parametrize("ordered", [{0: 0.25, 1: 0.75}, {0: 1.0}, {0: 0.5, 1: 0.25, 2: 0.25}], ids=str)
def test_another_round_than_was_begun_is_made_anew(case: Case, ordered: dict[int, float]) -> None:
    assert case.order(ordered) is None
    assert case.dropped == [0]


def test_of_another_step_nothing_counts(case: Case) -> None:
    case.step += 1
    assert case.order(HALVES) is None
    assert case.dropped == [0]


def test_what_a_worker_has_withdrawn_counts_for_nothing_and_is_not_begun_again(case: Case) -> None:
    case.early.withdrawn(1, 1)
    assert not case.dropped, "that step is over"
    case.early.withdrawn(1, 2)
    assert case.dropped == [0]
    assert case.order(HALVES) is None
    assert len(case.begun) == 1
    assert case.round(HALVES) == 1


def test_what_was_withdrawn_before_all_computed_is_not_begun() -> None:
    case = Case()
    case.round(HALVES)
    case.round(HALVES)
    case.step += 1
    case.early.computes(0, 2)
    case.early.withdrawn(0, 2)
    case.early.computes(1, 2)
    assert case.order(HALVES) is None
    assert not case.begun


def test_a_member_that_leaves_or_another_worker_that_comes_ends_what_was_begun(case: Case) -> None:
    case.early.leaves(2)
    assert not case.dropped
    case.early.leaves(1)
    assert case.dropped == [0]
    case.order({0: 1.0})
    case.compute(0, 1)
    case.early.computes(2, case.step)
    assert case.dropped == [0, 1]


def test_a_single_round_of_other_weights_is_expected_no_more_than_those_before_it(case: Case) -> None:
    """As at an epoch's end."""
    case.order({0: 0.25, 1: 0.75})
    assert case.round(HALVES) == 1
    for weights in ({0: 0.25, 1: 0.75}, {0: 0.125, 1: 0.875}):
        case.round(weights)
    begun = len(case.begun)
    case.round(HALVES)
    assert len(case.begun) == begun, "weights differ in each round"


def test_nothing_is_expected_once_others_decide(case: Case) -> None:
    case.early.forget()
    assert case.dropped == [0]
    case.round(HALVES)
    assert len(case.begun) == 1


def test_what_a_worker_tells_of_its_last_update_is_there_as_it_tells_and_of_none_before() -> None:
    computing = Computing()
    there = computing.there(Update(0, 3))
    assert not there.has(0, 1)
    computing.told(0, 3, 4, 8)
    assert there.has(4, 8)
    assert not there.has(0, 8)
    computing.finished(0, 3)
    assert there.has(0, 1 << 40)
    assert not computing.there(Update(0, 2)).has(0, 1)
    computing.told(0, 4, 0, 4)
    assert not computing.there(Update(0, 4)).has(4, 8)
