"""Reads the costs of a real run from its ledger, to predict that run, and what other protocols would have given.

A worker's k-th step takes as long as its k-th step in the run. After the last one the steps repeat, without the first,
as much in it happens only once. So bursts and the order of steps are kept. A slow-down of the scenario is removed from
the steps where it was, and applied where it would be. Versions and averages are treated alike. An average that ended
when the network had moved its bytes took no other time.

A step's time is measured on one clock, from when it could begin until its update was there. The worker notes when it
computed, and how long its own copies took. The rest is messages. The coordinator tells one worker after another to
begin. Without a network, the fact of a step's pull shows when it did.

All of this is work, except sleeping. So are versions and averages. If more jobs were at work than there were cores,
each is assumed to have had an equal share. In virtual time the same work shares the cores again.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from paceline.codecs import Codec, codec_of
from paceline.core.choice import Choice
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFinished,
    TrainingBegan,
    UpdateArrived,
    WorkerLeft,
)
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StartPush
from paceline.core.phrases import workers_named
from paceline.errors import ConfigError
from paceline.records.reading import RecordedRun, model_of, open_run, reading
from paceline.records.summary import Tally
from paceline.records.times import exposed
from paceline.scenario.links import ClusterLinks
from paceline.scenario.scenario import Kill, Scenario
from paceline.sim.costs import Costs, Overhead
from paceline.sim.simulate import Simulation
from paceline.sim.world import Limit

DIGITS = 12
"""Decimals of a difference of two times in seconds, so that equal durations are equal to the last bit."""
Kind = tuple[int, ...]
Window = tuple[float, float]
"""(begin, end) in seconds since the run's start."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of one step of the run, in seconds."""

    number: int
    began: float
    """When it began to compute, since the run's start."""
    release: float
    """Spent by the coordinator on telling the worker to begin. 0 where that is a part of `before`."""
    before: Overhead
    compute: float
    """For each of its batches."""
    works: float
    """The part of `compute` that is work. In the rest the worker slept."""
    after: Overhead


class Repeated:
    """What versions or averages took, by number. Beyond the last one, those of the same kind repeat."""

    def __init__(self, given: Mapping[int, tuple[Kind, float]]) -> None:
        """`given`: (kind, seconds) by number."""
        self.given = given
        self._alike: dict[Kind, list[float]] = {}
        for kind, seconds in given.values():
            self._alike.setdefault(kind, []).append(seconds)

    def of(self, kind: Kind, number: int) -> float:
        """Return the seconds of that number if it was of that kind, or else of another one like it."""
        was, seconds = self.given.get(number, (None, 0.0))
        return seconds if was == kind else self.like(kind, number)

    def like(self, kind: Kind, number: int) -> float:
        """Return the seconds of one of that kind, or of the nearest kind; 0 without any."""
        if not self.given:
            return 0.0
        nearest = min(self._alike, key=lambda one: [abs(a - b) for a, b in zip(kind, one, strict=False)])
        return self._alike[nearest][number % len(self._alike[nearest])]


@dataclass(frozen=True, eq=False)
class RecordedCosts(Costs):
    """Costs from a run's ledger."""

    scenario: Scenario
    hosts: Sequence[str]
    """By worker: its host or node."""
    steps: Mapping[int, Mapping[int, StepCosts]]
    """By worker, then by step, in order; only of workers that finished a step."""
    commits: Repeated
    """By version. Its kind is its number of updates."""
    averages: Repeated
    """By group. Its kind are its numbers of members and of their nodes."""
    cores: int | None
    moved: Literal["worker", "replica"] | None = None
    """Where the optimizer runs now, if it ran in the store in that run.

    It runs in each worker, on what it pushes, or in each worker's replica. A replica's step takes what a version took.
    A worker's own step takes the same without messages.
    """

    @cached_property
    def busiest(self) -> int:
        """The worker with the most steps."""
        return max(self.steps, key=lambda worker: len(self.steps[worker]))

    @cached_property
    def _rounds(self) -> list[list[StepCosts]]:
        """By worker: the steps that repeat beyond the last one."""
        every = (list(self._of(worker).values()) for worker in range(len(self.hosts)))
        return [steps[1:] or steps for steps in every]

    @cached_property
    def _turn(self) -> float:
        """Mean seconds of a step's messages."""
        every = [step for steps in self._rounds for step in steps]
        return fmean(step.release + step.before.messages + step.after.messages for step in every)

    def release(self, worker: int, step: int) -> float:
        return self._step(worker, step).release

    def before(self, worker: int, step: int) -> Overhead:
        before = self._step(worker, step).before
        if self.moved != "replica":
            return before
        return replace(before, messages=before.messages + self.commits.like((1,), step))

    def compute(self, worker: int, step: int, at: float) -> float:
        one, slowed = self._step(worker, step), self.scenario.slowed
        return one.compute / slowed(worker, one.number, one.began) * slowed(worker, step, at)

    def works(self, worker: int, step: int) -> float:
        return self._step(worker, step).works

    def after(self, worker: int, step: int) -> Overhead:
        after = self._step(worker, step).after
        if self.moved != "worker":
            return after
        return replace(after, own=after.own + max(0.0, self.commits.like((1,), step) - self._turn))

    def commit(self, order: ApplyUpdate) -> float:
        return (self.commits if self.commits.given else self.averages).of((len(order.contributions),), order.version)

    def average(self, order: Reduce) -> float:
        return self.averages.of(_kind(order.members, self.hosts), order.group)

    def _of(self, worker: int) -> Mapping[int, StepCosts]:
        return self.steps[worker if worker in self.steps else self.busiest]

    def _step(self, worker: int, step: int) -> StepCosts:
        """Return the recorded step that stands for this step."""
        if (found := self._of(worker).get(step)) is not None:
            return found
        return self._rounds[worker][(step - 1) % len(self._rounds[worker])]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedRun:
    """A run that predictions are made from."""

    folder: Path
    choice: Choice
    """Its protocol."""
    scenario: Scenario
    workers: int
    seed: int
    batch: int | None
    """Samples in most steps; None if they were not counted."""
    message: int
    """Bytes of a transfer that isn't encoded, or an estimate; 0 if that is unknown."""
    codec: Codec | None
    """What encoded its pushes."""
    limit: Limit
    """What ended the run."""
    data: int | None
    """The batches that there was data for, if the run ended because it had no more."""
    costs: RecordedCosts
    died: tuple[int, ...]
    """Workers whose deaths the scenario did not foresee."""

    def simulation(self, choice: Choice, limit: Limit | None = None, seed: int | None = None) -> Simulation:
        """Return the simulation of that protocol instead of this run, up to the run's end, or to `limit` if given."""
        data = self.data if limit is None else None
        limit = limit or self.limit
        steps = min(limit.steps, math.inf if data is None else data)
        events = tuple(  # a run may have ended before one of its scenario's events came
            event
            for event in self.scenario.events
            if (event.at or 0.0) < limit.seconds and (event.at_step or 0) < steps
        )
        moved: Literal["worker", "replica"] | None = None
        if not choice.has_store:
            moved = "replica"
        elif choice.spec.local_steps and self.choice.spec.optimizer == "store":
            moved = "worker"
        return Simulation(
            choice=choice,
            scenario=replace(self.scenario, events=events),
            workers=self.workers,
            limit=limit,
            seed=self.seed if seed is None else seed,
            batch=self.batch,
            costs=replace(self.costs, moved=moved) if moved and self.costs.commits.given else self.costs,
            message=self.message,
            codec=self.codec,
            data=data,
        )

    def remarks(self, choice: Choice) -> list[str]:
        """Return what a prediction of that protocol assumes, a sentence each."""
        lines, name, costs = [], choice.spec.name, self.costs
        if strangers := [worker for worker in range(self.workers) if worker not in costs.steps]:
            its = "its" if len(strangers) == 1 else "their"
            like = f"{its} steps are taken to be like worker {costs.busiest}'s"
            lines.append(f"{workers_named(strangers)} finished no step: {like}")
        if self.died:
            goes = "it goes" if len(self.died) == 1 else "they go"
            lines.append(f"{workers_named(self.died)} died in that run: here {goes} on to the end")
        averaged, committed = costs.averages.given, costs.commits.given
        if choice.has_store and not committed:
            like = "what an average took" if averaged else "no time"
            lines.append(f"no store made versions in that run: one of {name} is taken to take {like}")
        if choice.has_replicas and not averaged:
            like = f"an average of {name} is taken to take no time"
            if committed:
                like = f"a replica's step of {name} and its average are taken to take what a version took"
                if ClusterLinks[None](self.scenario, self.workers).paces_averages:
                    like += ", besides what the scenario's network says of averages"
            lines.append(f"no groups averaged in that run: {like}")
        return lines


def read(folder: Path, known: Mapping[str, Spec]) -> CalibratedRun:
    """Read the costs in that run's ledger. `known` is the registry of protocols.

    Raises ConfigError, in one line, if the ledger can't be read or has no finished step.
    """
    run = open_run(folder, known)
    with closing(run.ledger), reading(folder):
        return _read(run)


def _read(run: RecordedRun) -> CalibratedRun:
    folder, config, scenario, database = run.folder, run.config, run.scenario, run.ledger
    if scenario.links_hosts:
        raise ConfigError(
            f"{folder}: its hosts have links, whose part in that run is not told apart from other costs yet; simulate "
            "its scenario's file"
        )
    pieces = run.choice.pieces
    reading = _Reading(ClusterLinks[None](scenario, run.workers).paces_store, pieces)
    reading.take_times(database)
    tally = Tally(model_of(database))
    reading.take_facts(tally, run.history())
    costs = _alone(
        reading, database, run, None if run.simulated else config.get("environment", {}).get("cores") or None
    )
    if not costs.steps:
        raise ConfigError(f"{folder}: no step was finished in that run; name one that has trained")
    batch = database.execute("SELECT samples FROM pushes GROUP BY samples ORDER BY count(*) DESC LIMIT 1").fetchone()
    if tally.model.several and batch and batch[0]:
        batch = (tally.model.batch * pieces,)
    last, model, steps = folder / "versions" / "final.safetensors", tally.model, tally.steps
    killed = {event.worker for event in scenario.events if isinstance(event, Kill)}
    limit, reasons = Limit(steps=steps), set(reading.left.values())
    ran_out = reasons <= {"finished", "died"} and "finished" in reasons
    if ran_out:
        limit = Limit()
    elif "max_seconds" in config["limits"] and steps < config["limits"].get("max_steps", math.inf):
        limit = Limit(seconds=model.at - (model.began or 0.0) - model.paused)
    return CalibratedRun(
        folder=folder,
        choice=run.choice,
        scenario=scenario,
        workers=run.workers,
        seed=run.seed,
        batch=config.get("batch") or (batch and batch[0] and int(batch[0])),
        codec=codec_of(config.get("compress")),
        message=reading.message or (last.stat().st_size if last.is_file() else 0),  # little more than the model's bytes
        limit=limit,
        data=tally.gradients // pieces if ran_out else None,
        costs=costs,
        died=tuple(worker for worker, reason in reading.left.items() if reason == "died" and worker not in killed),
    )


@dataclass(slots=True)
class _Step:
    """When a step could begin, and what follows from it."""

    since: float
    """It was released, and its version was there."""
    released: Window
    """When the coordinator told the worker to begin, if the step began with a pull without a network. Such a pull
    consists of nothing else."""
    until: float = -math.inf
    pushed_at_once: bool = False
    batches: float = 1
    """How many batches it was of."""


@dataclass(slots=True)
class _Reading:
    """Gathers times while it reads the ledger."""

    paced: bool
    """Whether a network's model sets the times of transfers. Otherwise they take no time."""
    pieces: int
    """As of the run's protocol: see `Spec.pieces`."""
    message: int = 0
    ended: float = 0.0
    """When the run ended."""
    left: dict[int, str] = field(default_factory=dict)
    """By worker that left: why it left."""
    steps: dict[tuple[int, int], _Step] = field(default_factory=dict)
    """By worker and number."""
    made: dict[int, float] = field(default_factory=dict)
    """By version but the first: when the store had made it."""
    commits: dict[int, tuple[Kind, Window]] = field(default_factory=dict)
    """By version: its number of updates, and when the store worked on it."""
    averages: dict[int, tuple[Kind, Window]] = field(default_factory=dict)
    """By group: its members, and when they worked on it."""
    moved: dict[int, float] = field(default_factory=dict)
    """By group: when its bytes had moved at the network's pace."""
    flows: defaultdict[int, list[tuple[str, float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By worker: its transfers at the network's pace, and its averages, in the form that `exposed` takes."""

    def take_times(self, database: sqlite3.Connection) -> None:
        """Read the times of versions and transfers, before the facts."""
        self.made.update(database.execute("SELECT version, at FROM commits"))
        rows = database.execute("SELECT worker, direction, number, bytes, began, ended FROM transfers ORDER BY began")
        for worker, direction, number, size, began, ended in rows:
            if direction == "average":
                self.moved[number] = ended
            else:
                self.message = max(self.message, size) if direction == "pull" else self.message  # a push may have fewer
                self.flows[worker].append((direction, began, ended))

    def take_facts(self, tally: Tally, history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> None:
        """Read all facts with their orders, in order. `tally` counts them."""
        awaited: dict[int, tuple[Release, float]] = {}  # by worker: what it awaits a version for, since when
        permitted: dict[int, int] = {}  # by worker: the last step that it was released for
        averaging: dict[int, tuple[Kind, float]] = {}
        told = stored = 0.0  # when the last worker was told to begin, and the last version was made
        for fact, orders in history:
            tally.record(fact, orders)
            at = self.ended = fact.at
            match fact:
                case TrainingBegan():  # what was outstanding is undone
                    awaited, averaging = {}, {}
                    self.left.clear()
                case WorkerLeft():
                    self.left[fact.worker] = fact.reason
                case GradientReady() | UpdateArrived():
                    if isinstance(fact, GradientReady) and fact.step < permitted.get(fact.worker, -1):
                        self.steps[fact.worker, fact.step + 1] = _Step(at, (at, at))
                    step = self.steps.get((fact.worker, fact.step))
                    if step and isinstance(fact, GradientReady):
                        step.batches = tally.model.gradients(fact.samples) / self.pieces
                    if step and (isinstance(fact, GradientReady) or (step.pushed_at_once and not self.paced)):
                        step.until = at
                case ParametersTaken() if fact.worker in awaited:
                    release, since = awaited[fact.worker]
                    if release.version == fact.version:
                        del awaited[fact.worker]
                        could = min(max(since, self.made.get(fact.version, 0.0), told), at)
                        self.steps[fact.worker, release.step] = _Step(at, (at if self.paced else could, at))
                        told = at
                case ReduceFinished():
                    members, since = averaging.pop(fact.group)
                    worked = at > self.moved.get(fact.group, -math.inf)
                    self.averages[fact.group] = members, (since, at if worked else since)
                    for worker in members:
                        self.flows[worker].append(("pull", since, at))
            for order in orders:
                if isinstance(order, Release):
                    permitted[order.worker] = order.last
                match order:
                    case ApplyUpdate() if order.version in self.made:  # otherwise the run was over before that
                        made = self.made[order.version]
                        self.commits[order.version] = (len(order.contributions),), (max(stored, at), made)
                        stored = made
                    case Release(parameters="pull"):
                        awaited[order.worker] = order, at
                    case Release():
                        self.steps[order.worker, order.step] = _Step(at, (at, at))
                    case StartPush() if isinstance(fact, GradientReady) and (order.worker, order.step) in self.steps:
                        self.steps[order.worker, order.step].pushed_at_once = True
                    case Reduce():
                        averaging[order.group] = order.members, at


class _Timed(NamedTuple):
    """When a step's parts began and ended."""

    worker: int
    step: int
    windows: tuple[Window, Window, Window, Window]
    """Of work: telling the worker, before computing, computing, and after computing."""
    asleep: float
    """Seconds that are not work between computing and what comes after it."""
    own: tuple[float, float]
    """The shares of the worker's own work before and after computing."""


def _timed(reading: _Reading, database: sqlite3.Connection, run: RecordedRun) -> Iterator[_Timed]:
    """Yield all steps whose times are noted, and whose begin and end are known."""
    flows = {worker: deque(sorted(flows, key=lambda flow: flow[1])) for worker, flows in reading.flows.items()}
    installing: dict[int, float] = {}  # by worker: the seconds in which it took up its version, in the row before
    rows = database.execute("SELECT worker, step, began, compute, push, pull, other FROM step_times ORDER BY 1, 2")
    for worker, number, began, compute, push, pull, other in rows:
        step, after = reading.steps.get((worker, number)), reading.steps.get((worker, number + 1))
        if step is None or step.until == -math.inf:
            continue
        since = step.since
        began, until = max(since, began), max(since, step.until)
        ended = min(began + compute, until)
        own_flows = flows.get(worker, deque())
        while own_flows and own_flows[0][2] <= until:
            own_flows.popleft()
        next_step = reading.ended if after is None else after.since
        pushing, pulling = exposed(takewhile(lambda flow: flow[1] < next_step, own_flows), until, next_step)  # noqa: B023
        own = other + installing.get(worker, 0.0)
        installing[worker] = max(0.0, pull - pulling)
        preparing = min(own, began - since)
        filling = min(own - preparing + max(0.0, push - pushing), until - ended)
        works = 0.0
        if run.scenario.compute is None:
            works = compute / max(1.0, run.scenario.step_seconds(worker, number, began, 1.0, run.seed))
        windows = step.released, (since, began), (began, min(began + works, ended)), (ended, until)
        shares = _share(preparing, began - since), _share(filling, until - ended)
        yield _Timed(worker, number, windows, compute - works, shares)


def _alone(reading: _Reading, database: sqlite3.Connection, run: RecordedRun, cores: int | None) -> RecordedCosts:
    """Return the costs as if each job had had a core of its own."""
    timed, hosts = list(_timed(reading, database, run)), run.scenario.hosts(run.workers)
    windows = [window for one in timed for window in one.windows]
    windows += [window for _, window in [*reading.commits.values(), *reading.averages.values()]]
    work = _work(windows, cores)
    steps: dict[int, dict[int, StepCosts]] = {}
    for worker, number, of_step, asleep, own in timed:
        release, before, works, after = map(work, of_step)
        batches = reading.steps[worker, number].batches
        steps.setdefault(worker, {})[number] = StepCosts(
            number=number,
            began=of_step[2][0],
            release=release,
            before=_overhead(before, own[0]),
            compute=round((works + asleep) / batches, DIGITS),
            works=works / batches,
            after=_overhead(after, own[1]),
        )
    commits = {version: (kind, work(window)) for version, (kind, window) in reading.commits.items()}
    averages = {group: (_kind(group_of, hosts), work(window)) for group, (group_of, window) in reading.averages.items()}
    return RecordedCosts(run.scenario, hosts, steps, Repeated(commits), Repeated(averages), cores)


def _kind(members: Sequence[int], hosts: Sequence[str]) -> Kind:
    """Return the number of a group's members, and of their nodes."""
    return len(members), len({hosts[worker] for worker in members})


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _overhead(seconds: float, own: float) -> Overhead:
    """Return so many seconds of overhead, of which that share is the worker's own work."""
    return Overhead(round(seconds * own, DIGITS), round(seconds * (1.0 - own), DIGITS))


def _work(windows: Iterable[Window], cores: int | None) -> Callable[[Window], float]:
    """Return what says how much work was done in a window, in seconds of one core, as all jobs shared the cores."""
    at_work = Counter[float]()
    for since, until in windows:
        at_work[since] += 1
        at_work[until] -= 1
    served: dict[float, float] = {}  # by time: the work that a job would have got by then, since the beginning
    here, got, before = 0, 0.0, 0.0
    for moment in sorted(at_work):
        got += (moment - before) * min(1.0, (cores or math.inf) / max(1, here))
        served[moment] = moment if cores is None else got
        here += at_work[moment]
        before = moment
    return lambda window: round(max(0.0, served[window[1]] - served[window[0]]), DIGITS)
