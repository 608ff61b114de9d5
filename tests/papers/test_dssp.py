"""DSSP in virtual time, beside the page's sections 9 and 10: our own model of it, not the paper's numbers."""

from __future__ import annotations

import pytest
from dssp import BURSTS, CAPPED, COUNTS, END, FIRST, QUEUE, UPPER, back, burst, counts, drops, equal


@pytest.mark.parametrize("protocol", COUNTS)
def test_steps_and_lead_beside_a_worker_of_half_speed_are_section_9s(protocol: str) -> None:
    assert counts(protocol) == COUNTS[protocol]


def test_equal_workers_never_wait_under_dssp() -> None:  # section 10, (i)
    asp, ours = (equal(protocol, jitter=0.0, steps=200) for protocol in ("asp", CAPPED))
    assert ours.steps == asp.steps
    assert ours.waited == 0


def test_among_equal_workers_dssp_ends_before_bsp_unless_the_store_makes_versions_in_turn() -> None:  # section 7
    bsp, ours = (equal(protocol, steps=200) for protocol in ("bsp", CAPPED))
    assert ours.seconds < bsp.seconds
    bsp, ours = (equal(protocol, commit=QUEUE, steps=200) for protocol in ("bsp", CAPPED))
    assert ours.seconds / bsp.seconds == pytest.approx(1.46, abs=0.02)


def test_in_bursts_dssp_lies_between_ssp_at_its_lower_and_at_its_upper_bound() -> None:  # section 10, (iii)
    order = ("ssp:bound=3", CAPPED, "ssp:bound=15", "asp")
    lower, dssp, upper, asp = (burst(protocol, (6, 40), seed=0, seconds=400, jitter=0.0) for protocol in order)
    assert lower.steps < dssp.steps <= upper.steps <= asp.steps
    assert lower.lead == 4
    assert 4 < dssp.lead <= UPPER + 1


def test_in_bursts_ssp_makes_as_many_steps_as_on_the_page() -> None:  # section 10, L / period = 4/40
    assert burst("ssp:bound=3", (4, 40), seed=0).steps == pytest.approx(BURSTS[4, 40]["ssp:bound=3"][0], rel=0.01)


def test_in_long_bursts_the_cap_leaves_dssp_little_of_what_ssp_loses() -> None:  # ours, in no section
    order = ("ssp:bound=3", "asp", CAPPED)
    short, long = (
        {name: [burst(name, bursts, seed=0, seconds=1000, jitter=0.0)] for name in order}
        for bursts in BURSTS
        if bursts[0] != 4
    )
    assert back(short, CAPPED) > 0.6
    assert back(long, CAPPED) < 0.2
    assert long[CAPPED][0].lead == UPPER + 1


def test_by_updates_a_drop_of_two_workers_that_keep_pace_comes_at_half_the_time() -> None:  # section 7, Table I
    assert drops("bsp", 600).first == pytest.approx(END * FIRST, rel=0.01)
    assert drops("ssp:bound=3", 600).first == pytest.approx(END * FIRST / 2, rel=0.02)
