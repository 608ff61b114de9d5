"""HSP in virtual time, beside the page's section 5: our own model. HSP itself is reconstructed from its abstract."""

from __future__ import annotations

import pytest
from hsp import ALWAYS, ASP, COLUMNS, GUARDED, ORDERED, PERIODS, PIPELINED, SEQUENTIAL, period

ROWS = [
    (place, *column, seconds)
    for place, published in PERIODS.items()
    for column, seconds in zip(COLUMNS, published[:4], strict=True)
]


@pytest.mark.parametrize(("place", "protocol", "incast", "seconds"), ROWS)
def test_a_period_is_section_5s(place: tuple[int, float, float], protocol: str, incast: float, seconds: float) -> None:
    assert period(protocol, *place, incast=incast, rounds=10).seconds == pytest.approx(seconds, abs=0.0015)


@pytest.mark.parametrize("place", PERIODS)
def test_asp_in_step_over_a_fair_link_is_section_5s(place: tuple[int, float, float]) -> None:
    assert period("asp", *place, rounds=10).seconds == pytest.approx(ASP[place][0], rel=0.01)


@pytest.mark.parametrize("place", PERIODS)
def test_a_broadcast_in_order_makes_a_pipeline_of_fresh_gradients(place: tuple[int, float, float]) -> None:
    """Section 5: C + (n + 1)·tx; our own model."""
    workers, compute, transfer = place
    pipelined = period(PIPELINED, *place, rounds=10)
    assert pipelined.seconds == pytest.approx(compute + (workers + 1) * transfer, abs=0.0015)
    assert pipelined.stale == 0


@pytest.mark.parametrize(("contention", "stale"), [(0.5, 0), (1.0, 1)])
def test_the_guard_lets_equal_workers_all_compute_ahead_or_none(contention: float, stale: float) -> None:
    assert period(GUARDED, 4, 0.4, contention * 0.1, rounds=10).stale == stale


@pytest.mark.parametrize("protocol", [SEQUENTIAL, PIPELINED, GUARDED, ALWAYS, ORDERED])
def test_hsp_pulls_one_gradient_at_a_time(protocol: str) -> None:  # section 3; from the abstract
    assert period(protocol, 4, 0.4, 0.1, jitter=0.1, rounds=10, count=True).pushes == 1


def test_bsp_pushes_all_at_once() -> None:
    assert period("bsp", 4, 0.4, 0.1, rounds=10, count=True).pushes == 4
