"""Scripts with threads of their own."""

from __future__ import annotations

import pytest

from paceline.cli.main import main
from support.launch import Launch

AHEAD = """
import queue, threading
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True), epochs=2)

def fetch():
    for epoch in range(2):
        for batch in loader:
            fetched.put(batch)
    fetched.put(None)

fetched = queue.Queue(3)
threading.Thread(target=fetch).start()
trained = 0
while (batch := fetched.get()) is not None:
    x, y = batch
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    trained += 1
print("trained", trained)
"""


BESIDE = """
import threading
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

def train():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
    for x, y in loader:
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        states = model.state_dict(), optimizer.state_dict()
    paceline.finish()
    print("trained, of", sorted(states[0]), len(states[1]["state"]))

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_a_script_may_prepare_and_train_in_a_thread_of_its_own(launch: Launch) -> None:
    run = launch.run(BESIDE, "-n", "2", "-p", "bsp", "--tee", "all").completed()
    assert run.out.count("trained, of ['bias', 'weight'] 2\n") == 2, run.out
    assert run.summary["samples"] == 64


@pytest.mark.parametrize("protocol", ["bsp", "asp", "ripples"])
def test_a_thread_of_the_script_may_fetch_ahead(protocol: str, launch: Launch) -> None:
    run = launch.run(AHEAD, "-n", "2", "-p", protocol, "--tee", "all").completed()
    trained = [int(line.rpartition(" ")[2]) for line in run.out.splitlines() if " trained " in line]
    assert sum(trained) == run.summary["steps"] == 2 * 16
    assert run.summary["samples"] == 2 * 64
    assert run.summary["samples_missed"] == 0
    assert main(["check", str(run.folder)]) == 0
