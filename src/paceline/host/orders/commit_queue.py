"""Versions that the store makes: one commit at a time, in the order of the orders. Whoever needs one waits for it.

Several hosts may make a range of each version. It is made once they all have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.items import Beginning, Update, Version
from paceline.core.orders import AdjustTraining, ApplyUpdate
from paceline.core.state_edits import StateEdit
from paceline.host import messages as host_messages
from paceline.host.events import Report, VersionCommitted, VersionNotFinite
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.hyperparameters import Hyperparameters, Scalars
from paceline.host.orders.pushes import Pushed, Pushes
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.range_maker import RangeMaker
from paceline.host.shards.sum_table import SumTable
from paceline.host.store_process import StoreProcess
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of

NEWEST = ("newest version",)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A commit that waits for its turn."""

    order: ApplyUpdate
    pushed: Pushed
    summed: Sequence[Update]
    """The updates that are in sums."""
    scalars: Scalars | None
    edits: Sequence[StateEdit]
    """Of the optimizer's state."""


class CommitQueue:
    """Carries out `ApplyUpdate` and `AdjustTraining`.

    The machine is ahead of the store: it orders versions that are not made yet.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        pushes: Pushes,
        report: Report,
        *,
        hyperparameters: Hyperparameters,
        versions: Versions,
        arrivals: Arrivals,
        sums: SumTable,
        brings: Callable[[int, Callable[[], object]], object],
        rests: Callable[[], bool],
    ) -> None:
        """`versions` are those of the head's host. `arrivals` knows all hosts that make ranges.

        `brings(version, then)` brings the ranges here that others make, then goes on. `rests()` is asked while no
        version is being made: whether the next one waits.
        """
        self.newest = 0
        self._shelf = shelf
        self.versions = versions
        """What there is of them on the head's host."""
        self._arrivals = arrivals
        self._sums = sums
        self._rests = rests
        self.brings = brings
        """See `__init__`."""
        self.clips_norms = False
        """Whether mean gradients are clipped by their norm, so that all norms are taken before any range is made."""
        self._norms: dict[str, messages.store.Norms] = {}
        """By host: the norms for its range of the version that is being made, if they are exchanged."""
        self._plan = plan
        self._store = store
        self._pushes = pushes
        self._report = report
        self._hyperparameters = hyperparameters
        self._orders: deque[_Ordered] = deque()
        self._committing: ApplyUpdate | None = None
        self._ranges: dict[str, messages.store.Committed | None] = {}
        """By host that makes a range of it, the head's first: what it has said of that. None: it makes it."""
        self._known_scalars: Scalars | None = None
        self._when_idle: Callable[[], object] | None = None

    def begin(self, version: int) -> None:
        """Training begins with that version, which is there or about to be."""
        self.newest = version
        place = self._shelf.put(Version(version), NEWEST, self._plan.shared)
        assert place == 0  # where all have mapped it
        self._maker.begins(version)
        self.versions.newest = version

    def goes_on_from(self, version: int, *, stored: bool) -> None:
        """The newest version is that one, which is there and was made otherwise. `stored`: commits go on from there."""
        self.newest = version
        if stored:
            self._shelf.claim(NEWEST, Version(version))
        self._maker.begins(version)
        self.versions.is_whole(Version(version))
        self.versions.made_anew(version)

    @property
    def _maker(self) -> RangeMaker:
        """Makes the range of the head's host."""
        assert self.versions.maker is not None
        return self.versions.maker

    @property
    def _has_place(self) -> bool:
        """Whether the next version has been begun early, in a place of its own."""
        return self.versions.early is not None and self.versions.early.has_place

    @property
    def making(self) -> int | None:
        """The version that is being made."""
        return None if self._committing is None else self._committing.version

    @property
    def idle(self) -> bool:
        """Whether all orders are done."""
        return not (self._orders or self._committing)

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call once all orders are done, and no range moves."""
        self._when_idle = call
        self.go_on()

    def another_part(self, *, clips_norms: bool) -> None:
        """Another part of the protocol decides from now on: the store's optimizer may have other hyperparameters."""
        self.clips_norms, self._known_scalars = clips_norms, None

    def carry_out(self, order: ApplyUpdate | AdjustTraining) -> None:
        """Have the store make that version, or have the versions ordered from now on made with these factors."""
        if isinstance(order, AdjustTraining):
            self._hyperparameters.adjust(order)
            return
        pushed, summed = self._sums.applied(self._pushes.applied(order))
        scalars, edits = self._hyperparameters.of(order), self._hyperparameters.edits(order)
        if not self._store.lost:
            self._orders.append(_Ordered(order, pushed, summed, scalars, edits))
            self.go_on()

    def adopted(self, worker: int) -> None:
        """The first version is what that worker has written from now on."""
        self._maker.uses(self._shelf.place(Beginning(worker)))
        self._shelf.replace(Version(0), Beginning(worker))
        self._shelf.claim(NEWEST, Version(0))  # what it was is needed by those only who compute on it

    def record(
        self,
        version: int,
        workers: Sequence[int],
        file: str,
        buffers: str,
        known: messages.store.WorkersTold = messages.store.UNTOLD,
    ) -> None:
        """Have that version, which is made, written with the buffers of these workers."""
        place = self._shelf.place(Version(version))
        waits = self.versions.away(Version(version))
        order = messages.store.Record(version, place, file, list(workers), buffers, waits, known)
        self._store.write(order, Version(version))
        if waits:
            self.brings(version, lambda: self._store.send(messages.store.GoOn(file)))

    def norms_taken(self, host: str, message: messages.store.Norms) -> bool:
        """That host has the norms for its range. Return whether it was to. All ranges are made once all have theirs."""
        order = self._committing
        if order is None or order.version != message.version or host not in self._ranges or host in self._norms:
            return False
        self._norms[host] = message
        if len(self._norms) < len(self._ranges):
            return True
        every = messages.store.Norms(order.version, sorted(norm for one in self._norms.values() for norm in one.norms))
        self._arrivals.make_with(every)
        return True

    def range_made(self, host: str, message: messages.store.Committed) -> bool:
        """That host has made its range of the version. Return whether it was told to."""
        order = self._committing
        if order is None or order.version != message.version or self._ranges.get(host, message) is not None:
            return False
        self._ranges[host] = message
        return True

    @property
    def lacking(self) -> Sequence[str]:
        """The hosts besides the head's that have not made their range of the version that is being made."""
        return [host for host, made in self._ranges.items() if made is None and host in self._arrivals.others]

    @property
    def whole(self) -> bool:
        """Whether all ranges of the version that is being made are made."""
        return self._committing is not None and None not in self._ranges.values()

    def made(self, at: float) -> int:
        """The version is made, since that moment. Return which one."""
        order, ranges = self._committing, [one for one in self._ranges.values() if one is not None]
        assert order is not None
        self.newest = order.version
        self._shelf.claim(NEWEST, Version(order.version))
        self._maker.free(order.version)
        self._report(VersionCommitted(order.version, sum(one.checksum for one in ranges) % (1 << 64), at))
        lost = [one.not_finite for one in ranges if one.not_finite is not None]
        if self.clips_norms:  # one worker's NaN spreads to ranges where its gradient has none
            lost.sort(key=lambda one: one[1] is None)
        found = next(iter(lost), None)
        if found is not None and self._sums.look:
            self._sums.look, found = False, self._sums.found or found
            self._report(VersionNotFinite(order, *found))
        for worker, step, _ in order.contributions:
            self._pushes.dropped(worker, step)
        self.versions.made(order.version)
        self._committing = None  # only now: what was told may ask to go on, and the next commit comes after all that
        self.go_on()
        return order.version

    def lost(self) -> None:
        """The store has gone: its orders will not be done."""
        self._orders.clear()
        self.versions.never()
        self._maker.lost()
        self._committing = None

    def go_on(self) -> None:
        """Begin the next commit, if none is under way."""
        if self._committing or self._rests():
            return
        if not self._orders:
            call, self._when_idle = self._when_idle, None
            if call is not None:
                call()
            return
        if self._shelf.free(self._plan.shared) is None and not self._has_place:
            return  # until a version is on disk: no worker's claim can be what it waits for
        ordered = self._orders.popleft()
        order = self._committing = ordered.order
        scalars = None if ordered.scalars == self._known_scalars else ordered.scalars
        self._known_scalars = ordered.scalars
        terms = [(fields_of(item), weight) for item, weight in ordered.pushed]
        exchanges = self.clips_norms and bool(self._arrivals.others)
        make = host_messages.MakeRange(order.version, terms, scalars, self._sums.look, exchanges, list(ordered.edits))
        self._ranges = dict.fromkeys(self._arrivals.hosts)
        self._norms.clear()
        self._arrivals.make(make, ordered.pushed, ordered.summed)
