"""Workers that end, or are ended, while something of theirs is still under way."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.scripts import training

ALIASED = """
import torch
from torch import nn
import paceline

model = nn.Linear(256, 256, bias=False)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(20):
    model.weight.sum().backward()
    gradient = model.weight.grad  # kept for a log, say
    optimizer.step()
    gradient.zero_()
    model.weight.grad = None
"""


def test_what_a_script_does_with_a_gradient_it_kept_does_not_reach_a_push_that_is_still_needed(launch: Launch) -> None:
    """HSP's idle workers go on before their last gradient is applied. Each is one everywhere: so is every step."""
    (launch.tmp_path / "contended.toml").write_text(
        '[cluster]\ncompute = "20ms"\n[network]\nbandwidth = "100MB/s"\nmessage = "200KB"\n'
    )
    scenario = str(launch.tmp_path / "contended.toml")
    run = launch.run(ALIASED, "-n", "3", "-p", "hsp:idle=always,stale=next", "--scenario", scenario).completed()
    assert run.summary["staleness"]["max"] == 1
    assert run.final()["weight"].unique().tolist() == [-float(run.summary["versions"])]


def test_when_every_script_fails_after_finish_the_run_fails_and_what_was_trained_is_there(launch: Launch) -> None:
    script = training(after="paceline.finish()\nsys.exit('no such table')")
    run = launch.run(script, "-n", "2", "-p", "asp", "--on-loss", "continue")
    assert run.code == 3, run.err
    assert run.summary["outcome"] == "failed"
    assert run.summary["error"] == "all workers died after training"
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "finished"]
    assert "no such table" in run.log(0)
    assert "worker 0 died (exit code 1)" in run.err
    assert "worker 1 died (exit code 1)" in run.err
    assert run.summary["samples"] == 2 * 64
    assert run.final().keys() == {"weight", "bias"}


def test_a_script_that_fails_after_finish_is_a_loss_like_any_other(launch: Launch) -> None:
    script = training(after="paceline.finish()\nif me == 1: raise ValueError('no such table')")
    run = launch.run(script, "-n", "2", "-p", "asp")
    assert (run.code, run.summary["outcome"]) == (3, "failed")
    assert "worker 1 died (exit code 1)" in run.err
    assert "ValueError: no such table" in run.err


@pytest.mark.parametrize(("protocol", "how"), [("asp", "os._exit(7)"), ("ripples", "os._exit(0)")])
def test_the_last_version_is_recorded_though_all_workers_have_gone_before_it_is_written(
    protocol: str, how: str, launch: Launch
) -> None:
    """It takes a second to be written."""
    before = """
    from paceline.store.store import NamedVersion
    record = NamedVersion.record

    def slow(self, file):
        time.sleep(1.0)
        return record(self, file)

    NamedVersion.record = slow
    """
    run = launch.run(training(f"if step == 5: {how}", before=before), "-n", "2", "-p", protocol, "--record", "0")
    assert run.code == (0 if how == "os._exit(0)" else 3)
    assert run.summary["steps"] > 0
    assert run.summary["final_parameters_sha256"]
    assert run.final().keys() == {"weight", "bias"}
