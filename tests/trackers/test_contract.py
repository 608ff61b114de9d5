"""What holds for each tracker, read back by the tracker's own means. Another one has to pass these tests as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from paceline.display.trackers import TRACKERS
from support.events import LONG
from support.tracker_readers import Tracked

SESSIONS = Path(__file__).with_name("sessions.py")


@dataclass
class Sessions:
    """What the tracker has of the sessions that `sessions.py` writes."""

    ids: list[str]
    first: Tracked
    """After the first session, which completes."""
    resumed: Tracked
    """After a second session, which goes on with it, and diverges."""
    other: Tracked
    """Of another run, which is interrupted."""


@cache
def sessions(name: str, folder: Path) -> Sessions:
    """Each tracker is asked once: to import its library takes seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, sys.path)]),
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": str(folder / "mlruns"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, str(SESSIONS), name, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    ids, found = json.loads(done.stdout.splitlines()[-1])
    return Sessions(ids, *(Tracked(*one) for one in found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trackers")


IMPORTED_SLOWLY = ("mlflow",)
"""Their import alone takes as long as a real run."""
EACH = [pytest.param(name, marks=[pytest.mark.real_run] if name in IMPORTED_SLOWLY else []) for name in TRACKERS]


@pytest.fixture(params=EACH)
def written(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Sessions]:
    return request.param, sessions(request.param, folder)


Written = tuple[str, Sessions]


def texts(parameters: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items() if name[0] != "_"}  # `_wandb` is wandb's own


def test_a_run_has_its_name_its_project_and_the_comparison_that_it_belongs_to(written: Written) -> None:
    name, found = written
    if name == "tensorboard":  # there a run's name and group are the folders that it is in
        assert found.ids[0].endswith("/tensorboard")
    else:
        assert (found.first.name, found.first.project, found.first.group) == ("ssp-1", "digits", "compare-1")
        assert (found.other.name, found.other.group) == ("ssp-2", None)


def test_parameters_are_there_under_their_flat_names(written: Written) -> None:
    _, found = written
    expected = {"protocol/name": "ssp", "protocol/bound": "3", "optimizer/lr": "0.5", "resumes": "True"}
    assert texts(found.first.parameters) == expected


def test_each_value_is_there_with_its_own_step_in_whatever_order_steps_come(written: Written) -> None:
    name, found = written
    odd = "odd name _1/worker-0" if name == "mlflow" else "odd name @1/worker-0"
    series = {of: [tuple(one) for one in values] for of, values in found.first.series.items()}
    assert sorted(series.pop("accuracy")) == [(4, 0.5), (8, 0.75)]
    assert series.pop("paceline/staleness") == [(step, float(step)) for step in range(1, 1201)]
    usual = {"loss/worker-0": [(4, 0.5)], "loss/worker-1": [(3, 0.25)], odd: [(4, 2.0)]}
    assert {of: values for of, values in series.items() if of in usual} == usual


def test_a_name_that_the_tracker_refuses_is_written_in_another_way_and_loses_nothing_beside_it(
    written: Written,
) -> None:
    _, found = written
    refused = [values for values in found.first.series.values() if [tuple(one) for one in values] == [(4, 3.0)]]
    assert len(refused) == 4
    assert found.other.ends, "a project that is called as a script may be"


def test_a_run_ends_with_its_results_as_what_it_has_come_to(written: Written) -> None:
    name, found = written
    assert found.first.results["final/wall_seconds"] == 2.5
    assert found.first.results["final/steps"] == 1200
    assert found.first.results["outcome"] == "completed"
    assert found.other.results["outcome"] == "interrupted"
    completed, diverged, interrupted = {
        "tensorboard": ("completed", "diverged", "interrupted"),
        "wandb": ("0", "1", "1"),
        "mlflow": ("FINISHED", "FAILED", "KILLED"),
    }[name]
    assert found.first.ends == [completed]
    assert found.resumed.ends[-1] == diverged
    assert found.other.ends == [interrupted]


def test_a_resumed_run_goes_on_in_the_same_run_of_the_tracker(written: Written) -> None:
    name, found = written
    first, again, other = found.ids
    assert first == again != other
    assert [tuple(one) for one in found.resumed.series["loss/worker-0"]] == [(4, 0.5), (5, 0.125)]
    assert found.resumed.results["final/steps"] == 1300
    assert found.resumed.results["final/error"] == "it is NaN"
    changed = found.resumed.results if name == "mlflow" else found.resumed.parameters  # MLflow lets none be changed
    assert changed["resumes"] == "no"
    assert texts(found.resumed.parameters)["workers"] == "4"


def test_another_run_has_nothing_of_the_first(written: Written) -> None:
    _, found = written
    assert texts(found.other.parameters) == {}
    assert found.other.series == {}
