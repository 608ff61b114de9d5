"""A model that is tied, pruned, scripted or put together anew after `prepare` is trained and saved as it is alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.protocols import registry
from support.launch import Launch
from support.scripts import functions_of
from support.suites import each

TIED = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.norm = nn.BatchNorm1d(6)

    def tie(self):
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.roll(self.norm(self.embed(x)), 1, 1))


def loss_of(model, x):
    return nn.functional.cross_entropy(model(x), (x + 1) % 11)


def restored_loss(state):
    fresh = Net()
    fresh.tie()
    fresh.load_state_dict(state)
    return loss_of(fresh.eval(), x).item()


torch.manual_seed(0)
x = torch.randint(0, 11, (256,))
if __name__ == "__main__":
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(TensorDataset(x), batch_size=8), epochs=4)
    model.tie()
    for epoch in range(4):
        for (a,) in loader:
            optimizer.zero_grad()
            loss_of(model, a).backward()
            optimizer.step()
        if epoch == 2:
            model.normalized, model.norm = model.norm, nn.Sequential(model.norm)
    torch.save(model.embed.state_dict(), sys.argv[1] + "/embed.pt")
    model.norm = model.normalized
    del model.normalized
    torch.save(model.state_dict(), sys.argv[1] + "/whole.pt")
    paceline.finish()
"""


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("bsp", "ad-psgd")))
def test_a_checkpoint_of_weights_tied_after_prepare_has_what_the_model_has(protocol: str, launch: Launch) -> None:
    launch.run(TIED, "-n", "2", "-p", protocol, args=(str(launch.tmp_path),)).completed()
    state: dict[str, Tensor] = torch.load(launch.tmp_path / "whole.pt", weights_only=True)
    assert torch.equal(state["out.weight"], state["embed.weight"])
    assert state.keys() == functions_of(TIED).Net().state_dict().keys()
    assert functions_of(TIED).restored_loss(state) < 0.3
    part: dict[str, Tensor] = torch.load(launch.tmp_path / "embed.pt", weights_only=True)
    assert [(name, value.shape) for name, value in part.items()] == [("weight", (11, 6))]


SCRIPTED = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

draws = torch.Generator().manual_seed(1)
x = torch.randn(64, 4, generator=draws)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def train(model, prepare):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x), batch_size=8)
    if prepare:
        model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
    for epoch in range(2):
        for (a,) in loader:
            (model(a) - a.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if prepare:
        paceline.finish()
    return {name: value.clone() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    torch.save(train(torch.jit.script(build()), True), sys.argv[1])
"""


def test_a_scripted_model_is_trained_as_alone(launch: Launch) -> None:
    ended = launch.run(SCRIPTED, "-n", "1", "-p", "bsp", args=(str(launch.tmp_path / "got.pt"),)).completed()
    twin = functions_of(SCRIPTED)
    want = twin.train(twin.build(), False)
    for state in (torch.load(launch.tmp_path / "got.pt", weights_only=True), ended.final()):
        assert state.keys() == want.keys()
        for name, value in want.items():
            torch.testing.assert_close(state[name], value)  # compiled code rounds in its own way
