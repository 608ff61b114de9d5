"""Summaries as tables, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.core.phrases import count, listed
from paceline.protocols import registry
from paceline.records.harm import harm
from paceline.records.optimum import PARTS, UNKNOWN, over_best
from paceline.records.reading import LEDGER
from paceline.records.segments import Stretch, choice_of, name_of
from paceline.records.summary import Summary, last_logged, metric_text, metrics_of

SHOWN = 16  # workers that a table has a line for each of
COPIES = {"to_device": "copies to the device", "from_device": "copies from the device"}
OVERLAP = "These copies overlap the other times and add nothing to them."
WIDE = 1000  # columns, for output that no terminal shows


def print_summary(summary: Summary, folder: Path) -> None:
    """Print the summary of one run."""
    console = Console(highlight=False)
    for shown in ("", *_head(summary), *_of_workers(summary), *_results(summary), *_kept(folder)):
        console.print(shown, markup=False, soft_wrap=isinstance(shown, str))


def _head(summary: Summary) -> Iterator[str]:
    """Yield how the run ended, and how far and how fast it came."""
    if summary["outcome"] != "completed":
        early = " before the first step" if summary["outcome"] == "interrupted" and not summary["steps"] else ""
        yield summary["outcome"] + early + (f": {summary['error']}" if summary["error"] else "")
    rate = summary["samples_per_second"]
    yield (
        f"{name_of(summary['protocol'], registry())} · "
        + (f"{summary['compress']} · " if "compress" in summary else "")
        + f"{_strength(summary)} · {summary['wall_seconds']:.1f} s · "
        f"{summary['steps']} steps in {summary['versions']} versions · {summary['steps_per_second']:.1f} steps/s"
        + ("" if rate is None else f" · {rate:.0f} samples/s")
        + (f" · {count(summary['samples_missed'], 'sample')} not trained on" if summary["samples_missed"] else "")
    )
    if summary["segments"] > 1:
        yield _resumed(summary["segments"], summary["undone"])


def _of_workers(summary: Summary) -> Iterator[str | Table]:
    """Yield tables with a row for each worker, and what they don't show."""
    rows, per_host = summary["per_worker"], summary.get("per_host", ())
    if not rows:
        return
    hosts = {worker: one["host"] for one in per_host for worker in one["workers"]}
    yield _workers(rows[:SHOWN], hosts)
    if copied(rows):
        yield _copies(rows[:SHOWN])
        yield OVERLAP
    for one in per_host:
        if not one["workers"]:
            did = "and took no part" if summary["consensus"] else "and made a part of every version"
            yield f"host {one['host']} had no workers, {did}"
    if rest := rows[SHOWN:]:
        yield f"and {len(rest)} more workers, with {_between([row['steps'] for row in rest])} steps each"
    if summary["samples_per_second"] is None and summary["workers"] > 1:
        steps = _between([row["steps"] for row in rows])
        yield f"no samples were counted: each of the {summary['workers']} workers ran a loop of its own, {steps} steps"


def _results(summary: Summary) -> Iterator[str]:
    """Yield staleness, metrics, logged values and targets."""
    stale = summary["staleness"]
    if stale["mean"] is not None:
        yield f"staleness: mean {stale['mean']:.2f}, max {stale['max']} versions"
    distance = summary["consensus"][-1]["distance"] if summary["consensus"] else None
    if distance is not None:
        yield f"consensus: the replicas were {distance:.4g} from their mean, the last version"
    if summary["evaluations"]:
        last = summary["evaluations"][-1]
        metrics = ", ".join(f"{name} {metric_text(last[name])}" for name in metrics_of([last]))
        yield f"version {last['version']}, the last: {metrics}"
    logged = last_logged(summary)
    together: dict[tuple[int, int], list[str]] = {}
    for metric, last in logged.items():
        together.setdefault((last["version"], last["worker"]), []).append(f"{metric} {metric_text(last['value'])}")
    for (version, worker), values in together.items():
        yield f"version {version}, as worker {worker} logged it last: {listed(values)}"
    if summary["protocol"]["name"] in registry():  # a baseline is none
        yield from filter(None, [" ".join(harm(summary, choice_of(summary, registry())))])
    known = ", ".join(sorted({*metrics_of(summary["evaluations"]), *logged}))
    none = "none, as the script registers no evaluate and logs none of them"
    if summary["outcome"] != "completed":
        none = "none; evaluate measures the versions of a training that was completed"
    for target, met in summary["targets"].items():
        missed = f"not met; metrics: {known or none}"
        yield f"{target}: " + (f"after {met['at_seconds']:.1f} s" if met else missed)


def _kept(folder: Path) -> Iterator[str]:
    """Yield what the folder has, unless it was removed meanwhile."""
    ledger = "the ledger, " if (folder / LEDGER).exists() else ""  # a baseline has none
    if folder.exists():
        yield f"{folder}: {ledger}the recorded versions, the workers' logs"


def _resumed(segments: int, undone: Mapping[str, Any]) -> str:
    """Say how often the run was resumed, and what that undid."""
    times = f"resumed {count(segments - 1, 'time')}"
    if not any(undone.values()):
        return f"{times}; nothing was undone"
    return f"{times}; undone: {Stretch(**undone)}"


def print_comparison(summaries: Sequence[Summary]) -> None:
    """Print one line for each summary. A protocol is shown with the parameters that differ from their defaults."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("\nprotocol", overflow="fold")
    two_lines = ("steps\n/s", "samples\n/s", "versions\n/s", "\nwaiting", "\ntransfer")
    for column in (*two_lines, "stale\nmean", "stale\np95", "stale\nmax", "\nlead", "×\nbest"):
        table.add_column(column, justify="right", no_wrap=True)
    for summary in summaries:
        rows, stale = summary["per_worker"], summary["staleness"]
        table.add_row(
            name_of(summary["protocol"], registry()),
            _number(summary["steps_per_second"]),
            _number(summary["samples_per_second"]),
            _number(summary["versions"] / summary["wall_seconds"] if summary["wall_seconds"] else None),
            _share_of_all(rows, "wait"),
            _share_of_all(rows, "transfer"),
            _number(stale["mean"]),
            _number(percentile(stale["histogram"], 0.95)),
            _number(stale["max"]),
            _number(max((row["max_lead"] for row in rows), default=None)),
            "-" if (best := over_best(summary)) is None else f"{best:.2f}",
        )
    # Without a terminal there is no width to keep to: no protocol's name is broken into lines.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(table)
    if None in map(over_best, summaries):
        console.print(UNKNOWN, markup=False, soft_wrap=True)
    for summary in summaries:
        if summary["outcome"] != "completed":
            why = f": {summary['error']}" if summary["error"] else ""
            name = name_of(summary["protocol"], registry())
            console.print(f"{name}: {summary['outcome']}{why}", markup=False, soft_wrap=True)


def percentile(histogram: Mapping[str, int], share: float) -> int | None:
    """Return the least value that at least this share of all values does not exceed; None if there are no values."""
    below, total = 0, sum(histogram.values())
    for value, times in sorted((int(value), times) for value, times in histogram.items()):
        below += times
        if below >= share * total:
            return value
    return None


def _strength(summary: Summary) -> str:
    """Say how many workers trained to the end: `4 workers`, `3 of 4 workers`."""
    workers = summary["workers"]
    rows = [row for row in summary["per_worker"] if row["worker"] < workers]  # a resumed run may have had more before
    dead = sum(row["left"] is not None and row["left"]["reason"] == "died" for row in rows)
    # Those that ended before training began have no row.
    lost = dead + (workers - len(rows) if rows else 0)
    noun = "worker" if workers == 1 else "workers"
    return f"{workers - lost} of {workers} {noun}" if lost else f"{workers} {noun}"


def _share_of_all(rows: list[dict[str, Any]], part: str) -> str:
    """Return a part of all workers' time, in percent."""
    total = sum(row[f"{name}_seconds"] for row in rows for name in PARTS)
    return f"{sum(row[f'{part}_seconds'] for row in rows) / total:.1%}" if total else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _between(counts: Sequence[int]) -> str:
    """`50`, or `48 to 52`."""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _workers(rows: list[dict[str, Any]], hosts: Mapping[int, str]) -> Table:
    """Return a table with a row for each worker. `hosts`: by worker, in a run on several hosts."""
    numbers = ("steps", "computing", "waiting", "transfer", "other", "lead")
    table = Table(*(["host"] if hosts else []), "worker", *numbers, "left", box=None)
    for column in table.columns[-1 - len(numbers) : -1]:
        column.justify = "right"
    for row in rows:
        left = row["left"]
        table.add_row(
            *([hosts.get(row["worker"], "")] if hosts else []),
            str(row["worker"]),
            str(row["steps"]),
            *(share(row, part) for part in PARTS),
            str(row["max_lead"]),
            left["reason"] if left else "",
        )
    return table


def _copies(rows: list[dict[str, Any]]) -> Table:
    """Return a table with a row for each worker. One table with all columns would be wider than a terminal."""
    table = Table("worker", box=None)
    for heading in COPIES.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(str(row["worker"]), *(share(row, part) for part in COPIES))
    return table


def copied(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the headings of the columns for copies to and from devices, by name; empty if there were none.

    Copies overlap the parts of workers' time. The shares of the parts alone add up to 100 %.
    """
    return COPIES if any("to_device_seconds" in row for row in rows) else {}


def share(row: dict[str, Any], part: str) -> str:
    """Return a part of one worker's time, or its copies, in percent of its whole time."""
    total: float = sum(row[f"{name}_seconds"] for name in PARTS)
    seconds = row[f"{part}_seconds"]
    return f"{seconds / total:.0%}" if total and seconds is not None else "-"
