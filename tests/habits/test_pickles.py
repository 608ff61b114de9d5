"""What a script copies and pickles of what `prepare` returned is plain PyTorch: it loads where there is no Paceline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.launch import Launch
from support.rounding import apart

NET = """
import torch
from torch import nn

torch.set_default_dtype(torch.float64)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(self.norm(x))))

class Halving(torch.optim.SGD):
    \"\"\"Of the script's own class, with an attribute of its own.\"\"\"

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.label = "halving"

    def __getstate__(self):
        return self.__dict__.copy()

def shown(model):
    return {name: value.detach().clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}

def step(model, optimizer, seed):
    x, y = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)), torch.ones(4, 2)
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""

SAVE = (
    NET
    + """
import copy, pickle, sys
import paceline
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

torch.manual_seed(0)
model = Net()
if sys.argv[2] == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
else:
    optimizer = Halving(model.parameters(), lr=0.05)
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))

data = Stream() if sys.argv[2] == "adam" else TensorDataset(torch.arange(6.0))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=2))
for again in (copy.deepcopy({"loader": loader})["loader"], pickle.loads(pickle.dumps(loader))):
    assert type(again) is DataLoader and len(list(again)) == 3, type(again)
for number in range(3):
    step(model, optimizer, number)
copied = copy.deepcopy(model)
both = copy.deepcopy((model, optimizer))
torch.save(model, f"{sys.argv[1]}/model.pt")
torch.save((model, optimizer), f"{sys.argv[1]}/both.pt")
torch.save(model.state_dict(), f"{sys.argv[1]}/state.pt")
torch.save(shown(model), f"{sys.argv[1]}/shown.pt")
torch.save(optimizer.state_dict(), f"{sys.argv[1]}/optimizer.pt")
with open(f"{sys.argv[1]}/both.pickle", "wb") as file:
    pickle.dump((model, optimizer), file)
with torch.no_grad():
    copied.first.weight.fill_(7)  # its own: the model knows nothing of it
assert both[1].param_groups[0]["params"][0] is both[0].norm.weight
assert type(both[0]) is Net and type(both[1]).__module__ in ("__main__", "torch.optim.adam"), type(both[1])
step(*both, 3)  # a plain step: nothing is pushed
torch.save(shown(both[0]), f"{sys.argv[1]}/copied.pt")
step(model, optimizer, 3)
torch.save(shown(model), f"{sys.argv[1]}/next.pt")
"""
)

BOUND = apart(torch.float64, summands=4 * 8, largest=10_000.0)
"""Of one step, whose gradient sums over a batch of 4 and at most 8 units. Adam divides it by its own size, which may be
thousands of times smaller."""

LOAD = (
    NET
    + """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "paceline":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())

def same(one, other, exactly=True):
    assert one.keys() == other.keys()
    for name, value in one.items():
        bound = 0.0 if exactly else BOUND
        assert torch.allclose(value, other[name], rtol=0.0, atol=bound), name

for folder in sys.argv[1:]:
    print(folder, file=sys.stderr)
    model = torch.load(f"{folder}/model.pt", weights_only=False)
    state = torch.load(f"{folder}/state.pt", weights_only=True)
    of_optimizer = torch.load(f"{folder}/optimizer.pt", weights_only=True)
    following = torch.load(f"{folder}/next.pt", weights_only=True)
    assert type(model) is Net and type(model._state_dict_hooks).__module__ == "collections"
    torch.serialization.add_safe_globals([Net, nn.Linear, nn.BatchNorm1d, set])
    torch.load(f"{folder}/model.pt", weights_only=True)
    same(shown(model), torch.load(f"{folder}/shown.pt"))
    assert state.keys() == model.state_dict().keys()
    with open(f"{folder}/both.pickle", "rb") as file:
        for again, optimizer in (torch.load(f"{folder}/both.pt", weights_only=False), pickle.load(file)):
            assert optimizer.param_groups[0]["params"][0] is again.norm.weight
            assert "paceline_session" not in vars(optimizer)
            assert getattr(optimizer, "label", "halving") == "halving"
            assert optimizer.state_dict()["state"].keys() == of_optimizer["state"].keys() != set()
            step(again, optimizer, 3)
            same(shown(again), following, exactly=False)
    same(torch.load(f"{folder}/copied.pt"), following, exactly=False)
assert "paceline" not in sys.modules
"""
).replace("BOUND", repr(BOUND))


SOME = [("bsp", "own"), ("all-reduce", "adam")]
OTHERS = [("bsp", "adam"), ("ps-plus", "adam"), ("ps-plus", "own"), ("all-reduce", "own")]


@pytest.mark.parametrize("pairs", [SOME, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["some", "others"])
def test_a_pickled_model_and_optimizer_load_without_paceline_and_train_on(
    pairs: list[tuple[str, str]], launch: Launch, tmp_path: Path
) -> None:
    """Of each protocol and optimizer; all of them are loaded by one process."""
    folders = [tmp_path / f"{protocol} {optimizer}" for protocol, optimizer in pairs]
    for (protocol, optimizer), folder in zip(pairs, folders, strict=True):
        folder.mkdir()
        launch.run(SAVE, "-n", "1", "-p", protocol, "--threads", "1", args=(str(folder), optimizer)).completed()
    script = tmp_path / "load.py"
    script.write_text(LOAD)
    done = subprocess.run([sys.executable, script, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
