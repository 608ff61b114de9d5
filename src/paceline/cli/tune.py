"""`paceline tune`: find the smallest switch point with which Sync-Switch is still accurate enough.

The search is `runs.search`; each of its trials is an ordinary `paceline run`, a process of its own, in a folder of the
search's. After each, `tune.json` has everything that is needed to go on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.cli.run import add_common, add_script, new_folder, whole
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
from paceline.core.choice import check_fit, choose, nearest
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records import summary as summaries
from paceline.records.summary import Summary
from paceline.runs.search import Finished, Result, Search, Trial, next_trial

PROTOCOL, PARAMETER = "sync-switch", "switch_at"
"""Whose parameter is searched for."""

JUDGED = ("metric", "lower_is_better", "goal")
"""Settings that say what a run is judged by, and leave the run itself as it is."""
STATE = "tune.json"


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="find the best switch point for a job that recurs",
        description=f"Search for the smallest {PARAMETER} of {PROTOCOL} that is still accurate enough, by training "
        "SCRIPT again and again. Arguments after SCRIPT are the script's own. The same command with the same --out "
        "continues an interrupted search.",
        allow_abbrev=False,
    )
    add_common(
        command,
        protocol=PROTOCOL,
        seed="seed of each setting's first run; each further run has one more (default: 0)",
        out="the search's folder, with a folder for each run (default: runs/tune-DATE-TIME)",
        printed="print the search and its result, and only that, on standard output",
    )
    add = command.add_argument
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="epochs of training, if prepare is not told")
    add("--metric", required=True, metavar="NAME", help="the metric to judge by, which the script's evaluate returns")
    add("--lower-is-better", action="store_true", help="smaller values are better, as for a loss")
    goal = f"value to reach (default: measured with {PARAMETER}=1)"
    add("--goal", type=_number("--goal"), metavar="VALUE", help=goal)
    add("--runs", type=whole("--runs", 1, 1000), default=3, metavar="R", help="runs of each setting (default: 3)")
    add(
        "--settings",
        type=whole("--settings", 1, 1000),
        default=5,
        metavar="M",
        help="switch points to try (default: 5)",
    )
    tolerance = "how much worse than the goal is good enough (default: 0.01)"
    add("--tolerance", type=_number("--tolerance", 0.0), default=0.01, metavar="B", help=tolerance)
    add_script(command)
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    settings = _settings(options)
    search = Search(
        runs=options.runs,
        settings=options.settings,
        tolerance=options.tolerance,
        goal=options.goal,
        lower_is_better=options.lower_is_better,
        seed=options.seed,
    )
    folder = options.out or new_folder("tune")
    state = _opened(folder, settings)
    shown_on = sys.stderr if options.json else sys.stdout
    if state["trials"]:
        print(f"{folder}: going on after {count(len(state['trials']), 'run')}", file=shown_on, flush=True)
    with interrupts() as taken:
        while isinstance(wanted := next_trial(search, _finished(state)), Trial):
            run, summary = _place(folder, wanted)
            if summary is None:
                code = INTERRUPTED if taken else make_run(_arguments(options, settings, wanted, run), taken)
                if code == USAGE or (code == 0 and not run.exists()):  # it has said why, or shown the script's --help
                    undo(folder / STATE)
                    return code
                if code == INTERRUPTED or (taken and code not in RESULTS):
                    kept = f"{count(len(state['trials']), 'run')} kept"
                    line = f"paceline: interrupted, {kept}; go on with the same flags and --out {folder}"
                    print(line, file=sys.stderr)
                    return INTERRUPTED
                summary = made(run, code, folder)
            value, seconds = _value(summary, options.metric, run), summary["wall_seconds"]
            done = Finished(wanted.switch_at, wanted.seed, value, seconds)
            state["trials"].append({**asdict(done), "folder": run.name})
            summaries.write(folder / STATE, state)
            came_to = "diverged" if value is None else f"{options.metric} {value:.4g}"
            line = f"{PARAMETER}={wanted.switch_at}, seed {wanted.seed}: {came_to}, {seconds:.1f} s"
            print(line, file=shown_on, flush=True)
    state["result"] = _plain(wanted, options)
    summaries.write(folder / STATE, state)
    if options.json:
        print(json.dumps(state, indent=2))
    else:
        _print_result(wanted, options, folder)
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """All that the search's runs depend on, checked, as plain values."""
    name, _, given = options.protocol.partition(":")
    if any(part.partition("=")[0] == PARAMETER for part in given.split(",")):
        raise ConfigError(f"-p {options.protocol}: tune searches for {PARAMETER}; leave it out")
    choice = choose(options.protocol, registry())
    if name != PROTOCOL:
        raise ConfigError(f"-p {options.protocol}: tune searches for {PARAMETER} of {PROTOCOL}; give that, or no -p")
    scenario, workers = scenario_of(options)
    check_fit(choice, scenario.hosts(workers))
    common = common_settings(options, scenario, workers)
    return {
        **{key: common[key] for key in ("script", "script_sha256", "arguments")},
        "protocol": {key: value for key, value in choice.parameters().items() if key != PARAMETER},
        **{key: common[key] for key in ("workers", "scenario", "threads", "epochs")},
        "seed": options.seed,
        "metric": options.metric,
        "lower_is_better": options.lower_is_better,
        "goal": options.goal,
        "runs": options.runs,
        "settings": options.settings,
        "tolerance": options.tolerance,
    }


def _opened(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The search in that folder as far as it has come, or a new one. Raises ConfigError if it holds something else."""
    state = opened(folder / STATE, "search", settings, {"trials": [], "result": None}, _finished)
    changed = changes(state["settings"], settings)
    if not state["trials"] and all(key in JUDGED for key in changed):
        state["settings"] = settings  # the metric's name was wrong, say: the run that showed it is as good as before
        return state
    if changed:
        raise ConfigError(f"--out {folder} holds another search: {', '.join(changed.values())}; name another folder")
    return state


def _finished(state: dict[str, Any]) -> list[Finished]:
    return [Finished(trial["switch_at"], trial["seed"], trial["value"], trial["seconds"]) for trial in state["trials"]]


def _place(folder: Path, trial: Trial) -> tuple[Path, Summary | None]:
    """The trial's folder; with its summary, if the run had ended but the search before it could note that."""
    return place(folder, f"{PARAMETER}-{trial.switch_at}-seed-{trial.seed}")


def _arguments(options: argparse.Namespace, settings: dict[str, Any], trial: Trial, folder: Path) -> list[str]:
    """Of `paceline run`. Only the last version is recorded, since only that is evaluated for the search."""
    flags = {
        "-n": settings["workers"],
        "-p": f"{_protocol(options)}{PARAMETER}={trial.switch_at}",
        "--seed": trial.seed,
        "--scenario": options.scenario,
        "--threads": options.threads,
        "--start": options.start,
        "--epochs": options.epochs,
        "--record": 0,
        "--tee": "none",
        "--out": folder,
    }
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return [*given, "--json", str(options.script), *options.arguments]


def _protocol(options: argparse.Namespace) -> str:
    """As the user wrote it, ready for one more parameter."""
    return f"{options.protocol}{',' if ':' in options.protocol else ':'}"


def _value(summary: Summary, metric: str, run: Path) -> float | None:
    """The metric at the run's end; None if the run diverged, or if the metric is no finite number."""
    if summary["outcome"] == "diverged":
        return None
    last = dict(summary["evaluations"][-1]) if summary["evaluations"] else {}
    known = summaries.metrics_of([last])
    if metric not in known:
        has = f"has {', '.join(known)}" if known else "has none, as the script registers no evaluate"
        has += nearest(metric, known)
        raise ConfigError(f'--metric is "{metric}", but {run} {has}; name one that prepare(..., evaluate=) returns')
    if "epochs" not in tomllib.loads((run / "config.toml").read_text())["limits"]:
        raise ConfigError(
            f"{run}: the script does not say for how many epochs it trains, which {PARAMETER} is a share of; "
            "say it with --epochs N, or in prepare(..., epochs=N)"
        )
    value: float | None = last[metric]
    return value


def _plain(result: Result, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "protocol": f"{_protocol(options)}{PARAMETER}={result.switch_at}",
        PARAMETER: result.switch_at,
        "goal": result.goal,
        "settings": [
            {
                PARAMETER: setting.switch_at,
                "runs": len(setting.runs),
                "diverged": setting.diverged,
                "mean": setting.mean,
                "spread": setting.spread,
                "seconds": setting.seconds,
                "passed": result.passed(setting),
            }
            for setting in result.settings
        ],
        "runs": result.runs,
        "seconds": result.seconds,
        "bsp_seconds": result.bsp_seconds,
        "cost": result.cost,
        "break_even": result.break_even,
    }


def _print_result(result: Result, options: argparse.Namespace, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(PARAMETER, "runs", options.metric, "seconds", "good enough", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    for setting in result.settings:
        spread = "" if setting.spread is None else f" ± {setting.spread:.2g}"
        metric = f"{setting.diverged} diverged" if setting.mean is None else f"{setting.mean:.4g}{spread}"
        verdict = "yes" if result.passed(setting) else "no"
        table.add_row(str(setting.switch_at), str(len(setting.runs)), metric, f"{setting.seconds:.1f}", verdict)
    console = Console(highlight=False)
    console.print()
    console.print(table)
    sign, slack = ("<=", "+") if options.lower_is_better else (">=", "-")
    measured = f"the mean with {PARAMETER}=1" if options.goal is None else "as given"
    lines = [
        f"good enough: {options.metric} {sign} {result.goal:.4g} {slack} {options.tolerance:g} ({measured})",
        f"chosen: {_protocol(options)}{PARAMETER}={result.switch_at}"
        + (", as no setting was good enough" if result.switch_at == 1 else ""),
        f"the search: {count(result.runs, 'run')}, {result.seconds:.1f} s" + _worth(result),
        f"{folder}: {STATE}, and a folder for each run",
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _worth(result: Result) -> str:
    """The search's cost, and when it has paid."""
    if result.cost is None:
        return f"; how that compares with {PARAMETER}=1 is not known, as no such run was made"
    cost = f", the time of {result.cost:.1f} runs with {PARAMETER}=1; "
    if result.break_even is None:
        return cost + "it does not pay, as nothing is saved"
    return cost + f"it has paid when the job has recurred {result.break_even:.1f} times"


def _number(flag: str, least: float = -math.inf) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            allowed = "a number" if least == -math.inf else f"a number, {least:g} or more"
            raise ConfigError(f'{flag} is "{text}"; it must be {allowed}')
        return value

    return read
