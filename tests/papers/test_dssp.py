"""DSSP in virtual time, beside the page's sections 9 and 10: our own model of it, not the paper's numbers."""

from __future__ import annotations

import pytest
from claims import simulated
from dssp import BURSTS, CAPPED, COUNTS, END, FIRST, UPPER, burst, counts, drops

from paceline.core.scenario import Scenario
from paceline.sim.world import Limit


@pytest.mark.parametrize("protocol", COUNTS)
def test_steps_and_lead_beside_a_worker_of_half_speed_are_section_9s(protocol: str) -> None:
    assert counts(protocol) == COUNTS[protocol]


def test_equal_workers_never_wait_under_dssp() -> None:  # section 10, (i)
    both = [simulated(name, Scenario(compute=1.0), 2, Limit(seconds=50))["per_worker"] for name in ("asp", CAPPED)]
    assert both[0] == both[1]
    assert [worker["wait_seconds"] for worker in both[1]] == [0, 0]


def test_in_bursts_dssp_lies_between_ssp_at_its_lower_and_at_its_upper_bound() -> None:  # section 10, (iii)
    order = ("ssp:bound=3", CAPPED, "ssp:bound=15", "asp")
    lower, dssp, upper, asp = (burst(protocol, 6, seed=0, seconds=400, jitter=0.0) for protocol in order)
    assert lower.steps < dssp.steps <= upper.steps <= asp.steps
    assert lower.lead == 4
    assert 4 < dssp.lead <= UPPER + 1


def test_in_bursts_ssp_makes_as_many_steps_as_on_the_page() -> None:  # section 10, L / period = 4/40
    assert burst("ssp:bound=3", 4, seed=0).steps == pytest.approx(BURSTS[4]["ssp:bound=3"][0], rel=0.01)


def test_by_updates_a_drop_of_two_workers_that_keep_pace_comes_at_half_the_time() -> None:  # section 7, Table I
    assert drops("bsp", 600).first == pytest.approx(END * FIRST, rel=0.01)
    assert drops("ssp:bound=3", 600).first == pytest.approx(END * FIRST / 2, rel=0.02)
