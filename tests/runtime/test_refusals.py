"""A run that is refused leaves a folder if, and only if, an update is applied by then; and what no run can meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launch import Launch
from support.scripts import training
from support.suites import each

MOMENTS = {
    "before prepare() has said anything": {"before": "loader = 5"},
    "as workers differ": {"before": "model = nn.Linear(4, 2 + me); optimizer = torch.optim.SGD(model.parameters())"},
    "in a second prepare()": {"inside": "paceline.prepare(model, optimizer)"},
    "before the first step": {"inside": "optimizer.add_param_group({'params': [nn.Parameter(torch.zeros(1))]})"},
    "at the first gradient": {
        "before": "model = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Flatten(), nn.Linear(16, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "loader = DataLoader(TensorDataset(torch.zeros(64, 4).long(), torch.randn(64, 2)), batch_size=4)",
    },
}
"""What a script does that is refused before any update is applied."""
PROTOCOLS = ("all-reduce", "ad-psgd", "ripples", "asp", "bsp", "ps-plus")
HOSTS = {"one": ("-n", "2"), "several": ("--emulate-hosts", "2", "-n", "1")}
DEFAULT = {("all-reduce", "in a second prepare()", "one"), ("ad-psgd", "at the first gradient", "several")}


@pytest.mark.parametrize(
    ("protocol", "moment", "hosts"),
    each([(one, moment, hosts) for one in PROTOCOLS for moment in MOMENTS for hosts in HOSTS], default=DEFAULT),
)
def test_a_run_that_is_refused_before_any_update_leaves_no_folder(
    protocol: str, moment: str, hosts: str, launch: Launch
) -> None:
    run = launch.run(training(**MOMENTS[moment]), "-p", protocol, "--threads", "1", *HOSTS[hosts])
    assert run.code == 2, run.err
    assert not run.folder.exists()
    assert "failed" not in run.err


@pytest.mark.parametrize("protocol", each(PROTOCOLS, default=("all-reduce", "asp")))
def test_a_run_that_is_refused_after_an_update_keeps_its_folder(protocol: str, launch: Launch) -> None:
    late = "if step == 4: nn.init.constant_(model.weight, 1.0)"
    run = launch.run(training(late), "-p", protocol, "--threads", "1", "-n", "2")
    assert run.code == 2, run.err
    assert run.summary["outcome"] == "failed"
    assert run.summary["steps"] > 0


def test_a_refusal_takes_away_its_own_folder_and_no_other_runs(launch: Launch, tmp_path: Path) -> None:
    neighbour = tmp_path / "runs" / "neighbour"
    neighbour.mkdir(parents=True)
    out = tmp_path / "runs" / "deep" / "mine"
    script = training(before="optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)")
    run = launch.run(script, "-n", "1", "--out", str(out))
    assert run.code == 2
    assert neighbour.is_dir()
    assert not out.parent.exists()


def test_a_target_that_nothing_measures_is_told_of_at_the_end(launch: Launch) -> None:
    run = launch.run(training("paceline.log(acuracy=1)"), "-n", "2", "--quiet", "--target", "accuracy>=0.9").completed()
    assert run.err == (
        'paceline: --target is "accuracy>=0.9", and the script registers no evaluate and has logged no "accuracy" (did '
        'you mean "acuracy"?); give it prepare(..., evaluate=fn) that returns it, or paceline.log(accuracy=...)\n'
    )
    assert run.summary["targets"] == {"accuracy>=0.9": None}


def test_a_target_of_a_misspelt_metric_is_refused_before_the_first_step_with_the_nearest_name(launch: Launch) -> None:
    script = training("print('trains')", before="def evaluate(model): return {'loss': 1.0, 'accuracy': 0.5}")
    run = launch.run(script, "-n", "2", "--target", "loss<=9", "--target", "acuracy>=0.9")
    assert run.code == 2
    assert '--target is "acuracy>=0.9", and evaluate returns no "acuracy" (did you mean "accuracy"?)' in run.err
    assert "it returns loss, accuracy\n" in run.err
    assert "trains" not in run.out
    assert not run.folder.exists()
