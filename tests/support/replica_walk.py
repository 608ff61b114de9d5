"""The world outside a decentralized machine: replicas, groups that average them, and what no order may do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.core.facts import (
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
from paceline.core.orders import (
    AdjustTraining,
    CopyReplica,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    ShareOut,
    StepReplica,
    SwitchProtocol,
)
from support.walk import STRANGER, Broken, Job, Pushing, World


@dataclass(slots=True)
class Task(Job):
    """One with a replica: between ready and released, it is applied. A joiner is bare → copying → idle first."""

    replica: int = 0
    """The replica's version."""
    first: int = 0
    """Its first step since it came: those before were made by who had its number then."""
    group: int | None = None
    """The one that it is in now."""
    mean: int | None = None
    """The group whose mean gradient it has, and has not been stepped with."""
    alone: dict[int, None] = field(default_factory=dict)
    """Steps in its replica that no average has been made of, and that are in no copy of it."""
    source: int | None = None
    """Whose replica is on its way to it."""
    shares: dict[int, None] = field(default_factory=dict)
    """Those steps of that one that will be in two replicas then."""
    own: int | None = None
    """While that is on its way: the version of the replica that it keeps until then; None: it has none."""


@dataclass(slots=True)
class ReplicaWorld(World):
    """Workers with a replica each. There is no store: `unsettled` is what is in no replica.

    That is gradients; and of a worker that has died, all of its steps that its replica alone had.
    """

    groups: dict[int, Reduce] = field(default_factory=dict)
    """Those at work."""
    means: dict[int, Reduce] = field(default_factory=dict)
    """Those whose mean gradient is there, and with which not all have been stepped."""
    broken: dict[int, None] = field(default_factory=dict)
    """Groups at work that a member has died in: they can only fail."""
    used: int = 0
    """Group numbers below this one are taken."""

    def host_of(self, worker: int) -> str:
        return f"host{worker % 2}"

    def possible(self, samples: int | None = None) -> list[Fact]:
        """Every fact that could come next but deaths, joins and pauses. Raises Broken if none can, and work remains."""
        at = self.now
        if not self.began:
            return [self.beginning()]
        facts: list[Fact] = self.ringing()
        for worker, task in self.jobs.items():
            if task.source is not None:
                facts.append(ReplicaCopied(source=task.source, worker=worker, at=at))
            if task.paused:
                facts.append(WorkerResumed(worker=worker, at=at))
            if task.phase != "released":
                continue
            if not self.lacks_data(worker, task.step):
                facts.append(GradientReady(worker=worker, step=task.step, version=task.version, samples=samples, at=at))
            else:
                facts.append(StepDeclined(worker=worker, step=task.step, at=at))
                facts.append(WorkerLeft(worker=worker, reason="finished", at=at))
        for group, order in self.groups.items():
            if group not in self.broken:
                facts.append(ReduceFinished(group=group, at=at))
            if lost := tuple(worker for worker in order.members if worker not in self._at_work(order)):
                facts.append(ReduceFailed(group=group, lost=lost, at=at))
        if not facts:
            self.expect_the_end()
        return facts

    def resumed(self, steps: int) -> World:
        following = World.resumed(self, steps)
        assert isinstance(following, ReplicaWorld)
        following.used = self.used
        return following

    def departing(self) -> list[Fact]:
        """Besides, every worker may leave that has declined."""
        declined = [worker for worker, task in self.jobs.items() if task.phase == "declined"]
        finished = [WorkerLeft(worker=worker, reason="finished", at=self.now) for worker in declined]
        return [*World.departing(self), *finished]

    def impossible_here(self) -> Iterator[Fact]:
        """The same of replicas and groups. No worker pushes or pulls."""
        at = self.now
        yield ReduceFinished(group=self.used, at=at)
        yield ReduceFailed(group=self.used, lost=(0,), at=at)
        yield ReplicaCopied(source=0, worker=STRANGER, at=at)
        for worker, task in self.jobs.items():
            yield ReplicaCopied(source=STRANGER, worker=worker, at=at)
            if task.source is None:
                for source in self.jobs:
                    yield ReplicaCopied(source=source, worker=worker, at=at)
            yield ParametersTaken(worker=worker, version=task.version, at=at)
            yield UpdateArrived(worker=worker, step=task.step, at=at)
        for group in self.broken:
            yield ReduceFinished(group=group, at=at)
        for group, order in self.groups.items():
            yield ReduceFailed(group=group, lost=(), at=at)
            yield ReduceFailed(group=group, lost=(STRANGER,), at=at)
            for worker in order.members:
                if worker in self._at_work(order):
                    yield ReduceFailed(group=group, lost=(worker,), at=at)

    def key(self) -> Any:
        """Equal for states with the same future."""
        return (*self.key_from(0), tuple(self.groups.values()), tuple(self.broken))

    def _happen(self, fact: Fact) -> None:
        match fact:
            case WorkerLeft(worker=worker, reason=reason):
                task = self.jobs.pop(worker)
                self.departures -= reason == "died" or task.phase == "declined"
                self.gone[worker] = task.step
                if reason == "died" and task.group is not None:
                    self.broken[task.group] = None
                if reason == "died":
                    self.unsettled.update({(worker, step): False for step in task.alone})
                    for other in self.jobs.values():
                        if other.source == worker:
                            other.phase, other.source, other.shares = "bare", None, {}
                            if other.own is not None:
                                other.phase, other.replica, other.own = "idle", other.own, None
            case WorkerJoined(worker=worker):
                World._happen(self, fact)
                self.jobs[worker].phase = "bare"
            case ReplicaCopied(source=source, worker=worker):
                task = self.jobs[worker]
                if source in self.jobs:
                    for shared in task.shares:
                        self.jobs[source].alone.pop(shared, None)
                task.phase, task.source, task.shares, task.own = "idle", None, {}, None
            case ReduceFinished(group=group) | ReduceFailed(group=group):
                self.broken.pop(group, None)
                self._end(self.groups.pop(group), isinstance(fact, ReduceFinished))
            case _:
                World._happen(self, fact)

    def _enter(self, worker: int, step: int) -> None:
        self.jobs[worker] = Task(step - 1, first=step)

    def _end(self, order: Reduce, finished: bool) -> None:
        for task in self._at_work(order).values():
            task.group = None
            if finished and order.what == "parameters":
                task.replica += 1
                task.alone.clear()
            elif finished:
                task.mean = order.group
                self.means[order.group] = order

    def _at_work(self, order: Reduce) -> dict[int, Task]:
        """The members of a group at work who have not left since it began; who has come back is not one of them."""
        return {one: self.jobs[one] for one in order.members if one in self.jobs and self._in(order, one)}

    def _in(self, order: Reduce, worker: int) -> bool:
        task = self.jobs[worker]
        return order.group in (task.group, task.mean)

    def _expect_settled(self) -> None:
        """What those who left had ready is dropped, unless a group with somebody left averages it."""
        averaged = self._averaged(self.groups) | self._averaged(self.means)
        for worker, step in self.unsettled:
            gone = worker not in self.jobs or step < self.jobs[worker].first
            if gone and (worker, step) not in averaged:
                raise Broken(f"step {step} of worker {worker}, who left, is in no replica and was not dropped")

    def _averaged(self, groups: dict[int, Reduce]) -> set[tuple[int, int]]:
        """The gradients that these groups average, as far as a member is here whom the mean could step."""
        return {
            (worker, step)
            for order in groups.values()
            if self._at_work(order)
            for worker, step, _ in order.contributions
        }

    def _do(self, order: Order) -> None:
        match order:
            case CopyReplica(source=source, worker=worker):
                task = self._live(order, worker, "bare", "idle")
                self._free(order, source)
                if task.phase == "idle":
                    self._free(order, worker)
                    if task.alone or task.replica >= self.jobs[source].replica:
                        raise Broken(f"its own replica, of version {task.replica}, would be lost: {order}")
                    task.own = task.replica
                if self.jobs[source].mean is not None:
                    raise Broken(f"the mean of group {self.jobs[source].mean} is not in it yet: {order}")
                task.phase, task.source, task.replica = "copying", source, self.jobs[source].replica
                task.shares = dict(self.jobs[source].alone)
            case ShareOut(shares=shares):
                if [worker for worker, _ in shares] != sorted(self.jobs) or min(share for _, share in shares) < 1:
                    raise Broken(f"each worker that is here has a share: {order}")
            case Release(worker=worker, step=step, version=version, parameters=parameters):
                if self.jobs[worker].phase == "bare" and self._nobody_to_copy():
                    self.jobs[worker].phase, self.jobs[worker].replica = "idle", 0
                task = self._free(order, worker, "idle", "applied")
                if parameters != "own" or version != task.replica:
                    raise Broken(f"its own replica's version is {task.replica}: {order}")
                if step != task.step + 1:
                    raise Broken(f"step numbers grow by one, and {task.step} was the last: {order}")
                task.step, task.phase, task.version = step, "released", version
            case Hold(worker=worker):
                self._live(order, worker, "bare", "idle", "ready", "applied")
            case StepReplica(worker=worker, step=step, version=version, group=group):
                task = self._free(order, worker, "ready")
                if (step, version) != (task.step, task.replica + 1):
                    raise Broken(f"its step is {task.step}, its replica's version {task.replica}: {order}")
                if task.mean != group:
                    raise Broken(f"the mean gradient that it has is of group {task.mean}: {order}")
                if group is None:
                    del self.unsettled[worker, step]
                    task.alone[step] = None
                else:
                    self._use(self.means[group])
                task.replica, task.phase, task.mean = version, "applied", None
                if group is not None and all(one.mean != group for one in self.jobs.values()):
                    del self.means[group]
            case Reduce():
                self._reduce(order)
            case DropUpdate(worker=worker, step=step):
                if worker in self.jobs and step >= self.jobs[worker].first:
                    raise Broken(f"its worker is here: {order}")
                if self.unsettled.pop((worker, step), None) is None:
                    raise Broken(f"there is no such gradient, or it is settled: {order}")
                if (worker, step) in self._averaged(self.groups):
                    raise Broken(f"it is being averaged: {order}")
            case _:
                raise Broken(f"there is no such order where every worker owns a replica: {order}")

    def _nobody_to_copy(self) -> bool:
        return all(task.phase == "bare" for task in self.jobs.values())

    def _use(self, order: Reduce) -> None:
        """One more of the group is stepped with its mean: all that is in the mean is in a replica now."""
        for worker, step, _ in order.contributions:
            self.unsettled.pop((worker, step), None)

    def _reduce(self, order: Reduce) -> None:
        if order.group < self.used:
            raise Broken(f"this number is used: {order}")
        if len(order.members) < 2 or list(order.members) != sorted(set(order.members)):
            raise Broken(f"two or more, in ascending order, average: {order}")
        for worker in order.members:
            self._free(order, worker).group = order.group
        if order.what == "gradients":
            contributed = [(worker, self.jobs[worker].step) for worker in order.members]
            if [(worker, step) for worker, step, _ in order.contributions] != contributed:
                raise Broken(f"the members' gradients are {contributed}: {order}")
            for worker, _ in contributed:
                if self._live(order, worker, "ready").mean is not None:
                    raise Broken(f"the gradient of worker {worker} is in a mean already: {order}")
            if len({self.jobs[worker].replica for worker in order.members}) > 1:
                raise Broken(f"replicas that have not changed equally often would be stepped with one mean: {order}")
            weights = [weight for _, _, weight in order.contributions]
            if abs(sum(weights) - 1) > 1e-12 or min(weights) <= 0:
                raise Broken(f"the weights must be above 0 and sum to 1: {order}")
        elif order.contributions:
            raise Broken(f"parameters are not weighed: {order}")
        self.used = order.group + 1
        self.groups[order.group] = order

    def _free(self, order: Order, worker: int, *phases: str) -> Task:
        """It has a replica that may be touched: no group is at it."""
        task = self._live(order, worker, *phases)
        if task.phase in ("bare", "copying"):
            raise Broken(f"worker {worker} has no replica yet: {order}")
        if task.group is not None:
            raise Broken(f"group {task.group} averages worker {worker}: {order}")
        return task


def _of_part(name: str) -> Callable[..., Any]:
    """What the world of the part's kind does by that name."""

    def do(world: SwitchingWorld, *told: Any) -> Any:
        return getattr(world.kind, name)(world, *told)

    return do


@dataclass(slots=True)
class SwitchingWorld(ReplicaWorld):
    """One whose protocol has two parts, of which one may have replicas and the other a store."""

    part: int = 0
    """The number of the part that decides."""
    late: dict[int, int] = field(default_factory=dict)
    """By worker, while each owns a replica: the version that is still on its way to it from the store."""
    stepped: int = 0
    """How many steps replicas have been ordered since the part began."""
    outside: dict[int, None] = field(default_factory=dict)
    """Workers that the part began without, or left out."""

    @property
    def kind(self) -> type[World]:
        return ReplicaWorld if self.choice.part(self.part).spec.state == "replicas" else World

    departing = _of_part("departing")
    impossible_here = _of_part("impossible_here")
    _expect_settled = _of_part("_expect_settled")

    def _enter(self, worker: int, step: int) -> None:
        self.kind._enter(self, worker, step)
        self.entered[worker] = step

    def possible(self, samples: int | None = None) -> list[Fact]:
        late = [ParametersTaken(worker=worker, version=number, at=self.now) for worker, number in self.late.items()]
        return [*self.kind.possible(self, samples), *late]

    def impossible(self) -> Iterator[Fact]:
        """A pull whose end is not told may still be on its way, as far as the machine knows."""
        late = self.machine.late  # type: ignore[attr-defined]
        for fact in ReplicaWorld.impossible(self):
            if not isinstance(fact, ParametersTaken) or late.get(fact.worker) != fact.version:
                yield fact

    def resumed(self, steps: int) -> World:
        following = World.resumed(self, steps)
        assert isinstance(following, SwitchingWorld)
        memory = following.memory
        if memory is not None:
            following.used = memory["groups"]
            following.part = int(memory["state"] == "then")
            following.version = memory["version"]
        return following

    def key(self) -> Any:
        return (*self.kind.key(self), self.part, tuple(self.late.items()))

    def expect_the_end(self) -> None:
        if not self.late:
            World.expect_the_end(self)

    def _happen(self, fact: Fact) -> None:
        if isinstance(fact, TrainingBegan):
            if self.memory is None:
                self.part = int(self.machine.active == "then")  # type: ignore[attr-defined]
            World._happen(self, fact)
        elif isinstance(fact, ParametersTaken) and fact.worker in self.late:
            del self.late[fact.worker]
        else:
            if isinstance(fact, WorkerLeft):
                self.late.pop(fact.worker, None)
                self.outside.pop(fact.worker, None)
            self.kind._happen(self, fact)
            if isinstance(fact, WorkerResumed) and fact.worker in self.outside and self.kind is ReplicaWorld:
                del self.outside[fact.worker]
                self.jobs[fact.worker].phase = "bare"

    def _nobody_to_copy(self) -> bool:
        return all(task.phase == "bare" or worker in self.outside for worker, task in self.jobs.items())

    def _do(self, order: Order) -> None:
        if isinstance(order, AdjustTraining | LeaveOut):
            self._live(order, order.worker)
            if isinstance(order, LeaveOut):
                self.outside[order.worker] = None
            return
        if not isinstance(order, SwitchProtocol):
            self.stepped += isinstance(order, StepReplica)
            self.kind._do(self, order)
            return
        self._expect_rest(order)
        before, self.part = self.part, self.choice.part_of(order)
        states = {self.choice.part(number).spec.state for number in (before, self.part)}
        makes = order.why[0] != "resumed" and "replicas" in states
        if order.why[0] != "resumed" and makes != (order.version is not None):
            raise Broken(f"a switch makes a version where there are replicas: {order}")
        if order.version is not None:
            if order.version != self.version + self.stepped + 1:
                raise Broken(f"{self.stepped} steps after version {self.version}: {order}")
            self.version, self.stepped = order.version, 0
        if before != self.part or makes:
            self._begin_anew()

    def _expect_rest(self, order: SwitchProtocol) -> None:
        resting = ("bare", "idle", "applied", "arrived")
        busy = [one for one, job in self.jobs.items() if job.phase not in (*resting, "declined")]
        pushing = [one for one, job in self.jobs.items() if getattr(job, "pushing", None) is not None]
        if busy or pushing or self.groups or self.unsettled:
            raise Broken(f"workers {busy + pushing} or groups {list(self.groups)} are at work: {order}")
        staying = [one for one, job in self.jobs.items() if job.phase != "declined"]
        if [worker for worker, _, _ in order.members] != sorted(staying):
            raise Broken(f"workers {staying} are here: {order}")

    def _begin_anew(self) -> None:
        """All have nothing under way, and get what the part has for them."""
        self.outside = {worker: None for worker, job in self.jobs.items() if job.phase == "declined"}
        for worker, job in self.jobs.items():
            if isinstance(job, Pushing) and job.pulling is not None:
                self.late[worker] = job.pulling
            if self.kind is ReplicaWorld:
                fresh: Any = Task(job.step, first=self.entered[worker])
            else:
                fresh = Pushing(job.step, pulling=self.late.pop(worker, None))
            fresh.phase, fresh.paused = "declined" if job.phase == "declined" else "idle", job.paused
            self.jobs[worker] = fresh
