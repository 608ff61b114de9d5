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
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

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
from paceline.scenario.scenario import Kill, Scenario, Slowdown
from paceline.sim.costs import Overhead
from paceline.sim.simulate import Simulation
from paceline.sim.world import Limit

DIGITS = 12
"""Decimals of a difference of two times in seconds, so that equal durations are equal to the last bit."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of one step of the run, in seconds."""

    began: float
    """When it began to compute, since the run's start."""
    release: float
    """Spent by the coordinator on telling the worker to begin. 0 where that is a part of `before`."""
    before: Overhead
    compute: float
    works: float
    """The part of `compute` that is work. In the rest the worker slept."""
    after: Overhead


@dataclass(frozen=True, slots=True)
class Recorded:
    """The costs in a run's ledger."""

    steps: dict[int, dict[int, StepCosts]]
    """By worker, then by step; only of workers that finished a step."""
    commits: dict[int, tuple[int, float]]
    """By version: (its number of updates, seconds)."""
    averages: dict[int, tuple[tuple[int, ...], float]]
    """By group: (its members, seconds)."""

    cores: int | None
    """The number of cores that shared all work; None: each job had a core of its own."""

    @property
    def busiest(self) -> int:
        """The worker with the most steps."""
        return max(self.steps, key=lambda worker: len(self.steps[worker]))


class RecordedCosts:
    """Costs from a run's ledger."""

    def __init__(
        self,
        recorded: Recorded,
        scenario: Scenario,
        workers: int,
        moved: Literal["worker", "replica"] | None = None,
    ) -> None:
        """`moved`: where the optimizer runs now, if it ran in the store in that run.

        It runs in each worker, on what it pushes, or in each worker's replica. A replica's step takes what a version
        took. A worker's own step takes the same without messages.
        """
        self.cores = recorded.cores
        self._recorded = recorded
        self._hosts = scenario.hosts(workers)
        self._slow: dict[int, list[Slowdown]] = {}
        for event in scenario.events:
            if isinstance(event, Slowdown):
                self._slow.setdefault(event.worker, []).append(event)
        self._steps = [recorded.steps.get(worker, recorded.steps[recorded.busiest]) for worker in range(workers)]
        self._round = [_in_order(steps)[1:] or _in_order(steps) for steps in self._steps]
        commits: dict[tuple[int, ...], list[float]] = {}
        for contributions, seconds in recorded.commits.values():
            commits.setdefault((contributions,), []).append(seconds)
        averages: dict[tuple[int, ...], list[float]] = {}
        for members, seconds in recorded.averages.values():
            averages.setdefault(self._kind(members), []).append(seconds)
        self._commits = commits or averages
        self._averages = averages
        self._moved = moved
        every = [step for steps in self._round for _, step in steps]
        self._turn = fmean(step.release + step.before.messages + step.after.messages for step in every)
        """Mean seconds of a step's messages."""

    def release(self, worker: int, step: int) -> float:
        """See `Costs`."""
        return self._step(worker, step)[1].release

    def before(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        before = self._step(worker, step)[1].before
        if self._moved != "replica":
            return before
        return Overhead(before.own, before.messages + self._version(step))

    def compute(self, worker: int, step: int, at: float) -> float:
        """See `Costs`."""
        then, one = self._step(worker, step)
        if worker not in self._slow:
            return one.compute
        return one.compute / self._factor(worker, then, one.began) * self._factor(worker, step, at)

    def works(self, worker: int, step: int) -> float:
        """See `Costs`."""
        return self._step(worker, step)[1].works

    def after(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        after = self._step(worker, step)[1].after
        if self._moved != "worker":
            return after
        return Overhead(after.own + max(0.0, self._version(step) - self._turn), after.messages)

    def commit(self, order: ApplyUpdate) -> float:
        """See `Costs`."""
        contributions, seconds = self._recorded.commits.get(order.version, (0, 0.0))
        if contributions == len(order.contributions):
            return seconds
        return _nearest(self._commits, (len(order.contributions),), order.version)

    def average(self, order: Reduce) -> float:
        """See `Costs`."""
        members, seconds = self._recorded.averages.get(order.group, ((), 0.0))
        if members == order.members:
            return seconds
        return _nearest(self._averages, self._kind(order.members), order.group)

    def _version(self, number: int) -> float:
        """Return the seconds that one update costs."""
        return _nearest(self._commits, (1,), number)

    def _step(self, worker: int, step: int) -> tuple[int, StepCosts]:
        """Return the recorded step that stands for this step, with its number."""
        found = self._steps[worker].get(step)
        if found is not None:
            return step, found
        going_round = self._round[worker]
        return going_round[(step - 1) % len(going_round)]

    def _factor(self, worker: int, step: int, at: float) -> float:
        """Return the factor of the scenario's slow-downs for that step."""
        return math.prod(event.factor for event in self._slow[worker] if event.active(step, at))

    def _kind(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return the number of a group's members, and of their nodes."""
        return len(members), len({self._hosts[worker] for worker in members})


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
    """Bytes of a transfer, or an estimate; 0 if that is unknown."""
    limit: Limit
    """What ended the run."""
    data: int | None
    """The steps that there was data for, if the run ended because it had no more."""
    costs: RecordedCosts
    recorded: Recorded
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
        return Simulation(
            choice=choice,
            scenario=replace(self.scenario, events=events),
            workers=self.workers,
            limit=limit,
            seed=self.seed if seed is None else seed,
            batch=self.batch,
            costs=self._costs_of(choice.spec),
            message=self.message,
            data=data,
        )

    def _costs_of(self, spec: Spec) -> RecordedCosts:
        """Return the run's costs, with the optimizer where that protocol runs it."""
        moved: Literal["worker", "replica"] | None = None
        if spec.family == "decentralized":
            moved = "replica"
        elif spec.optimizer == "worker" and self.choice.spec.optimizer == "store":
            moved = "worker"
        if moved is None or not self.recorded.commits:
            return self.costs
        return RecordedCosts(self.recorded, self.scenario, self.workers, moved)

    def remarks(self, choice: Choice) -> list[str]:
        """Return what a prediction of that protocol assumes, a sentence each."""
        lines, name, recorded = [], choice.spec.name, self.recorded
        strangers = [worker for worker in range(self.workers) if worker not in recorded.steps]
        if strangers:
            its = "its" if len(strangers) == 1 else "their"
            like = f"{its} steps are taken to be like worker {recorded.busiest}'s"
            lines.append(f"{workers_named(strangers)} finished no step: {like}")
        if self.died:
            goes = "it goes" if len(self.died) == 1 else "they go"
            lines.append(f"{workers_named(self.died)} died in that run: here {goes} on to the end")
        if choice.spec.family == "decentralized":
            if not recorded.averages:
                like = "an average of {} is taken to take no time"
                if recorded.commits:
                    like = "a replica's step of {} and its average are taken to take what a version took"
                    if ClusterLinks(self.scenario, self.workers).paces_averages:
                        like += ", besides what the scenario's network says of averages"
                lines.append(f"no groups averaged in that run: {like.format(name)}")
        elif not recorded.commits:
            like = "what an average took" if recorded.averages else "no time"
            lines.append(f"no store made versions in that run: one of {name} is taken to take {like}")
        return lines


def read(folder: Path, known: Mapping[str, Spec]) -> CalibratedRun:
    """Read the costs in that run's ledger. `known` is the registry of protocols.

    Raises ConfigError, in one line, if the ledger can't be read or has no finished step.
    """
    run = open_run(folder, known)
    with closing(run.ledger), reading(folder):
        return _read(run)


def _read(run: RecordedRun) -> CalibratedRun:
    folder, config, scenario, workers, seed = run.folder, run.config, run.scenario, run.workers, run.seed
    database = run.ledger
    if scenario.links_hosts:
        raise ConfigError(
            f"{folder}: its hosts have links, whose part in that run is not told apart from other costs yet; simulate "
            "its scenario's file"
        )
    reading = _Reading(ClusterLinks(scenario, workers).paces_store)
    reading.take_times(database)
    tally = Tally(model_of(database))
    reading.take_facts(tally, run.history())
    cores = None if run.simulated else config.get("environment", {}).get("cores") or None
    recorded = _alone(reading.steps(database, scenario, seed), reading.commits(), reading.averages, cores)
    if not recorded.steps:
        raise ConfigError(f"{folder}: no step was finished in that run; name one that has trained")
    batch = database.execute("SELECT samples FROM pushes GROUP BY samples ORDER BY count(*) DESC LIMIT 1").fetchone()
    model = tally.model
    steps, seconds = tally.steps, model.at - (model.began or 0.0) - model.paused
    limit, data = Limit(steps=steps), None
    message = reading.message or _of_the_last_version(folder)
    killed = {event.worker for event in scenario.events if isinstance(event, Kill)}
    reasons = set(reading.left.values())
    if reasons <= {"finished", "died"} and "finished" in reasons:
        limit, data = Limit(), steps
    elif "max_seconds" in config["limits"] and steps < config["limits"].get("max_steps", math.inf):
        limit = Limit(seconds=seconds)
    return CalibratedRun(
        folder=folder,
        choice=run.choice,
        scenario=scenario,
        workers=workers,
        seed=seed,
        batch=config.get("batch") or (batch and batch[0] and int(batch[0])),
        message=message,
        limit=limit,
        data=data,
        costs=RecordedCosts(recorded, scenario, workers),
        recorded=recorded,
        died=tuple(worker for worker, reason in reading.left.items() if reason == "died" and worker not in killed),
    )


Window = tuple[float, float]
"""(begin, end) in seconds since the run's start."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """When a step's parts began and ended, and how much of each was the worker's own work, in seconds."""

    released: Window
    """When the coordinator told the worker to begin."""
    since: float
    began: float
    compute: float
    works: float
    """The part of `compute` that is work. In the rest the worker slept."""
    ended: float
    until: float
    preparing: float
    """The worker's own part between `since` and `began`."""
    filling: float
    """The worker's own part between `ended` and `until`."""

    @property
    def windows(self) -> tuple[Window, Window, Window, Window]:
        """The windows of work: telling the worker, before computing, computing, and after computing."""
        working = min(self.began + self.works, self.ended)
        return self.released, (self.since, self.began), (self.began, working), (self.ended, self.until)


@dataclass(slots=True)
class _Reading:
    """Gathers times while it reads the ledger."""

    paced: bool
    """Whether a network's model sets the times of transfers. Otherwise they take no time."""
    message: int = 0
    ended: float = 0.0
    """When the run ended."""
    left: dict[int, str] = field(default_factory=dict)
    """By worker that left: why it left."""
    since: dict[tuple[int, int], float] = field(default_factory=dict)
    """By (worker, step): when the step could begin, as it was released and its version was there."""
    released: dict[tuple[int, int], Window] = field(default_factory=dict)
    """By (worker, step) that began with a pull without a network: when the coordinator told the worker to begin. Such a
    pull consists of nothing else."""
    until: dict[tuple[int, int], float] = field(default_factory=dict)
    """By (worker, step): when what follows from the step could begin."""
    made: dict[int, float] = field(default_factory=dict)
    """By version but the first: when the store had made it."""
    ordered: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By version: when it was ordered, and its number of updates."""
    averages: dict[int, tuple[tuple[int, ...], Window]] = field(default_factory=dict)
    moved: dict[int, float] = field(default_factory=dict)
    """By group: when its bytes had moved at the network's pace."""
    flows: dict[int, list[tuple[str, float, float]]] = field(default_factory=dict)
    """By worker: its transfers at the network's pace, and its averages, in the form that `exposed` takes."""

    def take_times(self, database: sqlite3.Connection) -> None:
        """Read the times of versions and transfers, before the facts."""
        self.made.update(database.execute("SELECT version, at FROM commits"))
        rows = database.execute("SELECT worker, direction, number, bytes, began, ended FROM transfers ORDER BY began")
        for worker, direction, number, size, began, ended in rows:
            if direction == "average":
                self.moved[number] = ended
                continue
            self.message = size
            self.flows.setdefault(worker, []).append((direction, began, ended))

    def take_facts(self, tally: Tally, history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> None:
        """Read all facts with their orders, in order. `tally` counts them."""
        awaited: dict[int, tuple[int, int, float]] = {}  # by worker: the step that it awaits a version for, since when
        averaging: dict[int, tuple[tuple[int, ...], float]] = {}
        told = 0.0  # when the last worker was told to begin
        pushed_at_once: set[tuple[int, int]] = set()
        for fact, orders in history:
            tally.record(fact, orders)
            self.ended = fact.at
            match fact:
                case TrainingBegan():  # what was outstanding is undone
                    awaited, averaging = {}, {}
                    self.left.clear()
                case WorkerLeft():
                    self.left[fact.worker] = fact.reason
                case GradientReady():
                    self.until[fact.worker, fact.step] = fact.at
                case UpdateArrived() if not self.paced and (fact.worker, fact.step) in pushed_at_once:
                    self.until[fact.worker, fact.step] = fact.at
                case ParametersTaken():
                    step, version, since = awaited.get(fact.worker, (-1, -1, 0.0))
                    if version == fact.version:
                        del awaited[fact.worker]
                        self.since[fact.worker, step] = fact.at
                        if not self.paced:
                            could = max(since, self.made.get(version, 0.0), told)
                            self.released[fact.worker, step] = min(could, fact.at), fact.at
                            told = fact.at
                case ReduceFinished():
                    members, since = averaging.pop(fact.group)
                    worked = fact.at > self.moved.get(fact.group, -math.inf)
                    self.averages[fact.group] = members, (since, fact.at if worked else since)
                    for worker in members:
                        self.flows.setdefault(worker, []).append(("pull", since, fact.at))
            for order in orders:
                match order:
                    case ApplyUpdate():
                        self.ordered[order.version] = fact.at, len(order.contributions)
                    case Release(parameters="pull"):
                        awaited[order.worker] = order.step, order.version, fact.at
                    case Release():
                        self.since[order.worker, order.step] = fact.at
                    case StartPush() if isinstance(fact, GradientReady):
                        pushed_at_once.add((order.worker, order.step))
                    case Reduce():
                        averaging[order.group] = order.members, fact.at

    def commits(self) -> dict[int, tuple[int, Window]]:
        """Return each version's number of updates, and when the store worked on it. It makes one version at a time."""
        found, before = {}, 0.0
        for version, (at, updates) in self.ordered.items():
            if version in self.made:  # otherwise the run was over before that
                found[version] = updates, (max(before, at), self.made[version])
                before = self.made[version]
        return found

    def steps(self, database: sqlite3.Connection, scenario: Scenario, seed: int) -> dict[int, dict[int, _Timed]]:
        """Return all steps whose times are noted, and whose begin and end are known."""
        rows = database.execute(
            "SELECT worker, step, began, compute, push, pull, other FROM step_times ORDER BY worker, step"
        )
        found: dict[int, dict[int, _Timed]] = {}
        installing: dict[int, float] = {}  # by worker: the seconds in which it took up its version, in the row before
        flows = {worker: deque(sorted(flows, key=lambda flow: flow[1])) for worker, flows in self.flows.items()}
        for worker, step, began, compute, push, pull, other in rows:
            if (worker, step) not in self.since or (worker, step) not in self.until:
                continue
            since, until = self.since[worker, step], self.until[worker, step]
            began, until = max(since, began), max(since, until)
            ended = min(began + compute, until)
            pushing, pulling = _on_the_way(flows.get(worker), until, self.since.get((worker, step + 1), self.ended))
            own = other + installing.get(worker, 0.0)
            installing[worker] = max(0.0, pull - pulling)
            preparing = min(own, began - since)
            filling = min(own - preparing + max(0.0, push - pushing), until - ended)
            works = 0.0
            if scenario.compute is None:
                works = compute / max(1.0, scenario.step_seconds(worker, step, began, 1.0, seed))
            released = self.released.get((worker, step), (since, since))
            timed = _Timed(released, since, began, compute, works, ended, until, preparing, filling)
            found.setdefault(worker, {})[step] = timed
        return found


def _alone(
    steps: Mapping[int, Mapping[int, _Timed]],
    commits: Mapping[int, tuple[int, Window]],
    averages: Mapping[int, tuple[tuple[int, ...], Window]],
    cores: int | None,
) -> Recorded:
    """Return the costs as if each job had had a core of its own."""
    every = [one for of_worker in steps.values() for one in of_worker.values()]
    windows = [window for one in every for window in one.windows]
    windows += [window for _, window in commits.values()]
    windows += [window for _, window in averages.values()]
    work = _Work(windows, cores)

    def of(one: _Timed) -> StepCosts:
        release, before, works, after = (work.of(window) for window in one.windows)
        began, ended = one.began - one.since, one.until - one.ended
        return StepCosts(
            began=one.began,
            release=release,
            before=_overhead(before, one.preparing / began if began else 0.0),
            compute=round(works + one.compute - one.works, DIGITS),
            works=works,
            after=_overhead(after, one.filling / ended if ended else 0.0),
        )

    return Recorded(
        {worker: {step: of(one) for step, one in of_worker.items()} for worker, of_worker in steps.items()},
        {version: (contributions, work.of(window)) for version, (contributions, window) in commits.items()},
        {group: (members, work.of(window)) for group, (members, window) in averages.items()},
        cores,
    )


def _overhead(seconds: float, own: float) -> Overhead:
    """Return so many seconds of overhead, of which that share is the worker's own work."""
    return Overhead(round(seconds * own, DIGITS), round(seconds * (1.0 - own), DIGITS))


class _Work:
    """Computes how much work was done in windows of time in which all jobs shared the cores."""

    def __init__(self, windows: Iterable[Window], cores: int | None) -> None:
        self._cores = cores
        self._served: dict[float, float] = {}
        """By time at which a window begins or ends: the work that a job would have got by then, since the beginning."""
        if cores is None:
            return
        at_work: dict[float, int] = {}
        for since, until in windows:
            at_work[since] = at_work.get(since, 0) + 1
            at_work[until] = at_work.get(until, 0) - 1
        here, served, before = 0, 0.0, 0.0
        for moment in sorted(at_work):
            served += (moment - before) * min(1.0, cores / max(1, here))
            self._served[moment] = served
            here += at_work[moment]
            before = moment

    def of(self, window: Window) -> float:
        """Return the work in a window, in seconds of one core."""
        since, until = window
        if self._cores is None:
            return _seconds(until, since)
        return _seconds(self._served[until], self._served[since])


def _of_the_last_version(folder: Path) -> int:
    """Return the bytes of the last version's file, which are little more than the model's; 0 if it is not there."""
    file = folder / "versions" / "final.safetensors"
    return file.stat().st_size if file.is_file() else 0


def _on_the_way(flows: deque[tuple[str, float, float]] | None, since: float, until: float) -> tuple[float, float]:
    """Return the seconds of pushes and of pulls within this time. Calls come in the order of time."""
    if flows is None:
        return 0.0, 0.0
    while flows and flows[0][2] <= since:
        flows.popleft()
    present = []
    for flow in flows:
        if flow[1] >= until:
            break
        present.append(flow)
    return exposed(present, since, until)


def _seconds(until: float, since: float = 0.0) -> float:
    return round(max(0.0, until - since), DIGITS)


def _in_order(steps: Mapping[int, StepCosts]) -> list[tuple[int, StepCosts]]:
    return sorted(steps.items(), key=lambda item: item[0])


def _nearest(costs: Mapping[tuple[int, ...], Sequence[float]], kind: tuple[int, ...], number: int) -> float:
    """Return the cost of that number, repeating those of the same kind or the nearest one; 0 without any."""
    if not costs:
        return 0.0

    def distance(other: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(abs(one - another) for one, another in zip(kind, other, strict=False))

    those = costs[min(costs, key=distance)]
    return those[number % len(those)]
