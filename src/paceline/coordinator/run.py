"""One run, from the empty folder to the summary: starts the workers, coordinates, leaves no process behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tomli_w

from paceline import files
from paceline.coordinator.coordinator import Coordinator
from paceline.coordinator.director import Director
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.run_state import RunState
from paceline.core.drive import drive
from paceline.core.phrases import count, workers_named
from paceline.display.trackers.feed import Trackers
from paceline.errors import ConfigError, NotGathered, ProtocolViolation, RunFailed
from paceline.files import unforeseen, write_whole
from paceline.host import hash_seed
from paceline.host.machine import Machine, environment, machine
from paceline.host.worker_output import WorkerOutput
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.processes import (
    NoProcess,
    adopt_orphans,
    children,
    end_adopted,
)
from paceline.ipc.zygote import AT_ONCE, Zygote
from paceline.job.interrupts import Interrupts
from paceline.job.settings import Settings
from paceline.job.settings_codec import check_source, packed
from paceline.records import summary as summaries
from paceline.records.folders import CONFIG
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.reading import LEDGER, tally_of
from paceline.records.snapshots import remove_drafts, remove_undone, whole
from paceline.records.summary import Summary
from paceline.records.truncate import cut, newest_to_go_on_from
from paceline.scenario.scenario_file import to_plain
from paceline.version import __version__
from paceline.worker_process.forking import allow_files, check_memory, fork_workers, forked_zygote, output_of
from paceline.worker_process.imports import import_torch
from paceline.worker_process.touched import notes, told

if TYPE_CHECKING:
    from paceline.coordinator.host_registry import HostRegistry
    from paceline.coordinator.rendezvous import Listen, Rendezvous
    from paceline.display.page_feed import PageFeed

Direct = Callable[[Director, Journal], None]
"""Carries out all of a run's orders, and records what it tells the machine."""


def run(
    settings: Settings,
    interrupts: Interrupts,
    direct: Direct | None = None,
    listening: Listen | None = None,
    feed: PageFeed | None = None,
) -> Summary:
    """Run it. Return the summary, which the run's folder has too. `direct` decides what happens when, if given.

    A run that has lost a host which made versions goes on by itself, as often as the settings say.

    `listening`: where machines join, whose workers come on top of those that the settings have.
    `feed`: leads to the live page, if there is one.
    Raises ConfigError when the script asks for what cannot be done. The folder is then gone again, unless
    training has come so far that it has something to lose. Raises SystemExit if the script's own argument parser
    ends the script.
    """
    if settings.goes_on and listening is not None:
        listening = listening.at_one_port()
    while True:
        summary, goes_on = _run(settings, interrupts, direct, listening, feed)
        if not goes_on:
            return summary
        snapshot, _ = newest_to_go_on_from(settings.folder)
        if snapshot is None:
            return summary
        done = f"after {count(snapshot.state.steps, 'step')}, from {snapshot.folder}"
        sys.stderr.write(f"paceline: {summary['error']}; going on {done}\n")
        settings = replace(settings, resumed=snapshot, goes_on=settings.goes_on - 1)


def _run(
    settings: Settings, interrupts: Interrupts, direct: Direct | None, listening: Listen | None, feed: PageFeed | None
) -> tuple[Summary, bool]:
    """Run it once. Return whether it is to go on by itself, too."""
    check_memory(settings.workers)
    allow_files(settings.workers, settings.hosts > 1)
    if settings.hosts > 1:
        check_source(settings)
    import_torch(settings.source)
    if interrupts.take():
        raise KeyboardInterrupt
    made = make_folder(settings.folder) if settings.resumed is None else []
    files.traces = settings.folder
    keep = settings.resumed is not None
    try:
        with Trackers(lambda: interrupts.pending) as trackers:
            coordinator, goes_on = _coordinated(settings, interrupts, direct, listening, trackers, feed)
            if coordinator.parser_ended is not None:  # with --help or a mistake, as when the script runs alone
                worker, code = coordinator.parser_ended
                _show_parsers_words(coordinator.run_state.settings, worker)
                if not keep:
                    undo(settings.folder, made)
                raise SystemExit(code)
            run_state = coordinator.run_state
            keep = keep or run_state.shutdown.usage_error is None or run_state.data.steps > 0
            summary = trackers.summary = _conclude(run_state) if keep else None
        if run_state.shutdown.usage_error is not None:
            raise ConfigError(run_state.shutdown.usage_error)
        assert summary is not None
        return summary, goes_on
    except (ConfigError, NotGathered, KeyboardInterrupt):
        if not keep:
            undo(settings.folder, made)
        raise


def _coordinated(
    settings: Settings,
    interrupts: Interrupts,
    direct: Direct | None,
    listening: Listen | None,
    trackers: Trackers,
    feed: PageFeed | None,
) -> tuple[Coordinator, bool]:
    """Start all processes, coordinate, and end them. Return whether the run is to go on by itself, too."""
    coordinator, goes_on = None, False
    try:
        with (
            forked_zygote(partial(_let_go, interrupts, feed)) as zygote,
            _noted(settings) as (settings, shared),
            _meeting(settings, listening, partial(_let_go, interrupts, feed, zygote)) as meeting,
            _stage(settings, interrupts) as (loop, output),
            _gathered(settings, meeting, interrupts, loop, output) as (settings, others),
        ):
            if settings.resumed is not None:
                settings = _cut(settings)
            zygote.settle(packed(settings))
            with _journal(settings) as journal:
                fork = partial(fork_workers, settings=settings, zygote=zygote, folders=shared, pipes=settings.shows)
                workers = Workers(loop, output, fork)
                with trackers.started(settings, loop, output.say):
                    coordinator = _conduct(
                        settings, interrupts, workers, journal, loop, output, others, direct, trackers, feed
                    )
                shutdown = coordinator.run_state.shutdown
                if others is not None:
                    journal.moved(others.cpu_seconds)
                journal.ended(shutdown.outcome, shutdown.error, stopped=shutdown.asked)
                if others is not None:
                    lacks_host = shutdown.lacks_host and shutdown.outcome == "failed"
                    goes_on = lacks_host and settings.goes_on > 0 and any(whole(settings.folder))
                    others.ended_with(shutdown, coordinator.parser_ended is not None, goes_on=goes_on)
    except RunFailed as error:  # the ledger lacks something, and the summary must say so
        if coordinator is None:
            raise
        coordinator.run_state.shutdown.break_off(str(error))
    return coordinator, goes_on


def _show_parsers_words(settings: Settings, worker: int) -> None:
    """Print what the script's own parser has said as it ended that worker, unless that was printed."""
    if settings.shows(worker):
        return
    if worker:  # only there, such as on another host, where a folder is missing
        there = f" of host {host}" if (host := settings.hosts_of_workers.get(worker)) else ""
        sys.stderr.write(f"paceline: the script's own argument parser has ended worker {worker}{there}:\n")
    sys.stderr.write(settings.log(worker).read_text(errors="replace"))


def _let_go(interrupts: Interrupts, feed: PageFeed | None, zygote: Zygote | None = None) -> None:
    """In a process that was forked from this one: a worker's, or an agent's, which has inherited the zygote's, too."""
    for inherited in (interrupts, feed, zygote):
        if inherited is not None:
            inherited.let_go()


@contextmanager
def _meeting(settings: Settings, listening: Listen | None, let_go: Callable[[], None]) -> Iterator[Rendezvous | None]:
    """Where the hosts besides this one come, if there are any: one host does without what they take to be imported."""
    if settings.hosts == 1:
        yield None
    elif listening is not None:
        from paceline.coordinator.rendezvous import meeting

        with meeting(settings, listening, let_go) as machines:
            yield machines
    else:
        from paceline.coordinator.emulated import emulated

        with emulated(settings, let_go) as agents:
            yield agents


@contextmanager
def _stage(settings: Settings, interrupts: Interrupts) -> Iterator[tuple[Loop, WorkerOutput]]:
    """The launcher's loop, and what it prints with."""
    output, loop = output_of(settings), Loop()
    output.after = loop.after
    interrupts.output = output
    try:
        yield loop, output
    finally:
        output.close()
        loop.close()


@contextmanager
def _gathered(
    settings: Settings, meeting: Rendezvous | None, interrupts: Interrupts, loop: Loop, output: WorkerOutput
) -> Iterator[tuple[Settings, HostRegistry | None]]:
    """Wait for the other hosts, if there are any. Yield the run's settings, and those hosts.

    Raises NotGathered if they don't come, ConfigError if they can't make the run, and KeyboardInterrupt.
    """
    if meeting is None:
        yield settings, None
        return
    from paceline.coordinator.host_registry import HostRegistry

    others = HostRegistry(settings, meeting, loop, output)
    try:
        loop.watch(interrupts, interrupts.wake)  # a signal that asks for an end ends the wait
        try:
            all_are_there = others.gather(lambda: bool(interrupts.pending))
        finally:
            loop.unwatch(interrupts)
        if all_are_there is None:
            output.say("interrupted before all hosts had come")
            raise KeyboardInterrupt
        allow_files(all_are_there.workers, True)  # also logs of workers elsewhere are here
        yield all_are_there, others
    except ConfigError as error:
        others.refuses(str(error))
        raise
    finally:
        others.close()


def _cut(settings: Settings) -> Settings:
    """Cut the run's ledger at the snapshot that the run goes on from. Return the settings with the time of the cut.

    A replay knows a later one: when the recorded run went on.
    """
    assert settings.resumed is not None
    state = settings.resumed.state
    at = cut(settings.folder, state.fact, state.version).at
    remove_undone(settings.folder, state.fact)
    state = msgspec.structs.replace(state, at=max(at, state.at))
    return replace(settings, resumed=replace(settings.resumed, state=state))


def make_folder(folder: Path) -> list[Path]:
    """Make the run's folder. Return the folders that were not there before, to be removed if the run does not begin."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        (folder / "versions").mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be made") from None
    return made


def undo(folder: Path, made: list[Path]) -> None:
    """Remove what the run has written, and the folders that it made unless they are in use."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in made:
        with suppress(OSError):
            path.rmdir()


@contextmanager
def _noted(settings: Settings) -> Iterator[tuple[Settings, int]]:
    """Settings that say where workers of this machine note what they make of files; and a descriptor of that."""
    shared = notes(with_first=True)
    try:
        yield replace(settings, notes=told(shared)), shared
    finally:
        os.close(shared)


@contextmanager
def _journal(settings: Settings) -> Iterator[Journal]:
    path = settings.folder / LEDGER
    resumes = settings.resumed is not None
    tally = tally_of(path, [target.metric for target in settings.targets]) if resumes else None
    ledger = Ledger(path, resume=resumes)
    try:
        yield Journal(ledger, tally)
    finally:
        ledger.close()


def _conduct(
    settings: Settings,
    interrupts: Interrupts,
    workers: Workers,
    journal: Journal,
    loop: Loop,
    output: WorkerOutput,
    others: HostRegistry | None,
    direct: Direct | None,
    trackers: Trackers,
    feed: PageFeed | None,
) -> Coordinator:
    strangers = children()
    adopt_orphans()
    run_state = None
    try:
        failure = _start(workers, settings.head_workers, interrupts)

        def describe(offer: messages.worker.Offered | None) -> None:
            there, machines = (settings, {}) if others is None else (others.settings, others.machines)
            _write_config(there, offer, journal, machines)

        describe(None)  # while the workers get ready

        moment = 0.0 if settings.resumed is None else settings.resumed.state.at
        policy = RunPolicy(clock=loop.now if direct is None else None, moment=moment)
        run_state = RunState(settings, workers, journal, output, loop, policy, others, trackers)
        if feed is not None:
            run_state.display.feed(feed)
        coordinator, shutdown = Coordinator(run_state, describe), run_state.shutdown

        def see_to_signals() -> None:
            shutdown.interrupt(interrupts.take(), interrupts.last)
            for number in interrupts.take_passed_on():
                coordinator.pass_on(number)

        loop.watch(interrupts, see_to_signals)
        see_to_signals()  # which came while the workers were forked
        if failure:
            shutdown.fail(failure)
        _direct(coordinator, direct, journal)
        return coordinator
    finally:
        workers.end_all()
        if run_state is not None:
            run_state.close()
        workers.await_all()
        end_adopted(strangers)  # programs in sessions of their own, which the end of a process group does not reach
        adopt_orphans(False)
        _remove_unfinished(settings.folder)


def _direct(coordinator: Coordinator, direct: Direct | None, journal: Journal) -> None:
    """Take the run to its end. An error ends it, and says why."""
    run_state, shutdown = coordinator.run_state, coordinator.run_state.shutdown
    try:
        if direct is not None:
            director = Director(coordinator)
            direct(director, journal)
            director.end()
        else:
            machine = run_state.snapshots.machine = run_state.settings.choice.machine()
            drive(machine, coordinator.facts(), coordinator.carry_out, journal.record)
    except (ProtocolViolation, RunFailed) as error:
        if isinstance(error, ProtocolViolation) or shutdown.outcome != "interrupted":  # otherwise it was to end
            shutdown.break_off(str(error))
    except Exception as error:
        shutdown.break_off(unforeseen(error, "head"))


def _start(workers: Workers, here: Sequence[int], interrupts: Interrupts) -> str:
    """Fork these workers, until a signal asks for an end. Return why some can't be; empty if all can."""
    for first in range(0, len(here), AT_ONCE):
        if interrupts.pending:  # forking hundreds takes a while
            break
        together = here[first : first + AT_ONCE]
        try:
            workers.start(together)
        except NoProcess as error:
            return f"{workers_named(together)} can't be started: {error}"
    return ""


def _remove_unfinished(folder: Path) -> None:
    """Remove what was being written as the processes were ended."""
    for unfinished in (folder / "versions").glob("*"):
        if unfinished.suffix != ".safetensors":  # the store was writing it
            with suppress(OSError):
                unfinished.unlink()
    remove_drafts(folder)


def _said(settings: Settings, offer: messages.worker.Offered | None) -> dict[str, Any]:
    """What the script says of itself, by key of the configuration.

    Scripts that end before they come to `prepare` say nothing. If the run goes on, what was noted before still holds.
    """
    if offer is not None:
        return {"code": offer.code, "buffers": offer.buffers or "mean", **offer.clip, "evaluates": offer.evaluates}
    before = {} if settings.resumed is None else tomllib.loads((settings.folder / CONFIG).read_text())
    said = "code", "buffers", *messages.worker.CLIP, "evaluates"
    return {"code": {}, "buffers": "mean", "evaluates": False} | {key: before[key] for key in said if key in before}


def _write_config(
    settings: Settings,
    offer: messages.worker.Offered | None,
    journal: Journal,
    machines: Mapping[str, tuple[Machine, int]],
) -> None:
    """The run's resolved configuration, as a file and in the ledger: the command line's, then the script's too.

    `machines`: see `host.machine.environment`.
    """
    shards = settings.shards or (offer.shards if offer else None) or "dynamic"
    epochs = settings.epochs or (offer.epochs if offer else None)
    alone = settings.hosts == 1 and settings.resumed is None  # a run that goes on may have had several hosts
    config: dict[str, Any] = {
        "paceline": __version__,
        "script": str(settings.script),
        "directory": str(Path.cwd()),
        "script_sha256": hashlib.sha256(settings.source).hexdigest(),
        "code": (said := _said(settings, offer))["code"],
        "arguments": list(settings.arguments),
        "protocol": settings.choice.to_plain(),
        "workers": settings.workers,
        **({} if alone else {"hosts": settings.hosts, "host_timeout": settings.host_timeout}),
        **({} if alone else {"shards_on": settings.shards_on or ""}),
        "threads": settings.threads,
        "devices": settings.devices or "",
        "isa": settings.isa,
        "seed": settings.seed,
        "hash_seed": hash_seed.UNKNOWN if (known := hash_seed.of_this_process()) is None else known,
        "start": settings.start,
        "shards": shards,
        "buffers": said["buffers"],
        **{name: said[name] for name in messages.worker.CLIP if name in said},
        "record": settings.record,
        "evaluates": said["evaluates"],
        "on_loss": settings.on_loss,
        "restart": settings.restart,
        "on_divergence": settings.on_divergence,
        "saves": settings.saves,
        "checkpoint": settings.checkpoint,
        "compress": settings.compress or "",
        "learning_rate_scale": settings.learning_rate_scale,
        "targets": [target.text for target in settings.targets],
        "stop_at_target": settings.stop_at_target,
        "limits": {
            name: value
            for name, value in (
                ("epochs", epochs),
                ("max_steps", settings.max_steps),
                ("max_seconds", settings.max_seconds),
            )
            if value is not None
        },
        "environment": environment(machine(), machines),
        "simulated": settings.simulated is not None,
        "scenario": to_plain(settings.simulated or settings.scenario),
    }
    write_whole(settings.folder / CONFIG, tomli_w.dumps(config))
    journal.ledger.note_all(config)


def _conclude(run_state: RunState) -> Summary:
    settings, versions = run_state.settings, run_state.versions
    summary = run_state.journal.tally.summary(
        protocol=settings.choice,
        workers=settings.workers,
        threads=settings.threads,
        seed=settings.seed,
        outcome=run_state.shutdown.outcome,
        compress=settings.compress,
        error=run_state.shutdown.error,
        stopped=run_state.shutdown.asked,
        samples_missed=run_state.data.leases.left_over(),
        final_parameters_sha256=versions.hashes.get(versions.newest.version),
        targets=settings.targets,
    )
    try:
        summaries.write(settings.folder / "summary.json", summary)
    except OSError as error:
        why = f"{settings.folder}: the summary can't be written: {error.strerror}"
        summary |= {"outcome": "failed", "error": why if summary["error"] is None else f"{summary['error']}; {why}"}
    return summary
