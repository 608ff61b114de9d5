"""A run that is refused leaves a folder if, and only if, an update is applied by then: under every protocol."""

from __future__ import annotations

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
