"""Which hosts take part, and which are lost: the head's judgement, and each host's of itself. Pure.

The head and the hosts use the same timeout. The head ends a host that it has not heard for so long. A host ends its own
workers once no beat that it sent in that time was acknowledged. So a host ends its workers before the head gives it up,
whatever their clocks say. Safety doesn't depend on time, but on incarnations: the head gives each a new number, and an
incarnation that has ended never comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["expected", "gathered", "member", "left"]
"""`expected`: has not come yet. `gathered`: has come, and takes no part yet. `member`: takes part. `left`: has taken
part, and may come again."""

AT_ONCE = 0.1
"""The most time that counts as silence between two calls, as a part of the timeout. If they are further apart, the head
itself was late, and the rest is held against no host."""
GRACE = 0.2
"""The time that a host has to connect again, as a part of the timeout. A host whose process has died doesn't."""
UNREACHABLE = 1.2
"""The time that two hosts have to reach each other again, in timeouts. A lost host is found before."""


def is_taken(name: str, why: str) -> bool:
    """Return whether a host was refused because the head or a member has its name."""
    return why in (_taken(name), _head_is(name))


def _taken(name: str) -> str:
    return f"a host named {name} takes part already; give this one another with --name"


def _head_is(name: str) -> str:
    return f"the head is named {name}; give this host another with --name"


@dataclass(frozen=True, slots=True)
class Admit:
    """Admit the host as this incarnation."""

    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class RefuseHost:
    """Don't admit the host."""

    host: str
    why: str


@dataclass(frozen=True, slots=True)
class EndHost:
    """End this incarnation: exchange nothing more with it."""

    host: str
    incarnation: int
    why: str


Order = Admit | RefuseHost | EndHost


@dataclass(slots=True)
class _Host:
    """One host's state."""

    host: str
    stage: Stage = "expected"
    incarnation: int = 0
    """Its last incarnation."""
    number: int = 0
    """Its number among the hosts, once the run has begun. The head has 0."""
    exchanges: bool = False
    """Whether it exchanges data with other hosts than the head: it has a shard, or replicas that are averaged."""
    heard: float = 0.0
    """When the head last heard from it, in seconds that the head has listened."""
    lost: float | None = None
    """When its connection was lost, in the same seconds, or `crowded` came; None: it is connected."""

    @property
    def here(self) -> bool:
        """Whether its incarnation is alive."""
        return self.stage in ("gathered", "member")


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two incarnations that can't reach each other, as the first one says."""

    one: tuple[str, int]
    other: tuple[str, int]
    since: float


@dataclass(slots=True)
class Hosts:
    """The hosts besides the head, as the head sees them.

    Call `tick`, which judges, by `due()`, after telling all that has been received.
    """

    head: str
    wanted: int
    """The most hosts that take part besides the head."""
    names: tuple[str, ...] = ()
    """Their names, if known."""
    timeout: float = 15.0
    _hosts: dict[str, _Host] = field(default_factory=dict, init=False)
    _pairs: dict[frozenset[str], _Pair] = field(default_factory=dict, init=False)
    _begun: bool = field(default=False, init=False)
    _now: float | None = field(default=None, init=False)
    _listened: float = field(default=0.0, init=False)
    """Seconds that the head has listened."""

    def __post_init__(self) -> None:
        assert not self.names or len(self.names) == self.wanted, "as many names as hosts"
        self._hosts |= {name: _Host(name) for name in self.names}

    # --- what happens -------------------------------------------------------------------------------

    def came(self, host: str, now: float) -> list[Order]:
        """A new process with this host's name asks to take part."""
        self._listen(now)
        orders: list[Order] = []
        one = self._hosts.get(host)
        if one is not None and one.here:
            if one.lost is None and self._listened - one.heard <= 2 * GRACE * self.timeout:
                return [RefuseHost(host, _taken(host))]
            orders += self._ends(one, "it has come again")
        if why := self._why_not(host):
            return [*orders, RefuseHost(host, why)]
        one = self._hosts.setdefault(host, _Host(host))
        one.stage, one.incarnation, one.heard, one.lost = "gathered", one.incarnation + 1, self._listened, None
        if self._begun and not one.number:
            one.number = 1 + max(other.number for other in self._hosts.values())
        orders.append(Admit(host, one.incarnation))
        return orders

    def connected(self, host: str, incarnation: int, now: float) -> None:
        """The host is connected."""
        self._listen(now)
        if (one := self._living(host, incarnation)) is not None:
            one.lost = None

    def disconnected(self, host: str, incarnation: int, now: float) -> None:
        """The connection was lost. The host may come back over another one."""
        self._listen(now)
        if (one := self._living(host, incarnation)) is not None and one.lost is None:
            one.lost = self._listened

    def crowded(self, now: float) -> None:
        """A dialler from a host's network was turned away. It may have been a lost host, so their time begins anew."""
        self._listen(now)
        for one in self._hosts.values():
            one.lost = None if one.lost is None else self._listened

    def heard(self, host: str, incarnation: int, now: float) -> None:
        """Bytes have come from the host."""
        self._listen(now)
        if (one := self._living(host, incarnation)) is not None:
            one.heard = self._listened

    def begins(self, now: float) -> tuple[str, ...]:
        """The run begins with all hosts that are here. Return them in the order of their numbers."""
        self._listen(now)
        self._begun = True
        for number, host in enumerate(sorted(self.here()), 1):
            self._hosts[host].number, self._hosts[host].stage = number, "member"
        return tuple(sorted(self.here()))

    def joins(self, host: str, incarnation: int) -> None:
        """A host that came while others train takes part from now on."""
        if (one := self._living(host, incarnation)) is not None:
            one.stage = "member"

    def exchanges(self, host: str, incarnation: int) -> None:
        """The host exchanges data with others than the head: it has a shard, or replicas that are averaged."""
        if (one := self._living(host, incarnation)) is not None:
            one.exchanges = True

    def leaves(self, host: str, incarnation: int, why: str) -> list[Order]:
        """The host has left in good order, or nothing more can be exchanged with it."""
        one = self._living(host, incarnation)
        return [] if one is None else self._ends(one, why)

    def unreachable(self, one: tuple[str, int], other: tuple[str, int], now: float) -> None:
        """The first of these (host, incarnation) can't reach the second, and goes on trying.

        This doesn't matter as long as no data moves between them.
        """
        self._listen(now)
        if self._reports(one) and self._reports(other):
            self._pairs.setdefault(frozenset((one[0], other[0])), _Pair(one, other, self._listened))

    def reached(self, one: str, other: str) -> None:
        """These two hosts reach each other again."""
        self._pairs.pop(frozenset((one, other)), None)

    def tick(self, now: float) -> list[Order]:
        """Find the hosts that are lost, after all that has been received was told."""
        self._listen(now)
        orders: list[Order] = []
        for one in list(self._hosts.values()):
            silent = self._listened - one.heard
            if one.here and silent > self.timeout:
                orders += self._ends(one, f"silent for {silent:.1f} s")
            elif one.here and one.lost is not None and self._listened - one.lost > GRACE * self.timeout:
                orders += self._ends(one, "its connection was lost, and it has not come back")
        for pair in list(self._pairs.values()):
            if pair not in self._pairs.values() or not self._need_each_other(pair):
                continue
            if self._listened - pair.since > UNREACHABLE * self.timeout:
                lost = self._less_needed(pair)
                kept = pair.one[0] if pair.one[0] != lost.host else pair.other[0]
                orders += self._ends(lost, f"it and host {kept} can't reach each other")
        return orders

    def due(self) -> float | None:
        """Return the latest time for the next `tick`. None: there is no host to judge."""
        if self._now is None or not any(one.here for one in self._hosts.values()):
            return None
        return self._now + AT_ONCE * self.timeout

    # --- who is where -------------------------------------------------------------------------------

    def here(self) -> dict[str, int]:
        """Return the living incarnations, by host."""
        return {host: one.incarnation for host, one in self._hosts.items() if one.here}

    def lives(self, host: str, incarnation: int) -> bool:
        """Return whether this incarnation of the host is alive."""
        return self._living(host, incarnation) is not None

    def members(self) -> dict[str, int]:
        """Return the incarnations that take part, by host, in the order of their numbers."""
        members = [one for one in self._hosts.values() if one.stage == "member"]
        return {one.host: one.incarnation for one in sorted(members, key=lambda one: one.number)}

    def stage(self, host: str) -> Stage:
        """Return the host's stage."""
        return self._hosts[host].stage

    def number(self, host: str) -> int:
        """Return the host's number."""
        return self._hosts[host].number

    @property
    def missing(self) -> int:
        """The number of hosts that are still to come."""
        return max(0, self.wanted - len(self.here()))

    # --- inside -------------------------------------------------------------------------------------

    def _listen(self, now: float) -> None:
        """Advance the time. The head has listened for all of it, unless its loop was late."""
        if self._now is not None:
            self._listened += min(max(0.0, now - self._now), AT_ONCE * self.timeout)
        self._now = now if self._now is None else max(now, self._now)

    def _living(self, host: str, incarnation: int) -> _Host | None:
        one = self._hosts.get(host)
        return one if one is not None and one.here and one.incarnation == incarnation else None

    def _why_not(self, host: str) -> str | None:
        if host == self.head:
            return _head_is(host)
        if self.names and host not in self.names:
            return f"this run's hosts are {', '.join(self.names)}"
        return None if self.missing else f"this run has all of its {self.wanted + 1} hosts"

    def _ends(self, one: _Host, why: str) -> list[Order]:
        one.stage = "left" if self._begun else "expected"
        one.exchanges = False
        self._pairs = {names: pair for names, pair in self._pairs.items() if one.host not in names}
        return [EndHost(one.host, one.incarnation, why)]

    def _reports(self, end: tuple[str, int]) -> bool:
        return end[0] == self.head or self._living(*end) is not None

    def _need_each_other(self, pair: _Pair) -> bool:
        """Return whether data moves between these two: one is the head, or exchanges data."""
        two = pair.one[0], pair.other[0]
        return self.head in two or any(self._hosts[host].exchanges for host in two)

    def _less_needed(self, pair: _Pair) -> _Host:
        """Return the host to end: one without exchanges, and then the one with the higher number. Never the head."""
        two: Iterable[_Host] = (self._hosts[host] for host, _ in (pair.one, pair.other) if host != self.head)
        return max(two, key=lambda one: (not one.exchanges, one.number, one.host))


@dataclass(slots=True)
class Fence:
    """A host's judgement of itself, by a clock that runs while the machine sleeps."""

    timeout: float = 15.0
    over: bool = field(default=False, init=False)
    """Whether this incarnation is over, so that its workers have to end."""
    _sent: float | None = field(default=None, init=False)
    """When the last beat that was acknowledged was sent."""

    def acknowledged(self, sent: float) -> None:
        """The head has heard a beat that was sent at that time."""
        self._sent = sent if self._sent is None else max(sent, self._sent)

    def tick(self, now: float) -> bool:
        """Return whether the workers have to end. This is true once."""
        if self.over or self._sent is None or now < self._sent + self.timeout:
            return False
        self.over = True
        return True

    def due(self) -> float | None:
        """Return when `tick` will be true, unless a beat is acknowledged before."""
        return None if self.over or self._sent is None else self._sent + self.timeout
