"""What a script logs counts for targets, as one of the version that it was computed on."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from paceline.coordinator.remarks import unmeasured
from paceline.job.compatibility import lack_of_metrics
from paceline.records.comparison import final, seconds_to
from paceline.records.reading import logged_of
from paceline.records.summary import Logged, Target, first_logged, values_of
from support.launch import Launch
from support.recorded import checked, edited
from support.replays import broken_replay
from support.runs import Run
from support.scripts import training
from support.suites import each

EPOCHS = 3
IN_LOOP = "for epoch in paceline.epochs(3):"
SCRIPT = (
    training(epochs=EPOCHS, samples=64)
    .replace(f"for epoch in range({EPOCHS}):", IN_LOOP)
    .replace(
        "        step += 1\n",
        "        step += 1\n"
        "    with torch.no_grad():\n"
        "        seen = model.weight.double().sum().item()\n"
        "    paceline.log(val_acc=epoch / 10, seen=seen)\n",
    )
)
TARGET = Target.parse("val_acc>=0.1")


def logged(*values: float) -> dict[str, Any]:
    metric = Logged()
    for number, value in enumerate(values):
        metric.add(0, number, number, float(number), value)
    return metric.plain()


@pytest.mark.parametrize(
    ("text", "at"),
    [("a>=0.5", 3.0), ("a>=0.9", None), ("a<=0.1", 1.0), ("a<0.05", 4.0), ("a<0", None), ("a>0.2", 2.0)],
)
def test_the_first_value_that_meets_any_target_is_kept_though_only_records_are(text: str, at: float | None) -> None:
    of = logged(math.nan, 0.1, 0.3, 0.6, 0.0, 0.4, math.inf)
    found = first_logged(Target.parse(text), of)
    assert (None if found is None else found["at_seconds"]) == at
    assert of["last"]["value"] == math.inf


def test_comparisons_take_evaluated_and_logged_values_together() -> None:
    evaluations = [{"version": 4, "at_seconds": 2.5, "samples": 9, "a": 0.6}]
    both: Any = {"evaluations": evaluations, "logged": {"a": logged(0.1, 0.3, 0.2, 0.5)}}
    assert [seconds_to(Target.parse(text), both) for text in ("a>=0.3", "a>=0.5", "a>=0.7")] == [1.0, 2.5, None]
    assert (final("a", both), max(values_of("a", both))) == (0.6, 0.6)
    assert final("a", {**both, "evaluations": []}) == 0.5


def test_a_script_without_evaluate_may_have_a_target_and_is_told_at_the_end_if_it_never_logged_it() -> None:
    settings: Any = SimpleNamespace(targets=(TARGET,))
    assert lack_of_metrics(SimpleNamespace(evaluates=False, metrics=None), settings) == ""  # type: ignore[arg-type]
    assert [*unmeasured([TARGET], evaluates=True, logged=[])] == []
    assert [*unmeasured([TARGET], evaluates=False, logged=["val_acc"])] == []
    (line,) = unmeasured([TARGET], evaluates=False, logged=["val_accuracy"])
    assert 'has logged no "val_acc" (did you mean "val_accuracy"?)' in line


@pytest.mark.parametrize("protocol", each(["asp", "bsp", "all-reduce", "ad-psgd"], default=["asp"]))
def test_a_logged_metric_counts_for_its_target_with_its_version_and_the_run_is_checked_and_replayed(
    protocol: str, launch: Launch
) -> None:
    flags = ("-n", "2", "-p", protocol, "--threads", "1", "--record", "16", "--target", TARGET.text)
    run = launch.run(SCRIPT, *flags).completed()
    of = run.summary["logged"]["val_acc"]
    assert of["last"]["value"] == (EPOCHS - 1) / 10, "what is logged after the worker's last step counts"
    assert run.summary["scalars"]["val_acc"]["last"] == of["last"]
    assert run.summary["scalars"]["seen"].keys() == {"first", "last"}
    assert "it last: val_acc 0.2, seen " in run.out, "what no target names is shown, too"
    met = run.summary["targets"][TARGET.text]
    assert (met["value"], met["samples"]) == (0.1, None)
    assert of["highs"][1] == {key: value for key, value in met.items() if key != "samples"}
    assert f"{TARGET.text}: after" in run.out
    released = run.rows("SELECT worker, step, version FROM orders WHERE kind = 'Release'")
    assert (met["worker"], met["step"], met["version"]) in released
    if protocol in ("asp", "bsp"):
        assert_computed_on_those_versions(run)
    assert checked(run.folder).ok
    assert broken_replay(run) == []


def assert_computed_on_those_versions(run: Run) -> None:
    """The script logged the sum of the weights that it saw."""
    sums = {
        version: load_file(run.folder / file)["weight"].double().sum().item()
        for version, file in run.rows("SELECT version, file FROM versions")
    }
    seen = [row for row in logged_of(run.ledger, ["seen"]) if row[3] in sums]
    assert len(seen) >= 2
    for _, _, _, version, _, value in seen:
        assert value == sums[version]


def test_a_run_stops_at_a_target_that_is_logged_and_forks_no_process_that_evaluates(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "--quiet", "--target", TARGET.text, "--stop-at-target").completed()
    assert run.err == f"paceline: --stop-at-target: {TARGET.text} is reached: ending the run\n"
    assert run.summary["targets"][TARGET.text]["value"] == 0.1
    assert checked(run.folder).ok
    edited(run.folder, "UPDATE scalars SET value = 0.01 WHERE name = 'val_acc' AND value > 0.05")
    assert not checked(run.folder).ok
