"""A comparison's results as a table: for a terminal, as Markdown and CSV, and for a notebook."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.cli.columns import as_markdown
from paceline.core.phrases import count
from paceline.records.comparison import COMPARISON, LEAST
from paceline.records.comparison_rows import rows_of
from paceline.records.optimum import UNKNOWN
from paceline.records.summary import Target
from paceline.records.verdict import verdict
from paceline.runs import baseline

REPORT = "report.html"
MEAN = {"": "mean", "_plus_minus": "plus_minus", "_low": "low", "_high": "high"}
"""The columns of a mean in CSV: the suffix of its name, and the key in `compare.json`."""


def markdown(state: Mapping[str, Any], folder: Path) -> str:
    """Return the table with the remarks below it."""
    heads, rows = rows_of(state)
    return as_markdown(heads, rows, heads[1:]) + "".join(f"\n{line}\n" for line in remarks(state, folder))


def numbers(state: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings, and a row of numbers for each protocol. A missing number is an empty cell.

    A mean has four columns: itself, half its 95 % interval, and the least and the greatest value.
    """
    metric = state["metric"]
    rows: list[dict[str, Any]] = []
    for row in state["protocols"]:
        cells = {"protocol": row["protocol"], **{key: row[key] for key in ("runs", "diverged", "never")}}
        means = {
            "seconds": row["seconds"],
            "samples_per_second": row["samples_per_second"],
            **({metric: row["final"]} if metric else {}),
            "waiting": row["waiting"],
            "stale": row["staleness"]["mean"],
            "over_best": row.get("over_best"),
        }
        for name, mean in means.items():
            cells |= {f"{name}{end}": (mean or {}).get(part) for end, part in MEAN.items()}
        last = {"max_stale": row["staleness"]["max"], "learning_rate_scale": row["learning_rate_scale"]}
        rows.append({**cells, "speed_up": row["speed_up"], **last})
    heads = list(rows[0])
    return heads, [["" if row[head] is None else str(row[head]) for head in heads] for row in rows]


def remarks(state: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the remarks below the table. The last ones are the verdict."""
    settings, rows = state["settings"], state["protocols"]
    if settings["target"]:
        yield f"seconds: until {settings['target']}; {state['metric']}: of the last version"
    if 1 < len(settings["seeds"]) < LEAST:
        yield (
            f"{count(len(settings['seeds']), 'seed')}: each range is that of its runs, and decides nothing; "
            f"--seeds {LEAST} or more gives intervals"
        )
    elif len(settings["seeds"]) > 1:
        yield f"± is half of the 95 % interval of the mean over {count(len(settings['seeds']), 'seed')} (Student's t)"
    if any(row.get("over_best") for row in rows):
        yield "× best: the run's time over that of the best method for workers this fast; paceline explain says more"
        if not all(row.get("over_best") for row in rows):
            yield UNKNOWN
    scaled: dict[float, list[str]] = {}
    for row in rows:
        scaled.setdefault(row["learning_rate_scale"], []).append(row["protocol"])
    scaled.pop(1.0, None)
    if scaled:
        times = " and ".join(f"{factor:g} times the script's under {', '.join(of)}" for factor, of in scaled.items())
        yield f"learning rates (--learning-rate-rule linear): {times}; the script's own under the others"
    else:
        yield f"learning rates (--learning-rate-rule {settings['learning_rate_rule']}): the script's own"
    if any(row["protocol"] == baseline.NAME for row in rows):
        yield f"{baseline.NAME}: plain DistributedDataParallel over gloo, for comparison; {REPORT} does not have it"
    for row in rows:
        if row["diverged"]:
            yield f"{row['protocol']}: {row['diverged']} of {count(row['runs'], 'run')} diverged"
    yield f"{folder}: {COMPARISON}, {REPORT}, and a folder for each run"
    yield from verdict_of(state)


def verdict_of(state: Mapping[str, Any]) -> list[str]:
    """Return the comparison's verdict."""
    settings = state["settings"]
    runs: dict[str, dict[Hashable, Mapping[str, Any]]] = {}
    for run in state["runs"]:
        runs.setdefault(run["protocol"], {})[run["seed"]] = run
    target = Target.parse(settings["target"]) if settings["target"] else None
    return verdict(runs, target, state["metric"], stops="stop_at_target" in settings)
