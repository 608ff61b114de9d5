"""How long a comparison says that its runs will still take."""

from __future__ import annotations

import pytest

from paceline.cli.compare import UnderWay
from paceline.runs.eta import Eta, roughly


class Clock:
    """Says what time it is, as it is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_run_takes_as_long_as_those_of_its_name_and_else_as_all_in_the_mean(clock: Clock) -> None:
    pace = Eta(["bsp", "asp", "ssp", "bsp", "asp", "ssp"], [None] * 6, clock)
    pace.begin(0)
    assert str(pace) == "run 1 of 6", "nothing is known yet"
    clock.now += 30.0
    pace.end()
    assert pace.left() == 5 * 30.0
    pace.begin(1)
    assert pace.left() == 5 * 30.0
    clock.now += 10.0
    assert pace.left() == 5 * 30.0 - 10.0
    pace.end()
    assert pace.left() == 30.0 + 10.0 + 2 * 20.0
    assert str(pace) == "run 2 of 6, about 1 min left"


def test_a_run_that_takes_longer_than_those_before_takes_no_time_from_those_after(clock: Clock) -> None:
    pace = Eta(["bsp", "bsp", "bsp"], [10.0, None, None], clock)
    pace.begin(1)
    clock.now += 60.0
    assert pace.left() == 10.0


def test_runs_that_were_made_before_are_not_waited_for_and_tell_how_long_others_take(clock: Clock) -> None:
    pace = Eta(["bsp", "asp", "bsp", "asp"], [8.0, None, 8.0, None], clock)
    pace.begin(1)
    assert pace.left() == 16.0
    clock.now += 2.0
    assert UnderWay(pace, "asp, seed 0").__rich__().plain == "run 2 of 4, about 14 s left: asp, seed 0 ..."
    pace.end()
    assert pace.left() == 2.0
    pace.begin(3)
    clock.now += 2.0
    pace.end()
    assert str(pace) == "run 4 of 4", "nothing is left"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "1 s"),
        (40.4, "40 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (130.0, "2 min"),
        (3590.0, "1 h 0 min"),
        (4800.0, "1 h 20 min"),
    ],
)
def test_what_is_left_is_said_roughly(seconds: float, said: str) -> None:
    assert roughly(seconds) == said
