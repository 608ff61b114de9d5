"""Summaries as tables, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.core.choice import written
from paceline.records.summary import Summary


def print_summary(summary: Summary, folder: Path) -> None:
    """What came of one run."""
    console = Console(highlight=False)
    console.print()
    if summary["outcome"] != "completed":
        why = f": {summary['error']}" if summary["error"] else ""
        console.print(f"{summary['outcome']}{why}", markup=False, soft_wrap=True)
    rate = summary["samples_per_second"]
    workers = "1 worker" if summary["workers"] == 1 else f"{summary['workers']} workers"
    console.print(
        f"{_protocol(summary)} · {workers} · {summary['wall_seconds']:.1f} s · "
        f"{summary['steps']} steps in {summary['versions']} versions · {summary['steps_per_second']:.1f} steps/s"
        + ("" if rate is None else f" · {rate:.0f} samples/s")
        + (f" · {summary['samples_missed']} samples missed" if summary["samples_missed"] else ""),
        markup=False,
        soft_wrap=True,
    )
    if summary["per_worker"]:
        console.print(_workers(summary["per_worker"]))
    stale = summary["staleness"]
    if stale["mean"] is not None:
        console.print(f"staleness: mean {stale['mean']:.2f}, max {stale['max']} versions")
    if summary["evaluations"]:
        last = dict(summary["evaluations"][-1])
        version = last.pop("version")
        metrics = ", ".join(f"{k} {v:.4g}" for k, v in last.items() if k not in ("at_seconds", "samples"))
        console.print(f"version {version}, the last: {metrics}", markup=False)
    known = sorted({name for row in summary["evaluations"] for name in row} - {"version", "at_seconds", "samples"})
    for target, met in summary["targets"].items():
        missed = f"not met; metrics: {', '.join(known) or 'none, as the script registers no evaluate'}"
        console.print(f"{target}: " + (f"after {met['at_seconds']:.1f} s" if met else missed), markup=False)
    console.print(f"{folder}: the ledger, the recorded versions, the workers' logs", markup=False, soft_wrap=True)


def _workers(rows: list[dict[str, Any]]) -> Table:
    table = Table("worker", "steps", "computing", "waiting", "transfer", "other", "lead", "left", box=None)
    for column in table.columns[1:7]:
        column.justify = "right"
    for row in rows:
        left = row["left"]
        table.add_row(
            str(row["worker"]),
            str(row["steps"]),
            *(share(row, part) for part in ("compute", "wait", "transfer", "other")),
            str(row["max_lead"]),
            left["reason"] if left else "",
        )
    return table


def share(row: dict[str, Any], part: str) -> str:
    """A part of one worker's time, in percent of all of it."""
    parts = ("compute", "wait", "transfer", "other")
    total: float = sum(row[f"{name}_seconds"] for name in parts)
    return f"{row[f'{part}_seconds'] / total:.0%}" if total else "-"


def _protocol(summary: Summary) -> str:
    name, config = str(summary["protocol"]["name"]), summary["protocol"]["config"]
    return name + (":" + ",".join(f"{key}={written(value)}" for key, value in config.items()) if config else "")
