"""Ripples in virtual time, against section 1.9 of our notes' page of its paper: our own model, no data of the paper."""

from __future__ import annotations

from functools import cache

import pytest
from ripples_virtual import OURS, PAGE, PROTOCOLS, run

STATIC, RANDOM, NO_FILTER = "ripples:schedule=static", "ripples:schedule=random", "ripples:threshold=none"
SLOW = (1.0, 2.0, 5.0)


@cache
def speed(protocol: str, slow: float = 1.0) -> float:
    return run(protocol, slow, steps=960).speed


@pytest.mark.parametrize("number", range(len(SLOW)))
@pytest.mark.parametrize("protocol", [protocol for protocol in PAGE if protocol != RANDOM])
def test_steps_a_second_are_the_page_s_within_5_percent(protocol: str, number: int) -> None:
    """Section 1.9, but for `random`, of which nothing is to be asserted; our own model."""
    assert speed(protocol, SLOW[number]) == pytest.approx(PAGE[protocol][number], rel=0.05)


def test_among_alike_workers_static_and_smart_are_as_fast_and_faster_than_all_reduce() -> None:
    """Section 1.9, orderings: our own model. 1.1 over All-Reduce: section 1.1, from the abstract."""
    assert speed(STATIC) == pytest.approx(speed(OURS), rel=0.02)
    assert speed(OURS) >= 1.1 * speed("all-reduce")


@pytest.mark.parametrize("protocol", ["all-reduce", STATIC])
@pytest.mark.parametrize("slow", SLOW[1:])
def test_all_reduce_and_static_fall_to_the_slow_worker_s_pace(protocol: str, slow: float) -> None:
    """Section 1.9: they collapse toward 1/slowdown; our own model."""
    assert 1 / slow <= speed(protocol, slow) / speed(protocol) < 1 / slow + 0.1


@pytest.mark.parametrize("protocol", [OURS, NO_FILTER])
def test_smart_keeps_three_quarters_beside_a_worker_five_times_slower(protocol: str) -> None:
    """Section 1.9: at least about 75 %, three nodes of four; our own model."""
    assert speed(protocol, 5.0) / speed(protocol) >= 0.74


def test_beside_a_worker_five_times_slower_smart_is_at_least_twice_as_fast_as_all_reduce() -> None:
    """Section 1.1: heterogeneous, 2 times All-Reduce; from the abstract, which does not say how slow."""
    assert speed(OURS, 5.0) >= 2 * speed("all-reduce", 5.0)


def test_only_random_groups_conflict() -> None:
    """Sections 1.5 and 1.6: random grouping conflicts constantly, division does not; our own model and recalled."""
    conflicts = {
        name: run(name, steps=480).conflicts(name) for name in PROTOCOLS if name.partition(":")[0] == "ripples"
    }
    assert conflicts.pop(RANDOM) > 0.3
    assert set(conflicts.values()) == {0}
