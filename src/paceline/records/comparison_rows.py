"""A comparison's results in rows of text, for terminals, notebooks, Markdown and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows_of(state: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings, and a row for each protocol."""
    rows, metric = state["protocols"], state["metric"]
    never = any(row["never"] and row["runs"] > 1 for row in rows)
    heads = ["seconds", "speed-up", *(["never"] if never else []), "samples/s", *([metric] if metric else [])]
    known = any(row.get("over_best") for row in rows)
    return ["protocol", *heads, "waiting", "stale", "max stale", *(["× best"] if known else [])], [
        [
            row["protocol"],
            _written(row["seconds"], ".1f"),
            "-" if row["speed_up"] is None else f"{row['speed_up']:.2f}",
            *([f"{row['never']} of {row['runs']}"] if never else []),
            _written(row["samples_per_second"], ".0f"),
            *([_written(row["final"], ".4g", ".2g")] if metric else []),
            "-" if row["waiting"] is None else f"{row['waiting']['mean']:.0%}",
            _written(row["staleness"]["mean"], ".2f"),
            "-" if row["staleness"]["max"] is None else str(row["staleness"]["max"]),
            *([_written(row.get("over_best"), ".2f")] if known else []),
        ]
        for row in rows
    ]


def _written(value: Mapping[str, Any] | None, form: str, spread: str | None = None) -> str:
    """Format a mean with half of its interval. Of two runs, format the range."""
    if value is None:
        return "-"
    half = value["plus_minus"]
    if half is None and value["runs"] > 1:
        return f"{value['low']:{form}} to {value['high']:{form}}"
    return f"{value['mean']:{form}}" + ("" if half is None else f" ± {half:{spread or form}}")
