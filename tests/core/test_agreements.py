"""What workers decide together, whatever the order in which they come."""

import math
from itertools import permutations

import pytest
import torch

from paceline.core.agreements import Agreements, Call, checked_value, result_of
from paceline.errors import ConfigError

AFTER_FIRST, AFTER_SECOND = Call(1, 0), Call(2, 0)


@pytest.mark.parametrize(
    ("how", "values", "result"),
    [
        ("any", [False, True], True),
        ("all", [True, False], False),
        ("mean", [1.0, 2.0, 6.0], 3.0),
        ("first", ["a", "b"], "a"),
        ("first", [None, 1], None),
    ],
)
def test_a_result_is_of_all_values_whatever_their_order(how, values, result) -> None:
    for order in permutations(enumerate(values)):
        assert result_of(how, dict(order)) == result


def test_nothing_is_decided_before_all_have_come_and_then_all_get_the_same() -> None:
    book = Agreements()
    book.give(1, AFTER_FIRST, "any", True)
    assert book.decide([0, 1, 2]) == []
    assert book.awaited(AFTER_FIRST, [0, 1, 2]) == [0, 2]
    book.give(0, AFTER_FIRST, "any", False)
    book.give(2, AFTER_FIRST, "any", False)
    assert book.decide([0, 1, 2]) == [(AFTER_FIRST, {0: False, 1: True, 2: False}, True)]


def test_a_worker_that_leaves_is_awaited_no_more_and_its_value_counts_for_nothing() -> None:
    book = Agreements()
    book.give(0, AFTER_FIRST, "any", True)
    book.give(1, AFTER_FIRST, "any", False)
    book.left(0)
    assert book.decide([1]) == [(AFTER_FIRST, {1: False}, False)]


def test_a_call_that_nobody_waits_in_any_more_is_forgotten() -> None:
    book = Agreements()
    book.give(0, AFTER_FIRST, "any", True)
    book.left(0)
    assert not book.open


def test_calls_after_the_same_epoch_meet_the_first_with_the_first() -> None:
    book = Agreements()
    for worker in (0, 1):
        book.give(worker, AFTER_FIRST, "first", worker)
    book.decide([0, 1])
    book.give(1, Call(1, 1), "first", "second of 1")
    assert book.decide([0, 1]) == []
    book.give(0, Call(1, 1), "first", "second of 0")
    assert book.decide([0, 1])[0][2] == "second of 0"


def test_a_worker_that_joins_is_awaited_from_the_end_of_the_epoch_on_that_it_begins_in() -> None:
    book = Agreements()
    book.joins(1, epoch=1)
    book.give(0, AFTER_FIRST, "any", True)
    assert book.awaited(AFTER_FIRST, [0, 1]) == []
    book.decide([0, 1])
    book.give(0, AFTER_SECOND, "any", True)
    assert book.awaited(AFTER_SECOND, [0, 1]) == [1]


def test_a_worker_that_comes_late_gets_what_was_decided() -> None:
    book = Agreements({AFTER_FIRST: "decided"})
    assert book.give(1, AFTER_FIRST, "first", "mine")
    assert book.decided[AFTER_FIRST] == "decided"
    assert not book.open


def test_a_worker_that_goes_on_to_the_next_epoch_without_calling_is_named_once_and_awaited_no_more() -> None:
    book = Agreements()
    book.give(0, AFTER_FIRST, "any", True)
    assert book.goes_on(1, 0) is None  # it is in the epoch before
    line = book.goes_on(1, 1)
    assert line is not None
    assert line.startswith("worker 0 waits in paceline.agree(), and worker 1 has gone on to the next epoch")
    assert book.goes_on(1, 1) is None
    assert book.decide([0, 1]) == [(AFTER_FIRST, {0: True}, True)]


def test_two_workers_that_wait_in_calls_of_different_epochs_don_t_wait_for_each_other() -> None:
    book = Agreements()
    book.give(0, AFTER_SECOND, "any", True)
    book.give(1, AFTER_FIRST, "any", False)
    assert book.decide([0, 1]) == [(AFTER_FIRST, {1: False}, False)]
    assert book.awaited(AFTER_SECOND, [0, 1]) == [1]


def test_workers_that_want_different_kinds_of_result_are_refused_in_one_line() -> None:
    book = Agreements()
    book.give(0, AFTER_FIRST, "any", True)
    with pytest.raises(ConfigError, match=r'worker 1 calls paceline.agree\(how="all"\) where worker 0 calls'):
        book.give(1, AFTER_FIRST, "all", True)


@pytest.mark.parametrize(
    ("how", "value", "told"),
    [
        ("any", torch.tensor(0), False),
        ("all", [0], True),
        ("mean", torch.tensor([2.5]), 2.5),
        ("mean", 3, 3.0),
        ("first", "best.pt", "best.pt"),
        ("first", True, True),
    ],
)
def test_a_value_is_told_as_a_plain_one(how, value, told) -> None:
    found = checked_value(value, how)
    assert found == told
    assert type(found) is type(told)


def test_a_mean_of_nan_is_nan() -> None:
    assert math.isnan(result_of("mean", {0: checked_value(math.nan, "mean"), 1: 1.0}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("mean", "3"),
        ("mean", torch.ones(2)),
        ("first", [1]),
        ("first", "x" * 1001),
        ("first", 1 << 64),
        ("first", torch.ones(2)),
        ("most", True),
    ],
)
def test_what_can_t_be_told_is_refused_in_one_line(how, value) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_value(value, how)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
