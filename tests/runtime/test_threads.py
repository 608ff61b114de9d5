"""Scripts with threads of their own."""

from __future__ import annotations

from textwrap import indent

import pytest

from support.launch import Launch
from support.scripts import training
from support.sound import right

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
while (batch := fetched.get()) is not None:
    x, y = batch
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("protocol", ["bsp", "ripples"])
def test_a_thread_of_the_script_may_fetch_ahead(protocol: str, launch: Launch) -> None:
    run = launch.run(AHEAD, "-n", "2", "-p", protocol).completed()
    assert run.summary["steps"] == 2 * 16
    assert (run.summary["samples"], run.summary["samples_missed"]) == (2 * 64, 0)
    right(run)


def test_a_script_may_prepare_and_train_in_a_thread_of_its_own(launch: Launch) -> None:
    ends = "states = model.state_dict(), optimizer.state_dict()\npaceline.finish(); print('trained, of', *states[0])"
    thread = "\nimport threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    script = f"def train():\n{indent(training(after=ends), '    ')}{thread}"
    run = launch.run(script, "-n", "2", "-p", "bsp", "--tee", "all").completed()
    assert run.out.count("trained, of weight bias\n") == 2, run.out
    assert run.summary["samples"] == 2 * 64
