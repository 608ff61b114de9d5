"""Sync-Switch in virtual time, beside the page's sections 3 and 4, of the authors' data, and 8, of their figures."""

from __future__ import annotations

import pytest
from sync_switch_time import FIGURES, ONE, SECONDS, TWO, Setup, run, straggling

PART = 200


@pytest.mark.parametrize("setup", [ONE, TWO])
def test_asp_and_bsp_alone_take_the_times_that_they_were_calibrated_to(setup: Setup) -> None:
    assert run(setup, 0.0, PART).seconds == pytest.approx(setup.asp, rel=0.001)
    assert run(setup, 1.0, PART).seconds == pytest.approx(setup.bsp, rel=0.001)


@pytest.mark.parametrize(("setup", "share", "published", "counter"), FIGURES)
def test_the_time_and_the_work_of_a_switch_are_the_published_ones(
    setup: Setup, share: float, published: float, counter: int
) -> None:
    ours, bsp = run(setup, share, PART), run(setup, 1.0, PART)
    assert ours.seconds / bsp.seconds == pytest.approx(published, rel=0.03)  # section 8
    assert ours.versions == counter  # section 3


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_time_of_a_switch_is_the_closed_forms(share: float) -> None:  # section 3
    closed = share * ONE.bsp + (1 - share) * ONE.asp
    assert run(ONE, share, PART).seconds == pytest.approx(closed, rel=0.001)
    assert SECONDS[ONE][share] == pytest.approx(closed, rel=0.03)  # section 4


@pytest.mark.long
def test_greedy_does_all_of_bsps_planned_rounds_and_saves_time() -> None:  # section 6
    greedy, none = (straggling(1, policy, 6400) for policy in ("greedy", "none"))
    assert greedy.rounds == none.rounds == 400
    assert greedy.seconds < none.seconds


@pytest.mark.long
def test_elastic_counted_in_rounds_does_as_many_as_in_the_logs_in_less_time_than_counted_in_samples() -> None:
    rounds, samples = (straggling(1, "elastic", 6400, count) for count in ("rounds", "samples"))  # section 6
    assert rounds.rounds == 400 < samples.rounds
    assert rounds.seconds < samples.seconds
