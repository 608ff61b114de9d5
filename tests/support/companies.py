"""A host without processes: what it tells its workers and its store process is kept, and all that it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock, patch

from paceline.coordinator import agent as agents
from paceline.coordinator.agent import _Agent as Agent
from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, Order, Release, StartPush
from paceline.host.cluster import Cluster
from paceline.host.events import AwaitsPlace, AwaitsVersion, Computes, ComputesTaken, VersionNotFinite
from paceline.host.machine import machine
from paceline.host.memory_plan import plan
from paceline.host.message_validation import MessageValidation
from paceline.host.messages import FromHead, Introduce, StartWorker, ToHead
from paceline.host.other_hosts import OtherHosts
from paceline.host.remote_host import RemoteHost
from paceline.host.training_start import BEGINNING
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.ipc.endpoint import Coding
from paceline.ipc.memory import Span
from paceline.protocols import registry
from paceline.scenario.links import ClusterLinks
from paceline.scenario.scenario import Network, Scenario
from paceline.transfer.data_connection import BulkNews
from paceline.transfer.data_plane import DataPlane, Hear
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Named, Peer
from support.clusters import KEYS
from support.planes import meet
from support.reports import Reports
from support.run_state import OFFER, SETTINGS, Clockwork, Crew, Line


def _amiss(host: str, why: str) -> None:
    raise AssertionError(f"host {host}: {why}")


class Kept(Reports):
    """Stands in for a coordinator: keeps what the host reports."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[int, str | None] = {}
        """By worker: what it waits for."""
        self.on_divergence: Callable[[], None] = lambda: None

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        match event:
            case AwaitsVersion(worker=worker, version=version):
                self.waits[worker] = f"version {version}"
            case AwaitsPlace(worker=worker):
                self.waits[worker] = "a place"
            case Computes(worker=worker) | ComputesTaken(worker=worker):
                self.waits[worker] = None
            case VersionNotFinite():
                self.on_divergence()


STORE = "the store"
PROCESS = 99
"""The number of the store process."""


@dataclass
class Company:
    """A host, its workers, and all that it has said. `now` is the time."""

    host: Cluster
    crew: Crew
    loop: Clockwork
    reports: Kept
    now: float = 0.0

    @property
    def facts(self) -> list[Fact]:
        return self.reports.facts

    @property
    def told(self) -> list[tuple[int, messages.Message]]:
        """What workers were told since they began to train: (worker, message)."""
        return self.crew.told

    @property
    def store(self) -> Line:
        """The store process."""
        return self.loop.lines[STORE]

    def said_by_store(self, message: messages.Message | Exception, packed: str | None = None) -> None:
        """The store process says this, or receiving from it raises this. `packed` comes along."""
        self.loop.hear(STORE, message, packed)

    def commits(self) -> list[messages.store.Commit]:
        """Versions that the store process was told to make."""
        return [message for message in self.store.sent if isinstance(message, messages.store.Commit)]

    def carry_out(self, order: Order) -> None:
        """The host is to do that, at this moment."""
        self.host.carry_out(order, self.now)

    def computed(self, worker: int, step: int, scalars: list[dict[str, Any]] | None = None) -> None:
        """The worker has computed that step."""
        self.crew.hear(worker, messages.worker.StepFinished(step, 0, None, [], scalars, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))

    def stepped(self, worker: int, step: int) -> None:
        """The worker's replica has made that step."""
        self.crew.hear(worker, messages.worker.Stepped(step, None))

    def make(self) -> int:
        """The version that was told last is made."""
        version = self.commits()[-1].version
        self.said_by_store(messages.store.Committed(version, 0, None))
        return version

    def pushes(self, worker: int, step: int) -> None:
        """The worker computes that step on version 0, and pushes its update."""
        self.carry_out(Release(worker=worker, step=step, version=0, parameters="held"))
        self.computed(worker, step)
        self.carry_out(StartPush(worker=worker, step=step))

    def orders(self, version: int, *contributions: tuple[int, int]) -> None:
        """Order that version of these (worker, step)."""
        shares = tuple((worker, step, 1.0) for worker, step in contributions)
        self.carry_out(ApplyUpdate(version=version, contributions=shares))

    def apply(self, version: int, *contributions: tuple[int, int]) -> None:
        """Order that version of these (worker, step), and make it."""
        self.orders(version, *contributions)
        self.make()

    def returns(self, worker: int) -> None:
        """A new process begins as this worker."""
        self.host.returns(worker)

    def leave(self, worker: int) -> None:
        """The worker takes no part any more, and its process ends."""
        self.host.left(worker, died=True)
        self.host.gone(worker)

    @property
    def shelves(self) -> list[Shelf]:
        """All there are."""
        return [self.host.shelf]

    def claims(self) -> list[tuple[Any, ...]]:
        """Who claims something: what for, and numbers, of which the first is the worker, the version or the group."""
        return [owner for shelf in self.shelves for owner, _, _ in shelf.claims()]

    def claims_of(self, worker: int) -> list[tuple[Any, ...]]:
        """What is claimed for that worker."""
        others = ("newest version", "made here", "writing of version", "mean of group")
        return [owner for owner in self.claims() if owner[0] not in others and owner[1:2] == (worker,)]


def _choice(protocol: str, unapplied: int) -> Choice:
    """That protocol, which declares so many unapplied updates."""
    choice = choose(protocol, registry())
    return replace(choice, spec=replace(choice.spec, unapplied=lambda *_: unapplied))


def idle_company(
    workers: int = 3,
    protocol: str = "asp",
    *,
    unapplied: int = 2,
    network: Network | None = None,
    deaths_are_told: bool = False,
    undone: frozenset[tuple[int, int]] = frozenset(),
    threads: int = 1,
) -> Company:
    """A company that is to train by that protocol. Nothing was said so far."""
    crew, loop, reports = Crew(workers), Clockwork(), Kept()
    stand_ins: Any = crew, loop
    made: Company
    host = Cluster(
        plan(_choice(protocol, unapplied), workers),
        choose(protocol, registry()),
        *stand_ins,
        reports,
        threads=threads,
        rate_scale=1.0,
        network=network,
        links=ClusterLinks(Scenario(network=network), workers),
        evaluator=None,
        now=lambda: made.now,
        leaves_undone=lambda worker, step: (worker, step) in undone,
        deaths_are_told=deaths_are_told,
    )
    made = Company(host, crew, loop, reports)
    return made


def company(workers: int = 3, protocol: str = "asp", offer: messages.worker.Offered = OFFER, **given: Any) -> Company:
    """A company that trains by that protocol. Each of its workers offers that."""
    made = idle_company(workers, protocol, **given)
    made.host.open()
    for worker in range(workers):
        made.crew.hear(worker, offer)
    made.host.prepare(0)
    made.said_by_store(messages.store.StoreReady(PROCESS, "beginning"))
    made.host.begin(range(workers))
    made.crew.told.clear()
    made.reports.events.clear()
    return made


class AnyTurn(MessageValidation):
    """A worker says what a test has it say."""

    def heard(self, message: messages.Message) -> str:
        return ""


class Unjudged(RemoteHost):
    """A host whose workers' turns are nobody's business here."""

    def turns_of(self, worker: int) -> MessageValidation:
        return AnyTurn(stored=True)


class Elsewhere(Company):
    """The workers are on another host than the store. What the two say arrives at once, as bytes and in order."""

    head: Cluster
    agent: Agent
    between: Between
    tell: Callable[[messages.Message], None]
    """Tells the other host something."""

    def returns(self, worker: int) -> None:
        """See `Company`."""
        super().returns(worker)
        self.tell(StartWorker(worker))

    @property
    def shelves(self) -> list[Shelf]:
        """See `Company`."""
        return [self.head.shelf, self.agent._host.shelf]

    def claims(self) -> list[tuple[Any, ...]]:
        """See `Company`. What training begins with is kept until another version is made, as the newest is."""
        return [owner for owner in super().claims() if owner != BEGINNING]


class Between:
    """Stands in for what connects the two hosts. What happens because of a message happens after that message."""

    def __init__(self) -> None:
        self.slow = False
        """Whether all about items is on its way until `arrives`."""
        self._next: deque[Callable[[], object]] = deque()
        self._busy = False
        self._held: deque[Callable[[], object]] = deque()

    def plane(self, hear: Hear) -> DataPlane:
        """The data plane of one of the hosts."""
        exchange: Any = lambda peer, news: Pipe(peer, news, self)  # noqa: E731 - it stands in for a class
        return DataPlane(hear, exchange)

    def carries(self, message: messages.Message, kinds: Any, to: Callable[[Any], object]) -> None:
        """Deliver that message there, which is one of these kinds."""
        coding = Coding(kinds)
        body = coding.encode(message)
        self.then(lambda: to(coding.decode(body, ())))

    def then(self, call: Callable[[], object]) -> None:
        """Call after all that was to be called before."""
        self._next.append(call)
        if not self._busy:
            self._busy = True
            while self._next:
                self._next.popleft()()
            self._busy = False

    def brings(self, call: Callable[[], object]) -> None:
        """Call that, which is about an item, in its turn."""
        if self.slow:
            self._held.append(call)
        else:
            self.then(call)

    def arrives(self) -> None:
        """What is on its way about items comes, in order."""
        self.slow = False
        while self._held:
            self.then(self._held.popleft())


class AgentsEnd:
    """Stands in for what an agent has of the head."""

    def __init__(self, between: Between, head: Callable[[], OtherHosts]) -> None:
        self._between = between
        self._head = head

    def send(self, message: messages.Message) -> None:
        self._between.carries(message, ToHead, lambda said: self._head().reports.delivered(OTHER, said))


class HeadsEnd:
    """Stands in for what the head has of the other host."""

    def __init__(self, between: Between, agent: Callable[[], Agent]) -> None:
        self._between = between
        self._agent = agent

    def tell(self, message: messages.Message) -> None:
        self._between.carries(message, FromHead, lambda said: self._agent().delivered(said))


class Pipe:
    """Stands in for a host's end of the connection with another. See `Bulk`."""

    other: Pipe

    def __init__(self, peer: Peer, news: BulkNews, between: Between) -> None:
        self.peer = peer
        self.news = news
        self._between = between

    def connect(self, other: Pipe) -> None:
        self.other, other.other = other, self
        for end in (self, other):
            end.news.connected(end.peer)

    def ask(self, request: int, named: Named, begin: int, end: int) -> None:
        self._between.brings(lambda: self.other.news.asked(self.other.peer, request, named, begin, end))

    def send(self, request: int, span: Span) -> None:
        def arrives() -> None:
            news, peer = self.other.news, self.other.peer
            if (there := news.memory(peer, request)) is not None:
                there.memory[:] = span.memory
                news.came(peer, request, span.nbytes)
            self.news.sent(self.peer, request)

        self._between.brings(arrives)

    def cancel(self, request: int) -> None:
        self._between.brings(lambda: self.other.news.cancelled(self.other.peer, request))

    def stop(self, request: int) -> None:
        pass  # what is sent arrives, and `sent` is told then

    def refuse(self, request: int, why: str) -> None:
        self._between.brings(lambda: self.other.news.refused(self.other.peer, request, why))


class Pipes:
    """Stands in for the mover of the other host."""

    def __init__(self, between: Between, head: TransferManager) -> None:
        self._between = between
        self._head = head

    def at_end(self, call: Callable[[str], object]) -> None:
        pass

    def cpu_seconds(self) -> None:
        pass

    def plane(self, hear: Hear, link: None) -> DataPlane:
        self._plane = self._between.plane(hear)
        return self._plane

    def dial(self, peer: Peer, *_: object) -> None:
        there: Any = meet(self._head, OTHER, 1)
        there.connect(self._plane.exchanges[peer])


ADDER = "the process that adds up"
"""The store process of the other host."""
OTHER = "node-1"
"""The host of the workers that are not on the head's."""


def elsewhere(
    workers: int = 3,
    protocol: str = "asp",
    *,
    unapplied: int = 2,
    trains: bool = True,
    network: Network | None = None,
    **given: Any,
) -> Elsewhere:
    """A company that trains by that protocol, all of whose workers are on another host than the store.

    A further worker is on the store's host and forks it. It takes no part, or alone does if the others don't `trains`.
    """
    forker, between = workers, Between()
    crew, here, loop, reports = Crew(workers), Crew(0), Clockwork(), Kept()
    here.numbers = range(forker, forker + 1)
    places = plan(_choice(protocol, unapplied), workers + 1)
    made: Elsewhere
    heads_end, agents_end = HeadsEnd(between, lambda: made.agent), AgentsEnd(between, lambda: head.others)
    carrier = TransferManager("node-0", loop.now, between.plane)
    others: list[RemoteHost] = [Unjudged(OTHER, range(workers), heads_end.tell)]
    head = Cluster(
        places,
        choose(protocol, registry()),
        *_any(here, loop),
        reports,
        others=others,
        carrier=carrier,
        directory=Mock(amiss=_amiss, neighbours=lambda *_: (), before_waiting=lambda call: call()),
        threads=1,
        rate_scale=1.0,
        network=network,
        links=ClusterLinks(Scenario(network=network), workers),
        evaluator=None,
        now=lambda: made.now,
        leaves_undone=lambda worker, step: False,
        deaths_are_told=False,
        **given,
    )
    carrier.begins(0, head.others.items)
    settings = replace(SETTINGS, choice=choose(protocol, registry()), workers=2 * (workers + 1), hosts=2)
    with (
        patch.object(agents, "HostLink", lambda *_: agents_end),
        patch.object(agents, "plan", lambda *_, **__: places),
    ):
        agent = Agent(OTHER, workers, ("", 0), KEYS, *_any(lambda *_: crew, None, loop, Pipes(between, carrier)))
        agent._asked = Introduce("train.py", b"", 15.0, None, machine(), None)
        agent._prepare(settings, [])
    made = Elsewhere(head, crew, loop, reports)
    made.head, made.agent, made.between, made.tell = head, agent, between, heads_end.tell
    head.open()
    here.hear(forker, OFFER)
    for worker in range(workers if trains else 0):
        crew.hear(worker, OFFER)
    head.prepare(forker)
    made.said_by_store(messages.store.StoreReady(PROCESS, "beginning"))
    store = loop.lines[STORE]
    head.begin(range(workers) if trains else [forker])
    if (adds_up := loop.lines[STORE]) is not store:
        made.said_by_store(messages.store.StoreReady(PROCESS + 1, "beginning"))
        loop.lines[ADDER], loop.lines[STORE] = adds_up, store
    crew.told.clear()
    reports.events.clear()
    return made


def _any(*stand_ins: Any) -> tuple[Any, ...]:
    return stand_ins


class Averagers:
    """The workers' threads that make shares of averages, and what they were told."""

    def __init__(self, company: Company) -> None:
        self._company = company

    def asked(self, worker: int) -> bool:
        """Whether the worker's thread has a share to make."""
        return any(isinstance(message, messages.worker.AverageShare) for message in self.told(worker))

    def told(self, worker: int) -> list[messages.Message]:
        """What the worker's thread was told and has not done."""
        return self._line(worker).sent

    def average(self, worker: int) -> int:
        """It makes the share that it was told to make. Return the place that the average is made in."""
        order = self.told(worker).pop(0)
        assert isinstance(order, messages.worker.AverageShare)
        self.says(worker, messages.worker.ShareAveraged(order.number))
        return order.target

    def says(self, worker: int, message: messages.Message | Exception) -> None:
        self._company.loop.hear(averager(worker), message)

    def _line(self, worker: int) -> Line:
        return self._company.loop.lines[averager(worker)]


def averager(worker: int) -> str:
    return f"worker {worker}'s averager"
