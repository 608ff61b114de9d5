"""Ripples in virtual time, against section 1.9 of our notes' page of its paper: our own model, no data of the paper."""

from __future__ import annotations

import pytest
from ripples_virtual import PAGE, PROTOCOLS, run

RANDOM = "ripples:schedule=random"
SLOW = (1.0, 2.0, 5.0)


@pytest.mark.parametrize("number", range(len(SLOW)))
@pytest.mark.parametrize("protocol", [protocol for protocol in PAGE if protocol != RANDOM])
def test_steps_a_second_are_the_page_s_within_5_percent(protocol: str, number: int) -> None:
    """Section 1.9, but for `random`, of which nothing is to be asserted; our own model.

    The orderings of that section, and of the abstract, are those of these figures.
    """
    assert run(protocol, SLOW[number], steps=960).speed == pytest.approx(PAGE[protocol][number], rel=0.05)


def test_only_random_groups_conflict() -> None:
    """Sections 1.5 and 1.6: random grouping conflicts constantly, division does not; our own model and recalled."""
    conflicts = {
        name: run(name, steps=480).conflicts(name) for name in PROTOCOLS if name.partition(":")[0] == "ripples"
    }
    assert conflicts.pop(RANDOM) > 0.3
    assert set(conflicts.values()) == {0}
