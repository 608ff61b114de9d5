"""A time of grace: how long a round that has enough stays open for what is nearly there.

Protocols whose versions wait for a quorum share this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from paceline.core.facts import AlarmRang
from paceline.core.orders import SetAlarm
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import Roster

Seconds = float | Literal["auto"]

REASONS = {
    "grace": "version {0} has enough ({1}), and takes in what comes within {2:.3g} s",
    "grace-open": "version {0} has enough, and takes in what comes in time from {1:workers}",
}
"""Sentences of the reasons of a time of grace."""


def automatic(took: float, enough: int) -> float:
    """Return the seconds of grace under `auto`, for a round that got so many in that time.

    It is the time for each of them. So one more that comes by then leaves the number per second as it was, or raises
    it.

    >>> automatic(1.5, enough=3)
    0.5
    """
    return took / enough


@dataclass(slots=True)
class Grace:
    """The open round's time of grace. The alarm that ends it has the number of the version that the round makes."""

    began: float = 0.0
    """When the round began."""
    state: Literal["before", "now", "over"] = "before"

    def begin_round(self, at: float) -> None:
        """A round begins at that time."""
        self.began, self.state = at, "before"

    def begin(self, roster: Roster, version: int, got: int, seconds: Seconds, enough: int, at: float) -> SetAlarm:
        """Return the order that sets the alarm, as the round has got enough for that version."""
        self.state = "now"
        lasts = automatic(at - self.began, enough) if seconds == "auto" else seconds
        return roster.set_alarm(version, lasts, ("grace", version, got, lasts))

    def rang(self, fact: AlarmRang, version: int) -> bool:
        """Return whether this alarm ends it, in the round that makes that version. If not, its round is closed."""
        if fact.number == version:
            self.state = "over"
        return fact.number == version

    def why(self, version: int, awaited: Collection[int]) -> Why:
        """Why workers wait meanwhile."""
        return ("grace-open", version, awaited_of(awaited))


def fits(state: Grace, roster: Roster, version: int, *, enough: bool) -> bool:
    """Whether it is now just if that version's round, which is open, has enough, and its alarm is set."""
    return enough == (state.state == "now") == (version in roster.alarms) and state.state != "over"
