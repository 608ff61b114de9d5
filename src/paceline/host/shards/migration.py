"""Ranges of versions that move from a host that leaves in good order to the one beside it, between two versions.

    the head                          the host that leaves      the host that takes over
    no version is being made
    ── PackState ──────────────────►  its share of the state
    ◄───────────────── StatePacked ──
    ── TakeRange ───────────────────────────────────────────►   fetches the share, and all that it lacks of versions
    ◄──────────────────────────────────────────── RangeTaken ── and updates: see `Taking`
    ── Shards, to all ─────────────►  and goes
    the next version is made

The host that takes over may be the head's own, which is told so by a call. Nothing is undone: the next version is made
of the same as without that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.items import Item, Sum, Update, Version
from paceline.core.shards import Shard, heir, taken_over
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.events import Attached
from paceline.transfer.item_names import fields_of

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster
    from paceline.host.remote_host import HostDirectory
    from paceline.host.shards.arrivals import Arrivals
    from paceline.transfer.manager import TransferManager

MOVING = ("moving range",)
"""Who claims all versions at the head, while the range of each of them moves."""


def _taken(item: Item) -> Owner:
    """Who fetches the item."""
    return "taken over", *item


@dataclass(slots=True)
class Taking:
    """Brings what this host lacks before it can make another one's range as well."""

    source: Shard
    """That host, and its range."""
    arrived: dict[Update | Sum, None]
    """Updates and sums from elsewhere that all hosts have their ranges of. That host has its own, until it goes."""
    had: Container[Update | Sum]
    """Those of which this host has its own range. That was noted, and how the rest comes is not."""
    carrier: TransferManager
    then: Callable[[], object]
    """Called once all is here."""
    lost: Callable[[str], object]
    """Called if something can't come that a version needs."""
    _lacking: dict[Item, None] = field(default_factory=dict)

    def begin(self, items: Sequence[Item], coming: Mapping[Update | Sum, Callable[[], object]]) -> None:
        """Bring these items, and what has arrived. Bring the wider range of what is coming, and then call this each.

        What is coming may be dropped before it is here, and nothing is lost if it does not come: it is dropped then.
        """
        items = [*items, *self.arrived]
        self._lacking = dict.fromkeys([*items, *coming])
        for item in items:
            self.carrier.fetch(item, _taken(item), partial(self._came, item), self.lost)
        for item, stored in coming.items():
            self.carrier.fetch(item, _taken(item), partial(self._stored, item, stored), None)
        if not (items or coming):
            self.then()

    def drop(self, item: Update | Sum) -> None:
        """No version will have that, which may be on its way. Call this while it has its place."""
        if item in self._lacking:
            self.carrier.cancel(_taken(item))
            self._came(item)

    def _stored(self, item: Update | Sum, stored: Callable[[], object]) -> None:
        stored()
        self._came(item)

    def _came(self, item: Item) -> None:
        del self._lacking[item]
        if not self._lacking:
            self.then()


Moved = Callable[[Sequence[Shard], int], object]
"""Told who makes versions from then on, and the last version before."""


@dataclass(slots=True)
class _Move:
    """A range that is to move, or moves."""

    host: str
    """Whose it is."""
    done: Moved
    by: str = ""
    """Who takes it over, once it moves."""
    number: int = 0
    """What the share is asked for by."""


class Moves:
    """The head's end: one range at a time moves, while no version is being made."""

    def __init__(
        self,
        head: Cluster,
        arrivals: Arrivals,
        directory: HostDirectory | None,
        *,
        on_moved: Callable[[Sequence[Shard], str], object],
    ) -> None:
        """`directory`: None if there are no other hosts.

        `on_moved(shards, left)` is told who makes versions from now on, and whose range has moved.
        """
        self._head = head
        self._directory = directory
        self._on_moved = on_moved
        self._arrivals = arrivals
        self._wanted: deque[_Move] = deque()
        self._now: _Move | None = None

    def move(self, host: str, done: Moved) -> None:
        """Have that host's range moved between two versions. Its workers have left, and all of their updates that count
        have arrived.
        """
        self._wanted.append(_Move(host, done))
        self._head.commits.go_on()

    @property
    def busy_with(self) -> str | None:
        """What the run waits for, if a range moves."""
        now = self._now
        return None if now is None else f"the store is moving the range of host {now.host} to host {now.by}"

    def rests(self) -> bool:
        """Whether the next version is to wait. No version is being made: a range may begin to move."""
        if self._now is None and self._wanted and self._head.may_move:
            self._now = self._wanted.popleft()
            self._begin(self._now)
        return self._now is not None

    def lost(self, host: str) -> None:
        """That host takes no part any more. If its range was moving, the run ends."""
        self._wanted = deque(one for one in self._wanted if one.host != host)

    # --- what is said of it -------------------------------------------------------------------------

    def awaits(self, host: str, number: int) -> bool:
        """Whether that share of the host is what moves with its range."""
        return self._now is not None and (self._now.host, self._now.number) == (host, number)

    def goes_on(self, error: str | None, state: Attached | None) -> None:
        """The share lies at its host, or can't be packed."""
        move = self._now
        assert move is not None
        if error is not None or state is None:
            self._head.loses(f"host {move.host} leaves, and its range can't move: {error}")
        else:
            self._head.shares.when_idle(partial(self._hand_over, move, state))

    def taken(self, host: str) -> bool:
        """That host has taken the range over. Return whether it was to."""
        if self._now is None or self._now.by != host:
            return False
        self._is_taken()
        return True

    # --- inside -------------------------------------------------------------------------------------

    def _begin(self, move: _Move) -> None:
        head = self._head
        assert self._directory is not None
        move.by = heir(head.shards, move.host, head.name, self._directory.leaving)
        move.number = head.shares.number()
        head.shelf.claim(MOVING, *self._versions())
        head.moves(True)
        self._directory.range_moves(move.host, move.by)
        self._arrivals.at(move.host).pack_state(move.number)

    def _is_taken(self) -> None:
        move, head = self._now, self._head
        assert move is not None
        self._now = None
        shards = taken_over(head.shards, move.host, move.by)
        head.recut(shards)
        self._on_moved(shards, move.host)
        head.shelf.release(MOVING)
        head.moves(False)
        move.done(shards, head.newest)
        head.commits.go_on()

    def _hand_over(self, move: _Move, state: Attached) -> None:
        """Have it taken over."""
        arrived = [fields_of(item) for item in self._arrivals.leaves(move.host)]
        versions = [version.version for version in self._versions()]
        begin, end = self._range_of(move.host)
        self._arrivals.at(move.by).take(host_messages.TakeRange(move.host, begin, end, versions, arrived, state))

    def _versions(self) -> list[Version]:
        """Those that are needed somewhere."""
        claims = self._head.shelf.claims()
        return sorted({item for _, item, place in claims if isinstance(item, Version) and place is not None})

    def _range_of(self, host: str) -> tuple[int, int]:
        return next((begin, end) for name, begin, end in self._head.shards if name == host)
