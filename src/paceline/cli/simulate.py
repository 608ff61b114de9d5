"""`paceline simulate`: what protocols would give on a cluster that isn't there."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.main import Parser
from paceline.cli.run import add_start
from paceline.cli.values import seconds, whole
from paceline.codecs import check_codec, codec_of
from paceline.core.choice import choose
from paceline.errors import EXIT_CODES, ConfigError
from paceline.host import hash_seed
from paceline.protocols import registry
from paceline.records.summary import Summary, Target
from paceline.runs.run import MOST_THREADS, STARTS
from paceline.runs.script import checked_script
from paceline.runs.series import interrupts
from paceline.runs.simulate import Made, folders_of, in_place_of, trained
from paceline.scenario.scenario_file import load
from paceline.sim.simulate import Progress, Say, Simulation, simulate
from paceline.sim.world import Limit
from paceline.terminal import redraws, say

if TYPE_CHECKING:
    from paceline.runs.gradients import Script


DESCRIPTION = (
    "Run protocols in virtual time, on the cluster that CLUSTER.toml describes. With --from, run them "
    "in place of a recorded run, for as long as it took or for as many steps."
)


def add_flags(command: Parser) -> None:
    add = command.add_argument
    add(
        "cluster",
        metavar="CLUSTER.toml",
        nargs="?",
        type=Path,
        help="a scenario file: workers, how fast they are, the network",
    )
    add(
        "--from",
        dest="run",
        metavar="RUN",
        type=Path,
        help="a run's folder, in place of CLUSTER.toml: its cluster, data and seed, and the times of its steps, "
        "versions and averages",
    )
    how = "how workers synchronise; may be given several times (default: as in the RUN)"
    add("-p", "--protocol", action="append", metavar="NAME[:KEY=VALUE,…]", help=how)
    add("-n", "--workers", type=whole("-n", 1), metavar="N", help="number of workers (default: the cluster's)")
    virtual = "stop after T virtual seconds"
    add("--seconds", type=seconds("--seconds"), default=math.inf, metavar="T", help=virtual)
    add("--steps", type=whole("--steps", 1), default=math.inf, metavar="N", help="stop after N applied steps")
    add("--versions", type=whole("--versions", 1), default=math.inf, metavar="N", help="stop at version N")
    counted = "samples in a step, to count them (default: not counted)"
    add("--batch", type=whole("--batch", 1), metavar="B", help=counted)
    add("--compress", type=codec_of, metavar="CODEC", help="encode what workers push, as paceline run --compress does")
    add("--seed", type=whole("--seed", 0), help="seed of all randomness (default: 0, or the RUN's)")
    add("--out", type=Path, metavar="DIR", help="keep ledgers and summaries there, in a folder for each protocol")
    add(
        "--json",
        action="store_true",
        help="print the summary and its folder as JSON; for several protocols, an array",
    )
    trained = "with --gradients: "
    add(
        "--threads",
        type=whole("--threads", 1, MOST_THREADS),
        metavar="T",
        help=f"{trained}threads of each worker (default: 1)",
    )
    add(
        "--epochs",
        type=whole("--epochs", 1),
        metavar="N",
        help=f"{trained}epochs of training, unless the script says how many",
    )
    add("--record", type=whole("--record", 0), metavar="K", help=f"{trained}versions kept in each epoch (default: 4)")
    add_start(command, trained)
    met = f"{trained}record when this target is met"
    add("--target", action="append", metavar="METRIC>=VALUE", help=met)
    how = "as the last flag, a training script and its arguments: every virtual step computes a real gradient"
    add("--gradients", nargs=argparse.REMAINDER, metavar="SCRIPT …", help=how)
    command.instead = {"--scenario": "the cluster is an argument, not a flag: paceline simulate CLUSTER.toml -p …"}
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    simulations = _on_a_cluster(options) if options.run is None else _in_place_of_a_run(options)
    _check_flags(options)
    script = None if options.gradients is None else _script(options)
    if script is not None:
        hash_seed.begin_again_with(hash_seed.of_a_run(options.seed or 0), is_program=options.is_program)
    for simulation in simulations:
        simulation.check(trains=script is not None)
    folders = folders_of(options.out, simulations)
    for remark in dict.fromkeys(remark for simulation in simulations for remark in simulation.remarks()):
        say(f"{options.cluster}: {remark}")
    summaries: list[Summary] = []
    printed: list[dict[str, Any]] = []
    made = (
        _simulated(simulations, folders, options) if script is None else trained(simulations, folders, script, _say_of)
    )
    for summary, folder in made:
        summaries.append(summary)
        printed.append(summary if folder is None else {**summary, "folder": str(folder)})
        if summary["outcome"] == "interrupted":
            break
    if rest := simulations[len(summaries) :]:
        names = ", ".join(simulation.choice.name for simulation in rest)
        say(f"interrupted: {names} did not begin")
    if options.json:
        print(json.dumps(printed if len(simulations) > 1 else printed[0], indent=2))
    else:
        from paceline.cli.table import print_comparison

        print_comparison(summaries)
    return max(EXIT_CODES[summary["outcome"]] for summary in summaries)


def _simulated(
    simulations: list[Simulation], folders: list[Path | None], options: argparse.Namespace
) -> Iterator[Made]:
    with interrupts(most=1) as taken, _progress(not options.json) as bar:
        for simulation, folder in zip(simulations, folders, strict=True):
            say_of = _say_of(simulation)
            yield simulate(simulation, folder, bar(simulation), stop=lambda: bool(taken), say=say_of), folder


def _say_of(simulation: Simulation) -> Say:
    name = simulation.choice.name
    return lambda sentence: say(f"{name}: {sentence}")


def _on_a_cluster(options: argparse.Namespace) -> list[Simulation]:
    """Return what CLUSTER.toml and the flags ask for."""
    if options.cluster is None:
        raise ConfigError("no cluster is given: name a CLUSTER.toml, or a run with --from RUN")
    if options.protocol is None:
        raise ConfigError("no protocol is given: name one, such as -p bsp")
    scenario, limit = load(options.cluster), _limit(options)
    told: dict[str, Any] = {"workers": options.workers, "seed": options.seed or 0, "batch": options.batch}
    told["codec"] = options.compress
    choices = [choose(text, registry()) for text in options.protocol]
    for choice in choices:
        check_codec(options.compress, choice)
    return [Simulation.on(scenario, choice, limit, **told) for choice in choices]


def _in_place_of_a_run(options: argparse.Namespace) -> list[Simulation]:
    """Return what that run's ledger and the flags ask for. Assumptions are printed."""
    for flag, value in (("CLUSTER.toml", options.cluster), ("-n", options.workers), ("--batch", options.batch)):
        if value is not None:
            raise ConfigError(f"{flag} is given, and --from {options.run}, which has its own: leave one of them out")
    protocols, name = options.protocol or (), f"--from {options.run}"
    made = in_place_of(options.run, protocols, _limit(options), options.seed, lambda remark: say(f"{name}: {remark}"))
    if options.compress is None:
        return made
    for one in made:
        check_codec(options.compress, one.choice)
    return [replace(one, codec=options.compress) for one in made]


def _check_flags(options: argparse.Namespace) -> None:
    """Raise ConfigError for a flag that would have no effect."""
    if options.gradients is not None and options.batch is not None:
        raise ConfigError("--batch is given, and --gradients, whose script has its own: leave one of them out")
    trained = {
        "--threads": options.threads,
        "--start": options.start,
        "--epochs": options.epochs,
        "--record": options.record,
        "--target": options.target,
    }
    for flag, value in trained.items():
        if options.gradients is None and value is not None:
            raise ConfigError(f"{flag} is given, and no script that trains: add --gradients SCRIPT, or leave it out")


def _script(options: argparse.Namespace) -> Script:
    from paceline.runs.gradients import Script

    if not options.gradients:
        raise ConfigError("--gradients has no script; name it, with its arguments, last of all")
    path, *arguments = options.gradients
    return Script(
        path=checked_script(Path(path)),
        arguments=tuple(arguments),
        threads=1 if options.threads is None else options.threads,
        epochs=options.epochs,
        record=4 if options.record is None else options.record,
        targets=tuple(Target.parse(text) for text in options.target or ()),
        json=options.json,
        start=options.start or STARTS[0],
    )


def _limit(options: argparse.Namespace) -> Limit:
    return Limit(seconds=options.seconds, steps=options.steps, versions=options.versions)


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[Simulation], Progress | None]]:
    """Yield a function that begins a progress bar for a simulation. Without a terminal it returns None."""
    if not shown or not redraws(sys.stderr):
        yield lambda simulation: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:

        def of(simulation: Simulation) -> Progress:
            choice = simulation.choice
            task = bar.add_task(choice.name, total=1.0)
            limit, facts = simulation.limit, 0
            if simulation.data is not None:
                limit = replace(limit, steps=min(limit.steps, simulation.data))

            def told(now: float, steps: int, versions: int) -> None:
                nonlocal facts
                facts += 1
                if facts % 1000 == 0:
                    bar.update(task, completed=limit.share(now, steps, versions))

            return told

        yield of
