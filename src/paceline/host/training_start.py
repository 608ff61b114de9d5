"""How training starts on a host: what it begins with is fetched, and what the head says meanwhile waits for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.core.items import Beginning, Blob, Item, Version
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.attachments import NO_ROOM
from paceline.host.bootstrap_process import BootstrapProcess
from paceline.host.contract import STORE, SUMS
from paceline.host.events import Attached
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_items import written_by
from paceline.ipc import messages
from paceline.transfer.item_names import ADOPTED, FIXED

if TYPE_CHECKING:
    from paceline.host.host import Host

BEGINNING = ("version that training begins with",)


class TrainingStart:
    """Has a host's workers begin with what the head has: the first version, or what a resumed run goes on from.

    A script may change the first version for all before its first step. That is adopted here in the same way.
    """

    def __init__(
        self,
        host: Host,
        plan: MemoryPlan,
        report: Callable[[host_messages.ToHead], None],
        stand_in: BootstrapProcess | None,
        *,
        name: str,
        head: str,
    ) -> None:
        """`stand_in`: what this host has in the place of workers, if it has none. `name` is this host's."""
        self._host = host
        self._plan = plan
        self._report = report
        self._stand_in = stand_in
        self._name = name
        self._head = head
        self._waiting: list[Callable[[], None]] | None = None
        """What is to be done once training's beginning is here, in order. None: it is not on its way."""
        self._fetches: Callable[[], None] | None = None
        """Fetches what training begins with, once the process is there that computes for this host, or can't be."""

    @property
    def on_its_way(self) -> bool:
        """Whether what training begins with is still to come from the head."""
        return self._waiting is not None

    @property
    def offer(self) -> messages.worker.Offered:
        """What scripts here have brought to `prepare`."""
        offer = self._host.memory.offer if self._stand_in is None else self._stand_in.offer
        assert offer is not None
        return offer

    def in_turn(self, call: Callable[[], None]) -> None:
        """Call that, once training's beginning is here if that is on its way, after all that was said before."""
        if self._waiting is None:
            call()
        else:
            self._waiting.append(call)

    def train(self, order: host_messages.Train) -> None:
        """Fetch what training begins with, and let these workers train. What else comes until then waits."""
        host, shards = self._host, order.shards
        host.memory.offered(self.offer)
        host.memory.lay_out()
        host.attachments.offer(ADOPTED.name, host.memory.adopted, None)
        self._waiting = []
        host.versions.newest, host.part = order.version, host.choice.part(order.part)
        host.versions.shards, own = shards, next((one for one in shards if one.host == self._name), None)
        host.adds_up, host.store.name = order.sums, SUMS if own is None else STORE
        if own is not None:
            host.makes(own)
        elif not order.sums:
            self._fetch(order)
            return
        _, begin, end = own or Shard(self._name, 0, 0)

        def fetches() -> None:
            if self._stand_in is not None:
                self._stand_in.end()
            self._fetch(order)

        def forkers() -> Iterable[int]:
            if self._stand_in is not None:
                return [self._stand_in.number]
            return host.prepared & order.workers.keys() if order.workers else host.prepared

        # what the worker begins with is the region's first version only until the head's is fetched
        self._fetches = fetches
        host.store.fork(
            forkers,
            host.memory.region,
            self._plan.fork(begin, end, host.part.outer(self._plan.capacity), only_adds=own is None),
        )

    def process_settled(self) -> None:
        """The process that computes for this host is there, or can't be."""
        fetches, self._fetches = self._fetches, None
        if fetches is not None:
            fetches()

    def made(self) -> None:
        """A version is made: whoever needs the one that training began with has claimed it."""
        self._host.shelf.release(BEGINNING)

    def adopt(self, worker: int) -> None:
        """The first version is what that worker of this host's is to write now."""
        shelf = self._host.shelf
        place = shelf.put(Beginning(worker), written_by(worker), self._plan.shared)
        assert place is not None  # only the first version is here
        self._host.send(worker, messages.worker.AdoptInto(place))

    def adopted(self, order: host_messages.Adopted) -> None:
        """The first version is what that worker has written. Fetch it. What else comes until then waits."""
        host, worker, state = self._host, order.worker, order.state
        if not host.memory.laid_out:  # no worker trains here
            return

        def there() -> None:
            if host.replicas is not None:
                host.replicas.adopted(worker, order.changes)
            else:
                host.shelf.replace(Version(0), Beginning(worker))
            if host.ranges is not None:
                with self.came(state) as file:
                    host.ranges.adopted(file)
            host.shelf.release(written_by(worker))
            self._go_on()

        self._waiting = []
        items: list[Item] = []
        if not host.shelf.has(Beginning(worker)):  # it has been written elsewhere
            items = [*host.attachments.comes_to(ADOPTED, self._head, host.memory.adopted), Beginning(worker)]
        self._bring(items, [] if state is None else [state], "adopted", there)

    def switched(self, order: host_messages.PartSwitched) -> None:
        """That part decides from now on. Fetch what optimizers here go on with. What else comes until then waits."""
        host, part, version = self._host, self._host.choice.part(order.part), order.version
        items: list[Item] = []
        if order.replicas and version is not None:
            host.shelf.claim(BEGINNING, Version(version))
            items.append(Version(version))

        def there() -> None:
            if (replicas := host.owned_replicas) is not None:
                replicas.end()
                for worker in host.seats:
                    host.pushes.forget(worker)
            host.part, for_store = part, part.spec.optimizer == "store"
            if version is not None:
                if host.replicas is not None and order.replicas:
                    host.replicas.begin(order.replicas, Version(version))
                    self._report(host_messages.Begun())
                host.versions.made_anew(version)
                host.made(version)
            host.shelf.release(BEGINNING)
            with self.came(order.state) as file:
                if host.ranges is not None:
                    host.store.send(messages.store.Become(part.outer(self._plan.capacity)))
                    if for_store and file is not None:
                        host.store.send(messages.store.Load(), (file,))
                host.tell_part(None if for_store else file)
            self._go_on()

        self._waiting = []
        self._bring(items, [] if order.state is None else [order.state], "switched", there)

    @contextmanager
    def came(self, attached: Attached | None) -> Iterator[int | None]:
        """The file of what came along with a message of the head's, if anything did. The head hears that it is here."""
        if attached is None:
            yield None
            return
        with self._host.attachments.file(attached) as file:
            yield file
        self._report(host_messages.AttachmentFetched(attached.name))

    def _fetch(self, order: host_messages.Train) -> None:
        host, workers, version = self._host, order.workers, order.version
        state = order.state if host.ranges is not None else None
        items = host.attachments.comes_to(FIXED, self._head, host.memory.fixed)
        begins_here = bool(workers) or self._stand_in is not None
        replicas = host.owned_replicas
        if replicas is not None and any(goes_on is not None for goes_on in workers.values()):
            begins_here = False  # each has a replica of its own
        if begins_here:  # else one comes while others train, and fetches the newest
            host.shelf.claim(BEGINNING, Version(version))
            items.append(Version(version))
        files = [] if state is None else [state]
        for worker, goes_on in workers.items():
            if goes_on is not None and replicas is not None:
                items.append(replicas.comes_from(self._head, worker))
            if goes_on is not None and goes_on.buffers is not None:
                buffers = Blob(goes_on.buffers.name)
                items += host.attachments.comes_to(buffers, self._head, host.memory.buffers(worker))
            if goes_on is not None and goes_on.kept is not None:
                files.append(goes_on.kept)

        def there() -> None:
            assert not begins_here or host.shelf.place(Version(version)) == 0  # where all have mapped it
            if host.ranges is not None:
                host.versions.is_whole(Version(version))
                with self.came(state) as file:
                    host.ranges.begins(version, file)
            if replicas is not None and begins_here:
                replicas.begin(dict.fromkeys(workers, 0), Version(version))
                host.shelf.release(BEGINNING)
            for worker, goes_on in workers.items():
                host.train(worker, goes_on)
            self._go_on()
            self._report(host_messages.Begun())

        self._bring(items, files, "beginning", there)

    def _bring(self, items: list[Item], files: Sequence[Attached], owner: str, there: Callable[[], None]) -> None:
        """Bring what training begins with, and these files that go with it. Without any of that, the host leaves."""

        def never(why: str) -> None:
            self._report(host_messages.Leaves(f"what training begins with can't come: {why}"))

        try:
            for file in files:
                items += self._host.attachments.comes(file, self._head)
        except OSError as full:
            never(f"{NO_ROOM}: {full.strerror}")
        else:
            self._host.attachments.bring(items, owner, there, never)

    def _go_on(self) -> None:
        """Do what has waited, in order. The rest waits on if some of it has to be fetched, too."""
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            self.in_turn(call)
