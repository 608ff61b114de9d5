"""`paceline run`: train a script with several workers."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import engine, hosts
from paceline.cli.again import RESUME, add_yes, recorded, say_and_ask, script_of, source, words
from paceline.cli.again import scenario as recorded_scenario
from paceline.cli.main import NotItsValue, Parser
from paceline.cli.values import MOST_PORTS, above, seconds, whole
from paceline.cli.what_next import RunEnd, after_run
from paceline.codecs import check_codec, codec_of
from paceline.core.choice import Choice, choose
from paceline.core.phrases import count
from paceline.display import trackers
from paceline.errors import EXIT_CODES, INTERRUPTED, ConfigError
from paceline.host import devices, hash_seed
from paceline.host.processor import ISAS, cap
from paceline.job.settings import Settings
from paceline.launch.environment import placement
from paceline.protocols import registry
from paceline.records.folders import CONFIG
from paceline.records.reading import LEDGER
from paceline.records.segments import choice_of
from paceline.records.snapshots import Snapshot
from paceline.records.snapshots import whole as whole_snapshots
from paceline.records.summary import Summary, Target
from paceline.runs import baseline
from paceline.runs.addresses import everywhere
from paceline.runs.folders import checked_folder
from paceline.runs.resume import (
    LIMITS,
    check_isa,
    check_limits,
    check_more,
    check_protocol,
    check_residual,
    check_resumable,
    check_seed,
    snapshot_of,
)
from paceline.runs.run import (
    MOST_THREADS,
    STARTS,
    asked_threads,
    chosen,
    cores,
    crowd,
    whose_workers,
)
from paceline.runs.script import changes, checked_script
from paceline.scenario.scenario import MOST_WORKERS, Scenario
from paceline.scenario.scenario_file import load
from paceline.terminal import is_read, say

if TYPE_CHECKING:
    from paceline.coordinator.rendezvous import Listen

FREE = "0"
"""The port that stands for a free one."""
FAILED_SCRIPT = re.compile(r"worker (\d+) died \(exit code ")
"""How the error of a run begins in which a worker's script failed. The summary has no other trace of which one did."""
PATIENCE = 1.0
"""Seconds that an interrupted run waits for a reader of its summary, who may have stopped to read."""

FLAGS = ("-n", "--workers", "-p", "--protocol", "--scenario", "--seed", "--seeds", "--out", "--json", "--target")
"""Flags that are ours when they come before SCRIPT, and that few scripts have: unlike --epochs."""


DESCRIPTION = "Train SCRIPT with several worker processes. Arguments after SCRIPT are the script's own."
EXAMPLES = {
    "paceline run -n 4 -p ssp:bound=5 --target 'loss<=0.2' train.py --lr 0.1": (
        "train with four workers, and note when the target is met; --lr is SCRIPT's"
    ),
    "paceline run --resume runs/ssp-20261130-101500": "go on with that run from its newest snapshot",
}


def add_flags(command: Parser) -> None:
    add = command.add_argument
    add_common(
        command,
        protocol="bsp",
        seed="seed of all the run's randomness (default: 0)",
        out="the run's folder (default: runs/PROTOCOL-DATE-TIME)",
        printed="print the summary and the run's folder, and only that, as one JSON object on standard output",
    )
    add("--target", action="append", default=[], metavar="METRIC>=VALUE", help="record when this target is met")
    until = "end the run once each --target is met; recorded versions are then evaluated during training"
    add("--stop-at-target", action="store_true", help=until)
    add("--shards", choices=("dynamic", "static"), help="how an epoch's batches are shared out (default: dynamic)")
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="epochs of training, unless the script says how many")
    add("--record", type=whole("--record", 0), default=4, metavar="K", help="versions kept in each epoch (default: 4)")
    loss = "what to do when a worker dies; auto stops if its script failed, not if it was killed (default: auto)"
    add("--on-loss", choices=("auto", "continue", "stop"), default="auto", help=loss)
    anew = (
        "restart a worker that died, at most N times, if the run survives its death; after the loss of a host with a "
        "part of the store, resume from the newest snapshot once the host is back (default: 0)"
    )
    add("--restart", type=whole("--restart", 0), default=0, metavar="N", help=anew)
    diverged = "what to do at NaN or infinity (default: stop)"
    add("--on-divergence", choices=("stop", "continue"), default="stop", help=diverged)
    one = "workers whose torch.save writes to its path; the others write to the run's folder (default: first)"
    add("--saves", choices=("first", "all"), default="first", help=one)
    add("--tee", choices=("first", "all", "none"), default="first", help="whose output to show (default: first)")
    add("--max-steps", type=whole("--max-steps", 1), metavar="N", help="end after N applied updates")
    add("--max-seconds", type=seconds("--max-seconds"), metavar="S", help="end after S seconds of training")
    waits = "report waits that last longer than S seconds (default: 30)"
    add("--report-waits", type=seconds("--report-waits"), default=30.0, metavar="S", help=waits)
    fewer = (
        "encode what workers push: bf16, fp16, int8[:block=256], topk:density=0.01, powersgd:rank=2 or none "
        "(default: none)"
    )
    add("--compress", type=_codec, metavar="CODEC", help=fewer)
    rates = "multiply the script's learning rates by this (default: 1)"
    add("--learning-rate-scale", type=above("--learning-rate-scale"), default=1.0, metavar="X", help=rates)
    hosts.add_isa(command)
    add_ui(command)
    often = "without a terminal, print progress every S seconds (default: 10)"
    add("--progress", type=seconds("--progress"), default=10.0, metavar="S", help=often)
    add("--quiet", action="store_true", help="print the result, and no progress")
    again = "repeat that run with its script, arguments and flags; flags given here take precedence"
    add("--config", type=Path, metavar="RUN/config.toml", help=again)
    add_yes(command)
    add_script(command, optional=True)
    on = "resume that run from its newest snapshot; flags given here take precedence, such as more --epochs"
    add("--resume", type=Path, metavar="RUN", help=on)
    often = "snapshots in each epoch, from which to resume; 0: none, not even at the end (default: 1)"
    add("--checkpoint", type=whole("--checkpoint", 0), default=1, metavar="K", help=often)
    drain = "seconds that workers have, after SIGTERM to the run or to their host, to end their step (default: 10)"
    add("--drain", type=seconds("--drain"), default=10.0, metavar="S", help=drain)
    hosts.add_to(command)
    command.meant = _meant
    command.usage = "%(prog)s [FLAGS] SCRIPT [ARGUMENTS]\n       %(prog)s [FLAGS] --resume RUN"
    command.examples = EXAMPLES
    command.set_defaults(call=call)


class _Port(argparse.Action):
    """Takes a port, if the next word is one: it may be the script."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """As argparse calls it."""
        try:
            namespace.ui = whole(str(option_string), 0, MOST_PORTS)(values)
        except ConfigError as error:
            if values.isdecimal():
                raise
            raise NotItsValue(option_string, values, f"{option_string}={FREE}") from error


def add_ui(command: argparse.ArgumentParser) -> None:
    """Add the flag that serves a page of the run."""
    page = "serve a page of the run while it goes, to browsers of this machine (default: at a free port)"
    command.add_argument("--ui", nargs="?", const=FREE, action=_Port, metavar="PORT", help=page)


def _codec(text: str) -> str | None:
    """Return the codec as it is typed; None: none. Raises ConfigError, in one line, for any mistake."""
    codec = codec_of(text)
    return None if codec is None else str(codec)


class _Several(argparse._AppendAction):
    """Takes lists, and puts them together. Python programs may give each part by itself."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """As argparse calls it."""
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), *values])


class _Protocol(argparse.Action):
    """Takes the last protocol, and counts them in `protocols`: a run of its own `config.toml` may give another one."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """As argparse calls it."""
        namespace.protocol = values
        namespace.protocols = [*getattr(namespace, "protocols", ()), values]


def _meant(options: argparse.Namespace, given: Sequence[str], parse: Callable[[Sequence[str]], object]) -> list[str]:
    """See `again.words`. Raises ConfigError for several protocols."""
    named = getattr(options, "protocols", ())
    if options.listen is None and (placed := placement(os.environ)) is not None and placed.hosts > 1:
        options.listen = placed.head  # machines join: it is not the run's recorded hosts that make it
    if len(named) > 1:
        every = " ".join(f"-p {name}" for name in named)
        raise ConfigError(f"run takes one protocol, and was given {every}; paceline compare takes several")
    return words(options, given, parse)


def add_common(command: argparse.ArgumentParser, *, protocol: str | None, seed: str, out: str, printed: str) -> None:
    """Add the flags that every command which trains has, and what some of them say in help.

    `protocol` is the default; None: there is none, and several can be given.
    """
    add = command.add_argument
    add(
        "-n",
        "--workers",
        type=whole("-n", 1, MOST_WORKERS),
        metavar="N",
        help="worker processes (default: the scenario's, or 2)",
    )
    named: dict[str, Any] = {"metavar": "NAME[:KEY=VALUE,…]"}
    if protocol is None:
        add("-p", "--protocol", action="append", required=True, help="protocol to compare (repeatable)", **named)
    else:
        how = f"how workers synchronise (default: {protocol})"
        add("-p", "--protocol", default=protocol, action=_Protocol, help=how, **named)
    add("--scenario", type=Path, metavar="FILE", help="speeds of workers and network, failures and slowdowns")
    add("--seed", type=whole("--seed", 0), default=0, help=seed)
    add(
        "--threads",
        type=whole("--threads", 1, MOST_THREADS),
        metavar="T",
        help="threads of each worker (default: OMP_NUM_THREADS, or cores / workers)",
    )
    accelerators = (
        "devices of workers 0, 1, … in turn: their numbers, or cpu, such as 0,1 or 0,cpu (default: all devices of each "
        "host)"
    )
    add("--devices", type=devices.listed, metavar="LIST", help=accelerators)
    add_start(command, "")
    logged = (
        "log the run to these, such as wandb,mlflow: tensorboard, wandb, mlflow, or none (default: none; of a resumed "
        "run, where it was logged before)"
    )
    add("--log-to", type=trackers.parsed, action=_Several, metavar="TRACKERS", help=logged)
    add("--out", type=Path, metavar="DIR", help=out)
    add("--json", action="store_true", help=printed)


def add_start(command: argparse.ArgumentParser, before: str) -> None:
    """Add the flag that says when scripts begin; its help begins with `before`. Not given, it is None."""
    how = f"{before}begin the other workers' scripts when worker 0 calls prepare, or all at once (default: staggered)"
    command.add_argument("--start", choices=STARTS, help=how)


def add_script(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the script and, after it, what is the script's own. `optional`: it may be None."""
    add, often = command.add_argument, {"nargs": "?"} if optional else {}
    script: dict[str, Any] = {"metavar": "SCRIPT", "type": Path, **often}
    add("script", help="an ordinary training script that calls paceline.prepare", **script)
    add("arguments", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments").required = False


def say_whose(script: Path, arguments: Sequence[str]) -> None:
    """Say on standard error if one of the script's own arguments looks like a flag that came too late to be ours.

    Nothing is said of a flag that the script itself names, for its own parser.
    """
    found = [flag for word in arguments if (flag := word.partition("=")[0]) in FLAGS]
    with suppress(OSError):
        source = script.read_bytes() if found else b""
        found = [flag for flag in found if not any(f"{quote}{flag}{quote}".encode() in source for quote in "\"'")]
    late = next(iter(found), None)
    if late is not None:
        say(f"{late} after {script} is the script's own; Paceline's flags come before the script")


def call(options: argparse.Namespace) -> int:
    choice = chosen(options.protocol)
    if options.script is None:
        raise ConfigError("the following arguments are required: SCRIPT; see paceline run --help")
    _begin_with_hash_seed(options)
    if choice is not None and (clash := registry().clashes.get(choice.spec.name)):
        say(clash)
    scenario = given_scenario = Scenario() if options.scenario is None else load(options.scenario)
    if options.resume is not None and options.config is not None:
        raise ConfigError("--resume goes on with a run, and --config makes one again; give one of them")
    announcement = None
    if (placed := placement(os.environ)) is not None:
        engine.settle(options, placed)
        if placed.host == 0 and (announcement := engine.begin(options, placed, choice)) is None:
            return 0
    named = source(options)
    if named is not None and options.scenario is None:
        scenario = recorded_scenario(*named)
        if hosts.machines_join(options):  # its hosts are not those that join now
            scenario = replace(scenario, nodes=1, host_tables=())
    company = hosts.named(options)
    scenario, workers, most_hosts = company.settled(choice, scenario)
    if not options.restart:
        scenario.checked_to_die_once()
    if choice is not None:
        check_codec(codec_of(options.compress), choice)
    targets = tuple(Target.parse(text) for text in options.target)
    if options.stop_at_target and not targets:
        raise ConfigError("--stop-at-target has nothing to stop at: give --target METRIC>=VALUE")
    if placed is not None and placed.host:
        return engine.take_part(options, placed, choice)
    log_to = trackers.chosen(options.log_to, options.resume)
    trackers.check_installed(log_to)
    devices.check(options.devices)
    script = checked_script(options.script)
    if options.tee != "none":  # compare and tune, whose runs are made without, have said it once for all of them
        say_whose(script, options.arguments)
        if named is None and (note := whose_workers(given_scenario, options.workers)):
            say(note)
    together = None if hosts.machines_join(options) else workers
    resumed = None if options.resume is None else _resumed(options, choice, together, script)
    if options.config is not None:
        config = recorded(options.config)
        for line in changes(config, script) if script == script_of(config) else ():
            say(line)
    listening = company.listening(choice, scenario, workers)
    if listening is not None:
        listening = replace(listening, announcement=announcement)
        if note := everywhere(listening.address):
            say(note)
    if options.trusted_network:
        say(hosts.NOT_ENCRYPTED)
    if warning := crowd(scenario, workers):
        say(warning)
    folder = options.resume or checked_folder(options.out, baseline.NAME if choice is None else choice.spec.name)
    if options.config is not None and not options.yes:
        say_and_ask(script, options.arguments, recorded(options.config))
    if announcement is None:  # else that was done before torch's store was asked
        cap(options.isa)

    # An engine sets the variable for processes of its own, and each host that joins has other cores.
    threads = None if placed is not None or hosts.machines_join(options) else asked_threads(os.environ)
    settings = _settings(
        options,
        script=script,
        choice=choice or choose("all-reduce", registry()),  # settings have a protocol; the baseline's is not looked at
        workers=workers,
        scenario=scenario,
        threads=options.threads or threads or max(1, cores() // workers),
        folder=folder,
        targets=targets,
        hosts=most_hosts,
        resumed=resumed,
        log_to=log_to,
    )
    summary = _train(settings, listening, options.ui, under_ddp=choice is None)
    if announcement is not None and summary["outcome"] == "completed":
        announcement.complete()
    return _show(summary, settings)


def _settings(options: argparse.Namespace, *, script: Path, **settled: Any) -> Settings:
    """Return the run's settings: each is as `settled` says, or else as the flag of its name."""
    from paceline.host.evaluator import THREADS as EVALUATION_THREADS

    settled |= {
        "script": script,
        "source": script.read_bytes(),
        "arguments": tuple(options.arguments),
        "start": options.start or STARTS[0],
        "evaluation_threads": EVALUATION_THREADS if options.stop_at_target else None,
        "goes_on": options.restart,
    }
    flags = {field.name: getattr(options, field.name) for field in fields(Settings) if field.name in options}
    return Settings(**flags | settled)


def _train(settings: Settings, listening: Listen | None, ui: int | None, *, under_ddp: bool) -> Summary:
    """Make the run, and serve its page at the port `ui`, if one is given. Signals that ask for an end interrupt it."""
    from paceline.job.interrupts import Interrupts

    if under_ddp:
        from paceline.runs import ddp

        return ddp.run(settings, Interrupts())
    from paceline.coordinator.run import run

    if ui is None:
        return run(settings, Interrupts(), listening=listening)
    from paceline.runs.ui import served

    return served(ui, say, lambda feed: run(settings, Interrupts(), listening=listening, feed=feed))


def _show(summary: Summary, settings: Settings) -> int:
    """Print the run's result, and return the exit code."""
    outcome, folder = summary["outcome"], settings.folder
    if outcome == "interrupted" and not is_read(sys.stdout, PATIENCE):
        return INTERRUPTED
    if settings.json:
        print(json.dumps({**summary, "folder": str(folder)}, indent=2))
    else:
        from paceline.cli.table import print_summary

        print_summary(summary, folder)
    end = _end_of(summary, settings)
    unfinished = (
        outcome in ("interrupted", "failed") and end.can_go_on
    )  # what a program that reads JSON would miss, too
    if (line := after_run(end)) and (unfinished or not (settings.json or settings.quiet)):
        say_next(line)
    return EXIT_CODES[outcome]


def say_next(line: str) -> None:
    """Print what to do next, unless standard error takes no more: the command has done its work."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _end_of(summary: Summary, settings: Settings) -> RunEnd:
    """Return what decides what to do next. Looks for snapshots, and for what a failed script has printed."""
    ended, log = FAILED_SCRIPT.match(summary["error"] or ""), None
    if ended is not None:
        log = settings.log(int(ended[1]))
    return RunEnd(
        outcome=summary["outcome"],
        folder=settings.folder,
        has_ledger=(settings.folder / LEDGER).exists(),
        steps=summary["steps"],
        can_go_on=next(whole_snapshots(settings.folder), None) is not None,
        failed_log=log if log is not None and log.exists() and log.stat().st_size else None,
    )


def _begin_with_hash_seed(options: argparse.Namespace) -> None:
    """Start again with the hash seed of the run, or of the one that it goes on with or is made again of."""
    seed = hash_seed.of_a_run(options.seed)
    if (named := source(options)) is not None:
        before = hash_seed.recorded(recorded(*named), named[0])
        seed = seed if before is None else before
    hash_seed.begin_again_with(seed, is_program=options.is_program)


def _resumed(options: argparse.Namespace, choice: Choice | None, workers: int | None, script: Path) -> Snapshot:
    """The snapshot to go on from. Raises ConfigError, in one line, if that run can't go on as the flags say.

    `workers`: None if that is not known before other hosts have joined.
    """
    run, config = options.resume, recorded(options.resume / CONFIG, RESUME)
    if options.out is not None:
        raise ConfigError(f"--resume {run}: the run goes on in its own folder; leave --out out")
    if choice is None:
        raise ConfigError(f"--resume {run}: {baseline.NAME} keeps no snapshots; name one of Paceline's protocols")
    check_resumable(run, config, script)
    before = int(config["workers"])
    check_protocol(run, choice_of(config, registry()), choice, before, before if workers is None else workers)
    check_seed(run, int(config["seed"]), options.seed)
    check_residual(run, codec_of(config.get("compress")), codec_of(options.compress))
    check_isa(run, config.get("isa", ISAS[0]), options.isa)
    limits = {key: getattr(options, key) for key in LIMITS}
    check_more(run, config, limits, tuple(options.arguments))
    snapshot, passed = snapshot_of(run)
    check_limits(run, config, limits, snapshot.state)
    for line in passed:
        say(line)
    if not options.quiet:
        state = snapshot.state
        done = f"{count(state.steps, 'step')} and {count(state.samples, 'sample')}"
        say(f"going on after {done}, from {snapshot.folder}")
    return snapshot
