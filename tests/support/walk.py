"""The world outside a machine: what can happen next, and what no order may do.

`World` is that of a parameter server; `support.replica_walk` has the one of replicas. A world obeys a machine's
orders and fails at the first that breaks a rule of the vocabulary. `walk` takes it through every interleaving of a
small instance, `wander` through one random history of a larger one.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from paceline.core.choice import Choice
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
from paceline.core.machine import Machine, Spec
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Release,
    SetAlarm,
    ShareOut,
    StartPull,
    StartPush,
    SwitchProtocol,
    steps_of,
)
from paceline.errors import ProtocolViolation

STRANGER = 99
"""A worker that is never there."""

FAR_BEHIND = 2
"""Versions: walks take states for the same that differ only in how much further behind a worker is than this."""


VERSIONS = frozenset({"version", "pulling", "holds"})
"""Fields that hold a version: what matters of it is how far behind the newest it is."""

LEAVES = frozenset({int, str, float, bool, type(None)})


class Broken(AssertionError):
    """The machine broke a rule."""


@dataclass(slots=True)
class Job:
    """What a live worker is at, seen from outside."""

    step: int
    version: int = -1
    """The one that it computes its step on."""
    phase: str = "idle"
    """idle → released → ready → … → released …; or declined."""
    waits: bool = False
    """Whether its step can begin only when something has come."""
    paused: bool = False
    """Whether it has declined only to wait for others: it may resume at any time."""


@dataclass(slots=True)
class Pushing(Job):
    """One that pushes updates: between ready and released, it is pushing and then arrived."""

    pushing: int | None = None
    """An earlier step, whose push goes on beside this one's computation."""
    kept: int | None = None
    """An earlier step, whose gradient waits for its push beside this one's computation."""
    last: int = -1
    """The last step that its release permits."""
    since: int | None = None
    """The first own step that goes into an update with later ones, until that is pushed."""
    pulling: int | None = None
    """The version on its way to it."""
    holds: int = -1
    """The newest version that has come to it."""


@dataclass(slots=True)
class World:
    """Workers, wires and store, as far as a machine can tell."""

    choice: Choice
    machine: Machine
    workers: int
    """How many begin."""
    steps: int
    """How many steps of each worker there is data for."""
    departures: int = 0
    """How many workers may still die."""
    joins: int = 0
    """How many may still come, new ones and those who had left."""
    pauses: int = 0
    """How many steps may still be declined by a worker that resumes afterwards."""
    pulls: bool = True
    """Whether the end of a release's own pull is told."""
    version: int = 0
    work: int | None = None
    first: dict[int, int] = field(default_factory=dict)
    """The numbers of workers' first steps; else 0."""
    done: int = 0
    memory: Any = None
    began: bool = False
    jobs: dict[int, Any] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    """Last step number of those who left."""
    entered: dict[int, int] = field(default_factory=dict)
    """By worker: the first step since it came, or came back."""
    unsettled: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Announced updates that are neither applied nor dropped yet: whether they have arrived."""
    alarms: dict[int, None] = field(default_factory=dict)
    """Alarms that are set and have not rung, by number."""
    now: float = 0.0

    @classmethod
    def of(cls, choice: Choice, workers: int, steps: int, **settings: Any) -> World:
        """The world before anything has happened in it, around a fresh machine; all know how much there is to do.

        It is of the kind that the protocol needs.
        """
        from support.replica_walk import ReplicaWorld, SwitchingWorld  # which build on this module

        settings = {"work": workers * steps, **settings}
        states = {part.spec.state for part in (choice.parts or (choice,))}
        kind = cls if states == {"store"} else SwitchingWorld if choice.parts else ReplicaWorld
        return kind(choice=choice, machine=choice.machine(), workers=workers, steps=steps, **settings)

    @property
    def spec(self) -> Spec:
        """The protocol's card."""
        return self.choice.spec

    @property
    def here(self) -> dict[int, int]:
        """Everyone who is here, and the step that each is at."""
        return {worker: job.step for worker, job in self.jobs.items()}

    def fork(self) -> World:
        """A copy that shares nothing that changes."""
        return _copied(self)  # type: ignore[no-any-return]

    def deliver(self, fact: Fact) -> tuple[Order, ...]:
        """Let the fact happen and obey the machine's orders, each of them checked."""
        orders = self.machine.handle(fact)
        if isinstance(fact, AlarmRang):
            del self.alarms[fact.number]
        else:
            self._happen(fact)
        for order in orders:
            self._obey(order)
        self._expect_settled()
        for sentence, holds in self.spec.invariants.items():
            if not holds(self.machine):
                raise Broken(f"invariant: {sentence}")
        for name, part in zip(self.spec.parts, self.choice.parts, strict=True):
            for sentence, holds in part.spec.invariants.items():
                if not holds(getattr(self.machine, name).machine):
                    raise Broken(f"invariant of {name}={part}: {sentence}")
        return orders

    def possible(self, samples: int | None = None) -> list[Fact]:
        """Every fact that could come next but departures, joins and pauses.

        Raises Broken if none can, and work remains.
        """
        at = self.now
        if not self.began:
            return [self.beginning()]
        facts: list[Fact] = self.ringing()
        for worker, job in self.jobs.items():
            if job.paused:
                facts.append(WorkerResumed(worker=worker, at=at))
            if job.pulling is not None:
                facts.append(ParametersTaken(worker=worker, version=job.pulling, at=at))
            if job.phase == "released":
                if self.lacks_data(worker, job.step):
                    facts.append(StepDeclined(worker=worker, step=job.step, at=at))
                    # For lack of data it leaves only when its own pushes are through.
                    if job.pushing is None and job.kept is None and job.since is None:
                        facts.append(WorkerLeft(worker=worker, reason="finished", at=at))
                elif not job.waits:
                    facts.append(
                        GradientReady(worker=worker, step=job.step, version=job.version, samples=samples, at=at)
                    )
            if job.pushing is not None:
                facts.append(UpdateArrived(worker=worker, step=job.pushing, at=at))
            elif job.phase == "pushing":
                facts.append(UpdateArrived(worker=worker, step=job.step, at=at))
        if not facts:
            self.expect_the_end()
        return facts

    def ringing(self) -> list[Fact]:
        """Every alarm that is set may ring at any time."""
        return [AlarmRang(number=number, at=self.now) for number in self.alarms]

    def host_of(self, worker: int) -> str:
        """Where the worker is."""
        return "host"

    def beginning(self) -> TrainingBegan:
        """The first fact."""
        members = tuple((worker, self.host_of(worker), self.first.get(worker, 0)) for worker in range(self.workers))
        return TrainingBegan(
            members=members, version=self.version, at=self.now, work=self.work, done=self.done, memory=self.memory
        )

    def lacks_data(self, worker: int, step: int) -> bool:
        """Whether that step has no data left."""
        return step >= self.steps + self.first.get(worker, 0)

    def resumed(self, steps: int) -> World:
        """The world of the run's next segment, which begins here: a fresh machine has the memory of this one.

        All workers are there again, with data for so many steps more. A step that is not computed is made again.
        """
        memory = None if self.spec.memory is None else json.loads(json.dumps(self.spec.memory(self.machine)))
        first = {worker: step + 1 for worker, step in self.gone.items()}
        first |= {worker: step if self.computes(worker) else step + 1 for worker, step in self.here.items()}
        following = World.of(
            self.choice,
            max(first) + 1,
            steps,
            work=self.work,
            version=self.version,
            first=first,
            memory=memory,
        )
        following.now = self.now
        return following

    def computes(self, worker: int) -> bool:
        """Whether the worker is at a step whose gradient is not there."""
        return self.jobs[worker].phase == "released"

    def membership(self) -> list[Fact]:
        """Every departure, join and pause that could come next."""
        facts: list[Fact] = []
        if not self.began:
            return facts
        if self.departures > 0:
            facts += self.departing()
        if self.joins > 0:
            newcomer = max([*self.jobs, *self.gone], default=-1) + 1
            facts += [
                WorkerJoined(worker=worker, host=self.host_of(worker), step=self.gone.get(worker, -1) + 1, at=self.now)
                for worker in (*self.gone, newcomer)
            ]
        if self.pauses > 0:
            facts += self.pausing()
        return facts

    def departing(self) -> list[Fact]:
        """Every worker may die."""
        return [WorkerLeft(worker=worker, reason="died", at=self.now) for worker in self.jobs]

    def pausing(self) -> list[Fact]:
        """Every worker may pause that is at a step whose parameters it has."""
        return [
            StepDeclined(worker=worker, step=job.step, at=self.now, paused=True)
            for worker, job in self.jobs.items()
            if job.phase == "released" and not job.waits
        ]

    def impossible(self) -> Iterator[Fact]:
        """Facts that cannot be true now: a few of each kind for every worker."""
        at = self.now
        if self.began:
            yield TrainingBegan(members=((0, "host", 0),), version=self.version, at=at)
        else:
            yield WorkerJoined(worker=0, host="host", step=0, at=at)
            yield WorkerResumed(worker=0, at=at)
            for members in (((1, "host", 0), (0, "host", 0)), ((0, "host", 0), (0, "host", 0))):
                yield TrainingBegan(members=members, version=self.version, at=at)
        for worker, job in self.jobs.items():
            step, version = job.step, job.version
            yield WorkerJoined(worker=worker, host="host", step=step + 1, at=at)
            if job.phase != "declined":
                yield WorkerResumed(worker=worker, at=at)
            if job.phase == "released":
                yield GradientReady(worker=worker, step=step, version=version + 1, samples=1, at=at)
                yield GradientReady(worker=worker, step=step + 1, version=version, samples=1, at=at)
                yield StepDeclined(worker=worker, step=step + 1, at=at)
            else:
                yield GradientReady(worker=worker, step=step, version=version, samples=1, at=at)
                yield StepDeclined(worker=worker, step=step, at=at)
        for worker, step in self.gone.items():
            yield WorkerJoined(worker=worker, host="host", step=step, at=at)
        for worker, step in ((STRANGER, 0), *self.gone.items()):
            yield WorkerLeft(worker=worker, reason="died", at=at)
            yield WorkerResumed(worker=worker, at=at)
            yield GradientReady(worker=worker, step=step, version=self.version, samples=1, at=at)
            yield StepDeclined(worker=worker, step=step, at=at)
            yield UpdateArrived(worker=worker, step=step, at=at)
            yield ParametersTaken(worker=worker, version=self.version, at=at)
        yield AlarmRang(number=max(self.alarms, default=self.version) + 1, at=at)
        yield from self.impossible_here()

    def impossible_here(self) -> Iterator[Fact]:
        """The same of what workers push and pull, and of replicas, which a parameter server has none of."""
        at = self.now
        for worker, job in self.jobs.items():
            yield ParametersTaken(worker=worker, version=self.version + 1, at=at)
            yield UpdateArrived(worker=worker, step=job.step + (job.phase == "pushing"), at=at)
        yield ReduceFinished(group=0, at=at)
        yield ReduceFailed(group=0, lost=(STRANGER,), at=at)
        yield ReplicaCopied(source=0, worker=1, at=at)

    def refuse_the_impossible(self) -> None:
        """Fail unless the machine raises ProtocolViolation for each of these, and is then as before."""
        before = frozen(self.machine)
        for fact in self.impossible():
            try:
                self.machine.handle(fact)
            except ProtocolViolation as violation:
                if violation.fact is not fact:
                    raise Broken(f"{fact} was refused, but the violation names {violation.fact}") from None
                continue
            raise Broken(f"accepted {fact}")
        if frozen(self.machine) != before:
            raise Broken("an illegal fact was refused, but changed the machine")

    def expect_the_end(self) -> None:
        """Called when nothing can happen any more: is all work done?"""
        stuck = [worker for worker, job in self.jobs.items() if job.phase != "declined"]
        if stuck:
            raise Broken(f"stuck: workers {stuck} wait, and nothing can happen")
        if self.unsettled:
            raise Broken(f"lost: {list(self.unsettled)} were neither applied nor dropped")

    def key(self) -> Any:
        """Equal for states with the same future, versions counted back from the newest.

        Where the optimizer is the worker's, all versions are taken for the same: only scales depend on them, and
        with pulls beside the computation there would be too many states. If a pull asks whether there is a newer
        version, the newest one is told from the others.
        """
        told = 1 if getattr(self.choice.config, "pull", None) == "free" else 0
        return self.key_from(self.version + FAR_BEHIND - told if self.spec.local_steps else self.version)

    def key_from(self, newest: int) -> tuple[Any, ...]:
        """See `key`. Versions are counted back from that one."""
        return (
            frozen(self.machine, newest),
            frozen(dict(sorted(self.jobs.items())), newest),
            tuple(sorted(self.gone.items())),
            tuple(sorted(self.unsettled.items())),
            tuple(self.alarms),
            self.departures,
            self.joins,
            self.pauses,
            self.began,
        )

    def _expect_settled(self) -> None:
        """What those who left had announced is dropped."""
        for (worker, step), has_arrived in self.unsettled.items():
            if not has_arrived and worker not in self.jobs:
                raise Broken(f"step {step} of worker {worker}, who left, can never arrive and was not dropped")

    def _expect_room(self, order: Order, worker: int) -> None:
        """There is a push area for the step that begins: one that waited for it would wait for itself."""
        job = self.jobs[worker]
        first, begun = self.entered[worker], job.step if job.since is None else job.since
        unapplied = 1 + sum(one == worker and first <= step < begun for one, step in self.unsettled)
        declared = self.choice.unapplied(self.workers)
        if unapplied > declared:
            raise Broken(f"{unapplied} updates of worker {worker}, and {declared} are declared: {order}")

    def _happen(self, fact: Fact) -> None:
        match fact:
            case TrainingBegan(members=members, version=version):
                self.began, self.version = True, version
                for worker, _, step in members:
                    self._enter(worker, step)
            case WorkerJoined(worker=worker, step=step):
                self.joins -= 1
                self.gone.pop(worker, None)
                self._enter(worker, step)
            case WorkerLeft(worker=worker, reason=reason):
                self.departures -= reason == "died"
                self.gone[worker] = self.jobs.pop(worker).step
            case GradientReady(worker=worker, step=step):
                job = self.jobs[worker]
                job.phase = "ready"
                self.unsettled[worker, step] = False
                if isinstance(job, Pushing) and step < job.last:
                    job.since = step if job.since is None else job.since
                    job.step, job.phase = step + 1, "released"
            case UpdateArrived(worker=worker, step=step):
                job = self.jobs[worker]
                if job.pushing is not None:
                    job.pushing = None
                else:
                    job.phase = "arrived"
                if (worker, step) in self.unsettled:  # else it was dropped on its way
                    self.unsettled[worker, step] = True
            case StepDeclined(worker=worker, paused=paused):
                self.jobs[worker].phase, self.jobs[worker].paused = "declined", paused
                self.pauses -= paused
            case WorkerResumed(worker=worker):
                self.jobs[worker].phase, self.jobs[worker].paused = "idle", False
            case ParametersTaken(worker=worker, version=version):
                job = self.jobs[worker]
                job.holds, job.pulling, job.waits = version, None, False

    def _enter(self, worker: int, step: int) -> None:
        self.jobs[worker], self.entered[worker] = Pushing(step - 1), step

    def _obey(self, order: Order) -> None:
        if order.why[0] not in self.choice.reasons or not self.choice.sentence(order.why):
            raise Broken(f"no sentence says why: {order}")
        if isinstance(order, SetAlarm):
            if order.number in self.alarms or order.seconds < 0:
                raise Broken(f"it is set, or its time is over: {order}")
            self.alarms[order.number] = None
            return
        self._do(order)

    def _do(self, order: Order) -> None:
        match order:
            case Release(worker=worker, step=step, version=version, parameters="pull"):
                goes_on = ["ready"] if self.choice.fragments.overlap else []
                job = self._live(order, worker, "idle", "arrived", *goes_on)
                if job.phase == "ready" and job.since is None:  # it goes on with the update that it has begun
                    job.since = job.step
                self._start(order, job, step)
                self._expect_room(order, worker)
                self._pull(order, job, version)
                job.version, job.waits, job.last = version, True, order.last
                if not self.pulls:
                    job.holds, job.pulling, job.waits = version, None, False
            case Release(worker=worker, step=step, version=version, parameters=parameters):
                job = self._live(
                    order, worker, "idle", "arrived", "pushing", *(["ready"] if parameters == "held" else [])
                )
                if job.phase == "ready":
                    if job.kept is not None:
                        raise Broken(f"the gradient of step {job.kept} still waits: {order}")
                    job.kept = job.step
                if job.phase == "pushing":
                    if job.pushing is not None:
                        raise Broken(f"step {job.pushing} is still on its way: {order}")
                    job.pushing = job.step
                if version != job.holds:
                    raise Broken(f"it holds version {job.holds}: {order}")
                self._start(order, job, step)
                self._expect_room(order, worker)
                job.version = version
            case Hold(worker=worker):
                self._live(order, worker, "idle", "ready", "arrived")
            case StartPush(worker=worker, step=step, scale=scale):
                job = self._live(order, worker)
                if not 0 < scale <= 1:
                    raise Broken(f"the scale must be above 0 and at most 1: {order}")
                if order.since != (None if job.since == step else job.since):
                    raise Broken(f"its own steps since {job.since} are in no update: {order}")
                for one in steps_of(order)[:-1]:
                    del self.unsettled[worker, one]
                own, job.since = job.since is not None, None
                if step == job.kept and job.pushing is None:
                    job.kept, job.pushing = None, step
                elif own and job.phase != "ready" and step == job.step - 1:
                    if job.pushing is not None:
                        raise Broken(f"step {job.pushing} is still on its way: {order}")
                    if job.phase == "released" and job.last - step != self.choice.fragments.overlap:
                        raise Broken(f"its update is not due: {order}")
                    job.pushing = step
                else:
                    self._live(order, worker, "ready")
                    if step != job.step:
                        raise Broken(f"its step is {job.step}: {order}")
                    job.phase = "pushing"
            case StartPull(worker=worker, version=version):
                self._pull(order, self._live(order, worker), version)
            case LeaveOut(worker=worker):
                self._live(order, worker, "idle", "arrived")
            case AdjustTraining(worker=worker, learning_rate_scale=scale, momentum_scale=momentum):
                self._live(order, worker)
                if not (scale > 0 and 0 <= momentum <= 1):
                    raise Broken(f"rates must be above 0, and momentum at most the script's: {order}")
            case ShareOut(shares=shares):
                if [worker for worker, _ in shares] != sorted(self.jobs) or min(share for _, share in shares) < 1:
                    raise Broken(f"each worker that is here has a share: {order}")
            case SwitchProtocol(members=members):
                busy = [one for one, job in self.jobs.items() if job.phase not in ("idle", "arrived", "declined")]
                if busy or any(job.pushing is not None for job in self.jobs.values()):
                    raise Broken(f"workers {busy} are in the middle of a step: {order}")
                staying = [one for one, job in self.jobs.items() if job.phase != "declined"]
                if [worker for worker, _, _ in members] != sorted(staying):
                    raise Broken(f"workers {staying} are here: {order}")
            case ApplyUpdate(version=version, contributions=contributions):
                if version != self.version + 1:
                    raise Broken(f"the newest version is {self.version}: {order}")
                self.version = version
                for worker, step, _ in contributions:
                    if not self.unsettled.pop((worker, step), False):
                        raise Broken(f"step {step} of worker {worker} has not arrived or is settled: {order}")
                weights = [weight for _, _, weight in contributions]
                if any(one.spec.local_steps for one in (self.choice, *self.choice.parts)):
                    if not all(0 < weight <= 1 for weight in weights):
                        raise Broken(f"the weights must be above 0, and at most 1: {order}")
                elif abs(sum(weights) - 1) > 1e-12 or min(weights) <= 0:
                    raise Broken(f"the weights must be above 0 and sum to 1: {order}")
            case DropUpdate(worker=worker, step=step):
                if self.unsettled.pop((worker, step), None) is None:
                    raise Broken(f"there is no such update, or it is settled: {order}")
                for one in steps_of(order)[:-1]:  # if it was pushed, they are settled
                    self.unsettled.pop((worker, one), None)
                dropped = self.jobs.get(worker)
                if dropped is not None and dropped.phase == "ready" and dropped.step == step:
                    dropped.phase = "idle"
            case _:
                raise Broken(f"there is no such order where a parameter server has the parameters: {order}")

    def _live(self, order: Order, worker: int, *phases: str) -> Any:
        job = self.jobs.get(worker)
        if job is None:
            raise Broken(f"worker {worker} is not here: {order}")
        if phases and job.phase not in phases:
            raise Broken(f"worker {worker} is {job.phase}: {order}")
        return job

    @staticmethod
    def _start(order: Order, job: Job, step: int) -> None:
        if step != job.step + 1:
            raise Broken(f"step numbers grow by one, and {job.step} was the last: {order}")
        job.step, job.phase = step, "released"

    def _pull(self, order: Order, job: Pushing, version: int) -> None:
        if version != self.version:
            raise Broken(f"the newest version is {self.version}: {order}")
        if job.pulling is not None:
            raise Broken(f"version {job.pulling} is still on its way to it: {order}")
        job.pulling = version


def walk(
    choice: Choice, workers: int, steps: int, departures: int = 0, joins: int = 0, pulls: bool = False, **settings: Any
) -> int:
    """Visit every reachable state, breadth first. Returns how many there are.

    A failure says which facts, in their order, lead to it: no shorter history does.
    """
    start = World.of(choice, workers, steps, departures=departures, joins=joins, pulls=pulls, **settings)
    came_from: dict[Any, tuple[Any, Fact | None]] = {start.key(): (None, None)}
    queue = deque([(start, start.key())])
    while queue:
        world, key = queue.popleft()
        fact: Fact | None = None
        try:
            world.refuse_the_impossible()
            facts = [*world.possible(), *world.membership()]
            for number, fact in enumerate(facts, start=1):
                following = world.fork() if number < len(facts) else world
                following.deliver(fact)
                reached = following.key()
                if reached not in came_from:
                    came_from[reached] = (key, fact)
                    queue.append((following, reached))
        except Exception as broken:
            story = [fact]
            while key is not None:
                key, fact = came_from[key]
                story.append(fact)
            told = "\n".join(f"  {step}" for step in reversed(story) if step is not None)
            raise Broken(f"{choice}, {workers} workers, {steps} steps: {broken!r}\nafter\n{told}") from broken
    return len(came_from)


def wander(world: World, chance: random.Random, turmoil: float = 0.1) -> Iterator[tuple[Fact, tuple[Order, ...]]]:
    """One random history of the world, to its end: each fact, with the orders that it caused.

    Before each fact a worker leaves, comes or pauses with probability `turmoil`, while the world allows it.
    """
    samples = chance.choice([True, True, False])
    while True:
        world.now += chance.random()
        facts = world.possible(samples=chance.randrange(1, 9) if samples else None)
        changes = world.membership()
        if changes and (not facts or chance.random() < turmoil):
            facts = changes
        if not facts:
            return
        fact = chance.choice(facts)
        try:
            yield fact, world.deliver(fact)
        except Broken as broken:
            raise Broken(f"{broken} (after {fact})") from broken


History = list[tuple[Fact, tuple[Order, ...]]]


def history(choice: Choice, seed: int) -> History:
    """The seed's history of that protocol: one to five workers, some of whom may leave, come and pause."""
    chance = random.Random(f"{choice} {seed}")
    world = World.of(
        choice,
        workers=chance.randrange(1, 6),
        steps=chance.randrange(1, 7),
        departures=chance.randrange(4),
        joins=chance.randrange(4),
        version=chance.randrange(3),
        work=chance.randrange(60),
        first={worker: chance.randrange(4) for worker in range(5)},
        done=chance.randrange(30),
        pauses=chance.randrange(4),
    )
    try:
        return list(wander(world, chance))
    except Broken as broken:
        raise Broken(f"{choice}, history {seed}: {broken}") from broken


def frozen(value: Any, newest: int = 0) -> Any:
    """A machine's state as a hashable value, its versions counted back from the newest (from 0: as they are)."""
    kind = type(value)
    if kind is dict:
        return tuple([(key, item if type(item) in LEAVES else frozen(item, newest)) for key, item in value.items()])
    if kind is tuple or kind is list:
        return tuple([item if type(item) in LEAVES else frozen(item, newest) for item in value])
    mutable = _mutable(kind)
    if mutable is None:
        return value
    _, parts_of, versions = mutable
    parts = [part if type(part) in LEAVES else frozen(part, newest) for part in parts_of(value)]
    if newest:
        for place in versions:
            if parts[place] is not None:
                parts[place] = min(newest - parts[place], FAR_BEHIND)
    return tuple(parts)


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in LEAVES else _copied(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in LEAVES else _copied(item) for item in value]
    mutable = _mutable(kind)
    if mutable is None:
        return value
    names, parts_of, _ = mutable
    copies = [part if type(part) in LEAVES else _copied(part) for part in parts_of(value)]
    return kind(**dict(zip(names, copies, strict=True)))


@cache
def _mutable(kind: type) -> tuple[list[str], Callable[[Any], tuple[Any, ...]], list[int]] | None:
    """If it is a dataclass whose values can change: its fields' names, what gets them, and which are versions."""
    if not is_dataclass(kind) or kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return None
    names = [field.name for field in fields(kind)]
    parts_of = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    return names, parts_of, [place for place, name in enumerate(names) if name in VERSIONS]
