"""Workers that end, or are ended, while something of theirs is still under way."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.scripts import training

KILL_SOON = """
if me == 1:
    import threading
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
"""


@pytest.mark.long
def test_a_worker_that_is_killed_while_its_last_push_is_awaited_ends_nobody_but_itself(launch: Launch) -> None:
    """Its script has ended, and the push takes half a second and more."""
    (launch.tmp_path / "slow.toml").write_text('[network]\nbandwidth = "10MB/s"\nmessage = "5MB"\n')
    script = training("if me == 1 and step == 1: break", epochs=1, samples=16, after=KILL_SOON)
    scenario = str(launch.tmp_path / "slow.toml")
    run = launch.run(script, "-n", "2", "-p", "ps-plus", "--scenario", scenario).completed()
    assert "Traceback" not in run.err
    assert run.summary["samples"] == 16


@pytest.mark.long
def test_a_worker_that_is_killed_in_finish_ends_nobody_but_itself(launch: Launch) -> None:
    """The others have two seconds of work left."""
    (launch.tmp_path / "padded.toml").write_text('[cluster]\ncompute = "100ms"\n')
    script = training("if me == 1 and step == 3: break", epochs=1, samples=160, after=KILL_SOON + "\npaceline.finish()")
    scenario = str(launch.tmp_path / "padded.toml")
    run = launch.run(script, "-n", "3", "-p", "asp", "--scenario", scenario).completed()
    assert "Traceback" not in run.err
    assert run.summary["samples"] == 160


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


@pytest.mark.parametrize("end", ["raise ValueError('no such table')", "sys.exit('no such table')"])
def test_when_every_script_fails_after_finish_the_run_fails_and_what_was_trained_is_there(
    end: str, launch: Launch
) -> None:
    run = launch.run(training(after=f"paceline.finish()\n{end}"), "-n", "2", "-p", "asp", "--on-loss", "continue")
    assert run.code == 3, run.err
    assert run.summary["outcome"] == "failed"
    assert run.summary["error"] == "all workers died after training"
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "finished"]
    assert "no such table" in run.log(0)
    assert "worker 0 died (exit code 1)" in run.err
    assert "worker 1 died (exit code 1)" in run.err
    assert run.summary["samples"] == 2 * 64
    assert run.final().keys() == {"weight", "bias"}


@pytest.mark.parametrize(("on_loss", "code"), [("auto", 3), ("continue", 0), ("stop", 3)])
def test_a_script_that_fails_after_finish_is_a_loss_like_any_other(on_loss: str, code: int, launch: Launch) -> None:
    script = training(after="paceline.finish()\nif me == 1: raise ValueError('no such table')")
    run = launch.run(script, "-n", "2", "-p", "asp", "--on-loss", on_loss)
    assert run.code == code, run.err
    assert run.summary["outcome"] == ("completed" if code == 0 else "failed")
    assert "worker 1 died (exit code 1)" in run.err
    assert "ValueError: no such table" in run.err
