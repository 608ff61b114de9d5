"""Replays a recorded run with real processes in the recorded order, and compares the bits.

The orders come from the ledger instead of a protocol's machine, and real workers carry them out. What a step computes
depends on its version, its samples, the seed, the worker and the step, and never on time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.facts import (
    Fact,
    GradientReady,
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
from paceline.core.membership import ALL_DIED
from paceline.core.orders import ApplyUpdate, Order, Release, SwitchProtocol
from paceline.errors import ConfigError, RunFailed
from paceline.host.processor import ISAS
from paceline.records import kept
from paceline.records.journal import Journal
from paceline.records.ledger import connect
from paceline.records.reading import LEDGER, RecordedRun
from paceline.records.replay_comparison import Compared, compare
from paceline.records.segments import ON_DEVICES, Segment
from paceline.records.summary import Summary
from paceline.runs.recorded_schedule import RecordedPart, parts
from paceline.runs.run import STARTS
from paceline.runs.script import changes, recorded_script

if TYPE_CHECKING:
    from paceline.coordinator.director import Director
    from paceline.job.settings import Settings


def script_of(recorded: RecordedRun) -> Path:
    """Return the run's script: where it was, or a function in the run's folder. Raises ConfigError if it has gone."""
    script = recorded_script(recorded.config)
    if not script.exists():
        if script.name == kept.SCRIPT and (there := kept.kept_script(recorded.folder)) is not None:
            return there
        raise ConfigError(f"{script}: the script is no longer there; name its new place with --script FILE")
    return script


def differences(recorded: RecordedRun, script: Path) -> Iterator[str]:
    """Yield a line for each difference from the recorded run that may change the bits."""
    from paceline.host import devices
    from paceline.host.machine import machine, unlike

    config = recorded.config
    yield from changes(config, script)
    here = machine()
    for key in ("python", "torch", "numpy", "cpu_capability"):
        value, then = getattr(here, key), config["environment"].get(key)
        if value != then:
            yield f"the run was made with {key} {then}, and here it is {value}"
    lines = dict[str, None]()
    for segment in recorded.segments:
        threads = segment.notes.get("threads", config["threads"])
        placed = recorded.scenario_of(segment).placed(segment.workers)
        workers = {host: list(there) for host, there in placed.items()}
        lines |= dict.fromkeys(unlike(segment.environment.get("hosts", {}), workers, here, threads))
        had = devices_had(recorded, segment)
        try:
            devices.check(had)
        except ConfigError:
            had = ", ".join(dict.fromkeys(str(had).split(",")))
            line = f"the run had devices {had}, and not all of them are here: the replay can't promise its bits"
            lines.setdefault(line)
    yield from lines


def devices_had(recorded: RecordedRun, segment: Segment) -> str | None:
    """Return the workers' devices in that segment, as `--devices` lists them.

    None: the workers get the same devices by default here, or the run is older than such notes.
    """
    from paceline.host import devices

    if asked := segment.notes.get("devices", recorded.config.get("devices")):
        return str(asked)
    noted = segment.environment
    hosts = {host: there.get("devices") for host, there in noted.get("hosts", {}).items()}
    placed = recorded.scenario_of(segment).placed(segment.workers)
    host_of = {worker: host for host, workers in placed.items() for worker in workers}
    there = [hosts.get(host_of.get(worker, ""), noted.get("devices")) for worker in range(segment.workers)]
    here = len(devices.visible(os.environ, devices.there()))
    if None in there or all(number == here for number in there):
        return None
    had = (str(worker % number) if number else devices.ON_CPU for worker, number in enumerate(there))
    return ",".join(had)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replay that has ended."""

    summary: Summary
    """Its times are the recorded ones."""
    until: int | None
    """The replay's last version; None: it goes to the recording's end."""
    notes: Sequence[str]
    """A line for each segment of which something is not compared, or before which the replay ends."""


def replay(
    recorded: RecordedRun, script: Path, folder: Path, until: int | None = None, *, json: bool = False
) -> Replayed:
    """Replay the run up to this version, segment by segment.

    Each segment begins from the recorded run's snapshot, if the replay has the same bits there. Raises ConfigError if
    the run can't be replayed here.
    """
    from paceline.coordinator.run import run
    from paceline.job.interrupts import Interrupts

    interrupts, history, notes = Interrupts(), recorded.history(), list[str]()
    for part in parts(recorded, until):
        direct = partial(_direct, part=part, history=history, until=until)
        summary = run(_settings(part, script, folder, json=json), interrupts, direct)
        if summary["outcome"] != "completed" or part.ends is None:
            break
        version = part.ends.version
        if until is not None and version >= until:
            break
        if not _agree(recorded, folder, version):
            notes.append(
                f"the run went on from a snapshot of version {version}; the replay has other bits, and ends there"
            )
            until = version
            break
        if part.segment.choice.has_replicas and not part.closed:
            what = f"the ledger has no bits of the replicas from which segment {part.segment.number + 1} went on"
            notes.append(f"{what}: what they did since the mean before that is not compared")
    return Replayed(summary=summary, until=until, notes=notes)


def _settings(part: RecordedPart, script: Path, folder: Path, *, json: bool) -> Settings:
    from paceline.host.evaluator import THREADS as EVALUATION_THREADS
    from paceline.job.settings import Settings

    recorded, config = part.recorded, part.config
    scenario = recorded.scenario_of(part.segment)
    return Settings(
        script=script,
        source=script.read_bytes(),
        arguments=tuple(config["arguments"]),
        choice=part.segment.choice,
        workers=part.segment.workers,
        scenario=scenario.only_dealt(),  # slow workers and deaths are in the ledger
        simulated=scenario,
        seed=recorded.seed,
        threads=config["threads"],
        devices=_devices(recorded, part.segment),
        isa=config.get("isa", ISAS[0]),
        folder=folder,
        shards=config["shards"],
        epochs=config["limits"].get("epochs"),
        record=config["record"],
        targets=(),
        on_loss="continue",
        on_divergence="continue",
        saves=config.get("saves", "first"),
        tee="none",
        max_steps=None,
        max_seconds=None,
        report_waits=3600.0,
        json=json,
        compress=config.get("compress") or None,
        learning_rate_scale=config.get("learning_rate_scale", 1.0),
        start=config.get("start", STARTS[0]),
        evaluation_threads=EVALUATION_THREADS if config.get("stop_at_target") else None,
        checkpoint=0,
        resumed=part.begins,
        replays={int(worker): device for worker, device in part.segment.notes.get(ON_DEVICES, {}).items()},
    )


def _direct(
    workers: Director,
    journal: Journal,
    *,
    part: RecordedPart,
    history: Iterator[tuple[Fact, tuple[Order, ...]]],
    until: int | None,
) -> None:
    """Replay this segment, up to version `until`."""
    recorded = part.recorded
    journal.ledger.note("replay_of", str(recorded.folder))
    if until is not None:
        journal.ledger.note("until", until)  # it stops in the middle: no worker leaves
    part.prescribe(workers.policy)
    began = workers.begin(part.segment.notes.get("absent", ()))
    further: dict[int, Release | None] = {}
    """By worker: what its last release permits beyond the step that it is at. It is made step by step, as recorded."""
    for fact, orders in islice(history, part.facts):
        if workers.interrupted:
            return
        if isinstance(fact, WorkerJoined) and workers.policy.hosts:
            workers.policy.hosts[fact.worker] = fact.host
        if isinstance(fact, TrainingBegan):
            _expect_beginning(fact, began)
        else:
            _reenact(fact, workers)
        try:
            journal.record(fact, orders)
            if isinstance(fact, TrainingBegan):
                workers.direct_first(orders, fact.at)
            else:
                for place, order in enumerate((*orders, *_further(fact, further, workers))):
                    makes = isinstance(order, SwitchProtocol) and order.version is not None
                    if makes and until is not None and _reached(until, orders[:place], workers):
                        return  # that version is beyond it
                    workers.direct(order, fact.at)
            further |= {order.worker: order.rest for order in orders if isinstance(order, Release)}
        except (KeyError, ValueError, AssertionError) as error:  # these orders can't follow those before
            what = f"{fact} can't be followed by {list(orders)} here: the ledger is not as it was made"
            raise RunFailed(f"{what}; paceline check says where it was changed") from error
        if until is not None and _reached(until, orders, workers):
            return
    if part.ends is not None:
        for epoch, batches, digest, first, expected in part.opened():
            if not workers.has_opened(epoch, first):  # no worker took a batch of it in this segment
                journal.ledger.epoch_opened(epoch, batches, digest, first, expected)
        journal.ledger.mark()  # here the ledger is cut, as the recorded one was, before the next segment begins
    if not part.failed:
        workers.bring_one_back()


def _agree(recorded: RecordedRun, folder: Path, version: int) -> bool:
    """Whether the replay has this version's bits, as far as the recording's ledger knows them."""
    tables = (("checksums", "checksum"), ("versions", "sha256"))
    queries = [f"SELECT {column} FROM {table} WHERE version = ?" for table, column in tables]
    with closing(connect(folder / LEDGER)) as again:
        for query in queries:
            then, now = (ledger.execute(query, (version,)).fetchone() for ledger in (recorded.ledger, again))
            if then not in (None, now):
                return False
    return True


def compared_with(
    recorded: RecordedRun, folder: Path, summary: Summary, until: int | None, excused: Sequence[str]
) -> Compared | None:
    """Compare the recorded run with its replay in `folder`; None if the replay ended otherwise."""
    if summary["outcome"] != "completed" and not _failed_alike(recorded.summary, summary):
        return None
    with closing(connect(folder / LEDGER)) as again:
        return compare(recorded, again, until, excused)


def _devices(recorded: RecordedRun, segment: Segment) -> str | None:
    """Return the run's devices, or None if they are not here. `differences` reports that."""
    from paceline.host import devices

    had = devices_had(recorded, segment)
    try:
        devices.check(had)
    except ConfigError:
        return None
    return had


def last_version(recorded: RecordedRun) -> int:
    """Return the newest version whose bits the ledger knows; 0 if it knows none."""
    query = "SELECT max(version) FROM (SELECT version FROM versions UNION ALL SELECT version FROM checksums)"
    return int(recorded.ledger.execute(query).fetchone()[0] or 0)


def _failed_alike(recorded: Summary | None, again: Summary) -> bool:
    """Whether both failed for the same reason. Then what came before can be compared.

    A replay kills the workers that died. If those were all, it says so. `--on-loss stop` has named the first.
    """
    if recorded is None or (recorded["outcome"], again["outcome"]) != ("failed", "failed"):
        return False
    return again["error"] in (recorded["error"], ALL_DIED)


def _reenact(fact: Fact, workers: Director) -> None:
    """Make this fact happen again. Raises RunFailed if the workers do something else."""
    match fact:
        case GradientReady(worker=worker, step=step):
            result = workers.result(worker, step)
            amount = (fact.samples, fact.weight)
            if not isinstance(result, GradientReady) or (result.samples, result.weight) != amount:
                raise RunFailed(f"step {step} of worker {worker} is not as recorded: the script goes another way")
        case StepDeclined(worker=worker, step=step):
            # a script that did not say how many epochs it has ends instead of declining
            if isinstance(workers.result(worker, step), GradientReady):
                raise RunFailed(
                    f"worker {worker} has data for step {step}, and had none in the recording: "
                    "the script goes another way"
                )
        case UpdateArrived():
            workers.arrived(fact)
        case ReduceFinished() | ReduceFailed() | ReplicaCopied():
            workers.tell(fact)
        case WorkerJoined(worker=worker, step=step):
            workers.join(worker, step)
        case WorkerResumed():
            workers.resume(fact)
        case WorkerLeft(worker=worker, reason="died"):
            workers.lose(worker)
        case WorkerLeft(worker=worker, reason="drained"):
            workers.lose(worker, how="drained")
        case WorkerLeft(worker=worker, reason="finished"):
            workers.see_off(worker)
        case WorkerLeft():
            workers.stop()


def _further(fact: Fact, further: dict[int, Release | None], workers: Director) -> Iterator[Release]:
    """Yield the release of the next step, if the worker has gone on by itself after this fact."""
    if isinstance(fact, GradientReady) and (order := further.get(fact.worker)) is not None:
        further[fact.worker] = order.rest
        if (order.worker, order.step) not in workers.policy.revoked:
            yield order


def _expect_beginning(recorded: TrainingBegan, began: TrainingBegan) -> None:
    work = recorded.work if began.work is None else began.work  # a replay has no --max-steps, which may be all of it
    if (recorded.members, recorded.work) != (began.members, work):
        raise RunFailed("the script begins with other workers or another amount of work than in the recording")


def _reached(until: int, orders: tuple[Order, ...], workers: Director) -> bool:
    made = max((order.version for order in orders if isinstance(order, ApplyUpdate)), default=0)
    return max(made, workers.versions.newest.version) >= until
