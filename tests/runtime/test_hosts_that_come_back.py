"""Workers of other hosts that died come back, and hosts that were lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tomli_w

from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
def touch(name):
    (THERE / name).touch()
def wait(name):
    while not (THERE / name).exists():
        time.sleep(0.002)
def linger(until):
    # a worker that joins gets what it begins with between two steps of others
    if not (THERE / until).exists():
        time.sleep(0.05)
def die():
    os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(192, 6), torch.randint(0, 3, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, keep={"scheduler": scheduler})
if paceline.resumed():
    touch("prepared")
me, batches = paceline.worker(), 0
for epoch in paceline.epochs(3):
    for x, y in loader:
        batches += 1
        if paceline.resumed():
            touch("back")
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    scheduler.step()
"""
SAMPLES = 3 * 192
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")


def script(each_step: str) -> str:
    return SCRIPT.replace("EACH_STEP", each_step.strip().replace("\n", "\n        "))


def facts(run: Run, *kinds: str) -> list[tuple[str, int]]:
    """These facts in order: what it was, and of which worker."""
    rows = run.rows("SELECT kind, json_extract(body, '$.worker') FROM facts ORDER BY id")
    return [(kind, worker) for kind, worker in rows if kind in kinds]


def note(run: Run, name: str) -> Any:
    ((value,),) = run.rows("SELECT value FROM run WHERE key = ?", name)
    return json.loads(value)


def is_sound(run: Run) -> None:
    """Each sample was used once, the rules hold, and a replay comes to the same bits."""
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    assert (found := checked(run.folder)).ok, found.wrong
    folder = run.folder.parent / "again"
    again = nursery.Process(["replay", str(run.folder), "--out", str(folder)])
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, out + err
    assert "the same bits" in out


DIES = """
if me == DIES and batches == 4 and not paceline.resumed():
    die()
if me != DIES and batches == 5:
    wait("prepared")
if me != DIES and batches >= 5:
    linger("back")
"""


@pytest.mark.parametrize("protocol", ["bsp", "ps-plus", "sync-switch"])
def test_a_worker_of_another_host_comes_back(protocol: str, launch: Launch) -> None:
    run = launch.run(script(DIES.replace("DIES", "3")), *HOSTS, "-p", protocol, "--restart", "1").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 3)]
    assert "worker 3 is back" in run.err
    assert "is lost" not in run.err
    is_sound(run)


def test_a_worker_that_comes_back_gets_what_one_of_another_host_keeps(launch: Launch) -> None:
    """That is the worker with the most steps: worker 0 waits in its second."""
    behind = DIES.replace("DIES", "1") + "\nif me == 0 and batches == 2:\n    wait('back')"
    run = launch.run(script(behind), *HOSTS, "-p", "asp", "--restart", "1").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 1)]
    ((worker, _, source),) = note(run, "handed")
    assert worker == 1
    assert source in (2, 3)
    is_sound(run)


def test_a_scenario_says_when_a_killed_worker_of_another_host_comes_back(launch: Launch) -> None:
    scenario = launch.tmp_path / "scenario.toml"
    event = {"worker": 2, "at_step": 3, "kill": True, "rejoin_after": "10ms"}
    scenario.write_text(tomli_w.dumps({"cluster": {"workers": 4}, "event": [event]}))
    lingers = "if me != 2 and batches == 5:\n    wait('prepared')\nif batches >= 5:\n    linger('back')"
    flags = ("--emulate-hosts", "2", "--threads", "1", "--scenario", str(scenario))
    run = launch.run(script(lingers), *flags, "-p", "bsp").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 2)]
    assert "it comes back in 10ms" in run.err
    is_sound(run)
