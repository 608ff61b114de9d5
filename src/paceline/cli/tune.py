"""`paceline tune`: find the smallest switch point with which Sync-Switch is still accurate enough.

The search is `core.search`; each of its trials is an ordinary `paceline run`, a process of its own, in a folder of the
search's. After each, `tune.json` has everything that is needed to go on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.cli.run import CODES, add_common, add_script, checked_script, new_folder, whole
from paceline.core.choice import choose
from paceline.core.scenario import Scenario
from paceline.core.scenario import load as load_scenario
from paceline.core.search import Finished, Result, Search, Trial, next_trial
from paceline.errors import ConfigError, RunFailed
from paceline.protocols import registry
from paceline.records import summary as summaries
from paceline.records.summary import Summary
from paceline.version import __version__

PROTOCOL, PARAMETER = "sync-switch", "switch_at"
"""Whose parameter is searched for."""

JUDGED = ("metric", "lower_is_better", "goal")
"""Settings that say what a run is judged by, and leave the run itself as it is."""
STATE = "tune.json"

USAGE, INTERRUPTED = 2, CODES["interrupted"]
RESULTS = (CODES["completed"], CODES["diverged"])
"""Exit codes of runs: what the search can use are those that have ended by themselves."""


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="find the best switch point for a job that recurs",
        description=f"Search for the smallest {PARAMETER} of {PROTOCOL} that is still accurate enough, by training "
        "SCRIPT again and again. What follows SCRIPT is the script's own. With the same flags and the same --out a "
        "search that was interrupted goes on.",
        allow_abbrev=False,
    )
    add_common(
        command,
        protocol=PROTOCOL,
        seed="of each setting's first run; the next has one more (default: 0)",
        out="the search's folder, with a folder for each run (default: runs/tune-DATE-TIME)",
        printed="print the search and its result, and only that, on standard output",
    )
    add = command.add_argument
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="how many epochs the script trains, if it won't say")
    add("--metric", required=True, metavar="NAME", help="what counts, of what the script's evaluate returns")
    add("--lower-is-better", action="store_true", help="as for a loss")
    add("--goal", type=_number("--goal"), metavar="VALUE", help=f"to reach (default: measured, with {PARAMETER}=1)")
    add("--runs", type=whole("--runs", 1), default=3, metavar="R", help="of each setting (default: 3)")
    add("--settings", type=whole("--settings", 1), default=5, metavar="M", help="switch points to try (default: 5)")
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
        print(f"{folder}: going on after {_count(len(state['trials']), 'run')}", file=shown_on, flush=True)
    with _interrupts() as interrupts:
        while isinstance(wanted := next_trial(search, _finished(state)), Trial):
            run, summary = _place(folder, wanted)
            if summary is None:
                code = INTERRUPTED if interrupts else make_run(_arguments(options, settings, wanted, run), interrupts)
                if code == USAGE:  # the run has said why
                    _undo(folder)
                    return USAGE
                if code == INTERRUPTED or (interrupts and code not in RESULTS):
                    kept = f"{_count(len(state['trials']), 'run')} kept"
                    line = f"paceline: interrupted, {kept}; go on with the same flags and --out {folder}"
                    print(line, file=sys.stderr)
                    return INTERRUPTED
                summary = _made(run, code, folder)
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


def make_run(arguments: Sequence[str], interrupts: Sequence[int]) -> int:
    """`paceline run ARGUMENTS` as a process of its own, to its end; returns its exit code, negative for a signal.

    It leads a process group of its own, so that a terminal's Ctrl-C comes to this process alone. Whatever is in
    `interrupts`, or comes there, is passed on to it once. If this process is killed, so is the run.
    """
    from paceline.runtime.processes import die_with

    launcher = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the summary, which its folder has as well
        process_group=0,
        preexec_fn=lambda: die_with(launcher),
    )
    told = 0
    while True:
        while told < len(interrupts):
            process.send_signal(signal.SIGTERM)  # to a run as good as SIGINT; and Python, as it starts, ends silently
            told += 1
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.1)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The signals that have asked for an end so far. They do nothing else meanwhile."""
    interrupts: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: interrupts.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """All that the search's runs depend on, checked, as plain values."""
    name, _, given = options.protocol.partition(":")
    if any(part.partition("=")[0] == PARAMETER for part in given.split(",")):
        raise ConfigError(f"-p {options.protocol}: {PARAMETER} is what is searched for; leave it out")
    choice = choose(options.protocol, registry())
    if name != PROTOCOL:
        raise ConfigError(f"-p {options.protocol}: tune searches for {PARAMETER} of {PROTOCOL}; give that, or nothing")
    scenario = Scenario() if options.scenario is None else load_scenario(options.scenario)
    workers = options.workers or scenario.workers or 2
    slowness = scenario.checked_for(workers).checked_for_real_run().to_plain()
    slowness["cluster"].pop("workers", None)  # which are a setting of their own
    return {
        "script": str(checked_script(options.script)),
        "script_sha256": hashlib.sha256(options.script.read_bytes()).hexdigest(),
        "arguments": options.arguments,
        "protocol": {key: value for key, value in choice.parameters().items() if key != PARAMETER},
        "workers": workers,
        "scenario": slowness,
        "threads": options.threads,
        "epochs": options.epochs,
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
    file = folder / STATE
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--out {folder} is neither an empty folder nor one with a search; name another one")
        new: dict[str, Any] = {"paceline": __version__, "settings": settings, "trials": [], "result": None}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            summaries.write(file, new)
        except OSError as error:
            raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be made") from None
        return new
    try:
        state: dict[str, Any] = json.loads(file.read_text())
        before = state["settings"]
        _finished(state)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file}: no search can be read there ({error!r}); name another --out") from None
    changed = {
        key: f"{key} was {json.dumps(before.get(key))} and is {json.dumps(settings.get(key))}"
        for key in {**before, **settings}
        if before.get(key) != settings.get(key)
    }
    if not state["trials"] and all(key in JUDGED for key in changed):
        state["settings"] = settings  # the metric's name was wrong, say: the run that showed it is as good as before
        return state
    if changed:
        raise ConfigError(f"--out {folder} holds another search: {', '.join(changed.values())}; name another folder")
    return state


def _undo(folder: Path) -> None:
    """Take the folder away if the very first run was refused, so that nothing came of the search."""
    if [path.name for path in folder.iterdir()] == [STATE]:
        (folder / STATE).unlink()
        with suppress(OSError):
            folder.rmdir()


def _finished(state: dict[str, Any]) -> list[Finished]:
    return [Finished(trial["switch_at"], trial["seed"], trial["value"], trial["seconds"]) for trial in state["trials"]]


def _place(folder: Path, trial: Trial) -> tuple[Path, Summary | None]:
    """The trial's folder; with its summary, if the run had ended but the search before it could note that.

    What an interrupted or failed run has left stays where it is.
    """
    stem = f"{PARAMETER}-{trial.switch_at}-seed-{trial.seed}"
    number = 1
    while (run := folder / (stem if number == 1 else f"{stem}-{number}")).exists():
        with suppress(ConfigError):
            summary = summaries.read(run / "summary.json")
            if summary["outcome"] in ("completed", "diverged"):
                return run, summary
        number += 1
    return run, None


def _arguments(options: argparse.Namespace, settings: dict[str, Any], trial: Trial, folder: Path) -> list[str]:
    """Of `paceline run`. Only the last version is recorded, since only that is evaluated for the search."""
    flags = {
        "-n": settings["workers"],
        "-p": f"{_protocol(options)}{PARAMETER}={trial.switch_at}",
        "--seed": trial.seed,
        "--scenario": options.scenario,
        "--threads": options.threads,
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


def _made(run: Path, code: int, folder: Path) -> Summary:
    """The summary of a run that has ended with this code. Raises RunFailed if it is no result."""
    error = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    with suppress(ConfigError):
        summary = summaries.read(run / "summary.json")
        if summary["outcome"] in ("completed", "diverged"):
            return summary
        error = summary["error"] or error
    raise RunFailed(
        f"{run}: the run failed ({error}); when that is mended, go on with the same flags and --out {folder}"
    )


def _value(summary: Summary, metric: str, run: Path) -> float | None:
    """The metric at the run's end; None if the run diverged, or if the metric is no finite number."""
    if summary["outcome"] == "diverged":
        return None
    last = dict(summary["evaluations"][-1]) if summary["evaluations"] else {}
    known = [name for name in last if name not in ("version", "at_seconds", "samples")]
    if metric not in known:
        has = f"has {', '.join(known)}" if known else "has none, as the script registers no evaluate"
        raise ConfigError(f'--metric is "{metric}", but {run} {has}; name one that prepare(..., evaluate=) returns')
    if "epochs" not in tomllib.loads((run / "config.toml").read_text())["limits"]:
        raise ConfigError(
            f"{run}: the script does not say for how many epochs it trains, so that nobody knows where {PARAMETER} is; "
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
        f"the search: {_count(result.runs, 'run')}, {result.seconds:.1f} s" + _worth(result),
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
