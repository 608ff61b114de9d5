"""A run that was made, as a Python object: what its folder says, read when it is asked for."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.report import PAGE
from paceline.notebook.page import Page
from paceline.notebook.tables import Frame, as_frame, table
from paceline.protocols import registry
from paceline.records.ledger import connect
from paceline.records.optimum import PARTS
from paceline.records.reading import LEDGER, open_run, reading
from paceline.records.summary import MOMENT, Outcome, Summary, metric_text, metrics_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from paceline.records.check import Checked

SHOWN = 16
"""Workers that a notebook's table has a row for each of."""
FACTS = ("id", "at", "kind", "worker", "step", "version", "body")
SCALARS = ("worker", "step", "at", "name", "value")


class Run:
    """A run that was made, real or simulated: its folder's summary, tables and final parameters.

    `paceline.run` returns one. `paceline.Run(folder)` opens any other run's folder, such as one that the command line
    or `paceline.simulate(..., out=folder)` has made. In a notebook a run shows itself as a table.

    Args:
        folder: The run's folder.

    Raises:
        ConfigError: In one line, if it is no run's folder, or its run is still going on.

    Example:
        >>> import paceline
        >>> run = paceline.Run(folder)
        >>> run
        <Run of bsp: completed, 2 workers, 4 steps in 2.0 virtual s>
        >>> run.folder.name, run.status, run.summary["staleness"]["max"]
        ('kept', 'completed', 0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from paceline.records.report.contents import summary_of

        run = open_run(Path(folder).absolute(), registry())
        with closing(run.ledger), reading(run.folder):
            self._folder = run.folder
            self._config = dict(run.config)
            self._protocol = run.choice.name
            self._simulated = run.simulated
            self._summary = summary_of(run)

    @property
    def folder(self) -> Path:
        """The run's folder, as an absolute path."""
        return self._folder

    @property
    def status(self) -> Outcome:
        """How the run ended: `completed`, `interrupted`, `failed`, `diverged`, or `crashed` if it had no time to say.

        Example:
            >>> paceline.Run(folder).status
            'completed'
        """
        status: Outcome = self._summary["outcome"]
        return status

    @property
    def summary(self) -> Summary:
        """What the run came to, as `summary.json` has it: a dict. Times are seconds, virtual ones of a simulation.

        A run that crashed has no such file. Its summary is of what the ledger has.

        Example:
            >>> paceline.Run(folder).summary["per_worker"][1]["steps"]
            2
        """
        return self._summary

    @property
    def config(self) -> dict[str, Any]:
        """All that the run was made with, every default filled in, as `config.toml` has it.

        Example:
            >>> paceline.Run(folder).config["protocol"]
            {'name': 'bsp', 'config': {}}
        """
        return self._config

    def scalars(self, frame: Frame | None = None) -> Any:
        """Return what the workers logged with `paceline.log`, one row for each value.

        Columns: `worker`, `step`, `at` (seconds since the run's start), `name`, `value`.

        Args:
            frame: `"pandas"`, `"polars"`, or `"rows"` for a list with a dict for each row. By default a pandas data
                frame if pandas is installed, else a polars one, else rows.

        Raises:
            ConfigError: If the library that `frame` names is not installed.

        Example:
            >>> paceline.Run(folder).scalars("rows")
            []
        """
        return self._table(SCALARS, "scalars", "rowid", frame)

    def facts(self, frame: Frame | None = None) -> Any:
        """Return every event that the coordinator saw, in its order, one row each.

        Columns: `id`, `at` (seconds since the run's start), `kind`, `worker`, `step`, `version`, and `body`, which has
        every field of the event as JSON. A value that the event does not have is missing.

        Args:
            frame: As in `scalars`.

        Raises:
            ConfigError: If the library that `frame` names is not installed.

        Example:
            >>> [row["kind"] for row in paceline.Run(folder).facts("rows")[:3]]
            ['TrainingBegan', 'ParametersTaken', 'ParametersTaken']
        """
        return self._table(FACTS, "facts", "id", frame)

    def evaluations(self, frame: Frame | None = None) -> Any:
        """Return what `evaluate` said of each recorded version, one row each.

        Columns: `version`, `at_seconds` (when it was made), `samples` (in it and all before it), and one for each
        metric.

        Args:
            frame: As in `scalars`.

        Raises:
            ConfigError: If the library that `frame` names is not installed.

        Example:
            >>> paceline.Run(folder).evaluations("rows")
            []
        """
        rows = self._summary["evaluations"]
        names = (*MOMENT, *metrics_of(rows))
        return as_frame({name: [row.get(name) for row in rows] for name in names}, frame)

    def check(self) -> Checked:
        """Verify the run's ledger, as `paceline check` does.

        Returns:
            `ok`, whether everything is as it must be; `wrong`, the first inconsistency; `proved`, a line for each
            thing that was verified; `counts`.

        Example:
            >>> paceline.Run(folder).check().ok
            True
        """
        from paceline.runs.check import checked_run

        return checked_run(self._folder)[1]

    def explain(self, worker: int | None = None, step: int | None = None) -> str:
        """Say where the run's time went, as `paceline explain` does: sentences, a line each.

        Args:
            worker: Say it of this worker.
            step: Say it of this step, of all workers or of `worker`.

        Raises:
            ConfigError: If there is no such worker or step.

        Example:
            >>> print(paceline.Run(folder).explain(worker=0).splitlines()[0])
            Worker 0 was in the run for 2.0 s: 100 % computing, 0 % waiting, 0 % transferring, 0 % other things.
        """
        from paceline.records.explain.findings import findings
        from paceline.records.explain.sentences import sentences

        run = open_run(self._folder, registry())
        with closing(run.ledger), reading(self._folder):
            return "\n".join(sentences(findings(run, worker, step)))

    def report(self, out: str | os.PathLike[str] | None = None) -> Page:
        """Write the page that `paceline report` writes, and return it. In a notebook it shows itself.

        Args:
            out: The file (default: `report.html` in the run's folder).

        Raises:
            ConfigError: In one line, if the file can't be written.

        Example:
            >>> paceline.Run(folder).report().path.name
            'report.html'
        """
        from paceline.runs.report import report

        path = self._folder / PAGE if out is None else Path(out).absolute()
        report([self._folder], path, lambda line: None)
        return Page(path)

    def plot(self, metric: str | None = None) -> Figure:
        """Return a Matplotlib figure of a metric over time. In a notebook it shows itself.

        Needs the extra `paceline[report]`.

        Args:
            metric: What `evaluate` returns or the script logs (default: the first; without any, the steps made).

        Raises:
            ConfigError: In one line, if Matplotlib is not installed, or there is no such metric.

        Example:
            >>> run.plot("accuracy").savefig("accuracy.png")  # doctest: +SKIP
        """
        from paceline.runs.report import plot

        return plot([self._folder], metric)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the final parameters and buffers by the script's own names, on the CPU.

        A name that is tied to another has no entry of its own: load with `strict=False` then.

        Raises:
            ConfigError: If the run recorded no version.

        Example:
            >>> model.load_state_dict(run.state_dict())  # doctest: +SKIP
        """
        from paceline.errors import ConfigError
        from paceline.files import opened_record

        file = self._folder / "versions" / "final.safetensors"
        try:
            opened_record(file).close()
        except OSError:
            why = f"the run recorded no final version; {self.status}, it has none to load"
            raise ConfigError(f"{self._folder}: {why}") from None
        from safetensors.torch import load_file

        return load_file(file)

    def __repr__(self) -> str:
        return f"<Run of {self._title()}>"

    def _repr_html_(self) -> str:
        """The run as a notebook shows it: one row for each worker."""
        rows = self._summary["per_worker"]
        from paceline.cli.table import OVERLAP, copied

        copies = copied(rows)
        heads = ("worker", "steps", "computing", "waiting", "transfer", "other", *copies.values(), "max lead", "left")
        remarks = [f"and {len(rows) - SHOWN} more workers"] if len(rows) > SHOWN else []
        if copies:
            remarks.append(OVERLAP)
        if self._summary["error"]:
            remarks.append(str(self._summary["error"]))
        if evaluations := self._summary["evaluations"]:
            last = evaluations[-1]
            metrics = ", ".join(f"{name} {metric_text(last[name])}" for name in metrics_of([last]))
            remarks.append(f"version {last['version']}, the last: {metrics}")
        return table(self._title(), heads, map(_cells, rows[:SHOWN]), [*remarks, str(self._folder)])

    def _title(self) -> str:
        summary = self._summary
        unit = "virtual s" if self._simulated else "s"
        workers = f"{summary['workers']} worker{'' if summary['workers'] == 1 else 's'}"
        done = f"{summary['steps']} steps in {summary['wall_seconds']:.1f} {unit}"
        return f"{self._protocol}: {self.status}, {workers}, {done}"

    def _table(self, columns: tuple[str, ...], name: str, order: str, kind: Frame | None) -> Any:
        with reading(self._folder), closing(connect(self._folder / LEDGER)) as ledger:
            rows = ledger.execute(f"SELECT {', '.join(columns)} FROM {name} ORDER BY {order}").fetchall()
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        return as_frame({column: list(of) for column, of in zip(columns, values, strict=True)}, kind)


def _cells(row: dict[str, Any]) -> list[str]:
    from paceline.cli.table import copied, share

    parts = [share(row, part) for part in (*PARTS, *copied([row]))]
    left = row["left"]["reason"] if row["left"] else ""
    return [str(row["worker"]), str(row["steps"]), *parts, str(row["max_lead"]), left]
