"""Parameters that only lie in the model, and that no step moves, may be anything: under every protocol as in bsp."""

from __future__ import annotations

import pytest
import torch

from paceline.protocols import registry
from support.launch import Launch
from support.scripts import script

SCRIPT = script("""
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.arange(4), requires_grad=False)
        self.flags = nn.Parameter(torch.tensor([True, False, True, True]), requires_grad=False)
        self.mask = nn.Parameter(torch.full((4, 4), float("-inf")).triu(1), requires_grad=False)
        self.missing = nn.Parameter(torch.tensor([float("nan"), 1.0]), requires_grad=False)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.softmax(x[:, None, :] * self.flags + self.mask, -1).sum(1)[:, self.table])

torch.manual_seed(0)
model = Masked()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 2)), batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
paceline.finish()
assert model.missing[0].isnan() and model.mask[0, 1] == float("-inf") and model.table.tolist() == [0, 1, 2, 3]
""")


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_frozen_whole_numbers_truth_values_nan_and_infinity_are_no_matter(protocol: str, launch: Launch) -> None:
    ended = launch.run(SCRIPT, "-n", "2", "-p", protocol, "--record", "2").completed()
    assert ended.summary["samples"] == 192
    final = ended.final()
    assert final["table"].tolist() == [0, 1, 2, 3]
    assert final["flags"].tolist() == [True, False, True, True]
    assert torch.equal(final["mask"], torch.full((4, 4), float("-inf")).triu(1))
    assert torch.equal(final["missing"].isnan(), torch.tensor([True, False]))
    assert all(distance == distance for (distance,) in ended.rows("SELECT distance FROM consensus"))
