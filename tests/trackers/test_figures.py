"""What of a run is logged: its parameters, how it goes, and what it comes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.core.choice import choose
from paceline.core.facts import GradientReady, TrainingBegan, WorkerLeft
from paceline.core.orders import ApplyUpdate
from paceline.display.trackers.figures import Figures, parameters, results
from paceline.job.interrupts import Interrupts
from paceline.protocols import registry
from paceline.records.summary import Tally, Target
from paceline.records.times import StepTimes
from paceline.runs import ddp
from support.run_state import OFFER, SETTINGS


def test_parameters_are_the_protocol_s_the_command_s_and_the_optimizer_s() -> None:
    settings = replace(
        SETTINGS, choice=choose("ssp:bound=5", registry()), workers=4, arguments=("--lr", "0.1"), max_steps=10
    )
    found = parameters(settings, OFFER)
    expected = {
        "protocol/name": "ssp",
        "protocol/bound": 5,
        "workers": 4,
        "seed": 0,
        "script": "train.py",
        "arguments": "--lr 0.1",
        "max_steps": 10,
        "optimizer/name": "SGD",
        "optimizer/lr": 0.5,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "max_seconds" not in found
    assert all(type(value) in (bool, int, float, str) for value in found.values())


def test_groups_of_parameters_are_numbered_if_there_are_several() -> None:
    offer = type(OFFER)(**{name: getattr(OFFER, name) for name in OFFER.__struct_fields__})
    offer.scalars = [{"lr": 0.5}, {"lr": 0.25, "betas": [0.9, 0.99]}]
    found = parameters(SETTINGS, offer)
    assert (found["optimizer/0/lr"], found["optimizer/1/lr"], found["optimizer/1/betas/1"]) == (0.5, 0.25, 0.99)


def test_the_script_s_epochs_count_unless_the_flag_says_how_many() -> None:
    offer = type(OFFER)(**{**{name: getattr(OFFER, name) for name in OFFER.__struct_fields__}, "epochs": 7})
    assert parameters(SETTINGS, offer)["epochs"] == 7
    assert parameters(replace(SETTINGS, epochs=3), offer)["epochs"] == 3
    assert parameters(replace(SETTINGS, epochs=3), None)["epochs"] == 3


def tally_of(steps: int, tally: Tally | None = None) -> Tally:
    """Each of two workers has made so many steps of 8 samples, in each of which it waited a quarter of a second."""
    made = Tally() if tally is None else tally
    began = TrainingBegan(members=((0, "a", 0), (1, "a", 0)), version=0, at=0.0, work=None, seed=0, done=0)
    first = made.steps // 2
    if tally is None:
        made.record(began, [])
    for step in range(first, steps):
        for worker in range(2):
            made.record(
                GradientReady(worker=worker, step=step, version=made.model.versions, samples=8, at=step + 0.5),
                [ApplyUpdate(contributions=((worker, step, 1.0),), version=made.model.versions + 1)],
            )
            made.step_times(worker, step, StepTimes(float(step), 0.5, 0.0, 0.25, 0.0, 0.0))
    return made


def test_rates_are_those_since_the_last_look() -> None:
    tally = tally_of(2)
    figures = Figures(tally, has_store=True)
    first = figures.look(2.0)
    assert first["paceline/versions"] == 4
    assert first["paceline/wait_seconds/worker-1"] == 0.5
    assert "paceline/samples_per_second" not in first  # there is none before
    tally_of(6, tally)
    found = figures.look(4.0)
    assert found["paceline/updates_per_second"] == 4.0
    assert found["paceline/samples_per_second"] == 32.0
    assert found["paceline/waiting"] == 0.5  # two seconds of four
    assert found["paceline/staleness"] == 0.0
    assert found["paceline/seconds"] == 4.0
    tally.record(WorkerLeft(worker=1, reason="died", at=4.0), [])
    tally.step_times(0, 6, StepTimes(4.0, 0.0, 0.0, 2.0, 0.0, 0.0))
    assert figures.look(6.0)["paceline/waiting"] == 1.0, "the worker that is left waited all the time"


def test_results_are_the_summary_s() -> None:
    targets = [Target.parse("accuracy>=0.9")]
    summary = tally_of(2).summary(
        protocol=choose("asp", registry()),
        workers=2,
        threads=1,
        seed=0,
        outcome="completed",
        targets=targets,
        ended=4.0,
    )
    found = results(summary)
    assert found["final/steps"] == 4
    assert found["final/samples_per_second"] == 8.0
    assert found["final/wait_seconds/worker-1"] == 0.5
    assert found["final/staleness/mean"] == 0.0
    assert not any(name.startswith(("final/error", "final/seconds_to")) for name in found)  # what there is not


def test_a_run_of_the_baseline_is_logged_at_its_end(tmp_path: Path) -> None:
    """Nobody follows it while it goes."""
    settings = replace(SETTINGS, folder=tmp_path, log_to=("tensorboard",))
    said = {
        "wall_seconds": 2.0,
        "versions": 4,
        "samples": 64,
        "evaluations": [{"version": 4, "at_seconds": 2.0, "samples": 64, "accuracy": 0.75, "loss": None}],
    }
    interrupts = Interrupts()
    ddp._track(settings, ddp._summary(settings, "completed", None, said), interrupts)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("accuracy")] == [(4, 0.75)]
    assert events.Scalars("final/samples_per_second")[-1].value == pytest.approx(32.0)
    table = events.Tensors("parameters")[0].tensor_proto.string_val[0].decode()
    assert "| protocol/name | ddp |" in table
