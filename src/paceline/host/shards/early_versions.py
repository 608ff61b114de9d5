"""Versions that hosts begin before they are ordered: pieces are made of gradients as these come, and leave at once.

Each host expects by itself that the next version is made of the next gradients of the last one's workers, as the last
one was. It makes a piece of its own range once all of them have that piece, and brings what others make. The name of
such a version has a digest of what it is made of. So hosts need not agree: bytes of a name are the same on all of them,
and count if what is ordered has that digest. Else nothing has happened, but for some work and some bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import msgspec

from paceline.core.items import EarlyVersion, Update, Version
from paceline.core.rests import Rests
from paceline.core.shards import Shard, pieces
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.expected_round import ExpectedRound, Gradients
from paceline.host.orders.hyperparameters import Scalars
from paceline.host.orders.pushes import Pushed
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.byte_ranges import ByteRanges

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.host.shards.range_maker import RangeMaker
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager

NEEDED = 8
"""The last versions whose names are known. In rounds that wait for all nobody needs one before the last two."""


def made_early(number: int) -> Owner:
    """Who claims a version that was begun early, until it is known whether it counts.

    The store may still write there after that. What is there then is a version, which it writes later.
    """
    return "made early", number


def _brought_early(item: EarlyVersion) -> Owner:
    """Who has the ranges come that others make."""
    return "brought early", item.version, item.terms


@dataclass(slots=True, eq=False)
class BegunVersion:
    """A version that was begun early."""

    version: int
    number: int
    """The store's name for it."""
    terms: Sequence[tuple[Update, float]]
    lacking: list[tuple[int, int]]
    """Pieces of this host's range that the store was not told to make."""
    item: EarlyVersion | None = None
    """None: hyperparameters were not told so far."""
    scalars: Scalars | None = None
    """The hyperparameters, if they differ from the last version's."""
    place: int | None = None
    """None: there was none so far, or the version before is not made."""
    made: ByteRanges = field(default_factory=ByteRanges)


class EarlyOwner(Protocol):
    """The host that versions are begun on."""

    own: Container[int]
    """Its workers, whose updates are here."""

    @property
    def makes_early(self) -> bool:
        """Whether versions may be begun early: the protocol and the model are such."""

    @property
    def offer(self) -> messages.worker.Offered:
        """The model."""

    def coverage(self, update: Update) -> ByteRanges:
        """What there is of an update that a worker here computes."""


class EarlyVersions:
    """Begins one version at a time. See the module."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        maker: RangeMaker,
        carrier: TransferManager | None,
        owner: EarlyOwner,
        shard: Callable[[], Shard],
    ) -> None:
        """`shard()`: this host's range."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._maker = maker
        self._carrier = carrier
        self._owner = owner
        self._shard = shard
        self._round = ExpectedRound(self._begin, self._drop)
        self._number = -1
        """The number of what was begun last."""
        self._counted: BegunVersion | None = None
        """What was ordered last of that."""
        self._came: dict[Update, ByteRanges] = {}
        """What there is of updates that other hosts' workers compute."""
        self._names: dict[int, EarlyVersion] = {}
        """By version that was ordered: its name, had it been begun early."""
        self._comes_as: dict[int, EarlyVersion] = {}
        """By version that counts and was begun early here: its name, by which others' ranges come."""
        self._ordered = -1
        """The version that was ordered last."""
        self._known: Scalars | None = None
        """The hyperparameters of the last version."""
        self._told: dict[int, tuple[int, Scalars, bool]] = {}
        """By worker of this host: the last step of which it has told hyperparameters, these, and whether it has told
        the same before. The run may scale them."""
        self._look = False
        """Whether NaN and infinity were looked for in that."""
        self._rests = Rests()
        """Of beginning versions, as others are ordered of the same gradients."""

    # --- what is computed -----------------------------------------------------------------------------

    def computes(self, update: Update) -> None:
        """A worker computes that update. What there is of it comes here, if it is another host's."""
        if not self._owner.makes_early:
            return
        if update.worker not in self._owner.own:
            self._came[update] = ByteRanges()
        self._round.computes(update.worker, update.step)
        self.go_on()

    def came(self, update: Update, begin: int, end: int) -> None:
        """These bytes of another host's update have come."""
        if (there := self._came.get(update)) is not None:
            there.add(begin, end)
            self.there_is_more(begin, end)

    def there_is_more(self, begin: int, end: int) -> None:
        """These bytes of some update are here. Those behind the parameters belong to all pieces."""
        if self._round.begun is not None:
            self.go_on(*((begin, end) if end <= self._owner.offer.cuts[-1] else (0, sys.maxsize)))

    def has_scalars(self, update: Update, scalars: Scalars) -> None:
        """A worker of this host computes the update with these hyperparameters."""
        _, before, _ = self._told.get(update.worker, (-1, None, False))
        self._told[update.worker] = update.step, scalars, scalars == before

    def dropped(self, update: Update) -> None:
        """No version will have that update, or not as it was told of."""
        self._came.pop(update, None)
        self._round.withdrawn(update.worker, update.step)

    def forget(self) -> None:
        """Another part of the protocol decides."""
        self._round.forget()
        self._came.clear()

    def go_on(self, begin: int = 0, end: int = sys.maxsize) -> None:
        """Make what can be made of these bytes, once the version before is made."""
        begun = self._round.begun
        if begun is None or not self._maker.idle or not self._is_laid(begun):
            return
        assert begun.place is not None
        for piece in [one for one in begun.lacking if one[0] < end and begin < one[1] and self._is_there(begun, one)]:
            begun.lacking.remove(piece)
            order = messages.store.MakeEarly(
                number=begun.number,
                source=self._shelf.place(Version(begun.version - 1)),
                target=begun.place,
                pushed=[(self._plan.area(self._shelf.place(update)), weight) for update, weight in begun.terms],
                scalars=begun.scalars,
                begin=piece[0],
                end=piece[1],
                look=self._look,
                first=self._maker.takes(begun.place),
            )
            self._store.send(order)

    # --- what is ordered ------------------------------------------------------------------------------

    def ordered(self, order: host_messages.MakeRange, pushed: Pushed) -> BegunVersion | None:
        """That version is ordered. Return it if it was begun. What else was begun counts for nothing.

        What is made of sums, or with norms or edits, is never begun early.
        """
        terms = [(one, weight) for one, weight in pushed if isinstance(one, Update)]
        if order.exchanges or order.edits or len(terms) < len(pushed):
            terms = []
        begun = self._round.begun_of((update.worker, update.step, weight) for update, weight in terms)
        for update, _ in terms:
            self._came.pop(update, None)
        name = _name(order.version, terms, order.scalars, look=order.look)
        self._ordered, self._look = order.version, order.look
        self._known = self._known if order.scalars is None else order.scalars
        for names in (self._names, self._comes_as):
            for version in [one for one in names if one <= order.version - NEEDED]:
                del names[version]
        self._names[order.version] = name
        if begun is not None and begun.item == name and begun.place is not None:
            self._shelf.rename(name, Version(order.version))
            self._rests.end()
            if self._needs_others(begun):
                self._comes_as[order.version] = name
            self._counted = begun
            return begun
        if begun is not None:
            if begun.item not in (None, name):
                self._rests.begin()
            self._drop(begun)
        self._shelf.pass_on(name, Version(order.version))  # other hosts may have asked for it by that name
        return None

    def counts(self, begun: BegunVersion) -> None:
        """The version that was ordered is the one that was begun, and the rest of it is about to be made."""
        if (item := self._comes_as.get(begun.version)) is not None:
            self._carries.fetch(item, _brought_early(item), lambda: None, lambda why: None)
        self._shelf.release(made_early(begun.number))

    def heard(self, message: messages.store.MadeEarly) -> bool:
        """The store has made a piece, or can't do so early. Return whether it was told to. It may count no more."""
        for begun in (self._round.begun, self._counted):
            if begun is not None and begun.number == message.number and message.made:
                assert begun.item is not None
                begun.made.add(message.begin, message.end)
                self._carries.made(begun.item)
                self._carries.made(Version(begun.version))
        return message.number <= self._number

    @property
    def has_place(self) -> bool:
        """Whether the version that is likely to be ordered next has a place."""
        return self._round.begun is not None and self._round.begun.place is not None

    # --- see `Versions` -------------------------------------------------------------------------------

    def comes_as(self, version: Version) -> Version | EarlyVersion:
        """The name by which other hosts' ranges of that version come here."""
        return self._comes_as.get(version.version, version)

    def named(self, version: int) -> EarlyVersion | None:
        """The name of that version, had it been begun early, if it is one of the last that were ordered."""
        return self._names.get(version)

    def meant(self, item: EarlyVersion) -> Version | EarlyVersion:
        """What lies here by that name, or is going to."""
        return Version(item.version) if self._names.get(item.version) == item else item

    def look(self, item: EarlyVersion, begin: int, end: int) -> Where:
        """Where these bytes are of a version that is not ordered so, or not yet."""
        if item.version <= self._ordered:
            return "gone"
        begun = self._round.begun
        return "here" if begun is not None and begun.item == item and begun.made.has(begin, end) else "coming"

    # --- inside ---------------------------------------------------------------------------------------

    @property
    def _carries(self) -> TransferManager:
        assert self._carrier is not None  # else no version is begun early
        return self._carrier

    def _begin(self, gradients: Gradients) -> BegunVersion | None:
        """All compute. Begin the version of these."""
        if self._rests:
            self._rests.pass_step()
            return None
        terms = [(Update(worker, step), weight) for worker, (step, weight) in gradients.items()]
        own = [(begin, end) for _, begin, end in pieces(self._owner.offer.cuts, [self._shard()])]
        self._number += 1
        return BegunVersion(self._ordered + 1, self._number, terms, own)

    def _is_laid(self, begun: BegunVersion) -> bool:
        """Whether there is a place for it. Others' ranges come there from then on."""
        if begun.place is None and self._is_named(begun):
            assert begun.item is not None
            begun.place = self._shelf.put(begun.item, made_early(begun.number), self._plan.shared)
            if begun.place is not None and self._needs_others(begun):
                self._carries.expect(begun.item, _brought_early(begun.item))
        return begun.place is not None

    def _is_named(self, begun: BegunVersion) -> bool:
        """Whether it is known what it is made of. Hyperparameters are likely to be those of a worker of this host.

        A host without one expects that they have not changed.
        """
        for update in self._own(begun):
            step, told, same = self._told.get(update.worker, (-1, None, False))
            if step != update.step:
                return False
            begun.scalars = None if same or told == self._known else told
        begun.item = _name(begun.version, begun.terms, begun.scalars, look=self._look)
        return True

    def _own(self, begun: BegunVersion) -> list[Update]:
        """Those of its terms that workers of this host compute."""
        return [update for update, _ in begun.terms if update.worker in self._owner.own]

    def _needs_others(self, begun: BegunVersion) -> bool:
        """Whether a worker here is going to compute on all of it."""
        return bool(self._own(begun))

    def _is_there(self, begun: BegunVersion, piece: tuple[int, int]) -> bool:
        """Whether all gradients have that piece, and it is known which parameters have one."""
        offer = self._owner.offer
        flags = offer.cuts[-1], offer.cuts[-1] + offer.flags_bytes
        for update, _ in begun.terms:
            there = self._came.get(update)
            if update.worker in self._owner.own:
                there = self._owner.coverage(update)
            if there is None or not (there.has(*piece) and there.has(*flags) and self._shelf.has(update)):
                return False
        return True

    def _drop(self, begun: BegunVersion) -> None:
        """It is not going to be ordered, or has changed."""
        if begun.place is not None and begun.item is not None:
            self._carries.cancel(_brought_early(begun.item))
            self._carries.never(begun.item, f"{begun.item} is not made")
            self._shelf.release(made_early(begun.number))


def _name(version: int, terms: Sequence[tuple[Update, float]], scalars: Scalars | None, *, look: bool) -> EarlyVersion:
    """Return the name of the version that is made of these, with hyperparameters that have changed so."""
    of = [[update.worker, update.step, weight] for update, weight in terms]
    return EarlyVersion(version, blake2b(msgspec.msgpack.encode([of, scalars, look]), digest_size=16).hexdigest())
