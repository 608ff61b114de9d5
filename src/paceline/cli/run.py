"""`paceline run`: train a script with several workers."""

from __future__ import annotations

import argparse
import json
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.again import RESUME, recorded, script_of, source, words
from paceline.cli.again import scenario as recorded_scenario
from paceline.cli.main import Parser
from paceline.cli.values import above, seconds, shortened, whole
from paceline.cluster.scenario import MOST_WORKERS, HostTable, Scenario
from paceline.cluster.scenario_file import LONGEST_NAME, load
from paceline.core.choice import Choice, choose
from paceline.core.listed import count
from paceline.errors import ConfigError
from paceline.host.processor import ISAS, cap
from paceline.protocols import registry
from paceline.records.folders import CONFIG
from paceline.records.segments import choice_of
from paceline.records.snapshots import Snapshot
from paceline.records.snapshots import whole as whole_snapshots
from paceline.records.summary import Target
from paceline.runs import baseline
from paceline.runs.folders import checked_folder
from paceline.runs.resume import LIMITS, check_isa, check_more, check_protocol, check_resumable, check_seed, snapshot_of
from paceline.runs.run import (
    CODES,
    STARTS,
    HowMany,
    check_fits,
    check_hosts,
    chosen,
    cores,
    crowd,
    joined,
    settled,
    train,
    train_under_ddp,
)
from paceline.runs.script import changes, checked_script
from paceline.runtime.settings import Settings
from paceline.terminal import is_read

if TYPE_CHECKING:
    from paceline.runtime.launch.ssh import On
    from paceline.runtime.meeting import Listen

MOST_THREADS = 1024
MOST_HOSTS = 64
NOT_ENCRYPTED = "--trusted-network: what hosts say to each other is not encrypted"
"""What each side says where that is given."""
TIMEOUTS = 1.0, 86_400.0
"""Seconds that a host's timeout may have. Below that, a process that waits for a core would be lost."""

PATIENCE = 1.0
"""Seconds that an interrupted run waits for a reader of its summary, who may have stopped to read."""

FLAGS = ("-n", "--workers", "-p", "--protocol", "--scenario", "--seed", "--seeds", "--out", "--json", "--target")
"""Flags that are ours when they come before SCRIPT, and that few scripts have: unlike --epochs."""


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: Parser = commands.add_parser(
        "run",
        help="train a script with several workers",
        description="Train SCRIPT with several worker processes. Arguments after SCRIPT are the script's own.",
        allow_abbrev=False,
    )
    add = command.add_argument
    add_common(
        command,
        protocol="bsp",
        seed="seed of all the run's randomness (default: 0)",
        out="the run's folder (default: runs/PROTOCOL-DATE-TIME)",
        printed="print the summary and the run's folder, and only that, as one JSON object on standard output",
    )
    add("--target", action="append", default=[], metavar="METRIC>=VALUE", help="note when a recorded version meets it")
    until = "end the run once recorded versions have met each --target; versions are then evaluated as it trains"
    add("--stop-at-target", action="store_true", help=until)
    add("--shards", choices=("dynamic", "static"), help="how an epoch's batches are shared out (default: dynamic)")
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="epochs of training, if prepare is not told")
    add("--record", type=whole("--record", 0), default=4, metavar="K", help="versions kept in each epoch (default: 4)")
    loss = "what to do when a worker dies; auto stops if its script failed, not if it was killed (default: auto)"
    add("--on-loss", choices=("auto", "continue", "stop"), default="auto", help=loss)
    anew = "begin a worker again that has died, N times at most, if the run bears its death (default: 0)"
    add("--restart", type=whole("--restart", 0), default=0, metavar="N", help=anew)
    diverged = "what to do at NaN or infinity (default: stop)"
    add("--on-divergence", choices=("stop", "continue"), default="stop", help=diverged)
    one = "workers whose torch.save writes to its path; the others write to the run's folder (default: first)"
    add("--saves", choices=("first", "all"), default="first", help=one)
    add("--tee", choices=("first", "all", "none"), default="first", help="whose output to show (default: first)")
    add("--max-steps", type=whole("--max-steps", 1), metavar="N", help="end after N applied updates")
    add("--max-seconds", type=seconds("--max-seconds"), metavar="S", help="end after S seconds")
    waits = "report waits that last longer than S seconds (default: 30)"
    add("--report-waits", type=seconds("--report-waits"), default=30.0, metavar="S", help=waits)
    rates = "multiply the script's learning rates by this (default: 1)"
    add("--learning-rate-scale", type=above("--learning-rate-scale"), default=1.0, metavar="X", help=rates)
    add_isa(command)
    add("--tensorboard", action="store_true", help="also write logged and evaluated values for TensorBoard")
    often = "without a terminal, print progress every S seconds (default: 10)"
    add("--progress", type=seconds("--progress"), default=10.0, metavar="S", help=often)
    add("--quiet", action="store_true", help="print the result, and no progress")
    again = "make that run again with its script, arguments and flags; flags that you give win"
    add("--config", type=Path, metavar="RUN/config.toml", help=again)
    add_script(command, optional=True)
    on = "go on with that run from its newest snapshot; flags that you give win, such as more --epochs"
    add("--resume", type=Path, metavar="RUN", help=on)
    often = "snapshots in each epoch, to go on from; 0: none, not even at the end (default: 1)"
    add("--checkpoint", type=whole("--checkpoint", 0), default=1, metavar="K", help=often)
    drain = "seconds that workers have, after SIGTERM, to end their step and write a snapshot (default: 10)"
    add("--drain", type=seconds("--drain"), default=10.0, metavar="S", help=drain)
    many = (
        "hosts to emulate on this machine, each with -n workers and a process that speaks for it "
        "(default: the scenario's, or 1)"
    )
    add("--emulate-hosts", type=whole("--emulate-hosts", 1, MOST_HOSTS), metavar="H", help=many)
    silent = "seconds after which a host that is silent is lost (default: 15)"
    there = "listen there for other machines, which join this run with paceline join, and wait for them"
    add("--listen", metavar="ADDR:PORT", help=there)
    together = (
        "hosts of the run where machines join, this one included; -n is the workers of this one. "
        "2:8 begins with two, and takes more as they come"
    )
    add("--hosts", type=how_many, metavar="H[:MOST]", help=together)
    on = "also start workers on these machines by ssh, each a [USER@]HOST[:PORT][=WORKERS]"
    add("--on", metavar="ssh:HOST,…", help=on)
    add("--ssh", metavar="COMMAND", help="the ssh that --on calls, with options if you like (default: ssh)")
    sends = "send that folder, which has SCRIPT, to hosts that join; they need nothing but Paceline then"
    add("--send", type=Path, metavar="DIR", help=sends)
    called = "what this host is called, where others join (default: the machine's name)"
    add("--name", type=name_of_host, metavar="NAME", help=called)
    add_trusted_network(command)
    add("--host-timeout", type=seconds("--host-timeout", *TIMEOUTS), default=15.0, metavar="T", help=silent)
    command.meant = _meant
    command.set_defaults(call=call)


class _Protocol(argparse.Action):
    """Takes the last protocol, and counts them in `protocols`: a run of its own `config.toml` may give another one."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """As argparse calls it."""
        namespace.protocol = values
        namespace.protocols = [*getattr(namespace, "protocols", ()), values]


def _meant(options: argparse.Namespace, given: Sequence[str], parse: Callable[[Sequence[str]], object]) -> list[str]:
    """See `again.words`. Raises ConfigError for several protocols."""
    named = getattr(options, "protocols", ())
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
        help="threads of each worker (default: cores / workers)",
    )
    add_start(command, "")
    add("--out", type=Path, metavar="DIR", help=out)
    add("--json", action="store_true", help=printed)


def add_start(command: argparse.ArgumentParser, before: str) -> None:
    """Add the flag that says when scripts begin; its help begins with `before`. Not given, it is None."""
    how = f"{before}begin the other workers' scripts when worker 0 calls prepare, or all at once (default: staggered)"
    command.add_argument("--start", choices=STARTS, help=how)


def add_isa(command: argparse.ArgumentParser) -> None:
    """Add the flag that says which of the processor's instructions are used."""
    instructions = "instructions that torch and numpy use: the processor's own, or AVX2 on each host (default: native)"
    command.add_argument("--isa", choices=ISAS, default=ISAS[0], help=instructions)


def add_trusted_network(command: argparse.ArgumentParser) -> None:
    """Add the flag that says that nobody else can read or change what hosts say to each other."""
    plain = "don't encrypt what hosts say to each other; needed on all hosts or on none"
    command.add_argument("--trusted-network", action="store_true", help=plain)


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
        print(
            f"paceline: {late} after {script} is the script's own; Paceline's flags come before the script",
            file=sys.stderr,
        )


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    choice = chosen(options.protocol)
    if options.script is None:
        raise ConfigError("the following arguments are required: SCRIPT; see paceline run --help")
    scenario = Scenario() if options.scenario is None else load(options.scenario)
    if options.resume is not None and options.config is not None:
        raise ConfigError("--resume goes on with a run, and --config makes one again; give one of them")
    named = source(options)
    if named is not None and options.scenario is None:
        scenario = recorded_scenario(*named)
        if _joined_by_others(options):  # its hosts are not those that join now
            scenario = replace(scenario, nodes=1, host_tables=())
    if options.ssh is not None and options.on is None:
        raise ConfigError(f"--ssh is {options.ssh}, and there are no machines to log in to; name them with --on")
    on = None if options.on is None else _on(options)
    many = options.hosts if on is None else HowMany(1 + len(on.machines), 1 + len(on.machines))
    if not _joined_by_others(options):
        _check_alone(options)
        scenario, workers, hosts = settled(scenario, options.workers, options.emulate_hosts)
        check_fits(choice, scenario, workers, vars(options))
        if hosts > 1:
            check_hosts(choice, scenario)
    else:
        flag = "--listen" if on is None else "--on"
        scenario, workers, hosts = joined(choice, scenario, options.workers, many, options.emulate_hosts, flag)
    if not options.restart:
        scenario.checked_to_die_once()
    targets = tuple(Target.parse(text) for text in options.target)
    if options.stop_at_target and not targets:
        raise ConfigError("--stop-at-target has nothing to stop at: give --target METRIC>=VALUE")
    if options.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(
            "--tensorboard needs the package tensorboard, which is not installed: pip install tensorboard"
        )
    script = checked_script(options.script)
    if options.tee != "none":  # compare and tune, whose runs are made without, have said it once for all of them
        say_whose(script, options.arguments)
    together = None if _joined_by_others(options) else workers
    resumed = None if options.resume is None else _resumed(options, choice, together, script)
    if options.config is not None:
        config = recorded(options.config)
        for line in changes(config, script) if script == script_of(config) else ():
            print(f"paceline: {line}", file=sys.stderr)
    listening = _listening(options, choice, scenario, on, many, workers) if _joined_by_others(options) else None
    if options.trusted_network:
        print(f"paceline: {NOT_ENCRYPTED}", file=sys.stderr)
    if warning := crowd(scenario, workers):
        print(f"paceline: {warning}", file=sys.stderr)
    folder = options.resume or checked_folder(options.out, baseline.NAME if choice is None else choice.spec.name)
    threads = options.threads or max(1, cores() // workers)
    cap(options.isa)

    from paceline.host.evaluator import THREADS as EVALUATION_THREADS

    settings = partial(
        Settings,
        script=script,
        source=script.read_bytes(),
        arguments=tuple(options.arguments),
        workers=workers,
        scenario=scenario,
        seed=options.seed,
        threads=threads,
        isa=options.isa,
        folder=folder,
        shards=options.shards,
        epochs=options.epochs,
        record=options.record,
        targets=targets,
        on_loss=options.on_loss,
        on_divergence=options.on_divergence,
        saves=options.saves,
        tee=options.tee,
        max_steps=options.max_steps,
        max_seconds=options.max_seconds,
        report_waits=options.report_waits,
        json=options.json,
        quiet=options.quiet,
        progress=options.progress,
        tensorboard=options.tensorboard,
        learning_rate_scale=options.learning_rate_scale,
        start=options.start or STARTS[0],
        stop_at_target=options.stop_at_target,
        evaluation_threads=EVALUATION_THREADS if options.stop_at_target else None,
        checkpoint=options.checkpoint,
        drain=options.drain,
        restart=options.restart,
        hosts=hosts,
        host_timeout=options.host_timeout,
        resumed=resumed,
    )
    if choice is None:
        nearest_kin = choose("all-reduce", registry())  # settings have a protocol; here nothing looks at it
        summary = train_under_ddp(settings(choice=nearest_kin))
    else:
        summary = train(settings(choice=choice), listening)
    if summary["outcome"] == "interrupted" and not is_read(sys.stdout, PATIENCE):
        return CODES["interrupted"]
    if options.json:
        print(json.dumps({**summary, "folder": str(folder)}, indent=2))
    else:
        from paceline.cli.table import print_summary

        print_summary(summary, folder)
    if summary["outcome"] == "interrupted" and next(whole_snapshots(folder), None) is not None:
        print(f"go on with: paceline run --resume {shlex.quote(str(folder))}", file=sys.stderr)
    return CODES[summary["outcome"]]


def name_of_host(text: str) -> str:
    """Read a host's name. Raises ConfigError for one that a run's records can't have."""
    if not text.isprintable() or "/" in text or not 0 < len(text) <= LONGEST_NAME:
        raise ConfigError(f"--name is {text[:LONGEST_NAME]!a}; write 1 to {LONGEST_NAME} printable characters, no /")
    return text


def _check_alone(options: argparse.Namespace) -> None:
    """Raise ConfigError for a flag that only hosts which join give a meaning."""
    trusted = options.trusted_network or None
    given = (
        *(("--hosts", options.hosts), ("--name", options.name)),
        *(("--trusted-network", trusted), ("--send", options.send)),
    )
    for flag, value in given:
        if value is not None:
            raise ConfigError(
                f"{flag} is {shortened(str(value))}, and no machine can join; say where with --listen, such as "
                "--listen 10.0.0.1:7117, or give --emulate-hosts"
            )


def _joined_by_others(options: argparse.Namespace) -> bool:
    """Whether other machines join the run."""
    return options.listen is not None or options.on is not None


def _on(options: argparse.Namespace) -> On:
    """What the flags say of machines that ssh leads to. Raises ConfigError, in one line, for what is wrong."""
    from paceline.runtime.launch.ssh import looked_up

    if options.hosts is not None:
        raise ConfigError(f"--hosts is {options.hosts}, and --on says which hosts there are: leave --hosts out")
    on = looked_up(options.on, options.ssh or "ssh", options.workers or 2)
    if (head := options.name or socket.gethostname()) in on.found:
        raise ConfigError(f"--on names {head}, which is this host; it takes part without that")
    return on


def _listening(
    options: argparse.Namespace,
    choice: Choice | None,
    scenario: Scenario,
    on: On | None,
    many: HowMany,
    workers: int,
) -> Listen:
    """What the flags say of machines that join. Raises ConfigError, in one line, for what is wrong.

    `workers` are those of this host.
    """
    from paceline.runs.addresses import parsed, resolved
    from paceline.runtime.meeting import Listen
    from paceline.runtime.sent import to_send

    def with_hosts(tables: tuple[HostTable, ...], room: int | None) -> Scenario:
        workers = tables[-1].workers.stop
        settled = replace(scenario, nodes=len(tables), host_tables=tables).checked_for(workers)
        check_fits(choice, settled, workers, vars(options))
        if options.resume is not None and choice is not None:
            before = recorded(options.resume / CONFIG, RESUME)
            now = room or workers
            check_protocol(options.resume, choice_of(before, registry()), choice, int(before["workers"]), now)
        return settled if room is None else replace(settled, workers=None)  # more may come

    if options.listen is not None:
        address = resolved(parsed(options.listen, "--listen", least=0), "--listen")
    launch = None
    if on is not None:
        from paceline.runtime.launch.ssh import agents, working_directory

        trusted = ["--trusted-network"] if options.trusted_network else []
        directory = None if options.send else working_directory()
        launch = partial(agents, on, [f"--isa={options.isa}", *trusted], directory)
        if options.listen is None:
            address = on.address(), 0
    return Listen(
        address=address,
        name=options.name or socket.gethostname(),
        trusted=options.trusted_network,
        threads=options.threads,
        scenario=with_hosts,
        least=many.least,
        room=many.most * workers if many.most > many.least else None,
        launch=launch,
        sent=None if options.send is None else to_send(options.send, options.script),
    )


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
    check_isa(run, config.get("isa", ISAS[0]), options.isa)
    limits = {key: getattr(options, key) for key in LIMITS}
    check_more(run, config, limits, tuple(options.arguments))
    snapshot, passed = snapshot_of(run)
    for line in passed:
        print(f"paceline: {line}", file=sys.stderr)
    if not options.quiet:
        state = snapshot.state
        done = f"{count(state.steps, 'step')} and {count(state.samples, 'sample')}"
        print(f"paceline: going on after {done}, from {snapshot.folder}", file=sys.stderr)
    return snapshot


def how_many(text: str) -> HowMany:
    """Read --hosts: how many there are, or how many training begins with and how many there may be."""
    least, colon, most = text.partition(":")
    if not colon:
        return HowMany(*[whole("--hosts", 2, MOST_HOSTS)(text)] * 2)
    first, last = whole("--hosts", 1, MOST_HOSTS)(least), whole("--hosts", 2, MOST_HOSTS)(most)
    if first > last:
        raise ConfigError(f"--hosts is {text}: it begins with more hosts than there may be; write the lower one first")
    return HowMany(first, last)
