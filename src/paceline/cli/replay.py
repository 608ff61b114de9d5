"""`paceline replay`: make a recorded run again, with real processes, in the recorded order, and compare the bits.

Replay is one more way to decide: what is ordered, and when, comes out of the ledger, and workers do it. What a step
computes depends on its version, its samples, the seed, the worker and the step, and on nothing that time changes.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.again import changes
from paceline.cli.run import CODES, STARTS, checked_script, new_folder, whole
from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    StepDeclined,
    TrainingBegan,
    WorkerLeft,
)
from paceline.core.leases import Batch
from paceline.core.orders import ApplyUpdate, Order
from paceline.core.scenario import Scenario
from paceline.errors import ConfigError, RunFailed
from paceline.protocols import registry
from paceline.records import kept
from paceline.records.journal import Journal
from paceline.records.ledger import connect
from paceline.records.reading import LEDGER, RecordedRun, open_run, reading
from paceline.records.replayed import Compared, compare
from paceline.records.summary import Summary

if TYPE_CHECKING:
    from paceline.runtime.course import Prescribed
    from paceline.runtime.director import Director

DIFFERS = 3
"""Exit code."""


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="run again in the recorded order, to the same bits",
        description="Make the run in the folder RUN again, with real processes, in the order that its ledger has.",
        allow_abbrev=False,
    )
    add = command.add_argument
    add("run", metavar="RUN", type=Path, help="a run's folder")
    until = "stop at that version, and leave it in the replay's versions/final.safetensors"
    add("--until", type=whole("--until", 1), metavar="VERSION", help=until)
    add("--script", type=Path, metavar="FILE", help="where the script is now (default: where it was)")
    add("--out", type=Path, metavar="DIR", help="the replay's own folder (default: runs/replay-RUN-DATE-TIME)")
    excused = "leave out this scalar or metric, which depends on time (repeatable)"
    add("--except", dest="excused", action="append", default=[], metavar="NAME", help=excused)
    add("--json", action="store_true", help="print the result as one JSON object")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    recorded = open_run(options.run, registry())
    with closing(recorded.ledger):
        if "script" not in recorded.config:
            raise ConfigError(f"{options.run}: it was simulated without a script: there is nothing to compute again")
        with reading(options.run):
            script = checked_script(options.script or _script(recorded))
            notes = [line for line in (recorded.unended, *differences(recorded.config, script)) if line]
        if not options.json:
            for line in notes:
                print(f"paceline: {line}")
        newest = max((v for table in ("versions", "checksums") for v in _versions(recorded, table)), default=0)
        if options.until is not None and options.until > newest:
            raise ConfigError(f"--until is {options.until}; the run's last version is {newest}")
        folder = options.out or new_folder(f"replay-{options.run.name}")
        summary = replay(recorded, script, folder, options.until, json=options.json)
        compared = None
        if summary["outcome"] == "completed" or _failed_alike(recorded.summary, summary):
            with closing(connect(folder / LEDGER)) as again:
                compared = compare(recorded, again, options.until, options.excused)
    if options.json:
        print(json.dumps(_plain(options, folder, notes, summary, compared), indent=2))
    elif compared is None:
        print(f"{summary['outcome']}: {summary['error']}")
    else:
        for sentence in compared.sentences:
            print(sentence)
        print(f"{folder}: the replay's ledger and versions")
    if compared is None:
        return CODES[summary["outcome"]]
    return 0 if compared.same else DIFFERS


def _plain(
    options: argparse.Namespace, folder: Path, notes: list[str], summary: Summary, compared: Compared | None
) -> dict[str, Any]:
    """What `--json` prints; `compared` is None if the replay came to no end."""
    differences = [] if compared is None else [one.to_plain() for one in compared.differences]
    last = None if compared is None else compared.last
    return {
        "run": str(options.run),
        "folder": str(folder),
        "same": compared is not None and compared.same,
        "outcome": summary["outcome"],
        "error": summary["error"],
        "until": options.until,
        "except": options.excused,
        "notes": notes,
        "last_version": None if last is None else {"version": last[0], "sha256": last[1]},
        "compared": None if compared is None else compared.counts,
        "difference": differences[0] if differences else None,
        "differences": differences,
    }


def _failed_alike(recorded: Summary | None, again: Summary) -> bool:
    """Whether both failed of the same, as where all workers died: what came before that can be compared."""
    ends = [(one["outcome"], one["error"]) for one in (recorded, again) if one is not None]
    return len(ends) == 2 and ends[0] == ends[1] and again["outcome"] == "failed"


def _script(recorded: RecordedRun) -> Path:
    """Where the script was; a function that went with its run's folder is there. Raises ConfigError if it has gone."""
    script = Path(recorded.config.get("directory", ""), recorded.config["script"])
    if not script.exists():
        if script.name == kept.SCRIPT and (there := kept.kept_script(recorded.folder)) is not None:
            return there
        raise ConfigError(f"{script}: no script is there any more; say where it is now with --script FILE")
    return script


def differences(config: Mapping[str, Any], script: Path) -> Iterator[str]:
    """What is not as it was when the run was made, and may change its bits, a line each."""
    import torch

    yield from changes(config, script)
    now = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    for key, value in now.items():
        then = config["environment"].get(key)
        if value != then:
            yield f"the run was made with {key} {then}, and here it is {value}"


def replay(
    recorded: RecordedRun, script: Path, folder: Path, until: int | None = None, *, json: bool = False
) -> Summary:
    """Make it again, up to that version. Returns the summary of the replay, whose times are the recorded ones.

    Raises ConfigError if it can't be made again here.
    """
    from paceline.runtime.evaluator import THREADS as EVALUATION_THREADS
    from paceline.runtime.run import Interrupts, run
    from paceline.runtime.settings import Settings

    config = recorded.config

    def direct(workers: Director, journal: Journal) -> None:
        journal.ledger.note("replay_of", str(recorded.folder))
        if until is not None:
            journal.ledger.note("until", until)  # nobody leaves: it stops in the middle
        workers.prescribe(_leases(recorded))
        workers.recordings.prescribed = _recordings(recorded)
        workers.leave_undone(recorded.ledger.execute("SELECT worker, step FROM undone"))
        began = workers.begin()
        for fact, orders in recorded.history():
            if workers.interrupted:
                return
            if isinstance(fact, TrainingBegan):
                _expect_beginning(fact, began)
            else:
                _reenact(fact, workers)
            try:
                journal.record(fact, orders)
                for order in orders:
                    workers.direct(order, fact.at)
            except (KeyError, ValueError, AssertionError) as error:  # it can't follow on what was ordered before
                what = f"{fact} can't be followed by {list(orders)} here: the ledger is not as it was made"
                raise RunFailed(f"{what}; paceline check says where it was changed") from error
            if until is not None and _reached(until, orders, workers):
                return

    settings = Settings(
        script=script,
        source=script.read_bytes(),
        arguments=tuple(config["arguments"]),
        choice=recorded.choice,
        workers=recorded.workers,
        scenario=Scenario(nodes=recorded.scenario.nodes),  # who was slow, and who died, is in the ledger
        simulated=recorded.scenario,
        seed=recorded.seed,
        threads=config["threads"],
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
        learning_rate_scale=config.get("learning_rate_scale", 1.0),
        start=config.get("start", STARTS[0]),
        evaluation_threads=EVALUATION_THREADS if config.get("stop_at_target") else None,
    )
    return run(settings, Interrupts(), direct)


def _reenact(fact: Fact, workers: Director) -> None:
    """Have it happen. Raises RunFailed if it can't, or something else does."""
    match fact:
        case GradientReady(worker=worker, step=step):
            result = workers.result(worker, step)
            if not isinstance(result, GradientReady) or result.samples != fact.samples:
                raise RunFailed(f"step {step} of worker {worker} is not as recorded: the script goes another way")
        case StepDeclined(worker=worker, step=step):
            # a script that did not say how many epochs it has ends instead of declining
            if isinstance(workers.result(worker, step), GradientReady):
                raise RunFailed(
                    f"worker {worker} has data for step {step}, and had none in the recording: "
                    "the script goes another way"
                )
        case ReduceFinished() | ReduceFailed():
            workers.tell(fact)
        case WorkerLeft(worker=worker, reason="died"):
            workers.lose(worker)
        case WorkerLeft(worker=worker, reason="finished"):
            workers.see_off(worker)
        case WorkerLeft():
            workers.stop()


def _expect_beginning(recorded: TrainingBegan, began: TrainingBegan) -> None:
    if (recorded.members, recorded.work) != (began.members, began.work):
        raise RunFailed("the script begins with other workers or another amount of work than in the recording")


def _reached(until: int, orders: tuple[Order, ...], workers: Director) -> bool:
    made = max((order.version for order in orders if isinstance(order, ApplyUpdate)), default=0)
    return max(made, workers.recordings.newest.version) >= until


def _leases(recorded: RecordedRun) -> Prescribed:
    leases: Prescribed = {worker: deque() for worker in range(recorded.workers)}
    rows = recorded.ledger.execute("SELECT worker, during, epoch, batch FROM leases ORDER BY rowid")
    for worker, during, epoch, batch in rows:
        leases[worker].append((during, None if epoch is None else Batch(epoch, batch)))
    return leases


def _recordings(recorded: RecordedRun) -> deque[tuple[int, int]] | None:
    """Of how many samples and replicas each mean was that was recorded while it trained; None if they are not counted.

    A run that came to its end recorded the last one there, as its replay will. What a store makes is recorded as in
    any run: when is no matter of time.
    """
    query = (
        "SELECT at, samples, (SELECT replicas FROM consensus WHERE consensus.version = versions.version) "
        "FROM versions ORDER BY version"
    )
    rows = recorded.ledger.execute(query).fetchall()
    if recorded.choice.spec.family == "parameter-server" or any(samples is None for _, samples, _ in rows):
        return None
    (over,) = recorded.ledger.execute("SELECT max(at) FROM facts WHERE id IN (SELECT fact FROM orders)").fetchone()
    if recorded.ended and rows and rows[-1][0] >= (over or 0.0):
        rows.pop()
    return deque((samples, recorded.workers if replicas is None else replicas) for _, samples, replicas in rows)


def _versions(recorded: RecordedRun, table: str) -> list[int]:
    return [int(version) for (version,) in recorded.ledger.execute(f"SELECT version FROM {table}")]
