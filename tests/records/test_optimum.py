"""How far a run is from the best method for its workers: the theory's tables, and runs in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.cli.main import main
from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.optimum import PARTS, UNKNOWN, estimates, gradient_seconds, least_time, over_best, over_optimum
from paceline.records.summary import Summary
from paceline.records.times import StepTimes, StepTotals
from support.recorded import summarized

UNEQUAL = (1.0, 1.0, 1.0, 10.0)


TABLE = [
    (UNEQUAL, 4, 2.3333, {"bsp": 20.0, "asp": 2.5806, "quorum:m=3": 2.3333, "ringmaster:max_delay=3": 2.3333}),
    (UNEQUAL, 0, 1.0, {"bsp": 10.0, "asp": 1.2903, "quorum:m=3": 1.0, "ringmaster:max_delay=3": 1.0}),
    ((1.0, 2.0, 4.0, 8.0), 8, 6.2857, {"bsp": 24.0, "asp": 6.4, "quorum:m=1": 9.0, "ringmaster:max_delay=4": 6.668}),
    (
        (0.58, 0.75, 1.51, 3.33),
        4,
        1.8819,
        {"bsp": 6.66, "asp": 1.99, "quorum:m=2": 2.25, "ringmaster:max_delay=4": 1.963},
    ),
]


@pytest.mark.parametrize(("seconds", "noise", "best", "others"), TABLE)
def test_the_best_method_s_time_and_those_of_protocols_are_the_theory_s(
    seconds: tuple[float, ...], noise: float, best: float, others: dict[str, float]
) -> None:
    """And shares by speed take as long as `asp`, without its delays."""
    found = estimates(seconds, noise)
    assert least_time(seconds, noise) == pytest.approx(best, abs=1e-4)
    assert found.pop("balanced:unit=sample") == found["asp"]
    assert found == pytest.approx(others, abs=3e-4)


def test_a_worker_alone_is_the_best_method() -> None:
    assert estimates([2.0], 3) == {"bsp": 8.0, "balanced:unit=sample": 8.0, "asp": 8.0}
    assert least_time([2.0], 3) == 8.0


def simulated(protocol: str, folder: Path, **limit: Any) -> Summary:
    """With workers of 1, 1, 1 and 10 seconds a gradient, and no network."""
    cluster = {"cluster": {"workers": 4, "compute": "1s"}, "worker": [{"index": 3, "speed": 0.1}]}
    return paceline.simulate(cluster, protocol, batch=1, out=folder / "run", **limit)


@pytest.mark.parametrize("protocol", ["bsp", "asp", "quorum:m=3", "ringmaster:max_delay=3"])
def test_a_run_in_virtual_time_comes_to_the_estimate_of_its_protocol(protocol: str, tmp_path: Path) -> None:
    summary = simulated(protocol, tmp_path, seconds=1000.0)
    for noise, ratio in summary["over_optimum"].items():
        expected = estimates(UNEQUAL, float(noise))[protocol] / least_time(UNEQUAL, float(noise))
        assert ratio == pytest.approx(expected, rel=0.02)
    assert over_best(summary) == summary["over_optimum"]["4"]


def test_a_worker_whose_gradients_are_dropped_has_computed_them_all_the_same(tmp_path: Path) -> None:
    rows = simulated("quorum:m=3", tmp_path, seconds=100.0)["per_worker"]
    assert (rows[3]["steps"], rows[3]["computed"]) == (0, 10)
    assert gradient_seconds(rows) == pytest.approx(UNEQUAL)


@pytest.mark.parametrize("protocol", ["ps-plus", "diloco:every=2", "ad-psgd", "sync-switch"])
def test_methods_whose_versions_are_not_made_of_one_protocol_s_gradients_are_not_compared(protocol: str) -> None:
    rows = [row(1.0, 1.0)]
    assert over_optimum(choose(protocol, registry()).spec, 1, 1.0, 1, 1, 0.0, rows) is None
    assert over_optimum(registry()["bsp"], 1, 1.0, 1, 1, 0.0, rows) is not None


@pytest.mark.parametrize("unknown", [None, 0.0])
def test_nothing_is_said_of_workers_whose_times_are_unknown(unknown: float | None) -> None:
    assert gradient_seconds([row(1.0, unknown), row(1.0, 1.0)]) is None
    assert gradient_seconds([]) is None


def test_a_gradient_s_time_is_the_mean_without_the_first() -> None:
    """Which is often much longer: memory is new, and kernels are chosen."""
    totals = StepTotals()
    assert totals.gradient is None
    for seconds in (9.0, 1.0, 2.0):
        totals.add(StepTimes(0.0, seconds, 0.0, 0.0, 0.0, 0.0))
    assert (totals.gradient, totals.steps, totals.compute) == (1.5, 3, 12.0)


def test_a_worker_that_is_there_for_half_of_the_time_counts_as_half_as_fast() -> None:
    whole, halves = [row(8.0, 2.0)], [row(4.0, 2.0), row(4.0, 2.0)]
    assert gradient_seconds([*whole, *halves]) == [2.0, 4.0, 4.0]


def row(seconds: float, gradient: float | None) -> dict[str, Any]:
    """Of a worker that has computed all the time."""
    return {f"{part}_seconds": 0.0 for part in PARTS} | {"compute_seconds": seconds, "gradient_seconds": gradient}


def test_an_explanation_names_what_would_be_faster_and_whose_gradients_were_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated("bsp", tmp_path / "bsp", seconds=100.0)
    assert main(["explain", str(tmp_path / "bsp" / "run")]) == 0
    told = capsys.readouterr().out
    assert "The run took 8.6 times as long as the best method would with workers as fast as these, if averaging" in told
    others = "ringmaster:max_delay=3 1.0 times, balanced:unit=sample 1.1 times, asp 1.1 times."
    assert "If these workers only computed, bsp would take 8.6 times as long as the best.\n" in told
    assert f"Counted like that, quorum:m=3 would take 1.0 times as long, {others}" in told
    assert "dropped" not in told
    simulated("quorum:m=3", tmp_path, seconds=100.0)
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert "Gradients were dropped: 10 of 10 of worker 3." in capsys.readouterr().out


def test_a_table_explains_a_ratio_that_is_not_known_where_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steady.toml").write_text('[cluster]\nworkers = 2\ncompute = "100ms"\n')
    words = ["simulate", str(tmp_path / "steady.toml"), "--steps", "20", "-p", "bsp"]
    assert main(words) == 0
    assert UNKNOWN not in capsys.readouterr().out
    assert main([*words, "-p", "sync-switch"]) == 0
    assert capsys.readouterr().out.endswith(f" -\n{UNKNOWN}\n")


@pytest.mark.parametrize(
    ("protocol", "rest"),
    [
        (
            "bsp",
            "bsp would take 8.6 times as long as the best: the rest of the 20.0 is steps that vary, the store, ",
        ),
        ("ssp", "so would theirs."),
    ],
)
def test_an_explanation_says_why_a_run_took_longer_than_its_protocol_s_estimate(
    protocol: str, rest: str, tmp_path: Path
) -> None:
    simulated(protocol, tmp_path, seconds=100.0)
    summarized(tmp_path / "run", over_optimum={"0": 20.0, "4": 20.0, "16": 20.0})
    assert rest in paceline.Run(tmp_path / "run").explain()
