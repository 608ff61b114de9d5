"""`paceline compare`: train a script under several protocols, and say which came first to a target."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli import dry_run
from paceline.cli.columns import as_csv, check_exports, export
from paceline.cli.comparison_table import REPORT, markdown, numbers, remarks
from paceline.cli.main import Parser
from paceline.cli.run import add_common, add_script, say_next
from paceline.cli.series import job_of, say_stopped
from paceline.cli.table import WIDE
from paceline.cli.values import seconds, whole
from paceline.cli.what_next import after_comparison
from paceline.core.choice import Choice
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.records.comparison_rows import rows_of
from paceline.records.summary import Target
from paceline.runs import baseline
from paceline.runs.compare import Plan, begun, carry_out
from paceline.runs.eta import Eta
from paceline.runs.folders import new_folder
from paceline.runs.report import report
from paceline.runs.run import check_fits, chosen
from paceline.runs.series import Stopped
from paceline.scenario.scenario_file import from_plain
from paceline.terminal import redraws, say

if TYPE_CHECKING:
    from rich.text import Text

DESCRIPTION = (
    "Train SCRIPT under each protocol with each seed, and print one table. Arguments after SCRIPT "
    "are the script's own. `-p ddp` adds a row for PyTorch's own DistributedDataParallel. The same command with "
    "the same --out continues an interrupted comparison. Protocols and seeds can be added to it."
)


EXAMPLES = {
    "paceline compare -p bsp -p ssp:bound=5 -p asp --target 'loss<=0.2' train.py": (
        "train once under each, and say which met the target first"
    ),
    "paceline compare -n 4 -p bsp -p asp --seeds 3 --scenario slow.toml train.py": (
        "three runs of each, with slow workers; three give intervals"
    ),
}


def add_flags(command: Parser) -> None:
    add_common(
        command,
        protocol=None,
        seed="seed of each protocol's first run; each further run has one more (default: 0)",
        out="the comparison's folder, with a folder for each run (default: runs/compare-DATE-TIME)",
        printed="print the comparison, and only that, on standard output",
    )
    add = command.add_argument
    add("--seeds", type=whole("--seeds", 1, 1000), default=1, metavar="K", help="runs of each protocol (default: 1)")
    add("--target", type=Target.parse, metavar="METRIC>=VALUE", help="what to reach (default: the run's end)")
    until = "end each run once --target is met; recorded versions are then evaluated during training"
    add("--stop-at-target", action="store_true", help=until)
    rule = "linear: n times the script's rate where a version is the mean of n gradients (default: none)"
    add("--learning-rate-rule", choices=("none", "linear"), default="none", help=rule)
    add("--shards", choices=("dynamic", "static"), help="how an epoch's batches are shared out (default: dynamic)")
    add("--epochs", type=whole("--epochs", 1), metavar="N", help="epochs of training, unless the script says how many")
    add("--record", type=whole("--record", 0), default=4, metavar="K", help="versions kept in each epoch (default: 4)")
    add("--max-seconds", type=seconds("--max-seconds"), metavar="S", help="end each run after S seconds of training")
    add("--quiet", action="store_true", help="print the table alone")
    add("--export-markdown", type=Path, metavar="FILE", help="also write the table to FILE, as Markdown")
    add("--export-csv", type=Path, metavar="FILE", help="also write the numbers to FILE, as CSV")
    add("--dry-run", action="store_true", help="make no run; show the runs and how long they take")
    costs = "with --dry-run: predict from the ledger of this run, which has the same scenario, with as many workers"
    add("--from", dest="costs", type=Path, metavar="RUN", help=costs)
    steps = "with --dry-run and a scenario with cluster.compute: how many steps each run has data for"
    add("--steps", type=whole("--steps", 1), metavar="N", help=steps)
    add_script(command)
    command.usage = "%(prog)s [FLAGS] -p NAME [-p NAME …] SCRIPT [ARGUMENTS]"
    command.examples = EXAMPLES
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    check_exports({"--export-markdown": options.export_markdown, "--export-csv": options.export_csv})
    dry_run.check_flags(options)
    options.workers = dry_run.workers_of(options)
    plan = _plan(options)
    settings = plan.settings()
    folder = plan.folder
    if options.dry_run:
        _show_plan(plan, settings, options)
        return 0
    state, places = begun(folder, settings), plan.places()
    if there := sum(summary is not None for _, summary in places.values()):
        _tell(options, f"{folder}: {count(there, 'run')} of {len(places)} done already")

    def under_way(pace: Eta, name: str, seed: int) -> AbstractContextManager[None]:
        return _shown(options, UnderWay(pace, f"{name}, seed {seed}"))

    def made(name: str, seed: int, run: Mapping[str, Any], metric: str | None, pace: Eta | None) -> None:
        so_far = "" if pace is None or _draws(options) else f" ({pace})"
        _tell(options, f"{name}, seed {seed}: {_came_to(run, plan.target, metric)}{so_far}")

    try:
        state = carry_out(plan, state, places, under_way, made)
    except Stopped as stopped:
        return say_stopped(stopped)
    if options.json:
        print(json.dumps(state, indent=2))
    else:
        _print(state, folder)
    if options.export_markdown is not None:
        export("--export-markdown", options.export_markdown, markdown(state, folder))
    if options.export_csv is not None:
        export("--export-csv", options.export_csv, as_csv(*numbers(state)))
    if any(run["protocol"] != baseline.NAME for run in state["runs"]):  # the baseline has no ledger
        report([folder], folder / REPORT, say)
        if not options.quiet and not options.json:
            say_next(after_comparison(folder / REPORT))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    """Return the comparison that the flags ask for. Raises ConfigError."""
    job = job_of(options)
    choices: dict[str, Choice | None] = {}
    for text in options.protocol:
        choice = chosen(text)
        check_fits(choice, job.scenario, job.workers, vars(options))
        name = baseline.NAME if choice is None else choice.name
        if name in choices:
            raise ConfigError(f"-p {text}: {name} is given twice; give each protocol once")
        choices[name] = choice
    if options.stop_at_target and options.target is None:
        raise ConfigError("--stop-at-target has nothing to stop at: give --target METRIC>=VALUE")
    return Plan(
        job=job,
        choices=choices,
        seeds=range(options.seed, options.seed + options.seeds),
        target=options.target,
        stop_at_target=options.stop_at_target,
        learning_rate_rule=options.learning_rate_rule,
        shards=options.shards,
        record=options.record,
        max_seconds=options.max_seconds,
        folder=options.out or new_folder("compare"),
    )


def _show_plan(plan: Plan, settings: dict[str, Any], options: argparse.Namespace) -> None:
    """Print which runs would be made, and make none."""
    if plan.folder.exists() and not (plan.folder.is_dir() and not any(plan.folder.iterdir())):
        begun(plan.folder, settings)  # raises if another comparison lies there
    runs = [
        dry_run.Planned(protocol=name, seed=seed, folder=run, done=summary is not None)
        for (name, seed), (run, summary) in plan.places().items()
    ]
    scenario = from_plain(settings["scenario"], str(options.scenario))
    dry_run.show(runs, plan.choices, scenario, plan.job.workers, options)


def _came_to(run: Mapping[str, Any], target: Target | None, metric: str | None) -> str:
    if run["outcome"] == "diverged":
        return f"diverged after {run['wall_seconds']:.1f} s: {run['error']}"
    ended = f"{run['wall_seconds']:.1f} s" + (f", {metric} {run['final']:.4g}" if run["final"] is not None else "")
    if target is None:
        return ended
    reached = run["seconds_to_target"]
    return f"{target.text} " + ("never" if reached is None else f"after {reached:.1f} s") + f"; at its end: {ended}"


def _tell(options: argparse.Namespace, line: str) -> None:
    """Print this line of progress, unless --quiet."""
    if not options.quiet:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


def _draws(options: argparse.Namespace) -> bool:
    """Whether a terminal shows the present run, and how long the others take."""
    return not options.quiet and not options.json and redraws(sys.stdout)


@dataclass
class UnderWay:
    """The present run and the time left, formatted anew whenever a terminal draws it."""

    pace: Eta
    what: str

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(f"{self.pace}: {self.what} ...")


@contextmanager
def _shown(options: argparse.Namespace, under_way: UnderWay) -> Iterator[None]:
    """Show the present run, if a terminal can."""
    if not _draws(options):
        yield
        return
    from rich.console import Console

    with Console(highlight=False).status(under_way, refresh_per_second=4):
        yield


def _print(state: Mapping[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    heads, rows = rows_of(state)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print()
    console.print(table)
    for line in remarks(state, folder):
        console.print(line, markup=False, soft_wrap=True)
