"""Training through the store computes what plain PyTorch computes: real runs against a loop in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.training.seeding import seed_step
from paceline.training.tensor_bits import parameters_sha256
from support.orders import epoch_order
from support.rounding import apart
from support.runs import Run, longer, run, side_by_side
from support.scripts import functions_of, script
from support.suites import each

SEED = 5
FLAGS = ("--threads", "1", "--seed", str(SEED), "--record", "0", "--tee", "none")

# --- one worker is plain training -------------------------------------------------------------------

RECIPES = script("""
EPOCHS, STEPS = 3, 75  # 195 samples by 8: 25 batches, the last one of 3

def build(recipe):
    torch.manual_seed(1)
    dtype = torch.float64 if "double" in recipe else torch.float32
    dropout = [nn.Dropout(0.3)] if "dropout" in recipe else []
    norm = [] if "unnormed" in recipe else [nn.BatchNorm1d(16)]
    model = nn.Sequential(nn.Linear(6, 16), *norm, nn.Tanh(), *dropout, nn.Linear(16, 3)).to(dtype)
    if "sgd" in recipe:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    elif "adamw" in recipe:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.99))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    data = TensorDataset(torch.randn(195, 6, dtype=dtype), torch.randint(0, 3, (195,)))
    return model, optimizer, scheduler, DataLoader(data, batch_size=8, shuffle="shuffle" in recipe)

if __name__ == "__main__":
    model, optimizer, scheduler, loader = build(sys.argv[1])
    model, optimizer, loader = paceline.prepare(model, optimizer, loader)
    for epoch in range(EPOCHS):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
""")

RECIPES_OF = {
    "bsp": ("sgd", "adamw", "adam, dropout and shuffled"),
    "asp": ("sgd, dropout and shuffled", "adamw"),
    "ssp": ("sgd", "adamw, dropout and shuffled"),
    # a bias before a norm has no gradient but rounding, of which AdamW makes full-size steps: nothing to compare
    "ps-plus": ("sgd, dropout and shuffled, double", "adamw, unnormed, double"),
    "local-sgd": ("sgd, dropout and shuffled, double", "adamw, unnormed, double"),
    **dict.fromkeys(("diloco", "async-diloco"), ()),  # their outer optimizer steps besides
}


CASES = [(protocol, recipe) for protocol in registry() for recipe in RECIPES_OF.get(protocol, ("sgd", "adamw"))]
CASES += [
    ("sync-switch:first=bsp,then=ad-psgd", "adam, dropout and shuffled"),
    ("sync-switch:first=all-reduce,then=asp", "sgd, dropout and shuffled"),
]
LONG = [
    *((protocol, "adamw") for protocol in ("dssp", "hsp", "sync-switch", "ad-psgd", "ripples")),
    ("ssp", "sgd"),
    ("all-reduce", "sgd"),
]
"""Another protocol with the same store or the same replicas has this optimizer in the shorter tests."""

Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The runs that this module looks at, by name."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "uneven.toml").write_text(UNEVEN)

    def call(script: str, *flags: str, args: Sequence[str] = ()) -> Callable[[], Run]:
        return partial(run, script, *flags, *FLAGS, args=args, tmp_path=folder)

    calls = {
        f"{protocol}: {recipe}": call(RECIPES, "-n", "1", "-p", protocol, args=[recipe])
        for protocol, recipe in CASES
        if (protocol, recipe) not in LONG or longer(request)
    }
    calls["zoo"] = call(ZOO, "-n", "1", "-p", "asp")
    for protocol in ("bsp", "all-reduce"):
        for kind in ("float32", "float64"):
            calls[f"{kind}: {protocol}"] = call(CONCATENATED, "-n", "4", "-p", protocol, args=[kind])
    calls["even"] = partial(run, SAME_BITS, "-n", "4", "-p", "bsp", *FLAGS, args=["0"], tmp_path=folder, fresh=True)
    uneven = ("--scenario", str(folder / "uneven.toml"))
    calls["uneven"] = call(SAME_BITS, "-n", "4", "-p", "bsp", *uneven, args=["2"])
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize(("protocol", "recipe"), each(CASES, long=LONG))
def test_one_worker_under_any_protocol_equals_plain_training_bit_for_bit(
    protocol: str, recipe: str, runs: Runs
) -> None:
    """To rounding where the worker pushes what its optimizer did: that is a difference, which rounds once more."""
    ended = runs[f"{protocol}: {recipe}"].result().completed()

    twin = functions_of(RECIPES)
    model, optimizer, scheduler, loader = twin.build(recipe)
    step = 0
    for epoch in range(twin.EPOCHS):
        for ids in epoch_order(loader.batch_sampler, SEED, epoch):
            x, y = loader.dataset[ids]
            seed_step(SEED, 0, step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1

    assert step == ended.summary["steps"] == twin.STEPS
    spec = choose(protocol, registry()).spec
    replicas = spec.state == "replicas"
    assert ("has nothing to average" in " ".join(ended.err.split())) == replicas
    if spec.local_steps and not replicas:
        final = ended.final()
        for name, expected in model.state_dict().items():
            # a gradient sums over a batch of 8 and at most 16 units
            bound = apart(torch.float64, steps=step, summands=8 * 16, largest=float(expected.abs().max()))
            torch.testing.assert_close(final[name], expected, rtol=0.0, atol=bound)
    else:
        _assert_same_bits(ended, model)
    assert "Warning" not in ended.log(0), "the scheduler finds nothing to warn of"
    rates = [json.loads(text)[0] for (text,) in ended.rows("SELECT learning_rates FROM pushes ORDER BY step")]
    assert len(set(rates)) == twin.STEPS  # the scheduler's rate came with every push


# --- what a model may be made of ---------------------------------------------------------------------

ZOO = script("""
STEPS = 40

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(self.embedding(x[:, 0].abs().long() % 7))

def build():
    torch.manual_seed(2)
    model = nn.ModuleDict(
        {
            "sometimes": nn.Linear(4, 4),
            "never": nn.Linear(4, 4),
            "frozen": nn.Linear(4, 4).requires_grad_(False),
            "frozen_but_listed": nn.Linear(4, 4).requires_grad_(False),
            "tied": Tied(),
            "low": nn.Linear(4, 4).bfloat16(),
            "image": nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
            "scalar": nn.ParameterList([nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.empty(0))]),
            "slow": nn.Linear(4, 4),
        }
    )
    slow = list(model["slow"].parameters())
    quick = [p for name in model for p in model[name].parameters() if name not in ("slow", "frozen")]
    groups = [{"params": slow, "lr": 0.003, "momentum": 0.5}, {"params": quick, "weight_decay": 0.01}]
    return model, torch.optim.SGD(groups, lr=0.02, momentum=0.9)

def loss(model, step):
    x = torch.randn(8, 4) * 3
    parts = [model["slow"](x), model["frozen"](x), model["frozen_but_listed"](x) * model["scalar"][0]]
    if step % 2:
        parts.append(model["sometimes"](x))
    parts += [model["tied"](x), model["low"](x.bfloat16()).float()]
    parts.append(model["image"](torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)))
    return sum(part.square().mean() for part in parts)

if __name__ == "__main__":
    model, optimizer = paceline.prepare(*build())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
""")

Zoo = tuple[dict[str, Tensor], nn.Module, nn.Module, Run]


@pytest.fixture(scope="module")
def zoo(runs: Runs) -> Zoo:
    """(final parameters of a run, the twin's model, the model as it began, the run)."""
    ended = runs["zoo"].result().completed()
    twin = functions_of(ZOO)
    begun, _ = twin.build()
    model, optimizer = twin.build()
    for step in range(twin.STEPS):
        optimizer.zero_grad()
        seed_step(SEED, 0, step)
        twin.loss(model, step).backward()
        optimizer.step()
    return ended.final(), model, begun, ended


@pytest.mark.parametrize(
    ("what", "part", "moved"),
    [
        ("one without a gradient in some steps is skipped in them", "sometimes", True),
        ("one that never has a gradient is not even decayed", "never", False),
        ("one that is frozen stays", "frozen", False),
        ("so does one that the optimizer has", "frozen_but_listed", False),
        ("weights that are tied", "tied", True),
        ("a group has its own hyperparameters", "slow", True),
        ("another type", "low", True),
        ("channels last", "image", True),
        ("a scalar, and one without elements", "scalar", True),
    ],
)
def test_each_part_of_a_model_trains_as_in_plain_pytorch(what: str, part: str, moved: bool, zoo: Zoo) -> None:
    final, model, begun, _ = zoo
    names = [name for name in model.state_dict() if name.startswith(f"{part}.")]
    assert names, what
    for name in names:
        assert torch.equal(final[name], model.state_dict()[name]), name
        assert final[name].dtype == model.state_dict()[name].dtype
        if final[name].numel():
            assert moved is not torch.equal(final[name], begun.state_dict()[name]), name


def test_tied_weights_stay_tied_and_are_saved_under_both_names(zoo: Zoo) -> None:
    assert torch.equal(zoo[0]["tied.embedding.weight"], zoo[0]["tied.output.weight"])


def test_the_summary_has_the_hash_of_the_named_parameters_in_order(zoo: Zoo) -> None:
    _, model, _, ended = zoo
    assert ended.summary["final_parameters_sha256"] == parameters_sha256(model.parameters())


# --- rounds of several workers ------------------------------------------------------------------------

CONCATENATED = script("""
EPOCHS, ROUNDS = 3, 60  # 626 samples by 8: 79 batches an epoch, the last one of 2: it ends inside a round

def build(kind):
    torch.manual_seed(3)
    dtype = getattr(torch, kind)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    data = TensorDataset(torch.randn(626, 6, dtype=dtype), torch.randint(0, 3, (626,)))
    return model, optimizer, DataLoader(data, batch_size=8, shuffle=True)

if __name__ == "__main__":
    model, optimizer, loader = paceline.prepare(*build(sys.argv[1]))
    for epoch in range(EPOCHS):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
""")


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce"])
def test_four_workers_in_rounds_equal_one_process_on_the_concatenated_batch(protocol: str, runs: Runs) -> None:
    ended = runs[f"float64: {protocol}"].result().completed()

    twin = functions_of(CONCATENATED)
    model, optimizer, loader = twin.build("float64")
    orders = [epoch_order(loader.batch_sampler, SEED, epoch) for epoch in range(twin.EPOCHS)]
    stream = [ids for order in orders for ids in order]  # dealt in turn: round by round, worker by worker
    rounds = [stream[start : start + 4] for start in range(0, len(stream), 4)][: twin.ROUNDS]
    assert len(rounds) == twin.ROUNDS
    assert any(len({len(ids) for ids in parts}) > 1 for parts in rounds)  # some round's weights differ
    for parts in rounds:
        x, y = loader.dataset[[one for ids in parts for one in ids]]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    assert ended.summary["steps"] == len(stream)
    assert _contributors(ended) == [4] * (twin.ROUNDS - 1) + [len(rounds[-1])]
    for name, value in model.state_dict().items():
        # a gradient is a mean over the 32 samples of four batches, and sums over at most 32 units
        bound = apart(torch.float64, steps=twin.ROUNDS, summands=32 * 32, largest=float(value.abs().max()))
        torch.testing.assert_close(ended.final()[name], value, rtol=0.0, atol=bound)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_all_reduce_makes_bsp_s_weights_bit_for_bit(kind: str, runs: Runs) -> None:
    ended, plain = (runs[f"{kind}: {protocol}"].result().completed() for protocol in ("all-reduce", "bsp"))
    assert ended.summary["final_parameters_sha256"] == plain.summary["final_parameters_sha256"]


def _contributors(ended: Run) -> list[int]:
    return [count for (count,) in ended.rows("SELECT count(*) FROM applied_updates GROUP BY version ORDER BY version")]


SAME_BITS = script("""
import numpy

class Augmented(Dataset):
    def __len__(self):
        return 203

    def __getitem__(self, one):
        x = torch.full((6,), one / 100) + 0.1 * torch.randn(6) + numpy.random.rand()
        return x, one % 3

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.4), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=int(sys.argv[1]))
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
for epoch in range(3):
    for x, y in loader:
        nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""")

UNEVEN = """
[cluster]
compute = "3ms"
jitter = 0.5
[[worker]]
index = 0
speed = 0.2
[[event]]
worker = 2
at_step = 3
for_steps = 4
slow = 8.0
"""


def test_the_same_seed_gives_the_same_bits_under_bsp_whatever_the_timing_and_whoever_fetches(runs: Runs) -> None:
    even, uneven = runs["even"].result().completed(), runs["uneven"].result().completed()

    assert even.summary["final_parameters_sha256"] == uneven.summary["final_parameters_sha256"]
    first, second = even.final(), uneven.final()
    assert all(torch.equal(first[name], second[name]) for name in first)  # buffers too


def _assert_same_bits(ended: Run, model: nn.Module) -> None:
    final = ended.final()
    for name, expected in model.state_dict().items():  # buffers too
        assert torch.equal(final[name], expected), name
    assert ended.summary["final_parameters_sha256"] == parameters_sha256(model.parameters())
