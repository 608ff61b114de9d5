"""`paceline tune`: find the smallest switch point with which Sync-Switch is still accurate enough."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable

from paceline.cli.run import add_common, add_script
from paceline.cli.series import job_of, say_stopped
from paceline.cli.values import whole
from paceline.core.choice import check_fit, choose
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.runs.folders import new_folder
from paceline.runs.search import Finished, Result, Search
from paceline.runs.series import Stopped
from paceline.runs.tune import PARAMETER, PROTOCOL, STATE, Tuning, begun, carry_out

DESCRIPTION = (
    f"Search for the smallest {PARAMETER} of {PROTOCOL} that is still accurate enough, by training "
    "SCRIPT again and again. Arguments after SCRIPT are the script's own. The same command with the same --out "
    "continues an interrupted search."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    add_common(
        command,
        protocol=PROTOCOL,
        seed="seed of each setting's first run; each further run has one more (default: 0)",
        out="the search's folder, with a folder for each run (default: runs/tune-DATE-TIME)",
        printed="print the search and its result, and only that, on standard output",
    )
    add = command.add_argument
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="epochs of training, unless the script says how many")
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
    tuning = _tuning(options)
    state = begun(tuning.folder, tuning.settings())
    shown_on = sys.stderr if options.json else sys.stdout
    if state["trials"]:
        print(f"{tuning.folder}: going on after {count(len(state['trials']), 'run')}", file=shown_on, flush=True)

    def told(done: Finished) -> None:
        came_to = "diverged" if done.value is None else f"{options.metric} {done.value:.4g}"
        line = f"{PARAMETER}={done.switch_at}, seed {done.seed}: {came_to}, {done.seconds:.1f} s"
        print(line, file=shown_on, flush=True)

    try:
        result = carry_out(tuning, state, told)
    except Stopped as stopped:
        return say_stopped(stopped)
    if options.json:
        print(json.dumps(state, indent=2))
    else:
        _print_result(result, tuning)
    return 0


def _tuning(options: argparse.Namespace) -> Tuning:
    """What the flags ask for, checked."""
    name, _, given = options.protocol.partition(":")
    if any(part.partition("=")[0] == PARAMETER for part in given.split(",")):
        raise ConfigError(f"-p {options.protocol}: tune searches for {PARAMETER}; leave it out")
    choice = choose(options.protocol, registry())
    if name != PROTOCOL:
        raise ConfigError(f"-p {options.protocol}: tune searches for {PARAMETER} of {PROTOCOL}; give that, or no -p")
    job = job_of(options)
    check_fit(choice, job.scenario.hosts(job.workers))
    search = Search(
        runs=options.runs,
        settings=options.settings,
        tolerance=options.tolerance,
        goal=options.goal,
        lower_is_better=options.lower_is_better,
        seed=options.seed,
    )
    folder = options.out or new_folder("tune")
    return Tuning(job=job, text=options.protocol, choice=choice, metric=options.metric, search=search, folder=folder)


def _print_result(result: Result, tuning: Tuning) -> None:
    from rich.console import Console
    from rich.table import Table

    search = tuning.search
    table = Table(PARAMETER, "runs", tuning.metric, "seconds", "good enough", box=None)
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
    sign, slack = ("<=", "+") if search.lower_is_better else (">=", "-")
    measured = f"the mean with {PARAMETER}=1" if search.goal is None else "as given"
    lines = [
        f"good enough: {tuning.metric} {sign} {result.goal:.4g} {slack} {search.tolerance:g} ({measured})",
        f"chosen: {tuning.protocol(result.switch_at)}"
        + (", as no setting was good enough" if result.switch_at == 1 else ""),
        f"the search: {count(result.runs, 'run')}, {result.seconds:.1f} s" + _worth(result),
        f"{tuning.folder}: {STATE}, and a folder for each run",
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
