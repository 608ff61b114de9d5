"""Scripts that keep the best state they had, put it back when training is over, and save it."""

from __future__ import annotations

import pytest
import torch

from support.launch import Launch
from support.scripts import script

SCRIPT = script("""
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
for epoch in range(3):
    for (x,) in loader:
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if epoch == 0:
        best = copy.deepcopy(model.state_dict())
model.load_state_dict(best)
file = f"{sys.argv[1]}/{paceline.worker()}.pt"
torch.save({"best": best, "state": model.state_dict(), "shown": dict(model.named_parameters())}, file)
""")


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce"])
def test_the_state_of_a_model_that_was_given_its_best_values_back_is_these(protocol: str, launch: Launch) -> None:
    folder = launch.tmp_path
    launch.run(SCRIPT, "-n", "2", "-p", protocol, "--saves", "all", args=(str(folder),)).completed()
    for worker in range(2):
        saved = torch.load(folder / f"{worker}.pt")
        assert saved["best"].keys() == saved["state"].keys()
        assert all(torch.equal(value, saved["state"][name]) for name, value in saved["best"].items())
        assert all(torch.equal(value, saved["state"][name]) for name, value in saved["shown"].items())
