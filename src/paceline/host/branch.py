"""A host whose versions another host's store makes: its workers, and what of versions and updates lies here."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial

from paceline.core.items import Blob, Item, Update, Version
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.fabric.memory import Region
from paceline.host import messages
from paceline.host.contract import WorkersNews
from paceline.host.fetch import Local
from paceline.host.plan import Plan
from paceline.host.pulls import Pulls
from paceline.host.pushes import Pushes
from paceline.host.releases import Releases, look_of, step_of
from paceline.host.seat import Seat, Seats
from paceline.host.shelf import Owner, Shelf
from paceline.host.versions import Elsewhere
from paceline.host.wire import FIXED, Carrier, Wire
from paceline.host.workers import Workers

BEGINNING = ("version that training begins with",)


def _arriving(version: Version) -> Owner:
    """Who claims the place that a version is brought to."""
    return "arriving", version.version


class Branch:
    """Carries out orders about its workers. The head's host has the store, and fetches their updates from here."""

    def __init__(
        self,
        plan: Plan,
        spec: Spec,
        workers: Workers,
        carrier: Carrier,
        news: WorkersNews,
        *,
        now: Callable[[], float],
    ) -> None:
        """`now()` is seconds since the run's start."""
        self.shelf = Shelf()
        self.versions = Elsewhere()
        self.region: Region | None = None
        self._plan = plan
        self._spec = spec
        self._workers = workers
        self._carrier = carrier
        self._news = news
        self._offer: messages.Offered | None = None
        self._later: list[Callable[[], None]] | None = None
        """What is to be done once training's beginning is here, in order. None: it is not on its way."""
        self._contributed: dict[int, list[tuple[int, int]]] = {}
        """By version that is ordered: the updates from here that it will have."""
        self._seats = seats = Seats((worker, Seat(worker)) for worker in workers.numbers)
        fetcher = Wire(
            Local(now, news.happened), carrier, now, news.happened, away=self._away, room=self._room, came=self._came
        )
        self.pushes = Pushes(self.shelf, plan, fetcher, seats)
        self.pulls = Pulls(self.shelf, self.versions, fetcher, seats)
        self.releases = Releases(
            self.shelf, self.pulls, self.pushes, self.versions, None, seats, news, workers.send, now
        )

    # --- what the head orders -----------------------------------------------------------------------

    def open(self) -> None:
        """Listen to the workers."""
        self._workers.open(self._hear, self._gone)

    def begin(self, workers: Sequence[int], begun: Callable[[], None]) -> None:
        """Fetch what training begins with, and let these workers train. What else comes until then waits."""
        assert self._offer is not None
        self._later = []
        self.region = Region.create(self._plan.region_bytes(self._offer))
        place = self.shelf.put(Version(0), BEGINNING, self._plan.shared)
        assert place == 0  # where all have mapped it

        def fixed() -> None:
            self._carrier.fetch(Version(0), self.view(Version(0)), there, _nothing)

        def there() -> None:
            for worker in workers:
                self._train(worker)
            later, self._later = self._later or [], None
            for call in later:
                call()
            begun()

        start, stop = self._plan.fixed(self._offer)
        self._carrier.fetch(FIXED, self.region.memory[start:stop], fixed, _nothing)

    def carry_out(self, order: Order) -> None:
        """Carry out an order about a worker that is here, or about an update of one."""
        if self._waits(partial(self.carry_out, order)):
            return
        match order:
            case Release():
                self.releases.carry_out(order)
            case StartPull():
                self.pulls.carry_out(order)
            case StartPush():
                if self._seats[order.worker].trains:
                    self.pushes.begin(order)
            case ApplyUpdate():
                own = [(worker, step) for worker, step, _ in order.contributions if worker in self._seats]
                self._contributed[order.version] = own
                for worker, step in own:
                    self.pushes.ordered(worker, step, order.version)
            case DropUpdate():
                self.pushes.dropped(order.worker, order.step)
            case _:
                raise TypeError(f"{type(order).__name__} is carried out where the store is")

    def made(self, version: int) -> None:
        """The store has made that version, the next one."""
        if self._waits(partial(self.made, version)):
            return
        self.shelf.release(BEGINNING)  # whoever needs it has claimed it
        for worker, step in self._contributed.pop(version, ()):
            self.pushes.dropped(worker, step)
        self.versions.made(version)

    def look(self, worker: int, version: int, hold: bool) -> None:
        """That version is the newest: show it to the worker, which has asked for that."""
        if self._waits(partial(self.look, worker, version, hold)):
            return
        self.shelf.claim((step_of if hold else look_of)(worker), Version(version))

        def there() -> None:
            self._workers.send(worker, messages.Snapshot(self.shelf.place(Version(version))))

        self.pulls.bring(worker, version, there)

    def say(self, worker: int, message: messages.Message, attached: str | None, size: int) -> None:
        """Tell the worker that, with what comes along."""
        if self._waits(partial(self.say, worker, message, attached, size)):
            return
        if attached is None:
            self._workers.send(worker, message)
            return
        file = os.memfd_create("paceline-attached")
        os.ftruncate(file, size)
        memory = mmap.mmap(file, size)

        def there() -> None:
            self._workers.send(worker, message, (file,))
            os.close(file)

        self._carrier.fetch(Blob(attached), memoryview(memory), there, _nothing)

    def left(self, worker: int, died: bool) -> None:
        """See `contract.Host`."""
        if self._waits(partial(self.left, worker, died)):
            return
        seat = self._seats[worker]
        seat.trains, seat.step, seat.died = False, None, died
        self.pulls.left(worker)
        self.pushes.left(worker)
        self.releases.left(worker)

    def gone(self, worker: int) -> None:
        """See `contract.Host`."""
        if self._waits(partial(self.gone, worker)):
            return
        self.pushes.gone(worker)
        self.releases.gone(worker)

    # --- items --------------------------------------------------------------------------------------

    def view(self, item: Update | Version) -> memoryview:
        """The bytes of an item that has a place here. Raises NotHere."""
        assert self.region is not None
        assert self._offer is not None
        start, stop = self._plan.bytes_of(self.shelf.place(item), self._offer)
        return self.region.memory[start:stop]

    def find(self, item: Item) -> memoryview | None:
        """What the head fetches; None: it is not here. An update is here before the head hears that it is ready."""
        return self.view(item) if isinstance(item, Update) and self.shelf.has(item) else None

    def _away(self, item: Update | Version) -> bool:
        return isinstance(item, Version) and not self.shelf.has(item)

    def _room(self, item: Update | Version) -> memoryview:
        """Lay out a place for a version that was claimed. There is one, as there is for all that workers may claim."""
        assert isinstance(item, Version)
        place = self.shelf.put(item, _arriving(item), self._plan.shared)
        assert place is not None
        return self.view(item)

    def _came(self, item: Update | Version) -> None:
        assert isinstance(item, Version)
        self.shelf.release(_arriving(item))

    def _waits(self, call: Callable[[], None]) -> bool:
        """Whether this has to wait until training's beginning is here. It is called then."""
        if self._later is None:
            return False
        self._later.append(call)
        return True

    # --- what workers say ---------------------------------------------------------------------------

    def _train(self, worker: int) -> None:
        seat = self._seats[worker]
        if not seat.here:
            return
        seat.trains = seat.trained = True
        assert self.region is not None
        begin = messages.Begin(self._plan.slots, self._plan.areas, self._spec.holder, self._spec.pushes)
        self._workers.send(worker, begin, (self.region.descriptor,))

    def _hear(self, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        seat = self._seats[worker]
        match message:
            case messages.StepFinished(step=step):  # its version stays: it may be released on that once more
                if seat.trains:
                    self.pushes.ready(worker, step)
                seat.step = None
            case messages.Declined():
                if seat.step is not None:
                    self.pushes.dropped(worker, seat.step)
                    seat.step = None
            case messages.FinishWanted() | messages.ScriptEnded():
                seat.step = None
            case messages.Offered():
                self._offer = self._offer or message
            case messages.SnapshotTaken():
                self.releases.looked(worker)
        self._news.heard(worker, message)

    def _gone(self, worker: int, status: int) -> None:
        self._seats[worker].here = False
        self._news.gone(worker, status)


def _nothing(why: str) -> None:
    """The head has gone, and this host's workers with it."""
