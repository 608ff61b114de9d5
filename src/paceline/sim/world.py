"""A cluster in virtual time: it carries out a machine's orders, and yields the facts that follow.

The clock jumps from event to event. Events are in a heap of (second, number, event), and at the ends of flows over the
links and of work on shared cores. The world depends only on its arguments, so the same arguments give the same facts.

At one instant, flows end first, in the order of their beginning. Then events come in the order in which they were
added. So an update that arrives as its worker is killed has arrived. What follows from an event at the same instant
comes before the next event.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple, Protocol

from paceline.codecs import Codec
from paceline.core.facts import (
    AlarmRang,
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.items import Update, Version
from paceline.core.machine import WHOLE, Fragments
from paceline.core.orders import (
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    EndRound,
    Hold,
    Order,
    Reduce,
    Release,
    SetAlarm,
    StartPull,
    StartPush,
    StepReplica,
    steps_of,
)
from paceline.core.phrases import workers_named
from paceline.errors import RunFailed
from paceline.records.journal import Journal
from paceline.records.times import FetchTimes, StepTimes, TransferTimes, exposed
from paceline.scenario.links import ClusterLinks, Flow, Route, Way, average_bytes
from paceline.scenario.scenario import Kill, Scenario, Slowdown
from paceline.sim.costs import NOTHING, Costs


class SimulatedTraining(Protocol):
    """What steps compute, which takes no virtual time: nothing, or a script's real gradients."""

    @property
    def work(self) -> int | None:
        """The run's work, as in `TrainingBegan`."""

    def carry_out(self, order: Order, at: float) -> None:
        """Carry the order out to its end."""

    def amount(self, worker: int, step: int, batches: int) -> Amount:
        """Return how much data is in that step's gradient, of so many batches or of what is left of them.

        Raises NoData if there was none left.
        """

    def told(self, fact: ReduceFinished | ReduceFailed | ReplicaCopied | WorkerJoined) -> None:
        """A group's average is made or has failed, a copy is made, or a worker has joined."""

    def left(self, worker: int, reason: str, untold: int | None) -> None:
        """The worker has left, and all transfers to and from it are gone.

        `untold`: a step that it had drawn data for, without a fact about its gradient so far.
        """


class Amount(NamedTuple):
    """The data in a gradient. See `core.facts.GradientReady`."""

    samples: int | None
    weight: float | None = None
    batches: int = 1
    """How many batches that is."""


class NoData(Exception):
    """A step has no data left to work on."""


@dataclass(slots=True)
class EmptySteps:
    """Steps that consist of nothing, as many as there is data for. The next worker that is free takes the next one."""

    work: int | None
    size: int | None
    """Samples in each step."""
    left_over: float = math.inf
    """Batches that are left, or pieces of batches."""
    pieces: int = 1
    """How many of these a step's samples are of."""
    taken: dict[tuple[int, int], int] = field(default_factory=dict, kw_only=True)
    """By (worker, step): its batches, if it is not one."""

    def carry_out(self, order: Order, at: float) -> None:
        """See `SimulatedTraining`."""
        if type(order) is DropUpdate and order.samples == "return":
            self.left_over += sum(self.taken.pop((order.worker, step), 1) for step in steps_of(order))

    def amount(self, worker: int, step: int, batches: int) -> Amount:
        """See `SimulatedTraining`."""
        if not self.left_over:
            raise NoData
        taken = int(min(self.left_over, batches))
        self.left_over -= taken
        if batches > 1:
            self.taken[worker, step] = taken
        return Amount(None if self.size is None else self.size * taken // self.pieces, batches=taken)

    def told(self, fact: ReduceFinished | ReduceFailed | ReplicaCopied | WorkerJoined) -> None:
        """See `SimulatedTraining`."""

    def left(self, worker: int, reason: str, untold: int | None) -> None:
        """See `SimulatedTraining`."""
        if untold is not None:
            self.left_over += self.taken.pop((worker, untold), 1)


@dataclass(frozen=True, slots=True)
class Limit:
    """When to stop: at the earliest of these."""

    seconds: float = math.inf
    steps: float = math.inf
    """Steps applied."""
    versions: float = math.inf

    def share(self, now: float, steps: int, versions: int) -> float:
        """Return the share that is done by then, 0 to 1."""
        return min(1.0, max(now / self.seconds, steps / self.steps, versions / self.versions))


@dataclass(slots=True)
class SimulatedWorker:
    """One worker, while it is here."""

    step: int
    """The step that it is at, or the one before its first."""
    rest: Release | None = None
    """What it is permitted beyond that step."""
    revoked: bool = False
    """Whether that was revoked."""
    batches: int = 1
    """How many batches that step is of, if there are as many."""
    version: int = -1
    """The version that it computes that step on."""
    took: int | None = None
    """The last version that it has taken."""
    awaits: int | None = None
    """The version that it waits for before it begins."""
    prepared: float = 0.0
    """Seconds of its own work before it computed."""
    began: float = 0.0
    """When it began to compute."""
    computed: float = 0.0
    """Seconds that it computed."""
    job: Flow[Ended] | None = None
    """Its present work, if it shares the cores."""
    drew: int = -1
    """The last step that it drew data for."""
    told: int = -1
    """The last step with a fact about its gradient."""
    ended: float | None = None
    """End of the last step, until the next one begins."""
    heard: float = 0.0
    """When the fact of that end came. Transfers count from then on, as in a real run."""
    transfers: list[tuple[str, float, float]] = field(default_factory=list)
    """Its transfers and averages since its last step began, in the form that `exposed` takes."""
    flows: dict[Flow[Ended], int | None] = field(default_factory=dict)
    """Its transfers under way on the store's link. Of a copy: the worker whose replica it is."""
    on_the_way: dict[int, None] = field(default_factory=dict)
    """Steps with a gradient that is not in a store or a replica yet, and not dropped."""
    group: int | None = None
    """The group that it averages with."""
    declined: bool = False


@dataclass(slots=True)
class _Group:
    members: tuple[int, ...]
    began: float
    moving: bool
    """Whether its bytes are on their way."""
    summed: bool = False
    """Whether its work is done."""
    lost: list[int] = field(default_factory=list)
    """Members that have died since."""


@dataclass(slots=True)
class _Coming:
    """An item on its way from one host to another."""

    waiting: list[tuple[int, float]]
    """(worker, since when it has waited) of each worker that wants the version, or whose update it is."""
    flow: Flow[Ended]


Event = Callable[[], Fact | None]
"""Called when its moment has come. Returns the fact that it leads to, or None if the event is void."""
Ended = Callable[[Any], Fact | None]
"""The same at the end of a flow, which is its argument."""
What = Literal["push", "pull", "copy"]


@dataclass(slots=True)
class _OneByOne:
    """Work that is done one piece after another: the store's versions, and what the coordinator tells workers."""

    work: Callable[[None, float, Event], None]
    waiting: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    """(seconds, what follows) of each piece. The first is being done."""

    def add(self, seconds: float, then: Callable[[], None]) -> None:
        """Do this after all that waits."""
        self.waiting.append((seconds, then))
        if len(self.waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        if self.waiting:
            self.work(None, self.waiting[0][0], self._done)

    def _done(self) -> None:
        _, then = self.waiting.popleft()
        self._begin()
        then()


class World:
    """A cluster in virtual time. `drive` takes its `facts`, and calls its `carry_out`."""

    def __init__(
        self,
        scenario: Scenario,
        workers: int,
        *,
        costs: Costs,
        training: SimulatedTraining,
        limit: Limit,
        journal: Journal,
        message: int = 0,
        codec: Codec | None = None,
        fragments: Fragments = WHOLE,
        pieces: int = 1,
        seed: int = 0,
        begins: TrainingBegan | None = None,
        progress: Callable[[float, int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """`message`: bytes of a push, a pull or a replica, if the scenario's network does not say. A push that a
        `codec` encodes has fewer, and so have pushes and pulls of `fragments`. `pieces`: see `Spec.pieces`.

        `begins`: the beginning of a later segment of a run; None: this is its first.
        `progress(now, steps, versions)` is called at every fact. So is `stop()`, which returns whether to end there.
        """
        hosts = scenario.hosts(workers)
        if begins is None:
            members = tuple((worker, hosts[worker], 0) for worker in range(workers))
            begins = TrainingBegan(members=members, version=0, at=0.0, work=training.work, seed=seed)
        self.now = begins.at
        """Seconds since the run's start."""
        self.left: dict[int, str] = {}
        """By worker that has left: why."""
        self.interrupted = False
        """Whether `stop` ended the simulation."""
        self._scenario = scenario
        self._hosts = hosts
        self._costs = costs
        self._training = training
        self._limit = limit
        self._journal = journal
        self._tally = journal.tally
        self._begins = begins
        self._progress = progress
        self._stop = stop
        network = scenario.network
        self._links: ClusterLinks[Ended] = ClusterLinks(scenario, workers)
        self._links_hosts = scenario.links_hosts
        self._message = network.message if network is not None and network.message is not None else message
        self._pushed = self._message if codec is None else min(self._message, codec.size(self._message // 4))
        """Bytes of a push, of all parameters."""
        self._fragments = fragments
        self._pieces = pieces
        self._workers = {worker: SimulatedWorker(step - 1) for worker, _, step in begins.members}
        self._used: dict[int, int] = {}
        """By worker that has left: its last step."""
        self._kills = {
            (event.worker, event.at_step): event
            for event in scenario.events
            if isinstance(event, Kill) and event.at_step is not None
        }
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = 0
        self._alarms = 0
        """How many of these are alarms."""
        self._at_once: deque[Fact] = deque()
        """Facts of this very moment, in order, which come before any event."""
        self._store = _OneByOne(self._work)
        self._awaiting: dict[int, list[Callable[[], None]]] = {}
        """By version that is still to be made: the pulls that begin then."""
        self._telling = _OneByOne(self._work)
        """Releases that the coordinator tells workers of."""
        self._cores = None if costs.cores is None else Route((Way(costs.cores, each=1.0),))
        """Its flows are jobs, in seconds of one core. None: each job has a core of its own."""
        self._came: dict[str, int] = {}
        """By host but the head: the newest version that has come there. No worker wants an older one."""
        self._coming: dict[tuple[Update | Version, str], _Coming] = {}
        """By item and the host that it comes to."""
        self._groups: dict[int, _Group] = {}
        self._killed: list[Kill] = []
        """The deaths so far, in order."""
        self._joins: list[Kill] = []
        """The deaths whose worker has come back."""

    def facts(self) -> Iterator[Fact]:
        """Yield all facts as they happen, until the limit is reached, all workers have left, or `stop` returns true.

        Raises RunFailed if the remaining workers wait, and no event can come any more.
        """
        yield self._begins
        for event in self._scenario.events:
            if isinstance(event, Kill) and event.at is not None and event.at >= self._begins.at:
                self._at(event.at, lambda event=event: self._die(event))  # type: ignore[misc]
        while not self._reached():
            fact = self._at_once.popleft() if self._at_once else self._next()
            if fact is None:
                break
            yield fact
            if self._progress is not None:
                self._progress(self.now, self._tally.steps, self._tally.model.versions)
            if self._stop is not None and self._stop():
                self.interrupted = True
                break
        if not self.interrupted and self._workers and self.now < self._limit.seconds and not self._reached():
            raise RunFailed(
                f"after {self.now:.6g} s all wait, and nothing can happen any more: {workers_named(self._workers)}"
            )
        for worker in list(self._workers):
            yield self._leave(worker, "stopped")

    def carry_out(self, order: Order) -> None:
        """Carry out the order. Its effects come later, or at this moment."""
        self._training.carry_out(order, self.now)
        match order:  # the orders of every step first
            case Release():
                self._release(order)
            case StartPush(worker=worker, step=step):
                if order.since is not None:
                    for one in range(order.since, step):  # they are in the update of the last one
                        self._settle(worker, one)
                self._transfer(worker, "push", step)
            case ApplyUpdate():
                self._commit(order)
            case Hold():
                pass
            case StartPull(worker=worker, version=version):
                self._pull(worker, version)
            case EndRound(worker=worker):
                self._workers[worker].revoked = True
            case DropUpdate(worker=worker):
                for step in steps_of(order):
                    self._settle(worker, step)
            case StepReplica(worker=worker, step=step):
                self._settle(worker, step)
            case Reduce():
                self._average(order)
            case CopyReplica(source=source, worker=worker):
                self._transfer(worker, "copy", source)
            case SetAlarm(number=number, seconds=seconds):
                self._alarms += 1
                self._at(self.now + seconds, lambda: self._ring(number))
            case _:  # no effect in virtual time
                pass

    def never_came(self) -> list[str]:
        """Return a sentence for each of the scenario's events that had not come by the end."""
        lines = []
        for number, event in enumerate(self._scenario.events, 1):
            match event:
                case Slowdown(at_step=int() as at_step):
                    came = self._last_step(event.worker) >= at_step
                case Slowdown():
                    came = (event.at or 0.0) <= self.now
                case Kill():
                    came = event in self._killed
            if not came:
                lines.append(f"event {number} never came: all ended after {self.now:.6g} s")
            elif isinstance(event, Kill) and event.rejoin_after is not None and event not in self._joins:
                lines.append(f"event {number}: its worker never came back: all ended after {self.now:.6g} s")
        return lines

    def _last_step(self, number: int) -> int:
        """Return the last step that the worker was released for."""
        worker = self._workers.get(number)
        return self._used.get(number, -1) if worker is None else worker.step

    # --- time -----------------------------------------------------------------------------------------

    def _at(self, at: float, event: Event) -> None:
        self._numbers += 1
        heappush(self._events, (at, self._numbers, event))

    def _ring(self, number: int) -> AlarmRang:
        self._alarms -= 1
        return AlarmRang(number=number, at=self.now)

    def _work(self, worker: SimulatedWorker | None, seconds: float, event: Event) -> None:
        """Call the event when so much work is done. If cores are shared, a worker's work ends when it leaves."""
        if self._cores is None:
            self._at(self.now + seconds, event)
            return

        def done(job: Flow[Ended]) -> Fact | None:
            if worker is not None:
                worker.job = None
            return event()

        job = self._links.begin(self._cores, seconds, self.now, done)
        if worker is not None:
            worker.job = job

    def _reached(self) -> bool:
        return self._tally.steps >= self._limit.steps or self._tally.model.versions >= self._limit.versions

    def _next(self) -> Fact | None:
        """Return the next fact, and move the clock to its time. None: there is none within the limit."""
        while not self._at_once:
            until = self._events[0][0] if self._events else math.inf
            flow = self._links.finish(min(until, self._limit.seconds)) if self._links.under_way else None
            if flow is not None:
                self.now = flow.ended
                fact = flow.what(flow)
            elif not self._links.under_way and len(self._events) == (0 if self._workers else self._alarms):
                return None
            elif until > self._limit.seconds or until == math.inf:
                self.now = self._limit.seconds
                return None
            else:
                self.now, _, event = heappop(self._events)
                fact = event()
            if fact is not None:
                return fact
        return self._at_once.popleft()

    # --- steps ----------------------------------------------------------------------------------------

    def _release(self, order: Release) -> None:
        worker = self._workers[order.worker]
        worker.step, worker.version, worker.batches = order.step, order.version, order.batches
        worker.rest, worker.revoked = order.rest, False
        if order.parameters == "pull":
            worker.awaits = order.version
            self._pull(order.worker, order.version)
        elif cost := self._costs.release(order.worker, worker.step):
            self._tell(order.worker, cost, lambda: self._begin(order.worker))
        else:
            self._begin(order.worker)

    def _tell(self, number: int, cost: float, then: Callable[[], None]) -> None:
        """Tell the worker to begin its step, after the workers whose turn comes before."""
        worker = self._workers[number]

        def told() -> None:
            if self._workers.get(number) is worker:  # it may have left, and come back
                then()

        self._telling.add(cost, told)

    def _begin(self, number: int) -> None:
        """The worker has its parameters, and begins its step."""
        worker = self._workers[number]
        worker.awaits = None
        step = worker.step
        if (kill := self._kills.get((number, step))) is not None:
            self._at(self.now, lambda: self._die(kill))
            return
        try:
            amount = self._training.amount(number, step, worker.batches)
        except NoData:
            worker.declined = True
            self._at_once.append(StepDeclined(worker=number, step=step, at=self.now))
            self._leave_if_through(number, worker)
            return
        worker.drew = step
        before = self._costs.before(number, step)
        if before is not NOTHING and before.seconds:
            since = self.now
            own = before.own_share
            self._work(worker, before.seconds, lambda: self._compute(number, worker, amount, since, own))
        else:
            self._compute(number, worker, amount, self.now, 0.0)

    def _compute(self, number: int, worker: SimulatedWorker, amount: Amount, since: float, own: float) -> None:
        """Compute, after preparing since then. `own`: the share of that time that was the worker's own work."""
        if self._workers.get(number) is not worker:  # it has left meanwhile, and may be back
            return
        prepared = (self.now - since) * own
        self._tell_times(number, worker, self.now - prepared)
        worker.prepared, worker.began = prepared, self.now
        batches = amount.batches / self._pieces
        seconds = self._costs.compute(number, worker.step, self.now) * batches
        works = 0.0 if self._cores is None else min(seconds, self._costs.works(number, worker.step) * batches)
        if not works:
            worker.computed = seconds
            self._at(self.now + seconds, lambda: self._computed(number, worker, amount))
            return

        def sleep() -> None:
            if self._workers.get(number) is worker:
                worker.computed = self.now - worker.began + seconds - works
                self._at(self.now + seconds - works, lambda: self._computed(number, worker, amount))

        self._work(worker, works, sleep)

    def _computed(self, number: int, worker: SimulatedWorker, amount: Amount) -> Fact | None:
        """The worker has computed its gradient."""
        if self._workers.get(number) is not worker:
            return None
        after = self._costs.after(number, worker.step)
        since = self.now
        if after is NOTHING or not after.seconds:
            return self._ready(number, worker, amount, since, 0.0)
        self._work(worker, after.seconds, lambda: self._ready(number, worker, amount, since, after.own_share))
        return None

    def _ready(self, number: int, worker: SimulatedWorker, amount: Amount, since: float, own: float) -> Fact | None:
        """Return the fact of its gradient, which it has filled in since then. `own`: as in `_compute`."""
        if self._workers.get(number) is not worker:
            return None
        step = worker.step
        worker.told, worker.ended, worker.heard = step, since + (self.now - since) * own, self.now
        worker.on_the_way[step] = None
        if worker.rest is not None:
            self._at(self.now, lambda: self._further(number, worker))
        samples, weight, _ = amount
        return GradientReady(
            worker=number, step=step, version=worker.version, samples=samples, weight=weight, at=self.now
        )

    def _further(self, number: int, worker: SimulatedWorker) -> Fact | None:
        """The worker goes on by itself with the next step, unless that was revoked."""
        order, worker.rest = worker.rest, None
        if self._workers.get(number) is not worker or order is None:
            return None
        worker.step = order.step
        if worker.revoked:
            self._at_once.append(WorkerResumed(worker=number, at=self.now))
            return StepDeclined(worker=number, step=order.step, at=self.now, paused=True, revoked=True)
        worker.rest = order.rest
        self._training.carry_out(order, self.now)
        self._begin(number)
        return None

    def _settle(self, number: int, step: int) -> None:
        """That step's update is no longer on its way."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.on_the_way.pop(step, None)
            if worker.declined:
                self._leave_if_through(number, worker)

    def _tell_times(self, number: int, worker: SimulatedWorker, until: float) -> None:
        """Record where its last step's time went, until the next step's own time began, or the worker left."""
        if worker.ended is None:
            return
        push, pull = exposed(worker.transfers, worker.heard, until) if worker.transfers else (0.0, 0.0)
        wait = until - worker.ended - push - pull
        push += max(0.0, worker.ended - worker.began - worker.computed)  # filling the push counts, as in a real run
        times = StepTimes(worker.began, worker.computed, push, max(wait, 0.0), pull, worker.prepared)
        self._journal.step_times(number, worker.told, times)
        worker.ended = None
        worker.transfers.clear()

    # --- parameters and updates -----------------------------------------------------------------------

    def _commit(self, order: ApplyUpdate) -> None:
        cost, version = self._costs.commit(order), order.version
        if not cost and not self._store.waiting:
            self._journal.ledger.committed(version, self.now)
            return

        def made() -> None:
            self._journal.ledger.committed(version, self.now)
            for pull in self._awaiting.pop(version):
                pull()

        self._awaiting[version] = []
        self._store.add(cost, made)

    def _pull(self, number: int, version: int) -> None:
        """Pull the version once it is made."""
        awaiting = self._awaiting.get(version)
        if awaiting is None:
            self._transfer(number, "pull", version)
            return

        worker = self._workers[number]

        def begin() -> None:
            if self._workers.get(number) is worker:  # it may have left, and come back
                self._transfer(number, "pull", version)

        awaiting.append(begin)

    def _transfer(self, number: int, what: What, of: int) -> None:
        """`of`: the step that is pushed, the version that is pulled, or the worker whose replica is copied."""
        if self._links_hosts and self._bring(number, what, of):
            return
        if not self._links.paces_store:
            cost = 0.0
            if what == "pull" and (worker := self._workers[number]).awaits == of:
                cost = self._costs.release(number, worker.step)
            if cost:
                self._tell(number, cost, lambda: self._arrived(number, what, of))
            else:
                self._arrived(number, what, of)
            return
        worker = self._workers[number]
        direction: Literal["push", "pull"] = "push" if what == "push" else "pull"
        size = self._size(what, of, worker.took)

        def ended(flow: Flow[Ended]) -> None:
            del worker.flows[flow]
            worker.transfers.append((direction, flow.began, flow.ended))
            times = TransferTimes(flow.began, flow.ended, flow.ended)
            self._journal.ledger.transferred(number, direction, of, size, times)
            self._arrived(number, what, of)

        flow = self._links.transfer(direction, size, self.now, ended)
        worker.flows[flow] = of if what == "copy" else None

    def _size(self, what: What, of: int, since: int | None) -> int:
        """`since`: the version that is where a version comes to, if any."""
        if what == "push":
            return self._pushed // self._fragments.total
        return self._message if what == "copy" else self._fragments.bytes_taken(self._message, since, of)

    def _bring(self, number: int, what: What, of: int) -> bool:
        """Bring the worker's update to the head, where the store is, or that version to the worker's host.

        A version goes to each host once, however many of its workers want it. Return False if the item is there: all
        hosts have the first version.
        """
        head, host = self._hosts[0], self._hosts[number]
        item = Update(number, of) if what == "push" else Version(of)
        if host == head or (what != "push" and of <= self._came.get(host, self._begins.version)):
            return False
        source, target = (host, head) if what == "push" else (head, host)
        size = self._size(what, of, self._came.get(host, self._begins.version))
        if (coming := self._coming.get((item, target))) is not None:
            coming.waiting.append((number, self.now))
            return True

        def came(flow: Flow[Ended]) -> None:
            for_whom = self._coming.pop((item, target)).waiting
            if what != "push":
                self._came[host] = max(of, self._came.get(host, self._begins.version))
            times = {"began": flow.began, "ended": flow.ended}
            self._journal.fetched(FetchTimes.of(item, host=target, source=source, size=size, **times))
            for worker, since in for_whom:
                self._workers[worker].transfers.append((what, since, self.now))
                self._arrived(worker, what, of)

        flow = self._links.between(source, target, size, self.now, came)
        self._coming[item, target] = _Coming([(number, self.now)], flow)
        return True

    def _arrived(self, number: int, what: What, of: int) -> None:
        """The transfer has arrived."""
        match what:
            case "push":
                self._at_once.append(UpdateArrived(worker=number, step=of, at=self.now))
                self._settle(number, of)
            case "copy":
                copied = ReplicaCopied(source=of, worker=number, at=self.now)
                self._training.told(copied)
                self._at_once.append(copied)
            case "pull":
                worker = self._workers[number]
                worker.took = of
                self._at_once.append(ParametersTaken(worker=number, version=of, at=self.now))
                if worker.awaits == of:
                    self._begin(number)

    # --- groups ---------------------------------------------------------------------------------------

    def _average(self, order: Reduce) -> None:
        moving, encoded = self._links.paces_averages, order.what == "gradients" and self._pushed < self._message
        message = self._pushed if encoded else self._message
        group = self._groups[order.group] = _Group(order.members, self.now, moving)
        for member in order.members:
            if member in self._workers:
                self._workers[member].group = order.group

        def moved(flow: Flow[Ended]) -> Fact | None:
            times = TransferTimes(flow.began, flow.ended, flow.ended)
            for member in order.members:
                size = average_bytes(len(order.members), message, encoded=encoded)
                self._journal.ledger.transferred(member, "average", order.group, size, times)
            group.moving = False
            return self._averaged(order.group) if group.summed else None

        def summed() -> Fact | None:
            group.summed = True
            return None if group.moving else self._averaged(order.group)

        if moving:
            self._links.average(order.members, message, self.now, moved, encoded=encoded)
        self._work(None, self._costs.average(order), summed)

    def _averaged(self, number: int) -> Fact:
        """End the average, once its work is done and its bytes have moved."""
        group = self._groups.pop(number)
        for member in group.members:
            worker = self._workers.get(member)
            if worker is not None and worker.group == number:
                worker.group = None
                worker.transfers.append(("pull", group.began, self.now))
        fact: ReduceFinished | ReduceFailed = ReduceFinished(group=number, at=self.now)
        if group.lost:
            fact = ReduceFailed(group=number, lost=tuple(sorted(group.lost)), at=self.now)
        self._training.told(fact)
        return fact

    # --- who is here ----------------------------------------------------------------------------------

    def _leave_if_through(self, number: int, worker: SimulatedWorker) -> None:
        """Let the worker leave, which has no data left, once its last update is no longer on its way."""
        if not worker.on_the_way:
            here = self._workers
            self._at(self.now, lambda: self._leave(number, "finished") if here.get(number) is worker else None)

    def _die(self, kill: Kill) -> Fact | None:
        if kill.worker not in self._workers:
            return None
        self._killed.append(kill)
        if kill.rejoin_after is not None:
            self._at(self.now + kill.rejoin_after, lambda: self._join(kill))
        return self._leave(kill.worker, "died")

    def _leave(self, number: int, reason: str) -> WorkerLeft:
        worker = self._workers[number]
        self._tell_times(number, worker, self.now)
        for flow in list(worker.flows):
            self._links.cancel(flow, self.now)
        for key, coming in list(self._coming.items()):
            coming.waiting = [waiting for waiting in coming.waiting if waiting[0] != number]
            if not coming.waiting:
                self._links.cancel(coming.flow, self.now)
                del self._coming[key]
        if worker.job is not None:
            self._links.cancel(worker.job, self.now)
        if reason == "died":  # a copy is void if its source dies before the copy's end
            for other in self._workers.values():
                for flow in [flow for flow, source in other.flows.items() if source == number]:
                    self._links.cancel(flow, self.now)
                    del other.flows[flow]
        if reason == "died" and worker.group is not None:
            self._groups[worker.group].lost.append(number)
        del self._workers[number]
        self._used[number], self.left[number] = worker.step, reason
        self._training.left(number, reason, worker.drew if worker.drew > worker.told else None)
        return WorkerLeft(worker=number, reason=reason, at=self.now)

    def _join(self, kill: Kill) -> WorkerJoined:
        self._joins.append(kill)
        number = kill.worker
        step = self._used[number] + 1
        self._workers[number] = SimulatedWorker(step - 1)
        del self.left[number]
        joined = WorkerJoined(worker=number, host=self._hosts[number], step=step, at=self.now)
        self._training.told(joined)
        return joined
