"""Runs of one script under several protocols, as a Python object."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.report import PAGE
from paceline.errors import ConfigError
from paceline.files import read_file
from paceline.notebook.page import Page
from paceline.notebook.recorded import Run
from paceline.notebook.tables import Frame, as_frame, table
from paceline.records.comparison import COMPARISON, runs_of
from paceline.records.reading import LEDGER

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Comparison:
    """A comparison that was made: its runs, and one row for each protocol.

    `paceline.compare` returns one. `paceline.Comparison(folder)` opens a folder that `paceline compare` has made. In a
    notebook a comparison shows itself as its table.

    Args:
        folder: The comparison's folder.

    Raises:
        ConfigError: In one line, if it is no comparison's folder, or none of its runs has ended.

    Example:
        >>> both = paceline.Comparison("runs/compare-20260801-101500")  # doctest: +SKIP
        >>> [run.status for run in both.runs]  # doctest: +SKIP
        ['completed', 'completed']
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()
        self._runs = runs_of(self._folder)
        self._summary: dict[str, Any] = json.loads(read_file(self._folder / COMPARISON))

    @property
    def folder(self) -> Path:
        """The comparison's folder, as an absolute path."""
        return self._folder

    @property
    def summary(self) -> dict[str, Any]:
        """All that the comparison knows, as `compare.json` has it: settings, runs, and protocols with intervals."""
        return self._summary

    @cached_property
    def runs(self) -> list[Run]:
        """Its runs, protocol by protocol, in the order of their seeds."""
        return [Run(folder) for folder in self._runs]

    def table(self, frame: Frame | None = None) -> Any:
        """Return one row for each protocol. A value is the mean over its runs.

        Columns: `protocol`, `runs`, `seconds` (to the target, or else of the whole run), `speed_up` (against the first
        protocol), `samples_per_second`, the metric under its own name, `waiting` (a share, 0 to 1), `staleness`,
        `max_staleness`, `never` (runs that did not come to the target) and `diverged`. `seconds_plus_minus` is half of
        the 95 % interval, of three runs or more. A value that is not known is missing.

        Args:
            frame: `"pandas"`, `"polars"`, or `"rows"`, as in `Run.scalars`.

        Raises:
            ConfigError: If the library that `frame` names is not installed.

        Example:
            >>> both.table("rows")[0]["protocol"]  # doctest: +SKIP
            'bsp'
        """
        rows = [self._row(row) for row in self._summary["protocols"]]
        return as_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, frame)

    def report(self, out: str | os.PathLike[str] | None = None) -> Page:
        """Write the page that `paceline report` writes, and return it. In a notebook it shows itself.

        Args:
            out: The file (default: `report.html` in the comparison's folder).

        Raises:
            ConfigError: In one line, if the file can't be written.

        Example:
            >>> both.report("both.html")  # doctest: +SKIP
            <Page /home/me/both.html>
        """
        from paceline.runs.report import report

        path = self._folder / PAGE if out is None else Path(out).absolute()
        self._with_ledgers()
        report([self._folder], path, lambda line: None)
        return Page(path)

    def plot(self, metric: str | None = None) -> Figure:
        """Return a Matplotlib figure of a metric over time, with a curve for each run. In a notebook it shows itself.

        Needs the extra `paceline[report]`.

        Args:
            metric: What `evaluate` returns or the script logs (default: the first; without any, the steps made).

        Raises:
            ConfigError: In one line, if Matplotlib is not installed, or there is no such metric.

        Example:
            >>> both.plot("accuracy").savefig("accuracy.png")  # doctest: +SKIP
        """
        from paceline.runs.report import plot

        return plot(self._with_ledgers(), metric)

    def _with_ledgers(self) -> list[Path]:
        """Return the folders of all runs but the baseline's, which has no ledger."""
        if shown := [folder for folder in self._runs if (folder / LEDGER).exists()]:
            return shown
        raise ConfigError(f"{self._folder}: plain DDP has no ledger to show; compare it with a protocol")

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(row['protocol'] for row in self._summary['protocols'])}>"

    def _repr_html_(self) -> str:
        """The comparison as a notebook shows it: the table that `paceline compare` prints."""
        from paceline.cli.comparison_table import remarks
        from paceline.records.comparison_rows import rows_of

        heads, rows = rows_of(self._summary)
        return table(repr(self).strip("<>"), heads, rows, remarks(self._summary, self._folder))

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        seconds, metric = row["seconds"], self._summary["metric"]
        return {
            "protocol": row["protocol"],
            "runs": row["runs"],
            "seconds": _mean(seconds),
            "seconds_plus_minus": None if seconds is None else seconds["plus_minus"],
            "speed_up": row["speed_up"],
            "samples_per_second": _mean(row["samples_per_second"]),
            **({metric: _mean(row["final"])} if metric else {}),
            "waiting": _mean(row["waiting"]),
            "staleness": _mean(row["staleness"]["mean"]),
            "max_staleness": row["staleness"]["max"],
            "never": row["never"],
            "diverged": row["diverged"],
        }


def _mean(value: Mapping[str, Any] | None) -> float | None:
    return None if value is None else value["mean"]
