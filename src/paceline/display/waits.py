"""Reports of long waits: which workers wait, for what, and what the other workers do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from paceline.coordinator.member import Member
from paceline.core.phrases import MOST, workers_named
from paceline.core.reasons import sentence


class WaitReports:
    """Makes the reports. A wait is reported again when it has lasted twice as long."""

    def __init__(self, limit: float, hosts: Mapping[int, str], reasons: Mapping[str, str]) -> None:
        """`limit`: seconds that a wait may last unreported. `hosts`: by worker, if there are several.

        `reasons`: the sentences of why workers wait, by code.
        """
        self._limit = limit
        self._hosts = hosts
        self._reasons = reasons
        self._next: dict[tuple[int, float], float] = {}
        """By worker and beginning of a wait: when it is reported next."""

    def lines(self, members: Iterable[Member], besides: str | None, now: float) -> list[str]:
        """Return the lines that are due now. `besides`: what the run itself is doing."""
        members = list(members)
        due = _together([member for member in members if member.waits is not None and self._due(member, now)])
        if not due:
            return []
        busy = [member for member in members if member.waits is None and member.here]
        here = {member.worker: self._hosts[member.worker] for member in members if self._hosts and member.here}
        doing = [*_doing(busy, now), *_whole_hosts(busy, here), *([besides] if besides else [])]
        lines = [f"{_waited(group, now)}: " + "; ".join([self._why(group[0]), *doing]) for group in due[:MOST]]
        if rest := [member for group in due[MOST:] for member in group]:
            lines.append(f"{_waited(rest, now)}, too, for other reasons")
        return lines

    def _why(self, member: Member) -> str:
        assert member.waits is not None
        return sentence(member.waits, self._reasons)

    def _due(self, member: Member, now: float) -> bool:
        key, waited = (member.worker, member.since), now - member.since
        if waited < self._limit or now < self._next.get(key, now):
            return False
        self._next[key] = now + waited
        return True


def _together(due: Sequence[Member]) -> list[list[Member]]:
    """Group workers into lines: those whose scripts have not begun, and, of many, those that wait for the same.

    Few workers get a line each, with how long each has waited.
    """
    groups: dict[object, list[Member]] = {}
    for member in due:
        shared = member.stage == "starting" or len(due) > MOST
        groups.setdefault(member.waits if shared else member.worker, []).append(member)
    return list(groups.values())


def _waited(group: Sequence[Member], now: float) -> str:
    shortest, longest = (f"{now - since:.0f}" for since in (max(m.since for m in group), min(m.since for m in group)))
    has = "has" if len(group) == 1 else "have"
    more = "" if shortest == longest else " or more"
    return f"{workers_named(member.worker for member in group)} {has} waited for {shortest} s{more}"


def _whole_hosts(busy: Sequence[Member], here: Mapping[int, str]) -> Iterator[str]:
    """Yield a clause for each host without waiting workers, if others have some. `here`: host by present worker."""
    waiting = {here[worker] for worker in here.keys() - {member.worker for member in busy}}
    for host in sorted(set(here.values()) - waiting) if waiting else ():
        yield f"no worker of host {host} waits"


def _doing(busy: Sequence[Member], now: float) -> list[str]:
    """Say what each worker is doing. Of many, name those that were silent for longest."""
    first = sorted(sorted(busy, key=lambda member: member.heard)[:MOST], key=lambda member: member.worker)
    rest = len(busy) - len(first)
    return [
        *(member.doing(now) for member in first),
        *([f"{rest} other worker{' was' if rest == 1 else 's were'} heard of since then"] if rest else []),
    ]
