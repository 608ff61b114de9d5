"""PS+ in virtual time, against section 5 of our notes' page of its paper, which is our own model, and the abstract."""

from __future__ import annotations

import pytest
from ps_plus import AFTER_PUSH, FREE, LESS, PAGE, STORE, Cell, expected, iteration, most

BRIEF = 24
"""Rounds."""

SETTINGS = [(r, slow, protocol, value) for (r, slow), row in PAGE.items() for protocol, value in row.items()]


@pytest.mark.parametrize(("r", "slow", "protocol", "published"), SETTINGS)
def test_the_closed_forms_are_the_page_s_table(r: float, slow: float, protocol: str, published: float) -> None:
    """Section 5; our own model."""
    assert expected(protocol, r, slow) == pytest.approx(published, abs=0.0101)


@pytest.mark.parametrize(("r", "slow", "protocol", "published"), SETTINGS)
def test_the_simulator_gives_the_closed_forms(r: float, slow: float, protocol: str, published: float) -> None:
    """Section 5; our own model."""
    assert iteration(protocol, r, slow, rounds=BRIEF) == pytest.approx(expected(protocol, r, slow), rel=0.01)


@pytest.mark.parametrize("r", [1.25, 1.5, 3.0])
def test_with_free_pulls_it_takes_half_of_r_or_a_step(r: float) -> None:
    """In no section; ours. At r = 2 the two are equal, and jitter makes it a little longer than either."""
    assert iteration(FREE, r, rounds=BRIEF) == pytest.approx(expected(FREE, r, 1.0), rel=0.01)
    assert expected(FREE, r, 1.0) == max(1.0, r / 2)


def test_on_a_shared_link_three_quarters_full_ps_plus_takes_54_percent_less_than_bsp() -> None:
    """Section 1: up to 54 % less time for an iteration; from the abstract, which does not say where."""
    times = {name: iteration(name, 1.5, link="shared", store=STORE, rounds=BRIEF) for name in ("bsp", AFTER_PUSH)}
    assert Cell("shared", 1.0, 1.5, times).less("bsp", AFTER_PUSH) >= LESS


def test_over_asp_free_pulls_save_54_percent_and_more_on_links_of_their_own() -> None:
    """Section 1, from the abstract, which does not say where: from r = 1.25 to 2, where a step hides push and pull."""
    times = {r: {name: iteration(name, r, rounds=BRIEF) for name in ("asp", FREE)} for r in (1.25, 2.0)}
    less = [Cell("own", 1.0, r, both).less("asp", FREE) for r, both in times.items()]
    assert less == pytest.approx([1 - 1 / 2.25, 1 - 1 / 3], abs=0.02)
    assert min(less) >= LESS


def test_over_asp_ps_plus_saves_at_most_half_if_the_pull_follows_the_push() -> None:
    """Section 5: pure overlap saves at most 50 % over ASP, at r = 1; our own model."""
    cells = [
        Cell("own", 1.0, r, {name: iteration(name, r, rounds=BRIEF) for name in ("asp", AFTER_PUSH)})
        for r in (0.75, 1.0, 1.25)
    ]
    best = most(cells, "asp", AFTER_PUSH)
    assert best.r == 1.0
    assert 0.45 < best.less("asp", AFTER_PUSH) <= 0.5


def test_on_a_full_link_ps_plus_falls_into_step_unless_versions_take_the_server_time() -> None:
    """All push while nobody pulls, and the other way round: half of the link is idle. In no section; ours."""
    together, apart = (iteration(AFTER_PUSH, 3.0, link="shared", store=store, rounds=BRIEF) for store in (0.0, STORE))
    assert together == pytest.approx(3.0, rel=0.001)
    assert apart < 0.6 * together
    assert iteration(FREE, 3.0, link="shared", rounds=BRIEF) < 0.6 * together
