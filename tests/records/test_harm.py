"""What is told of a training that got worse while its gradients were late, and of which ones nothing is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.cli.table import print_summary
from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.harm import harm
from paceline.records.summary import read, write
from support.recorded import simulated

LOSSES = [2.2, 2.0, 1.9, 3.0, 7.5, 28.8, 15.4, 24.2]
ACCURACIES = [0.24, 0.36, 0.16, 0.24, 0.25, 0.11, 0.13, 0.19]
# `asp` with 16 workers on digits, with momentum 0.9 at the rate 0.05.


def said(
    protocol: str = "asp", late: float | None = 14.6, workers: int = 16, **series: list[float | None]
) -> list[str]:
    length = len(next(iter(series.values())))
    rows = [{"version": 4 * n + 4, **{name: values[n] for name, values in series.items()}} for n in range(length)]
    return harm(
        {
            "workers": workers,
            "staleness": {"mean": late, "max": 24},
            "evaluations": [{"at_seconds": 1.0, "samples": 8, **row} for row in rows],
        },
        choose(protocol, registry()),
    )


@pytest.mark.parametrize("protocol", ["asp", "ssp:bound=20", "sync-switch"])
def test_a_training_that_got_worse_on_late_gradients_is_told_how_late_they_were_and_what_to_try(protocol: str) -> None:
    what, helps = said(protocol, loss=LOSSES, accuracy=ACCURACIES)
    assert "14.6 versions late on average, 24 at most" in what
    assert "it had loss 18.98 and accuracy 0.17 on average, after 2.2 and 0.24 at version 4" in what
    assert "-p quorum" in helps
    assert "ringmaster" not in helps
    assert "16 times smaller (--learning-rate-scale)" in helps


def test_a_bound_on_delays_is_advised_where_some_are_much_longer_than_among_equal_workers() -> None:
    _, helps = said(workers=12, loss=LOSSES, accuracy=ACCURACIES)
    assert "-p ringmaster:max_delay=12, which applies none that is 12 or more versions late" in helps


def test_a_loss_that_is_not_finite_is_worse_than_any() -> None:
    assert said(loss=[2.0, 1.9, 2.5, 9.0, None, None])


@pytest.mark.parametrize(
    "series",
    [
        {"loss": [2.2, 1.9, 2.6, 2.4, 2.5, 2.3, 2.1, 2.6], "accuracy": [0.2] * 8},  # noise
        {"loss": [2.2, 3.0, 9.0, 28.8, 15.4, 2.0, 9.0, 12.0]},  # noise, too
        {"loss": [2.3] * 8, "accuracy": [0.1] * 8},  # it stays where it began
        {
            "loss": [2.0, 0.5, 0.9, 2.2, 3.0, 4.5, 5.0, 5.5],
            "accuracy": [0.3, 0.8, 0.8, 0.8, 0.7, 0.8, 0.8, 0.8],
        },  # overfit
        {"loss": [0.5, 0.5, 0.5, 0.6, 0.7, 0.7, 0.7, 0.8]},  # the same
        {"accuracy": [0.92, 0.91, 0.92, 0.91, 0.91, 0.90, 0.91, 0.91]},  # nothing is left to learn
        {"loss": LOSSES[:5]},  # too few
        {"seconds": LOSSES},
        {"loss": [None, *LOSSES]},
    ],
)
def test_noise_a_plateau_and_overfitting_are_not_taken_for_harm(series: dict[str, list[float | None]]) -> None:
    assert said(**series) == []


@pytest.mark.parametrize(
    ("protocol", "late"), [("bsp", 0.0), ("asp", None), ("asp", 0.9), ("ad-psgd", 9.0), ("ps-plus", 9.0)]
)
def test_nothing_is_told_where_gradients_are_not_late(protocol: str, late: float | None) -> None:
    assert said(protocol, late, loss=LOSSES) == []


def test_a_run_s_end_and_its_explanation_tell_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulated(tmp_path / "run", protocol="asp", workers=4)
    path = folder / "summary.json"
    summary: dict[str, Any] = read(path)
    rows = enumerate(zip(LOSSES, ACCURACIES, strict=True), 1)
    summary["evaluations"] = [
        {"version": n, "at_seconds": 1.0, "samples": n, "loss": loss, "accuracy": accuracy}
        for n, (loss, accuracy) in rows
    ]
    write(path, summary)
    what, helps = harm(summary, choose("asp", registry()))
    print_summary(summary, folder)
    assert f"{what} {helps}\n" in capsys.readouterr().out
    assert main(["explain", str(folder)]) == 0
    told = capsys.readouterr().out
    assert f"{what}\n{helps}\n" in told
    assert "the best method" not in told


def said_of_logged(evaluations: int = 0, **ends: tuple[float | None, float | None]) -> list[str]:
    scalars = {
        name: {"first": {"value": first, "at_seconds": 0.1}, "last": {"value": last, "at_seconds": 2.0}}
        for name, (first, last) in ends.items()
    }
    rows = [{"version": n, "at_seconds": n, "samples": 8, "accuracy": 0.1 + n / 10} for n in range(evaluations)]
    stale = {"mean": 14.6, "max": 24}
    return harm({"workers": 16, "staleness": stale, "evaluations": rows, "scalars": scalars}, choose("asp", registry()))


def test_a_logged_loss_or_accuracy_that_got_worse_is_told_where_no_evaluation_is() -> None:
    what, helps = said_of_logged(loss=(2.2, 28.8), val_acc=(0.9, 0.11))
    assert what.endswith("Its script logged loss 28.8 and val_acc 0.11 last, after 2.2 and 0.9 first.")
    assert "-p quorum" in helps
    assert said_of_logged(loss=(2.2, None))


@pytest.mark.parametrize(
    "ends",
    [
        {"loss": (2.2, 2.4)},
        {"loss": (2.2, 28.8), "val_acc": (0.5, 0.6)},
        {"reward": (2.2, 28.8)},
        {"loss": (None, 3.0)},
        {},
    ],
)
def test_of_logged_values_that_do_not_tell_nothing_is_said(ends: dict[str, tuple[float | None, float | None]]) -> None:
    assert said_of_logged(**ends) == []
