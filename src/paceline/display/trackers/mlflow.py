"""MLflow. Its own variables hold: `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME` and others."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence

from paceline.ipc.messages.tracker import End, Open, RunOpened, Values

STATES = {"completed": "FINISHED", "interrupted": "KILLED"}
"""By outcome. All others have failed."""
METRICS, PARAMETERS, TAGS = 1000, 100, 100
"""The most that MLflow takes at once."""
LONGEST = 250
"""Characters of a name."""
SQL = ("sqlite", "postgresql", "mysql", "mssql")


def needs(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the packages that this takes. Unless the user says where, MLflow keeps runs in a file of SQLite's."""
    kept_in = environ.get("MLFLOW_TRACKING_URI") or "sqlite"
    return ("mlflow", "sqlalchemy", "alembic") if kept_in.startswith(SQL) else ("mlflow",)


class MLflow:
    """See `contract.Tracker`."""

    def open(self, order: Open) -> RunOpened:
        """Without MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID the experiment has the script's name."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if order.before is None:
            run = self._client.create_run(
                os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment(order.project),
                run_name=order.name,
                tags={
                    "mlflow.source.name": order.script,
                    **({} if order.group is None else {"paceline.group": order.group}),
                },
            )
        else:
            run = self._client.get_run(order.before)
            self._client.update_run(order.before, status="RUNNING")
        self._run = str(run.info.run_id)
        self._write_parameters(order.parameters, run.data.params)
        kept_in = self._client.tracking_uri
        page = f"/#/experiments/{run.info.experiment_id}/runs/{self._run}"
        where = f"{kept_in}{page}" if kept_in.startswith("http") else f"{kept_in}, run {self._run}"
        return RunOpened(self._run, where)

    def log(self, rows: Sequence[Values]) -> None:
        """Each value has its own step, which means what its axis says."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_named(name), value, round(1000 * row.at), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for first in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + METRICS])

    def end(self, order: End) -> None:
        """Results that are numbers become metrics, the others tags."""
        numbers = {name: float(value) for name, value in order.results.items() if isinstance(value, int | float)}
        self.log([Values("", 0, time.time(), numbers)])
        words = {name: value for name, value in order.results.items() if name not in numbers}
        for name, value in {"outcome": order.outcome, **words}.items():
            self._client.set_tag(self._run, f"paceline.{_named(name)}", value)
        self._client.set_terminated(self._run, STATES.get(order.outcome, "FAILED"))

    def _experiment(self, project: str) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or project
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _write_parameters(self, parameters: Mapping[str, object], before: Mapping[str, str]) -> None:
        """A parameter can't be changed in MLflow. One that a run goes on with differently becomes a tag."""
        from mlflow.entities import Param, RunTag

        named = {_named(name): str(value) for name, value in parameters.items()}
        new = [Param(name, value) for name, value in named.items() if name not in before]
        for first in range(0, len(new), PARAMETERS):
            self._client.log_batch(self._run, params=new[first : first + PARAMETERS])
        changed = [
            RunTag(f"paceline.{name}", value) for name, value in named.items() if before.get(name, value) != value
        ]
        for first in range(0, len(changed), TAGS):
            self._client.log_batch(self._run, tags=changed[first : first + TAGS])


def _named(name: str) -> str:
    """Return the name as MLflow takes it. One name that it refuses loses all that is sent with it.

    Some characters become a `_`, and so does each part between slashes that a path can't have as it is. A long name
    loses its middle: the worker's number stands at the end.

    >>> _named("loss//a@b"), _named("../acc")
    ('loss/_/a_b', '_/acc')
    """
    parts = re.sub(r"[^\w./ :-]", "_", name).split("/")
    told = "/".join("_" if part in ("", ".", "..") else part for part in parts)
    return told if len(told) <= LONGEST else f"{told[: LONGEST // 2]}{told[-(LONGEST // 2) :]}"
