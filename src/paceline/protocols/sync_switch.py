"""Sync-Switch: one protocol for the first part of the work, another for the rest, switched live.

By default BSP for the first sixteenth, then ASP. The two machines are given to this one, which only decides when. While
workers are slow for a time it may change over early and come back (`greedy`), or go on without them (`elastic`).

Source: Li, Mangoubi, Xu, Guo, ICDCS 2021 (arXiv 2104.08364), for the two phases and the two straggler policies. From
the authors' released code and logs: work is planned in single workers' batches, so that a BSP step of n workers is n of
them; ASP has the script's learning rate, BSP n times it; under both policies all planned BSP steps are made, under
`elastic` by fewer workers (`count=rounds`); names and results of other momentum values after the switch. How stragglers
are found is recalled, not quoted: throughput below mean - standard deviation (population) several times in a row. So
is that momentum stays as it is. The numbers `window` and `consecutive` are ours, and so is `min_gap`: one slightly slow
worker of eight is 2.6 standard deviations below the mean, however slight that is.

Counter convention: work is counted in samples of applied updates (updates, where samples are not counted). The first
phase ends with the update that reaches `switch_at` of the run's work. With `count=rounds` a round counts as if all
workers that the run began with were in it, each with as many samples as those that are. The phase ends after as many
rounds as all of them would need, however few workers make them. Lead and staleness are as in the active part.

Deviations: nothing is stopped, saved and started again. From the fact that ends a phase on, no worker begins another
step under its protocol. What was begun is finished, and applied or dropped, by that protocol. Then the next one begins
with all workers. From BSP that is the same moment, as a round has just been applied. A phase that comes back begins
with a fresh machine.

Ours:
- While a phase ends, a worker with nothing under way leaves its machine, so the phase's rounds shrink instead of
  waiting. A worker that joins then waits for the next phase. A worker that has run out of data is no member of it.
- A phase ends with a version. So no worker is in the middle of a round of own steps then, unless rounds have a quorum:
  workers that are late end their rounds first.
- An alarm that a part has set rings in vain once that part is over.
- Where one of the two protocols has replicas, the switch makes a version: the mean of all replicas, or the store's as
  it is. The next part begins with that.
- A step of a replica counts as done when it is ordered, also if the replica is lost later.
- `rescale=linear`: as a phase begins in which a version is the mean of a gradient from each worker, learning rates are
  multiplied by the number of workers. Then, before a version, they are multiplied by the number of gradients that are
  in it. A newcomer has the script's own rates.
- A worker that declined in an earlier phase and goes on now joins this phase. While a phase ends, it waits for the next
  one, as all that go on then do.
- A worker is looked at over its last `window` steps, by samples for each second from when it could begin a step until
  its gradient was ready. Waiting does not count. There is a look each time as many updates were applied as workers take
  part. With fewer than three workers none is a straggler: the slower of two is always exactly one deviation below.
- `elastic` needs a first part that goes in rounds. A straggler is out from its next release until the next phase, also
  if it comes back in between. The last worker that computes is never sent out. When no worker computes any more but
  some are out, the next phase begins at once. With `switch_at=1`, where there is no next one, `first` begins anew.
- `momentum`: the share of the script's own value that `then` is stepped with after a switch to it. `ramp` grows it from
  one nth to all of it in n equal stages over a quarter of the run's work, n as at the beginning. For 8 workers these
  are the authors' additive stages, of 2,000 of 64,000 steps. Whenever `first` comes back it has the script's momentum.
- With `switch_at=1` and `greedy`, `first` goes on to the end of the data whenever there is no straggler.
- A resumed run goes on in its phase; if that had begun to end, in the next one. Work counts on, and so does the ramp of
  momentum, in nths of the workers that the run began with. What `first` has done stays done, also if the resumed run is
  given more work. The part's machine begins anew, and so does the look-out for stragglers, with all workers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal

from paceline.core.choice import check_parameters, parameter
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
from paceline.core.machine import Machine as AnyMachine
from paceline.core.machine import Part, Spec
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    SetAlarm,
    StartPull,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.core.reasons import NAMED_AT_MOST, OF_REPLICAS, Why
from paceline.core.replicas import ReplicaProgress, Replicas
from paceline.core.roster import Roster, WorkerProgress, ring
from paceline.errors import ProtocolViolation

Which = Literal["first", "then"]

RAMPS = 4
"""`momentum=ramp` takes one part in so many of the run's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Both protocols, when they change, and what is done about workers that are slow for a time."""

    first: str = parameter("bsp", "the protocol of the first part of the work")
    then: str = parameter("asp", "the protocol of the rest")
    switch_at: float = parameter(0.0625, "the share of the run's work after which `then` takes over", least=0, most=1)
    count: Literal["samples", "rounds"] = parameter(
        "samples",
        "what the share is counted in: samples, or rounds, each as if all workers of the beginning were in it",
    )
    stragglers: Literal["none", "greedy", "elastic"] = parameter(
        "none",
        "what is done about stragglers during the first part: nothing, `then` takes over until there is none, "
        "they are left out until `then`",
    )
    window: int = parameter(10, "latest steps over which a worker's throughput is taken", unit="steps", least=2)
    consecutive: int = parameter(3, "looks in a row at which a straggler is found slow", unit="looks", least=1)
    min_gap: float = parameter(
        0.1, "share of the mean throughput by which a straggler is at least below it", least=0, most=1
    )
    rescale: Literal["linear", "none"] = parameter(
        "linear",
        "the learning rate while a version is the mean of a gradient from each worker: "
        "times the number of workers, or as it is",
    )
    momentum: Literal["keep", "zero", "ramp"] = parameter(
        "keep",
        "the optimizer's momentum once `then` has taken over: the script's, none, or growing to the script's in stages "
        "over a quarter of the work",
    )

    def __post_init__(self) -> None:
        check_parameters("sync-switch", self)


def parts_misfit(config: Config, parts: Sequence[Spec]) -> str:
    """Why this config can't consist of these parts; empty if it can."""
    first, then = parts
    if config.stragglers == "elastic" and not first.rounds:
        return (
            f"sync-switch: stragglers is elastic, and under {first.name} no worker waits for a straggler; name a first "
            "protocol that goes in rounds, such as bsp, or choose stragglers=none"
        )
    if config.momentum != "keep" and then.optimizer != "store":
        return (
            f"sync-switch: momentum is {config.momentum}, and under {then.name} each worker's own optimizer keeps its "
            "momentum; leave it at keep"
        )
    return ""


def unfit(config: Config, groups: Sequence[Mapping[str, Any]]) -> str:
    """Why this config can't train with an optimizer that has these hyperparameters; empty if it can."""
    if config.momentum == "keep" or any(group.get("momentum") for group in groups):
        return ""
    return (
        f"sync-switch: momentum is {config.momentum}, and the script's optimizer has none that could change (Adam's "
        "betas do not count); leave it at keep, or give the optimizer one, such as torch.optim.SGD(..., momentum=0.9)"
    )


def slow(speeds: Mapping[int, float], min_gap: float) -> list[int]:
    """Return the slow workers of these throughputs: below mean - deviation, and at least `min_gap` below the mean.

    >>> slow({0: 10.0, 1: 10.0, 2: 10.0, 3: 3.0}, 0.1)
    [3]
    """
    if len(speeds) < 3:
        return []
    mean = math.fsum(speeds.values()) / len(speeds)
    deviation = math.sqrt(math.fsum((speed - mean) ** 2 for speed in speeds.values()) / len(speeds))
    limit = min(mean - deviation, (1 - min_gap) * mean)
    return [worker for worker, speed in speeds.items() if speed < limit]


@dataclass(slots=True)
class Window:
    """A worker's latest steps: (samples, seconds) of each, and their sums."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0

    def add(self, samples: int, seconds: float, length: int) -> None:
        """Add a step. Beyond `length` steps the oldest is forgotten."""
        self.steps.append((samples, seconds))
        self.samples += samples
        self.seconds += seconds
        if len(self.steps) > length:
            samples, seconds = self.steps.pop(0)
            self.samples -= samples
            self.seconds -= seconds


@dataclass(slots=True)
class Machine:
    """`roster` is the truth: the active part's machine may take a worker for released that is not.

    A live worker is in exactly one of `members`, `declined` and `parked`; or it declined in an earlier phase.
    """

    config: Config
    first: Part
    then: Part
    active: Which = "first"
    """The part whose machine decides. The other part's machine is fresh."""
    version: int = 0
    """The store's. Where workers own replicas it counts their steps, so it is above all means that are recorded."""
    work: int | None = None
    """The run's work, as in `TrainingBegan`."""
    seed: int = 0
    """As in `TrainingBegan`."""
    groups: int = 0
    """How many groups the parts before have ordered."""
    goal: int | None = None
    """How much of the work `first` is to do; None: as long as there is any."""
    done: int = 0
    """How much of the work `first` has done, in all its phases, counted as `count` says. Counting stops at the goal."""
    company: int = 0
    """How many workers the run began with."""
    ramped: int | None = None
    """How much work is done since the latest switch to `then`; None without one."""
    roster: Roster | Replicas = field(default_factory=Roster)
    """Of all live workers, as the active part's machine keeps its members."""
    late: dict[int, int] = field(default_factory=dict)
    """By worker to which a version may still be on its way from a store, while workers own replicas: that version."""
    alarms: dict[int, bool] = field(default_factory=dict)
    """By number of an alarm that has not rung: whether the active part has set it."""
    gathered: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """By group that averages gradients, until replicas are stepped with the mean: (worker, step) of each of these."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Of every live worker."""
    members: dict[int, None] = field(default_factory=dict)
    """Workers that take part in the phase."""
    declined: dict[int, None] = field(default_factory=dict)
    """Workers that took part in the phase, until there was no data left."""
    resumed: dict[int, None] = field(default_factory=dict)
    """Workers that go on after they had declined, and are in this phase's machine as declined, or not at all. They wait
    until nothing of what they have begun is under way."""
    parked: dict[int, None] = field(default_factory=dict)
    """Workers that wait for the next phase, and have nothing under way."""
    unsettled: dict[int, dict[int, int | None]] = field(default_factory=dict)
    """By worker and step: the samples of updates that are neither applied nor dropped. Also of workers that left."""
    since: dict[tuple[int, int], int] = field(default_factory=dict)
    """By worker and last step of an update with several steps, until it is applied or dropped: its first step."""
    draining: float | None = None
    """While a phase ends: the time of the fact that began its end."""
    to: Which = "then"
    """What comes next, while a phase ends."""
    cause: Why = ()
    """The `why` of that switch."""
    leaving: dict[int, None] = field(default_factory=dict)
    """Stragglers among the members, which are out as soon as what they have under way is done."""
    out: dict[int, None] = field(default_factory=dict)
    """Workers that the phase's machine has seen leave as stragglers, whether they are live or not."""
    scales: dict[int, int] = field(default_factory=dict)
    """What workers' learning rates are multiplied by, where that was ordered; else 1."""
    stages: dict[int, int] = field(default_factory=dict)
    """The same for momentum, in parts of `company`; else all of them."""
    began: dict[int, float] = field(default_factory=dict)
    """When a worker could begin its present step. Kept only while stragglers are looked for."""
    windows: dict[int, Window] = field(default_factory=dict)
    streaks: dict[int, int] = field(default_factory=dict)
    """How many looks in a row, up to the latest, found a worker slow; no zeros."""
    unlooked: int = 0
    """Updates applied since the latest look."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        if isinstance(fact, TrainingBegan):
            self._expect_work(fact)
        if self._is_late(fact):
            return ()
        turn = _Turn(fact.at)
        if isinstance(fact, AlarmRang):
            if ring(self.alarms, fact):  # else the part that has set it is over
                self._tell(fact, turn)
        else:
            seat = self.roster.observe(fact)
            if isinstance(fact, TrainingBegan):
                self._begin(fact, turn)
            elif self._note(fact, seat, turn):
                self._tell(fact, turn)
        self._end(turn)
        why: Why = ("left-out",) if self.draining is None else ("ending", self.part.name, self._part(self.to).name)
        holds = [Hold(worker=worker, why=why) for worker in turn.parked if worker in self.parked]
        return (*turn.orders, *holds)

    @property
    def part(self) -> Part:
        """The active part."""
        return self._part(self.active)

    @property
    def planned(self) -> bool:
        """Whether `first` still has work to do."""
        return self.goal is None or self.done < self.goal

    @property
    def watching(self) -> bool:
        """Whether stragglers are looked for."""
        if self.config.stragglers == "none":
            return False
        return self.planned and (self.active == "first" or self.config.stragglers == "greedy")

    @property
    def stragglers(self) -> list[int]:
        """The workers that the latest looks found slow often enough."""
        return [worker for worker, looks in self.streaks.items() if looks >= self.config.consecutive]

    def is_idle(self, worker: int) -> bool:
        """Whether the worker has nothing under way: no step, no gradient, no transfer."""
        seat = self.roster.seats[worker]
        if isinstance(seat, ReplicaProgress):
            return seat.phase in ("parked", "applied") and seat.group is None
        return seat.phase in ("parked", "arrived") and not seat.in_transit

    def _is_late(self, fact: Fact) -> bool:
        """Whether this tells the end of a pull that a part with a store had ordered, and nobody waits for."""
        if not isinstance(fact, ParametersTaken) or self.late.get(fact.worker) != fact.version:
            return False
        del self.late[fact.worker]
        return True

    def _part(self, which: Which) -> Part:
        return self.first if which == "first" else self.then

    def _expect_work(self, fact: TrainingBegan) -> None:
        if not self.roster.began and fact.work is None and 0 < self.config.switch_at < 1:
            raise ProtocolViolation(
                fact, f"it is unknown how much work there is, and switch_at={self.config.switch_at} is a share of it"
            )
        if not self.roster.began and fact.work is None and self.config.momentum == "ramp":
            raise ProtocolViolation(
                fact, "it is unknown how much work there is, and momentum=ramp takes a quarter of it"
            )

    # --- facts --------------------------------------------------------------------------------------

    def _begin(self, fact: TrainingBegan, turn: _Turn) -> None:
        if fact.memory is not None and "planned" not in fact.memory:  # it is of `balanced`, which the run goes on from
            fact = replace(fact, memory=None)
        self.version, self.work, self.company, self.seed = fact.version, fact.work, len(fact.members), fact.seed
        self.hosts = {worker: host for worker, host, _ in fact.members}
        if self.config.switch_at < 1:  # of the share as it is typed: 0.1 of 30 is 3, without a rounding error
            self.goal = math.ceil(Decimal(repr(self.config.switch_at)) * (fact.work or 0))
        usual: Which = "first" if self.planned else "then"
        which = self._resume(fact)
        before = which if fact.memory is None else fact.memory.get("state", which)
        if which != usual:
            self.ramped = self.ramped or 0
        if which != usual or which != before:
            why: Why = ("resumed",)
            turn.orders.append(self._switch_to(which, before, fact.members, fact.at, why, makes=which != before))
        self._take_over(which)
        began = replace(fact, memory=None, version=self.version, groups=self.groups)
        self._enter(which, began, turn)

    def _resume(self, fact: TrainingBegan) -> Which:
        """Take up what earlier segments of the run have done. Return the part that is to decide."""
        memory = fact.memory
        self.done = fact.done if memory is None else memory["done"]
        if memory is None:
            return "first" if self.planned else "then"
        self.company, self.ramped = memory["company"], memory["ramped"]
        self.version, self.groups = memory.get("version", self.version), memory.get("groups", 0)
        if self.goal is not None and not memory["planned"]:
            self.goal = min(self.goal, self.done)
        return "then" if memory["active"] == "first" and not self.planned else memory["active"]

    def _note(self, fact: Fact, seat: WorkerProgress | ReplicaProgress | None, turn: _Turn) -> bool:
        """Return whether the active machine is to hear of this fact."""
        if isinstance(fact, ReduceFinished | ReduceFailed):
            turn.touched.extend(self.members)
            if isinstance(fact, ReduceFailed):
                self.gathered.pop(fact.group, None)
            return True
        assert seat is not None
        assert not isinstance(fact, TrainingBegan | AlarmRang)
        worker = fact.worker
        match fact:
            case WorkerJoined(host=host):
                self.hosts[worker] = host
                if self.draining is not None or worker in self.out:
                    self._park(worker, turn)
                    return False
                self.members[worker] = None
            case WorkerLeft():
                if self._leave(worker):
                    return True
                if isinstance(seat, ReplicaProgress):  # nobody else knows what is lost with its replica
                    self._carry(Replicas.lost_with(fact, seat), turn)
                    self._void_copies(turn)
                return False
            case GradientReady(step=step, samples=samples, at=at):
                self.unsettled.setdefault(worker, {})[step] = samples
                if worker in self.began:
                    window = self.windows.setdefault(worker, Window())
                    window.add(_work(samples), at - self.began.pop(worker), self.config.window)
                    if seat.phase == "computing":  # the next step of its round
                        self.began[worker] = at
            case StepDeclined():
                del self.members[worker]
                self.declined[worker] = None
                self.leaving.pop(worker, None)
                self._forget(worker)
            case WorkerResumed():
                turn.touched.append(worker)
                if self.draining is not None or worker not in self.declined:
                    self.resumed[worker] = None
                    return False
                del self.declined[worker]
                self.members[worker] = None
            case ParametersTaken(version=version, at=at):
                turn.touched.append(worker)
                if worker in self.began and seat.phase == "computing" and seat.version == version:
                    self.began[worker] = at
            case UpdateArrived() | ReplicaCopied():
                turn.touched.append(worker)
            case _:  # the roster has refused it
                raise AssertionError(fact)
        return worker in self.members or worker in self.declined

    def _leave(self, worker: int) -> bool:
        inside = worker in self.members or worker in self.declined
        if worker in self.leaving:  # its next release may have been swallowed: the machine's steps are ahead of ours
            del self.leaving[worker]
            self.out[worker] = None
        self.hosts.pop(worker)
        self.scales.pop(worker, None)
        self.stages.pop(worker, None)
        for company in (self.members, self.declined, self.resumed, self.parked, self.late):
            company.pop(worker, None)
        self._forget(worker)
        return inside

    def _void_copies(self, turn: _Turn) -> None:
        """A worker that has died was out: copies of its replica that were on their way never come. Order others."""
        for worker, there in list(_seats(self).items()):
            seat = self.roster.seats[worker]
            if there.phase != "copying" or seat.phase == "copying":
                continue
            turn.touched.append(worker)
            if self.draining is None:
                self._tell(WorkerLeft(worker=worker, reason="drained", at=turn.at), turn)
                self._rejoin(worker, turn)

    def _rejoin(self, worker: int, turn: _Turn) -> None:
        """The active machine takes in this worker, which is here, as any that joins."""
        seat = self.roster.seats[worker]
        seat.version = -1
        if isinstance(self.roster, Replicas):
            self.roster.waiting[worker] = None
        if isinstance(seat, WorkerProgress):
            seat.last = -1
        self._tell(WorkerJoined(worker=worker, host=self.hosts[worker], step=seat.step + 1, at=turn.at), turn)

    def _forget(self, worker: int) -> None:
        """Forget what was known of the worker's pace."""
        for known in (self.began, self.windows, self.streaks):
            known.pop(worker, None)

    # --- the active machine's orders ----------------------------------------------------------------

    def _tell(self, fact: Fact, turn: _Turn) -> None:
        """Let the active machine handle this fact."""
        self._carry(self.part.machine.handle(fact), turn)

    def _carry(self, orders: tuple[Order, ...], turn: _Turn) -> None:
        """Note these orders and pass them on, except releases of workers that begin nothing more in this phase."""
        if self.part.state == "replicas":
            orders = tuple(replace(one, why=(f"{OF_REPLICAS}{one.why[0]}", *one.why[1:])) for one in orders)
        for order in orders:
            match order:
                case Release(worker=worker):
                    if self.draining is not None or worker in self.leaving:
                        turn.touched.append(worker)
                        continue
                    if self.watching:
                        self.began[worker] = turn.at
                case StartPush(worker=worker, step=step, since=int() as first):
                    self.since[worker, step] = first
                case DropUpdate():
                    self._drop(order, turn)
                case SetAlarm(number=number):
                    self.alarms[number] = True
                case Reduce(group=group, contributions=contributions) if contributions:
                    self.gathered[group] = tuple((worker, step) for worker, step, _ in contributions)
                case ApplyUpdate(version=version, contributions=contributions):
                    self._scale([worker for worker, _, _ in contributions], turn)
                    turn.orders.append(order)
                    self.version = version
                    self._applied([(worker, step) for worker, step, _ in contributions], turn)
                    continue
                case StepReplica(worker=worker, step=step, group=group):
                    steps = [(worker, step)] if group is None else list(self.gathered.pop(group, ()))
                    if steps:
                        self._scale([worker for worker, _ in steps], turn)
                    turn.touched.append(worker)
            if isinstance(order, Release | StartPush | StartPull | StepReplica | Reduce | CopyReplica):
                self.roster.note(order)  # type: ignore[arg-type]  # the active part orders what its roster knows
            turn.orders.append(order)
            if isinstance(order, StepReplica):
                self.version += 1
                if steps:
                    self._applied(steps, turn)

    def _drop(self, order: DropUpdate, turn: _Turn) -> None:
        """That update is dropped. A step of a lost replica has counted by now."""
        worker, step = order.worker, order.step
        if step in self.unsettled.get(worker, ()):
            self._settle(worker, step, turn, order.since)
        dropped = self.roster.seats.get(worker)
        if dropped is not None and dropped.phase == "ready" and dropped.step == step:
            dropped.phase = "parked"  # nothing of it is left

    def _settle(self, worker: int, step: int, turn: _Turn, since: int | None = None) -> int:
        """That update is applied or dropped. Return how much work was in it. `since`: see `DropUpdate`."""
        turn.touched.append(worker)
        updates, first = self.unsettled[worker], self.since.pop((worker, step), since)
        work = sum(_work(updates.pop(one)) for one in range(step if first is None else first, step + 1))
        if not updates:
            del self.unsettled[worker]
        return work

    def _applied(self, updates: list[tuple[int, int]], turn: _Turn) -> None:
        """These (worker, step) are in a version, or in replicas."""
        work = sum(self._settle(worker, step, turn) for worker, step in updates)
        if self.goal is not None and self.planned and self.active == "first":
            rounds = self.config.count == "rounds" and self.part.rounds
            self.done += self._as_of_all(work, len({worker for worker, _ in updates})) if rounds else work
            if not self.planned and self.draining is None:
                code = "planned-rounds" if rounds else "planned"
                self._drain("then", (code, self.done, self.goal), turn)
        if self.ramped is not None:
            self.ramped += work
        if self.watching and self.draining is None:
            self.unlooked += len(updates)
            if self.unlooked >= len(self.members):
                self._look(turn)

    def _as_of_all(self, work: int, present: int) -> int:
        """The work that this round of so many workers would have done with all of the beginning, rounded up."""
        return -(-work * self.company // present)

    def _scale(self, workers: Collection[int], turn: _Turn) -> None:
        """Order rates and momentum for what these workers make: together, or each by itself.

        `workers`: one for each gradient, so a worker that brings several comes several times.
        """
        company = dict.fromkeys(workers)
        own = self.part.optimizer == "outer"
        mean = self.part.averages and not own and self.config.rescale == "linear"
        scale, stage = len(workers) if mean else 1, self._stage()
        for worker in company:
            if worker not in self.hosts:
                continue
            before = self.scales.get(worker, 1), self.stages.get(worker, self.company)
            if before == (scale, stage):
                continue
            self.scales[worker], self.stages[worker] = scale, stage
            why: Why = ("mean-of", scale) if mean else ("own-steps",) if own else ("one-by-one",)
            if before[1] != stage:
                why = ("momentum", stage, self.company)
            momentum = stage / self.company
            turn.orders.append(
                AdjustTraining(worker=worker, learning_rate_scale=float(scale), momentum_scale=momentum, why=why)
            )

    def _stage(self) -> int:
        """How many nths of the script's momentum hold now, with n the number of workers that the run began with."""
        if self.ramped is None or self.config.momentum == "keep":
            return self.company
        if self.config.momentum == "zero":
            return 0
        assert self.work is not None  # or it was refused
        return min(self.company, 1 + self.company * self.ramped * RAMPS // max(1, self.work))

    # --- stragglers ---------------------------------------------------------------------------------

    def _look(self, turn: _Turn) -> None:
        """Costs O(n), once in n updates."""
        self.unlooked = 0
        found = slow(self._speeds(), self.config.min_gap)
        self.streaks = {worker: self.streaks.get(worker, 0) + 1 for worker in found}
        stragglers = self.stragglers
        if self.config.stragglers == "elastic":
            for worker in stragglers:
                if worker not in self.leaving and len(self.members) - len(self.leaving) > 1:
                    self.leaving[worker] = None
                    turn.touched.append(worker)
        elif self.active == "first" and stragglers:
            self._drain("then", ("straggler", tuple(stragglers[:NAMED_AT_MOST])), turn)
        elif self.active == "then" and not stragglers:
            self._drain("first", ("recovered",), turn)

    def _speeds(self) -> dict[int, float]:
        """Samples for each second of computing, of the workers that have made enough steps."""
        speeds = {}
        for worker in self.members:
            window = self.windows.get(worker)
            if window is not None and len(window.steps) == self.config.window and window.seconds > 0:
                speeds[worker] = window.samples / window.seconds
        return speeds

    # --- phases -------------------------------------------------------------------------------------

    def _drain(self, to: Which, cause: Why, turn: _Turn) -> None:
        """From here on no worker begins a step in this phase."""
        self.draining, self.to, self.cause = turn.at, to, cause
        turn.touched.extend(self.members)

    def _park(self, worker: int, turn: _Turn) -> None:
        self.parked[worker] = None
        turn.parked.append(worker)

    def _end(self, turn: _Turn) -> None:
        """Take in the workers that have resumed, and let go of the members that may go now. If none is left, switch."""
        for (
            worker
        ) in turn.touched:  # the list grows meanwhile: a round that no longer waits for a worker ends, and so on
            if worker in self.resumed and self.is_idle(worker) and worker not in self.unsettled:
                self._take_in(worker, turn)
            ends = self.draining is not None or worker in self.leaving
            if ends and worker in self.members and self.is_idle(worker):
                self._take_out(worker, turn)
        if self.members or self.resumed or not self.parked:
            return
        if self.draining is None:  # else they would wait for ever
            self._drain("first" if self.goal is None else "then", ("deserted",), turn)
        if not self.unsettled and not (isinstance(self.roster, Replicas) and self.roster.groups):
            self._switch(turn)

    def _take_in(self, worker: int, turn: _Turn) -> None:
        """A worker that has resumed takes part in this phase, whose machine has never heard of it, or in the next."""
        del self.resumed[worker]
        if self.draining is None:
            self.members[worker] = None
            self._rejoin(worker, turn)
            return
        self._park(worker, turn)
        if worker in self.declined:
            del self.declined[worker]
            self._tell(WorkerLeft(worker=worker, reason="drained", at=turn.at), turn)

    def _take_out(self, worker: int, turn: _Turn) -> None:
        """Tell the active machine that the worker left. What the worker has pushed stays in the open round."""
        evicted = worker in self.leaving
        if evicted:
            del self.leaving[worker]
            self.out[worker] = None
            turn.orders.append(LeaveOut(worker=worker, why=("left-out",)))
        del self.members[worker]
        self._park(worker, turn)
        self._tell(WorkerLeft(worker=worker, reason="evicted" if evicted else "drained", at=turn.at), turn)

    def _switch(self, turn: _Turn) -> None:
        """Begin the next part, with all workers that have not run out of data."""
        assert self.draining is not None
        seats = self.roster.seats
        members = tuple((worker, self.hosts[worker], seats[worker].step + 1) for worker in sorted(self.parked))
        turn.orders.append(self._switch_to(self.to, self.active, members, self.draining, self.cause))
        self.part.machine = _fresh(self.part.machine)
        self.draining, self.cause = None, ()
        self.unlooked = 0
        self.ramped = 0 if self.to == "then" else None
        self._take_over(self.to)
        began = TrainingBegan(
            members=members, version=self.version, at=turn.at, work=self.work, seed=self.seed, groups=self.groups
        )
        self._enter(self.to, began, turn)

    def _switch_to(
        self,
        which: Which,
        before: Which,
        members: tuple[tuple[int, str, int], ...],
        since: float,
        why: Why,
        makes: bool = True,
    ) -> SwitchProtocol:
        """Return the order, and note the version that it makes, which it may if `makes`: where a part has replicas."""
        part, version = self._part(which), None
        if makes and "replicas" in (part.state, self._part(before).state):
            self.version = version = self.version + 1
        return SwitchProtocol(
            to=part.name, parameters=part.parameters, members=members, since=since, version=version, why=why
        )

    def _take_over(self, which: Which) -> None:
        """From now on keep of all live workers what that part's machine keeps. All begin anew, or have declined."""
        before, self.gathered = self.roster, {}
        if isinstance(before, Replicas):
            self.groups = before.made
        if self._part(which).state == "replicas":
            if isinstance(before, Roster):
                self.late = {worker: seat.pulling for worker, seat in before.seats.items() if seat.pulling is not None}
            self.roster = Replicas(hosts=dict(self.hosts), made=self.groups, began=True, used=before.used)
            for worker, seat in before.seats.items():
                phase: Literal["parked", "declined"] = "declined" if seat.phase == "declined" else "parked"
                self.roster.seats[worker] = ReplicaProgress(step=seat.step, phase=phase)
        elif isinstance(before, Replicas):
            self.roster = Roster(used=before.used, began=True)
            for worker, seat in before.seats.items():
                phase = "declined" if seat.phase == "declined" else "parked"
                pulling = self.late.pop(worker, None)
                self.roster.seats[worker] = WorkerProgress(step=seat.step, phase=phase, pulling=pulling)

    def _enter(self, which: Which, began: TrainingBegan, turn: _Turn) -> None:
        self.active, self.alarms = which, dict.fromkeys(self.alarms, False)
        self.parked, self.declined, self.leaving, self.out = {}, {}, {}, {}
        self.members = {worker: None for worker, _, _ in began.members}
        if not self.watching:
            self.began, self.windows, self.streaks = {}, {}, {}
        together = self.part.averages and not self.part.rounds and self.part.optimizer != "outer"
        if not together:  # else only a version's own workers are known to be in it
            self._scale(self.members, turn)
        self._tell(began, turn)


@dataclass(slots=True)
class _Turn:
    """What one fact leads to."""

    at: float
    orders: list[Order] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    """Workers of which something has ended: they may be idle now."""
    parked: list[int] = field(default_factory=list)
    """Workers that began to wait for the next phase."""


def _work(samples: int | None) -> int:
    """The work in an update: its samples, or 1 where samples are not counted."""
    return 1 if samples is None else samples


def memory(machine: Machine) -> dict[str, Any]:
    """Return what a machine keeps for the one that goes on in a resumed run. A phase whose end has begun is over."""
    ends = machine.draining is not None
    return {
        "active": machine.to if ends else machine.active,
        "state": machine.active,
        "company": machine.company,
        "done": machine.done,
        "planned": machine.planned,
        "ramped": machine.ramped if not ends else 0 if machine.to == "then" else None,
        "version": machine.version,
        "groups": machine.roster.made if isinstance(machine.roster, Replicas) else machine.groups,
    }


def _fresh(machine: AnyMachine) -> AnyMachine:
    return type(machine)(machine.config)  # type: ignore[attr-defined, call-arg]


def _is_somewhere(machine: Machine) -> bool:
    return all(
        (worker in machine.members)
        + (worker in machine.parked)
        + (worker in machine.resumed or seat.phase == "declined")
        == 1
        for worker, seat in machine.roster.seats.items()
    )


def _agrees(machine: Machine) -> bool:
    """Whether the active machine knows what is true of every worker that is not on its way out.

    It may know more of a pull: a gradient on its version shows that the pull has ended, though no fact told it.
    """
    if machine.draining is not None:
        return True
    there, seats = _seats(machine), machine.roster.seats
    members = [worker for worker in (*machine.members, *machine.declined) if worker not in machine.leaving]
    if isinstance(machine.roster, Replicas):
        return all(there[worker] == seats[worker] for worker in members)
    return all(there[one] in (seat := machine.roster.seats[one], replace(seat, pulling=None)) for one in members)


def _is_in_no_machine(machine: Machine) -> bool:
    return sorted(_seats(machine)) == sorted((*machine.members, *machine.declined))


def _seats(machine: Machine) -> dict[int, Any]:
    """What the active part's machine keeps of its members."""
    inner: Any = machine.part.machine
    return inner.replicas.seats if machine.part.state == "replicas" else inner.roster.seats  # type: ignore[no-any-return]


SPEC = Spec(
    name="sync-switch",
    title="Sync-Switch: one protocol, then another",
    does="one protocol for the first part of the work, another for the rest",
    paper="Li et al., Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning, ICDCS 2021",
    config=Config,
    machine=Machine,
    rounds=False,
    parts=("first", "then"),
    memory=memory,
    parts_misfit=parts_misfit,
    begins=lambda config: int(config.switch_at == 0),
    invariants={
        "every worker takes part, has declined, or waits for the next phase": _is_somewhere,
        "the machine of the part that is not active has begun nothing": lambda machine: (
            (machine.then if machine.active == "first" else machine.first).machine
            == _fresh((machine.then if machine.active == "first" else machine.first).machine)
        ),
        "a worker that waits for the next phase is in no machine": _is_in_no_machine,
        "a worker that waits for the next phase has nothing under way": lambda machine: all(
            machine.is_idle(worker) for worker in machine.parked
        ),
        "while no phase ends, only stragglers wait for the next one, and some worker computes": lambda machine: (
            machine.draining is not None
            or not machine.parked
            or (bool(machine.members or machine.resumed) and all(worker in machine.out for worker in machine.parked))
        ),
        "while no phase ends, its machine knows the truth": _agrees,
        "once its planned work is done, the first part is at an end": lambda machine: (
            machine.planned or machine.active == "then" or machine.draining is not None
        ),
        "once the first part's planned work is done, no stragglers are looked for": lambda machine: (
            machine.planned or machine.draining is not None or not (machine.began or machine.windows or machine.streaks)
        ),
        "a worker on its way out still takes part": lambda machine: all(
            worker in machine.members for worker in machine.leaving
        ),
        "stragglers are left out only in the first part": lambda machine: (
            machine.active == "first" or not (machine.leaving or machine.out)
        ),
    },
    unfit=unfit,
    reasons={
        "planned": "the first part has done {0:,} (planned: {1:,})",
        "straggler": "{0:workers} straggled",
        "recovered": "no worker straggles any more, and the first part has work left",
        "resumed": "the run had switched before it was resumed",
        "deserted": "every worker that could still compute was left out",
        "ending": "{0} ends, and {1} begins once no update is under way",
        "left-out": "it straggled: the other workers go on without it until the next phase",
        "planned-rounds": "the first part's rounds count as {0:,} (planned: {1:,}), each as if all workers of the "
        "beginning had been in it",
        "mean-of": "a version is the mean of {0} gradients",
        "one-by-one": "each update is applied by itself",
        "own-steps": "each worker's own optimizer steps",
        "momentum": "momentum is {0}/{1} of the script's",
    },
)
