"""A model that is tied, pruned, scripted or put together anew after `prepare` is trained and saved as it is alone."""

from __future__ import annotations

import pytest
import torch

from paceline.protocols import registry
from support.launch import Launch
from support.runs import killed_once_kept, replayed
from support.scripts import script, training
from support.sound import sound
from support.suites import each

PRUNED = script("""
from torch.nn.utils import prune

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x[:, :2].sum(1, keepdim=True)

def evaluate(model):
    with torch.no_grad():
        return {"error": (model(x) - y).square().mean().item(), "zeros": (model[0].weight == 0).sum().item()}

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=4, evaluate=evaluate)
for epoch in paceline.epochs(4):
    if epoch == 2:
        time.sleep(0.1 * paceline.worker())
        prune.l1_unstructured(model[0], "weight", 0.5)
    for a, b in loader:
        (model(a) - b).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
if len(sys.argv) > 2:
    prune.remove(model[0], "weight")
paceline.finish()
evaluate(model)
torch.save(model.state_dict(), f"{sys.argv[1]}/{paceline.worker()}.pt")
""")


@pytest.mark.parametrize("removes", each([False, True], default=[True]))
@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("asp",)))
def test_a_model_pruned_on_the_way_comes_out_alike_everywhere(protocol: str, removes: bool, launch: Launch) -> None:
    """Masks are made of each worker's own version: all take the first worker's."""
    arguments = (str(launch.tmp_path), *["removes"] * removes)
    flags = ("-n", "2", "-p", protocol, "--record", "1", "--saves", "all")
    ended = launch.run(PRUNED, *flags, args=arguments).completed()
    states = [torch.load(launch.tmp_path / f"{worker}.pt", weights_only=True) for worker in range(2)]
    final = ended.final()
    assert final.keys() == {"0.weight_orig", "0.weight_mask", "0.bias", "2.weight", "2.bias"}
    for state in states:
        assert state.keys() == (
            final.keys() - {"0.weight_orig", "0.weight_mask"} | {"0.weight"} if removes else final.keys()
        )
        for name, value in state.items():
            expected = final["0.weight_orig"] * final["0.weight_mask"] if name == "0.weight" else final[name]
            assert torch.equal(value, expected), name
    zeros = [
        value
        for _, metric, value in ended.rows("SELECT version, metric, value FROM evaluations ORDER BY rowid")
        if metric == "zeros"
    ]
    assert zeros[0] == 0
    assert zeros[-1] == 64
    again = replayed(ended.folder).completed()
    assert "the same bits" in again.out


MOMENTUM = script("""
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.unused = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(2, 2)
        for parameter in self.k.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.q.parameters(), self.k.parameters()):
                k.data = k.data * 0.9 + q.data * 0.1 + x.mean() * 0.01
            key = self.k(x)
        return (self.q(x) - key - 1).square().mean()

torch.manual_seed(0)
model = Pair()
optimizer = torch.optim.SGD(model.q.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for epoch in range(2):
    for (x,) in loader:
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    if epoch == 0:
        del model.unused
if paceline.is_main():
    torch.save(model.k.state_dict(), f"{sys.argv[1]}/own.pt")
paceline.finish()
torch.save(model.state_dict(), f"{sys.argv[1]}/{paceline.worker()}.pt")
""")


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("bsp",)))
def test_a_momentum_encoder_is_each_workers_own_and_the_lowest_workers_in_the_end(
    protocol: str, launch: Launch
) -> None:
    ended = launch.run(MOMENTUM, "-n", "2", "-p", protocol, "--saves", "all", args=(str(launch.tmp_path),)).completed()
    final = ended.final()
    assert final.keys() == {"q.weight", "q.bias", "k.weight", "k.bias"}
    own = torch.load(launch.tmp_path / "own.pt", weights_only=True)
    assert all(torch.equal(final[f"k.{name}"], value) for name, value in own.items())
    for worker in range(2):
        state = torch.load(launch.tmp_path / f"{worker}.pt", weights_only=True)
        assert all(torch.equal(state[name], value) for name, value in final.items())
    assert 'worker 0 moves the parameter "k.' in ended.err
    sound(ended)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["bsp", "asp", "ps-plus", "ad-psgd"])
def test_a_run_that_is_killed_before_its_newest_version_was_known_not_to_be_the_last_goes_on(
    protocol: str, launch: Launch
) -> None:
    waits = "        while epoch == 1 and not paceline.resumed():\n            time.sleep(1)\n"
    script = MOMENTUM.replace("        model(x).backward()\n", waits + "        model(x).backward()\n")
    script = script.replace("import sys\n", "import sys\nimport time\n")
    running = launch.start(script, "-n", "1", "-p", protocol, "--saves", "all", args=(str(launch.tmp_path),))
    ended = launch.resume(killed_once_kept(running).folder).completed()
    sound(ended)


def test_a_mask_removed_before_the_last_step_is_refused_with_the_advice_to_do_it_after(launch: Launch) -> None:
    script = PRUNED.replace(
        "    for a, b in loader:",
        '    if epoch == 3:\n        prune.remove(model[0], "weight")\n    for a, b in loader:',
    )
    ended = launch.run(script, "-n", "2", "-p", "bsp", args=(str(launch.tmp_path),))
    ended.refused('the script changed the parameter "0.weight" after the first step, and gave it another name')
    assert "do this after the last step" in ended.err


AFTER_ITS_LAST_STEP = training(
    before="""
    from torch.nn.utils import prune
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    """,
    each_epoch="""
    if epoch == 0:
        model.extra = nn.BatchNorm1d(2)
        prune.l1_unstructured(model[0], "weight", 0.5)
    """,
    after="""
    exec(sys.argv[2])
    torch.save(model.state_dict(), f"{sys.argv[1]}/{me}.pt")
    """,
)


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("bsp",)))
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("model.extra = nn.BatchNorm1d(3); paceline.finish()", 'with another "extra.weight"; "extra.weight" is new'),
        ("model.half().float(); paceline.finish()", "finish() has put the final version's in their place"),
        ('prune.remove(model[0], "weight")', 'with "0.weight_orig" and without "0.weight"'),
        pytest.param("del model.extra", 'with "extra.weight"', marks=pytest.mark.long),
    ],
)
def test_a_line_says_where_the_final_version_is_not_the_model_that_the_script_has(
    edit: str, said: str, protocol: str, launch: Launch
) -> None:
    arguments = (str(launch.tmp_path), edit)
    ended = launch.run(AFTER_ITS_LAST_STEP, "-n", "2", "-p", protocol, "--saves", "all", args=arguments).completed()
    assert ended.err.count(said) == 1
    if "finish" in edit:
        final = ended.final()
        for worker in range(2):
            state = torch.load(launch.tmp_path / f"{worker}.pt", weights_only=True)
            same = {name for name, value in state.items() if not name.startswith("extra")}
            assert same == {"0.weight_orig", "0.weight_mask", "0.bias", "2.weight", "2.bias"}
            assert all(torch.equal(state[name], final[name]) for name in same)


LOOKS = script("""
me = paceline.worker()

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1)

    def forward(self, x):
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(1))
        self.seen += 1
        return self.inner(x)

def made(what):
    open(f"{sys.argv[1]}/{what}", "a").close()

def wait_for(what):
    while not os.path.exists(f"{sys.argv[1]}/{what}"):
        time.sleep(0.01)

model = Counts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(16, 1)), batch_size=2)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3)
for epoch in range(3):
    if epoch == 1 and me == 0:
        wait_for("fetched")
    for (x,) in loader:
        if epoch == 1 and me == 1:
            made("fetched")
            wait_for("looked")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == 1 and me == 1:
            made("stepped")
    if epoch == 1 and me == 0:
        for _ in range(5):
            model(next(iter(loader))[0])
        made("looked")
        wait_for("stepped")
""")


@pytest.mark.long
def test_a_version_is_written_though_a_worker_has_only_looked_at_data_since_its_last_step(launch: Launch) -> None:
    flags = "-n", "2", "-p", "asp", "--record", "1", "--saves", "all"
    run = launch.run(LOOKS, *flags, args=(str(launch.tmp_path),)).completed()
    assert run.summary["samples"] == 48


# --- parameters that only lie in the model, and that no step moves, may be anything


MASKED = """
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

model = Masked()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
AFTER = """
paceline.finish()
assert model.missing[0].isnan() and model.mask[0, 1] == float("-inf") and model.table.tolist() == [0, 1, 2, 3]
"""


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_frozen_whole_numbers_truth_values_nan_and_infinity_are_no_matter(protocol: str, launch: Launch) -> None:
    ended = launch.run(
        training(before=MASKED, after=AFTER, samples=96), "-n", "2", "-p", protocol, "--record", "2"
    ).completed()
    assert ended.summary["samples"] == 192
    final = ended.final()
    assert final["table"].tolist() == [0, 1, 2, 3]
    assert final["flags"].tolist() == [True, False, True, True]
    assert torch.equal(final["mask"], torch.full((4, 4), float("-inf")).triu(1))
    assert torch.equal(final["missing"].isnan(), torch.tensor([True, False]))
    assert all(distance == distance for (distance,) in ended.rows("SELECT distance FROM consensus"))
