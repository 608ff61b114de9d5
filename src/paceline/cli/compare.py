"""`paceline compare`: train a script under several protocols, and say which came first to a target.

Each run is an ordinary `paceline run`. Seed by seed, so that whatever else the machine does in the meantime meets every
protocol alike. After each run `compare.json` has all that is known so far.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.cli.report import report
from paceline.cli.run import add_common, add_script, new_folder, seconds, whole
from paceline.cli.series import (
    INTERRUPTED,
    RESULTS,
    USAGE,
    changes,
    common_settings,
    count,
    interrupts,
    made,
    make_run,
    opened,
    place,
    scenario_of,
    undo,
)
from paceline.cli.table import WIDE, brief
from paceline.core.choice import Choice, check_fit, choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records import summary as summaries
from paceline.records.comparison import COMPARISON, LEAST, compared, plain_run
from paceline.records.summary import Summary, Target, metrics_of

STATE, REPORT = COMPARISON, "report.html"
ASKED = ("protocols", "seeds", "target")
"""Settings that say which runs are looked at and how, and leave each run as it is."""


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="train a script under several protocols, and compare them",
        description="Train SCRIPT under each protocol with each seed, and print one table. What follows SCRIPT is the "
        "script's own. With the same --out a comparison that was interrupted goes on, and protocols and seeds can be "
        "added to one that wasn't.",
        allow_abbrev=False,
    )
    add_common(
        command,
        protocol=None,
        seed="of the first run of each protocol; the next has one more (default: 0)",
        out="the comparison's folder, with a folder for each run (default: runs/compare-DATE-TIME)",
        printed="print the comparison, and only that, on standard output",
    )
    add = command.add_argument
    add("--seeds", type=whole("--seeds", 1, 1000), default=1, metavar="K", help="runs of each protocol (default: 1)")
    add("--target", type=Target.parse, metavar="METRIC>=VALUE", help="what to come to (default: the run's end)")
    rule = "linear: n times the script's rate where a version is the mean of n gradients (default: none)"
    add("--learning-rate-rule", choices=("none", "linear"), default="none", help=rule)
    add("--shards", choices=("dynamic", "static"), help="how an epoch's batches are shared out (default: dynamic)")
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="how many epochs the script trains, if it won't say")
    add("--record", type=whole("--record", 0), default=4, metavar="K", help="versions kept in each epoch (default: 4)")
    add("--max-seconds", type=seconds("--max-seconds"), metavar="S", help="end each run after so many seconds")
    add("--quiet", action="store_true", help="say nothing before the table")
    add_script(command)
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    choices, settings = _settings(options)
    typed = dict(zip(choices, options.protocol, strict=True))
    folder = options.out or new_folder("compare")
    state = _opened(folder, settings)
    target: Target | None = options.target
    wanted = [(name, seed) for seed in settings["seeds"] for name in choices]
    runs: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in choices}
    say = _say(options)
    found = {(name, seed): place(folder, _stem(name, seed)) for name, seed in wanted}
    if there := sum(summary is not None for _, summary in found.values()):
        say(f"{folder}: {count(there, 'run')} of {len(wanted)} done already")
    with interrupts() as taken:
        for name, seed in wanted:
            run, summary = found[name, seed]
            if summary is None:
                with _shown(options, f"{typed[name]}, seed {seed} ..."):
                    arguments = _arguments(options, settings, choices[name], seed, run)
                    code = INTERRUPTED if taken else make_run(arguments, taken)
                if code == USAGE or (code == 0 and not run.exists()):  # it has said why, or shown the script's --help
                    undo(folder / STATE)
                    return code
                if code == INTERRUPTED or (taken and code not in RESULTS):
                    done = sum(len(of) for of in runs.values())
                    line = f"{done} of {count(len(wanted), 'run')} done; go on with the same flags and --out {folder}"
                    print(f"paceline: interrupted, {line}", file=sys.stderr)
                    return INTERRUPTED
                summary = made(run, code, folder)
            _check_metric(target, summary, run)
            metric = _metric(target, summary) or state.get("metric")
            runs[name][seed] = {"folder": run.name, **plain_run(summary, target, metric)}
            state |= _comparison(runs, choices, settings, metric)
            summaries.write(folder / STATE, state)
            say(f"{typed[name]}, seed {seed}: {_came_to(runs[name][seed], target, metric)}")
    if options.json:
        print(json.dumps(state, indent=2))
    else:
        _print(state, typed, folder)
    report([folder / run["folder"] for run in state["runs"]], folder / REPORT)
    return 0


def _settings(options: argparse.Namespace) -> tuple[dict[str, Choice], dict[str, Any]]:
    """The protocols by name, as they are called here, and all that the comparison depends on; checked."""
    scenario, workers = scenario_of(options)
    choices: dict[str, Choice] = {}
    for text in options.protocol:
        choice = choose(text, registry())
        check_fit(choice, scenario.hosts(workers))
        name = brief(choice.spec.name, choice.parameters())
        if name in choices:
            raise ConfigError(f"-p {text}: {choice} is given twice; give each protocol once")
        choices[name] = choice
    return choices, {
        **common_settings(options, scenario, workers),
        "shards": options.shards,
        "record": options.record,
        "max_seconds": options.max_seconds,
        "learning_rate_rule": options.learning_rate_rule,
        "protocols": {name: {"name": one.spec.name, "config": one.parameters()} for name, one in choices.items()},
        "seeds": list(range(options.seed, options.seed + options.seeds)),
        "target": options.target.text if options.target else None,
    }


def _opened(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The comparison in that folder, or a new one. Raises ConfigError if it holds another one, or something else."""
    state = opened(folder / STATE, "comparison", settings, {}, lambda state: state["settings"]["protocols"].items())
    before = state["settings"]
    changed = changes(
        {key: value for key, value in before.items() if key not in ASKED},
        {key: value for key, value in settings.items() if key not in ASKED},
    )
    for name, choice in settings["protocols"].items():  # the same name, but other defaults: of another version
        changed |= changes({name: before["protocols"].get(name, choice)}, {name: choice})
    if changed:
        differences = ", ".join(changed.values())
        raise ConfigError(f"--out {folder} holds another comparison: {differences}; name another folder")
    return {**state, "settings": settings}


def _stem(name: str, seed: int) -> str:
    """The name of the run's folder: without what shells and URLs take for something else."""
    return f"{name.translate(str.maketrans(':,', '--'))}-seed{seed}"


def scale(choice: Choice, rule: str, workers: int) -> float:
    """What the script's learning rates are multiplied by under this protocol.

    Not under one that is composed of others: Sync-Switch has `rescale`.
    """
    return float(workers) if rule == "linear" and choice.spec.rounds else 1.0


def _arguments(
    options: argparse.Namespace, settings: Mapping[str, Any], choice: Choice, seed: int, folder: Path
) -> list[str]:
    """Of `paceline run`."""
    rate_scale = scale(choice, settings["learning_rate_rule"], settings["workers"])
    flags = {
        "-n": settings["workers"],
        "-p": str(choice),
        "--seed": seed,
        "--scenario": options.scenario,
        "--threads": options.threads,
        "--start": options.start,
        "--epochs": options.epochs,
        "--shards": options.shards,
        "--record": options.record,
        "--max-seconds": options.max_seconds,
        "--learning-rate-scale": None if rate_scale == 1.0 else rate_scale,
        "--target": settings["target"],
        "--tee": "none",
        "--out": folder,
    }
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return [*given, "--quiet", "--json", str(options.script), *options.arguments]


def _check_metric(target: Target | None, summary: Summary, run: Path) -> None:
    """Raises ConfigError if the script knows nothing of what the target is about."""
    if (
        target is None
        or summary["outcome"] != "completed"
        or target.metric in (known := metrics_of(summary["evaluations"]))
    ):
        return
    has = f"has {', '.join(known)}" if known else "has none, as the script registers no evaluate"
    raise ConfigError(
        f'--target is "{target.text}", but {run} {has}; name a metric that prepare(..., evaluate=) returns'
    )


def _metric(target: Target | None, summary: Summary) -> str | None:
    return target.metric if target else next(iter(metrics_of(summary["evaluations"])), None)


def _comparison(
    runs: Mapping[str, Mapping[int, dict[str, Any]]],
    choices: Mapping[str, Choice],
    settings: Mapping[str, Any],
    metric: str | None,
) -> dict[str, Any]:
    rule, workers = settings["learning_rate_rule"], settings["workers"]
    rows = compared(runs, target=settings["target"] is not None)
    return {
        "metric": metric,
        "runs": [{"protocol": name, "seed": seed, **run} for name, of in runs.items() for seed, run in of.items()],
        "protocols": [{**row, "learning_rate_scale": scale(choices[row["protocol"]], rule, workers)} for row in rows],
    }


def _came_to(run: Mapping[str, Any], target: Target | None, metric: str | None) -> str:
    if run["outcome"] == "diverged":
        return f"diverged after {run['wall_seconds']:.1f} s: {run['error']}"
    ended = f"{run['wall_seconds']:.1f} s" + (f", {metric} {run['final']:.4g}" if run["final"] is not None else "")
    if target is None:
        return ended
    reached = run["seconds_to_target"]
    return f"{target.text} " + ("never" if reached is None else f"after {reached:.1f} s") + f"; at its end: {ended}"


def _say(options: argparse.Namespace) -> Any:
    shown_on = sys.stderr if options.json else sys.stdout

    def say(line: str) -> None:
        if not options.quiet:
            print(line, file=shown_on, flush=True)

    return say


@contextmanager
def _shown(options: argparse.Namespace, line: str) -> Iterator[None]:
    """That this is under way, on a terminal."""
    if options.quiet or options.json or not sys.stdout.isatty():
        yield
        return
    from rich.console import Console

    with Console(highlight=False).status(line):
        yield


def _print(state: Mapping[str, Any], typed: Mapping[str, str], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    settings, rows, metric = state["settings"], state["protocols"], state["metric"]
    target = settings["target"]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("protocol", overflow="fold")
    never = len(settings["seeds"]) > 1 and any(row["never"] for row in rows)
    heads = ["seconds", "speed-up", *(["never"] if never else []), "samples/s", *([metric] if metric else [])]
    for head in (*heads, "waiting", "stale", "max stale"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        speed_up = row["speed_up"]
        table.add_row(
            typed[row["protocol"]],
            _written(row["seconds"], ".1f"),
            "-" if speed_up is None else f"{speed_up:.2f}",
            *([f"{row['never']} of {row['runs']}"] if never else []),
            _written(row["samples_per_second"], ".0f"),
            *([_written(row["final"], ".4g", ".2g")] if metric else []),
            "-" if row["waiting"] is None else f"{row['waiting']['mean']:.0%}",
            _written(row["staleness"]["mean"], ".2f"),
            "-" if row["staleness"]["max"] is None else str(row["staleness"]["max"]),
        )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print()
    console.print(table)
    if target:
        seconds_to = f"seconds: to the first recorded version with {target}"
        console.print(f"{seconds_to}; {metric}: of the last version", markup=False, soft_wrap=True)
    for line in _remarks(settings, rows, typed, folder):
        console.print(line, markup=False, soft_wrap=True)


def _written(value: Mapping[str, Any] | None, form: str, spread: str | None = None) -> str:
    """A mean and half of its interval; of too few for that, the range."""
    if value is None:
        return "-"
    half = value["plus_minus"]
    if half is None and value["runs"] > 1:
        return f"{value['low']:{form}} to {value['high']:{form}}"
    return f"{value['mean']:{form}}" + ("" if half is None else f" ± {half:{spread or form}}")


def _remarks(
    settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], typed: Mapping[str, str], folder: Path
) -> Iterator[str]:
    """What the table does not say."""
    if 1 < len(settings["seeds"]) < LEAST:
        yield (
            f"{count(len(settings['seeds']), 'seed')}: each range is that of its runs, and decides nothing; "
            f"--seeds {LEAST} or more gives intervals"
        )
    elif len(settings["seeds"]) > 1:
        yield f"± is half of the 95 % interval of the mean over {count(len(settings['seeds']), 'seed')} (Student's t)"
    scaled = [typed[row["protocol"]] for row in rows if row["learning_rate_scale"] != 1]
    if scaled:
        yield (
            f"learning rates (--learning-rate-rule linear): {settings['workers']} times the script's under "
            f"{', '.join(scaled)}; the script's own under the others"
        )
    else:
        yield f"learning rates (--learning-rate-rule {settings['learning_rate_rule']}): the script's own"
    for row in rows:
        if row["diverged"]:
            yield f"{typed[row['protocol']]}: {row['diverged']} of {count(row['runs'], 'run')} diverged"
    yield f"{folder}: {STATE}, {REPORT}, and a folder for each run"
