"""Agents that can't open what is in the run's folder, and are told no path of it: as on machines of their own."""

from __future__ import annotations

import pytest
import torch

from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, replayed

APART = """
import os, sys
from paceline.net import numbered
from paceline.coordinator import emulated

HIDDEN = {hidden!r}

def refuse(event, arguments):
    for one in arguments:
        if isinstance(one, (str, bytes)) and os.fsdecode(one).startswith(HIDDEN):
            raise RuntimeError(f"{{event}} of {{one}}, on another machine")

def apart(*given, **keys):
    sys.addaudithook(refuse)
    return agent(*given, **keys)

def send(self, message):
    sent = number(self, message)
    assert HIDDEN.encode() not in sent, f"a path of the head is told: {{message}}"
    return sent

agent, emulated.agent = emulated.agent, apart
number, numbered.Line.send = numbered.Line.send, send
"""
"""What agents and their processes open below that path is refused, and no host may tell another one of it."""

SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(96, 6), torch.randint(0, 3, (96,))
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)

def evaluate(model):
    model.eval()
    print("evaluates", flush=True)
    return {"loss": nn.functional.cross_entropy(model(x), y).item()}

model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2, evaluate=evaluate)
for epoch in paceline.epochs(2):
    for x_, y_ in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x_), y_).backward()
        optimizer.step()
        EACH_STEP
paceline.finish()
AFTER
"""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")


@pytest.fixture
def first(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets hosts apart. What they save for themselves is below the test's folder."""
    monkeypatch.chdir(launch.tmp_path)
    return APART.format(hidden=str(launch.tmp_path / "run_"))


def script(each_step: str = "pass", after: str = "pass") -> str:
    return SCRIPT.replace("EACH_STEP", each_step).replace("AFTER", after)


def evaluated(run: Run) -> list[tuple[int, float]]:
    return [(row["version"], row["loss"]) for row in run.summary["evaluations"]]


def test_workers_of_another_host_evaluate_what_the_head_has_recorded_and_take_the_final_version(
    launch: Launch, first: str
) -> None:
    """Those of the head have gone by then."""
    after = """
print("final", *(float(value.double().sum()) for value in model.state_dict().values()), flush=True)
if paceline.worker() < 2: os._exit(0)
"""
    flags = ("-p", "bsp", "--target", "loss<=100")
    run = launch.run(script(after=after), *HOSTS, *flags, first=first).completed()
    one = launch.run(script(), "-n", "4", "--threads", "1", *flags).completed()
    found, expected = dict(evaluated(run)), dict(evaluated(one))
    assert found == pytest.approx(expected, rel=1e-4)  # each host adds up its own workers' updates first
    assert run.log(2).count("evaluates") == len(evaluated(run)) > 0
    assert "evaluates" not in run.log(1) + run.log(3)
    final = [next(line for line in run.log(worker).splitlines() if "final" in line) for worker in range(4)]
    assert final == final[:1] * 4
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).out


def test_a_run_on_several_hosts_ends_at_its_target(launch: Launch, first: str) -> None:
    flags = ("-p", "asp", "--target", "loss<=100", "--stop-at-target")
    run = launch.run(script(), *HOSTS, *flags, first=first).completed()
    assert run.summary["targets"]["loss<=100"] is not None
    assert (found := checked(run.folder)).ok, found.wrong


def test_what_workers_of_another_host_save_stays_there_and_only_they_find_it(launch: Launch, first: str) -> None:
    after = """
torch.save(paceline.worker(), "mine.pt")
assert torch.load("mine.pt") == paceline.worker()
"""
    run = launch.run(script(after=after), *HOSTS, "-p", "asp", first=first).completed()
    mine = str(launch.tmp_path / "mine.pt")
    assert torch.load(mine) == 0
    assert torch.load(f"{run.folder}/worker-1/saved{mine}") == 1
    (there,) = launch.tmp_path.glob("paceline-node-1-*")
    assert [torch.load(f"{there}/worker-{worker}/saved{mine}") for worker in (2, 3)] == [2, 3]
    assert sorted(path.name for path in run.folder.glob("worker-*") if path.is_dir()) == ["worker-1"]


def test_nothing_is_left_where_workers_of_another_host_save_nothing(launch: Launch, first: str) -> None:
    launch.run(script(), *HOSTS, "-p", "asp", first=first).completed()
    assert not list(launch.tmp_path.glob("paceline-*"))


def test_the_last_words_of_a_worker_of_another_host_are_told(launch: Launch, first: str) -> None:
    dies = "if paceline.worker() == 3 and epoch == 1: raise ValueError('the last word')"
    run = launch.run(script(dies), *HOSTS, "-p", "asp", "--on-loss", "continue", first=first).completed()
    assert run.err.splitlines()[0].startswith("paceline: worker 3 died (exit code 1)")
    assert run.err.splitlines()[-1] == "  | ValueError: the last word"


@pytest.mark.long
def test_a_run_goes_on_from_a_snapshot_on_several_hosts(launch: Launch, first: str) -> None:
    flags = ("-p", "bsp", "--checkpoint", "2")
    stopped = launch.run(script(), *HOSTS, *flags, "--max-steps", "30", first=first).completed()
    run = ended(launch.start_resumed(stopped.folder, first=first)).completed()
    whole = launch.run(script(), *HOSTS, *flags, first=first).completed().final()
    assert run.summary["segments"] == 2
    assert all(torch.equal(value, whole[name]) for name, value in run.final().items())
    assert (found := checked(run.folder)).ok, found.wrong
