"""Means, intervals, times to a target and speed-ups, on numbers that are known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.records.comparison import chief_metric, compared, mean, plain_run, seconds_to, t95, waiting
from paceline.records.summary import Target


def run(
    seconds: float | None = None, *, wall: float = 10.0, outcome: str = "completed", final: float | None = None
) -> dict[str, Any]:
    """What `plain_run` makes of a run."""
    return {
        "outcome": outcome,
        "error": None,
        "wall_seconds": wall,
        "seconds_to_target": seconds,
        "samples_per_second": 100.0 if outcome == "completed" else None,
        "final": final,
        "waiting": 0.25,
        "staleness": {"mean": 1.5, "max": 4},
    }


def summary(*evaluations: tuple[float, float | None], outcome: str = "completed") -> dict[str, Any]:
    """Of two workers; `evaluations` are (at, accuracy)."""
    worker = {"compute_seconds": 3.0, "wait_seconds": 1.0, "transfer_seconds": 0.0, "other_seconds": 0.0}
    return {
        "outcome": outcome,
        "error": None,
        "workers": 2,
        "wall_seconds": 4.0,
        "samples_per_second": 50.0,
        "per_worker": [worker, {**worker, "compute_seconds": 1.0, "wait_seconds": 3.0}],
        "staleness": {"mean": 0.5, "max": 2, "histogram": {}},
        "evaluations": [
            {"version": number, "at_seconds": at, "samples": 8, "accuracy": accuracy}
            for number, (at, accuracy) in enumerate(evaluations)
        ],
    }


def test_an_interval_is_students_t_times_the_standard_error_of_three_values_or_more() -> None:
    found = mean([10.0, 12.0, 14.0])
    assert found is not None
    assert (found.mean, found.runs) == (12.0, 3)
    assert found.plus_minus == pytest.approx(4.303 * 2.0 / math.sqrt(3))
    two, one = mean([4.0, None, 6.0]), mean([None, 7.0])
    assert two is not None
    assert (two.plus_minus, two.low, two.high, two.runs) == (None, 4.0, 6.0, 2)
    assert one is not None
    assert (one.mean, one.plus_minus, one.runs) == (7.0, None, 1)
    assert mean([None]) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (9, 2.262), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)]
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t95(freedom) == pytest.approx(quantile, abs=0.0011)


def test_a_target_is_met_by_the_first_version_that_meets_it_and_not_by_none_at_all() -> None:
    target = Target.parse("accuracy>=0.9")
    assert seconds_to(target, summary((1.0, None), (2.0, 0.91), (3.0, 0.85), (4.0, 0.95))) == 2.0
    assert seconds_to(target, summary((1.0, 0.5))) is None
    assert seconds_to(target, summary()) is None
    assert seconds_to(Target.parse("at_seconds>=0"), summary((1.0, 0.5))) is None, "that is no metric"


def test_waiting_is_a_share_of_all_workers_time() -> None:
    assert waiting(summary()) == 0.5
    assert waiting({"per_worker": []}) is None


def test_of_a_diverged_run_neither_rate_nor_metric_is_compared() -> None:
    made = plain_run(summary(outcome="diverged"), Target.parse("accuracy>=0.9"), "accuracy")
    assert (made["samples_per_second"], made["final"], made["seconds_to_target"]) == (None, None, None)
    (row,) = compared({"bsp": {0: made}}, target=False)
    assert (row["diverged"], row["seconds"], row["speed_up"]) == (1, None, None)


def test_times_are_over_the_runs_that_came_there_and_the_others_are_counted() -> None:
    rows = compared({"bsp": {0: run(8.0), 1: run(4.0), 2: run(None)}, "asp": {0: run(2.0), 1: run(2.0)}}, target=True)
    assert rows[0]["seconds"] == {"mean": 6.0, "plus_minus": None, "runs": 2, "low": 4.0, "high": 8.0}
    assert [row["never"] for row in rows] == [1, 0]
    assert [row["speed_up"] for row in rows] == [1.0, 3.0]


def test_a_speed_up_is_over_the_seeds_with_which_both_came_there() -> None:
    rows = compared({"bsp": {0: run(8.0), 1: run(None)}, "asp": {0: run(None), 1: run(2.0)}}, target=True)
    assert [row["speed_up"] for row in rows] == [1.0, None]
    rows = compared({"bsp": {0: run(8.0), 1: run(20.0)}, "asp": {0: run(4.0), 1: run(None)}}, target=True)
    assert rows[1]["speed_up"] == 2.0


def test_without_a_target_the_time_is_the_whole_run_s() -> None:
    rows = compared({"bsp": {0: run(wall=9.0)}, "asp": {0: run(wall=3.0, final=0.5)}}, target=False)
    assert [(row["seconds"]["mean"], row["never"], row["speed_up"]) for row in rows] == [
        (9.0, None, 1.0),
        (3.0, None, 3.0),
    ]
    assert rows[1]["final"]["mean"] == 0.5
    assert (rows[0]["staleness"]["mean"]["mean"], rows[0]["staleness"]["max"]) == (1.5, 4)


def scalars(**ends: tuple[float, float]) -> dict[str, Any]:
    """The part of a summary with the first and the last logged value of these metrics."""
    both = {name: {"first": {"value": first}, "last": {"value": last}} for name, (first, last) in ends.items()}
    return {"scalars": both}


@pytest.mark.parametrize(
    ("summary", "metric"),
    [
        (summary((1.0, 0.5)) | scalars(loss=(2.0, 1.0)), "accuracy"),
        (summary() | scalars(lr=(0.1, 0.1), loss=(2.0, 1.0), val_acc=(0.1, 0.9)), "val_acc"),
        (summary() | scalars(lr=(0.1, 0.1), loss=(2.0, 1.0), val_f1=(0.1, 0.9)), "val_f1"),
        (summary() | scalars(lr=(0.1, 0.1), loss=(2.0, 1.0)), "loss"),
        (summary() | scalars(reward=(0.1, 0.1)), "reward"),
        (summary() | {"logged": {"score": {"last": {"value": 1.0}, "highs": [], "lows": []}}}, "score"),
        (summary(), None),
    ],
)
def test_without_a_target_runs_are_compared_by_what_is_evaluated_or_else_by_what_is_logged(
    summary: dict[str, Any], metric: str | None
) -> None:
    assert chief_metric(summary) == metric


def test_of_a_metric_that_is_only_logged_the_first_and_the_last_value_are_compared() -> None:
    plain = plain_run(summary((1.0, 0.5)) | scalars(val_acc=(0.1, 0.9), accuracy=(0.0, 0.0)), None, "val_acc")
    assert (plain["first"], plain["final"]) == (0.1, 0.9)
    plain = plain_run(summary((1.0, 0.5), (2.0, 0.7)) | scalars(accuracy=(0.0, 0.0)), None, "accuracy")
    assert (plain["first"], plain["final"]) == (0.5, 0.7)
