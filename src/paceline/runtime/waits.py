"""Waits that have lasted: who waits, for what, and what those do whom it may be for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.runtime.member import Member


class WaitReports:
    """Makes the lines; each wait comes up again when it has lasted twice as long."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that a wait may last without a word."""
        self._limit = limit
        self._next: dict[tuple[int, float], float] = {}
        """When a wait, by worker and beginning, is due again."""

    def lines(self, members: Iterable[Member], besides: str | None, now: float) -> list[str]:
        """What is to be said now. `besides` is what the run itself is busy with."""
        members = list(members)
        busy = [member for member in members if member.waits is None and member.here]
        doing = [member.doing(now) for member in busy] + ([besides] if besides else [])
        due = [member for member in members if member.waits is not None and self._due(member, now)]
        return [
            f"{who} waited for {now - first.since:.0f} s: " + "; ".join([first.waits or "", *doing])
            for who, first in _together(due)
        ]

    def _due(self, member: Member, now: float) -> bool:
        key, waited = (member.worker, member.since), now - member.since
        if waited < self._limit or now < self._next.get(key, now):
            return False
        self._next[key] = now + waited
        return True


def _together(members: Iterable[Member]) -> Iterator[tuple[str, Member]]:
    """Who waits, and of those the first. Workers whose scripts have not begun wait for the same: one line for them."""
    starting = []
    for member in members:
        if member.stage == "starting":
            starting.append(member)
        else:
            yield f"worker {member.worker} has", member
    if starting:
        names = ", ".join(str(member.worker) for member in starting)
        yield (f"workers {names} have" if len(starting) > 1 else f"worker {names} has"), starting[0]
