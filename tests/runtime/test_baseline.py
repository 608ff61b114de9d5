"""`-p ddp`: that it trains as DistributedDataParallel does, and tells what a comparison needs."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import ConfigError
from paceline.runs.ddp import DdpWorker
from paceline.scenario.scenario import Scenario
from support.events import said
from support.launch import Launch
from support.rounding import apart
from support.runs import ended
from support.scripts import functions_of, training

EVALUATE = "def evaluate(model): return {'size': float(model.weight.abs().sum())}"
ROUNDING = apart(torch.float32, summands=16, steps=16, largest=8.0)
COUNTED = "print('of', len(loader), 'by', paceline.worker(), 'of', paceline.workers()) if step == 0 else None"


def test_it_trains_as_the_mean_of_all_workers_gradients_padded_and_recorded_as_any_run(launch: Launch) -> None:
    """Two workers, 64 samples in batches of 4, two epochs: 16 steps of 5 ms and more."""
    (launch.tmp_path / "padded.toml").write_text('[cluster]\ncompute = "5ms"\n')
    script = training(COUNTED, before=EVALUATE)
    flags = ("-n", "2", "-p", "ddp", "--seed", "3", "--learning-rate-scale", "2", "--target", "size>=0")
    run = launch.run(script, *flags, "--scenario", str(launch.tmp_path / "padded.toml")).completed()
    summary = run.summary
    assert "of 8 by 0 of 2" in run.out
    assert "of 8 by 1 of 2" in run.log(1)
    assert (summary["outcome"], summary["versions"], summary["steps"], summary["samples"]) == ("completed", 16, 32, 128)
    assert summary["wall_seconds"] >= 16 * 0.005
    assert [row["version"] for row in summary["evaluations"]] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert [row["samples"] for row in summary["evaluations"]][-1] == 128
    first = summary["evaluations"][0]
    assert summary["targets"] == {"size>=0": {"at_seconds": first["at_seconds"], "samples": 16}}
    assert (summary["staleness"]["max"], summary["per_worker"]) == (None, [])
    assert not (run.folder / "ledger.sqlite").exists()

    twin = functions_of(script.split("evaluate = None")[0])  # the same data and model, trained by hand
    optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.1)
    parts = [DistributedSampler(twin.data, num_replicas=2, rank=rank, shuffle=True, seed=3) for rank in range(2)]
    for epoch in range(2):
        for part in parts:
            part.set_epoch(epoch)
        both = [torch.tensor(list(part)).split(4) for part in parts]
        for batches in zip(*both, strict=True):
            x, y = (torch.cat([tensor[batch] for batch in batches]) for tensor in twin.data.tensors)
            (twin.model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    made = safetensors.torch.load_file(run.folder / "versions" / "00000016.safetensors")
    for name, value in twin.model.state_dict().items():
        torch.testing.assert_close(made[name], value, rtol=0, atol=ROUNDING)


def test_a_signal_for_scripts_reaches_every_handler_and_one_that_none_handles_is_said(launch: Launch) -> None:
    inside = """
    if step == 3:
        tell("trains", me)
        while not came:
            time.sleep(0.01)
    """
    before = """
    came = []
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    """
    process = launch.start(training(inside, before=before), "-n", "2", "-p", "ddp")
    for worker in range(2):
        launch.events.wait_for("trains", worker)
    process.send_signal(signal.SIGUSR2)
    said(process, "paceline: SIGUSR2 has come, and no script has a handler for it: nothing is done\n")
    process.send_signal(signal.SIGUSR1)
    ended(process).completed()


OWN = """
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline


class Merges(DataLoader):
    scale = 1

    def __iter__(self):
        batches = super().__iter__()
        for (x,), (y,) in zip(batches, batches):
            yield self.scale * torch.cat([x, y])

    def twice(self):
        for x in self:
            yield 2 * x


model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
data = TensorDataset(torch.arange(32.0).reshape(32, 1))
loader = Merges(data, batch_size=4, shuffle=True, num_workers=2)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
assert isinstance(loader, Merges) and len(loader) == 4
seen = []
for epoch in range(2):
    seen.append([])
    for x in loader if epoch == 0 else loader.twice():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen[-1] += x.flatten().tolist()
    loader.scale = 4
print(json.dumps(seen))
"""


def test_the_loader_s_class_iterates_in_its_own_way_over_each_worker_s_part(launch: Launch) -> None:
    run = launch.run(OWN, "-n", "2", "-p", "ddp", "--seed", "3").completed()
    own, other = (
        json.loads(next(line for line in out.splitlines() if line[0] == "[")) for out in (run.out, run.log(1))
    )
    every = [float(one) for one in range(32)]
    assert [sorted(own[loop] + other[loop]) for loop in range(2)] == [every, [8 * one for one in every]]
    assert (run.summary["samples"], run.summary["versions"]) == (64, 4)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[DdpWorker, socket.socket]]:
    """The first of two workers, in a process that has not forked any; and what it tells."""
    ours, theirs = socket.socketpair()
    settings: Any = SimpleNamespace(workers=2, seed=0, scenario=Scenario(), record=4, folder=tmp_path)
    yield DdpWorker(0, settings, theirs), ours
    ours.close()
    theirs.close()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Adds(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield torch.zeros(1, 4)


DATA = TensorDataset(torch.zeros(8, 4))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (None, "-p ddp gives each worker a part of the loader's data, and this script gives prepare() no loader with"),
        (DataLoader(Stream()), "-p ddp gives each worker a part of the loader's data, and this script gives prepare()"),
        (DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])), "-p ddp puts a DistributedSampler in the place of the"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, True)), "-p ddp puts a DistributedSampler in the place of the"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)), "-p ddp puts a DistributedSampler in the place"),
        (Adds(DATA), "-p ddp gives each worker a part of the batches, and those of a Adds don't come of its batch"),
    ],
)
def test_a_loader_whose_data_can_t_be_shared_out_is_refused_in_one_line(
    loader: Any, message: str, worker: tuple[DdpWorker, socket.socket]
) -> None:
    one, told = worker
    model = torch.nn.Linear(4, 2)
    with pytest.raises(ConfigError) as refused:
        one.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, None, True)
    assert str(refused.value).startswith(message)
    assert json.loads(told.recv(1 << 16)) == {"refused": str(refused.value)}
