"""Runs on several hosts that are kept, stopped and resumed, on as many hosts or on others."""

from __future__ import annotations

import pytest
import torch

from paceline.records.snapshots import newest, read, whole
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, killed_once_kept, replayed
from support.suites import each

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

class Meter:
    worker, steps = paceline.worker(), 0
    def state_dict(self):
        return {"worker": self.worker, "steps": self.steps}
    def load_state_dict(self, state):
        self.__dict__.update(state)
        (THERE / f"kept-{paceline.worker()}").write_text(f"{self.worker} {self.steps}")

THERE = Path(__file__).parent
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
model[0].bias.requires_grad = False
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
scheduler, meter = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), Meter()
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
keep = {"scheduler": scheduler, "meter": meter}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep=keep)
BEFORE
for epoch in paceline.epochs(3):
    for x, y in loader:
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        meter.steps += 1
        AFTER_STEP
    scheduler.step()
"""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
ONE = ("-n", "4", "--threads", "1")


def script(before: str = "", each_step: str = "pass", after_step: str = "pass") -> str:
    text = SCRIPT.replace("BEFORE", before).replace("EACH_STEP", each_step)
    return text.replace("AFTER_STEP", after_step)


def same_bits(one: Run, other: Run) -> bool:
    """Whether both have come to the same parameters and buffers."""
    a, b = one.final(), other.final()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stopped_by(how: str, launch: Launch) -> Run:
    """A run on two hosts that ends early."""
    flags = (*HOSTS, "-p", "bsp", "--checkpoint", "3")
    if how == "--max-steps":
        return launch.run(script(), *flags, "--max-steps", "31").completed()
    if how == "SIGTERM":
        stops = "if not paceline.resumed() and paceline.worker() == 0 and meter.steps == 7: os.kill(os.getppid(), 15)"
        run = launch.run(script(each_step=stops), *flags)
        assert run.code == 130, run.err
        return run
    return killed_once_kept(launch.start(script(each_step="time.sleep(0.02)"), *flags), snapshots=2)


@pytest.mark.parametrize("how", each(["SIGKILL", "SIGTERM", "--max-steps"], default=("SIGKILL",)))
def test_rounds_on_several_hosts_that_are_stopped_and_resumed_end_on_the_bits_of_one_run(
    how: str, launch: Launch
) -> None:
    whole_run = launch.run(script(), *HOSTS, "-p", "bsp").completed()
    stopped = stopped_by(how, launch)
    kept = newest(stopped.folder)[0]
    assert kept is not None
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["samples"] == 3 * 96
    assert resumed.summary["segments"] == 2
    assert same_bits(resumed, whole_run)
    for worker, step in kept.state.next_steps.items():  # of each worker, wherever it is
        assert (launch.tmp_path / f"kept-{worker}").read_text() == f"{worker} {step}"
    assert (found := checked(resumed.folder)).ok, found.wrong


def test_a_run_goes_on_on_any_number_of_hosts_and_is_replayed_on_one(launch: Launch) -> None:
    run = launch.run(script(), "-n", "2", "--threads", "1", "-p", "asp", "--max-steps", "15").completed()
    launch.resume(run.folder, "--emulate-hosts", "3", "-n", "1", "--shards-on", "head", "--max-steps", "35").completed()
    launch.resume(run.folder, "--emulate-hosts", "2", "--max-steps", "50").completed()
    resumed = launch.resume(run.folder, "--emulate-hosts", "1", "-n", "3").completed()
    noted = resumed.rows("SELECT json_extract(notes, '$.shards_on') FROM segments ORDER BY segment")
    assert noted == [(None,), ("head",), ("head",), (None,)]  # what holds now is in the configuration
    assert resumed.rows("SELECT value FROM run WHERE key = 'shards_on'") == [('""',)]
    assert resumed.summary["segments"] == 4
    assert resumed.summary["samples"] == 3 * 96
    assert resumed.rows("SELECT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)] * (3 * 96)
    hosts = "SELECT group_concat(json_extract(value, '$[1]')) FROM facts, json_each(facts.body, '$.members')"
    assert resumed.rows(f"{hosts} WHERE facts.kind = 'TrainingBegan' GROUP BY facts.id ORDER BY facts.id") == [
        ("node-0,node-0",), ("node-0,node-1,node-2",), ("node-0,node-1",), ("node-0,node-0,node-0",)
    ]  # fmt: skip
    assert (found := checked(resumed.folder)).ok, found.wrong
    again = replayed(resumed.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


def test_workers_with_the_optimizers_state_go_on_with_their_own_on_each_host(launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", "ps-plus", "--max-steps", "31").completed()
    refused = launch.resume(run.folder, "--emulate-hosts", "3")
    assert refused.code == 2
    assert "it has 4 workers, and under ps-plus each worker keeps the optimizer's state" in refused.err
    resumed = launch.resume(run.folder).completed()
    assert resumed.summary["samples"] == 3 * 96
    assert (found := checked(resumed.folder)).ok, found.wrong
    assert "the same bits" in replayed(resumed.folder).out


FILLS = "torch.nn.init.constant_(model[1].weight, 0.25)"
FILLS_WHAT_NEVER_MOVES = "torch.nn.init.constant_(model[0].bias, 0.25)"
LOADS = """
trained = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters() if p.requires_grad]
full = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
for group in full.param_groups:
    for p in group["params"]:
        p.grad = torch.ones_like(p)
full.step()
optimizer.load_state_dict(full.state_dict())
"""
BEGINS_LATE = """
import time
from paceline.core.items import Version
from paceline.transfer.manager import TransferManager
fetch = TransferManager.fetch
def late(self, item, *more):
    time.sleep(1.0 if item == Version(0) else 0.0)
    fetch(self, item, *more)
TransferManager.fetch = late
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "first"), [pytest.param(FILLS_WHAT_NEVER_MOVES, "", marks=pytest.mark.long), (FILLS, BEGINS_LATE)]
)
def test_what_scripts_change_before_their_first_step_is_what_workers_of_all_hosts_begin_with(
    change: str, first: str, launch: Launch
) -> None:
    """Also where a host has what training begins with only after the head's workers have changed that."""
    text = script(before=change)
    run = launch.run(text, *HOSTS, "-p", "bsp", first=first).completed().final()
    one = launch.run(text, *ONE, "-p", "bsp").completed().final()
    assert all(torch.allclose(run[name].double(), one[name].double(), rtol=1e-9) for name in one)  # both in float64


THE_LAST_WRITES = """
from paceline.coordinator.adoption import Adoption
def to_write(self):
    free = self.adopted is None and self._writing is None
    return max(self._waiting) if free and len(self._waiting) == 3 else None
Adoption.to_write = to_write
"""


@pytest.mark.long
def test_a_worker_of_another_host_may_write_what_all_begin_with(launch: Launch) -> None:
    """The head fetches it from there, the optimizer's state included, and the other hosts fetch it from the head."""
    text = script(before=FILLS + "\n" + FILLS_WHAT_NEVER_MOVES + LOADS)
    flags = ("--threads", "1", "-p", "bsp", "--epochs", "1")
    run = launch.run(text, "--emulate-hosts", "3", "-n", "1", *flags, first=THE_LAST_WRITES).completed()
    assert same_bits(run, launch.run(text, "-n", "3", *flags).completed())


DIES_AS_IT_PACKS = """
import os, signal
from paceline.ipc import messages
from paceline.host.host import Host
say = Host._say
def dies(self, worker, message, attached):
    if isinstance(message, messages.worker.Keep):
        os.kill(os.getpid(), signal.SIGKILL)
    say(self, worker, message, attached)
Host._say = dies
"""
DIES_AS_IT_IS_FETCHED = """
import os, signal
from paceline.host.attachments import Attachments
look = Attachments.look
def dies(self, item, *asked):
    if item.name.startswith("attached by worker"):
        os.kill(os.getpid(), signal.SIGKILL)
    return look(self, item, *asked)
Attachments.look = dies
"""


@pytest.mark.parametrize("first", [pytest.param(DIES_AS_IT_PACKS, marks=pytest.mark.long), DIES_AS_IT_IS_FETCHED])
def test_a_snapshot_does_without_what_a_host_had_not_handed_over_when_it_died(first: str, launch: Launch) -> None:
    flags = (*HOSTS, "-p", "asp", "--checkpoint", "3", "--on-loss", "continue")
    run = launch.run(script(), *flags, "--max-steps", "12", first=first).completed()
    assert "host node-1 is lost" in run.err
    assert "can't be made" not in run.err
    *_, first_snapshot = whole(run.folder)
    assert sorted(read(first_snapshot).state.files) == [
        "store.safetensors", "worker-0.safetensors", "worker-1.safetensors"
    ]  # fmt: skip
    resumed = launch.resume(run.folder).completed()
    assert resumed.summary["samples"] == 3 * 96
    assert (found := checked(resumed.folder)).ok, found.wrong
