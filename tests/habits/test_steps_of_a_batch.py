"""A script may make several gradients and steps of a batch, or leave batches out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import paceline
from paceline.cli.main import main
from paceline.errors import ConfigError
from support.launch import Launch
from support.runs import Run
from support.scripts import script
from support.sound import sound
from support.suites import each

MODEL = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 1)
    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))

def made():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Pair()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
"""

RUN = script("""
torch.manual_seed(1)
data = torch.randn(int(sys.argv[1]), 3)
model, optimizer = made()
model, optimizer, loader = paceline.prepare(
    model, optimizer, DataLoader(TensorDataset(data), batch_size=4), epochs=2, shards="static"
)
for epoch in range(2):
    for (x,) in loader:
        train(model, optimizer, x)
paceline.finish()
""")

HABITS = {
    "adversarial": """
def train(model, optimizer, x):
    x = x.clone().requires_grad_()
    model(x).square().mean().backward()
    moved = (x + 0.5 * x.grad.sign()).detach()
    optimizer.zero_grad()
    model(moved).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "two steps of a batch": """
def train(model, optimizer, x):
    optimizer.zero_grad()
    model.two.requires_grad_(False)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model.two.requires_grad_(True)
    model(x).mean().backward()
    optimizer.step()
""",
    "gradients by hand": """
def train(model, optimizer, x):
    gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    optimizer.step()
""",
    "gradients of several tasks put together": """
def train(model, optimizer, x):
    found = []
    for task in range(2):
        optimizer.zero_grad()
        (model(x) - task).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    optimizer.zero_grad()
    for parameter, *gradients in zip(model.parameters(), *found):
        parameter.grad = gradients[0] - 0.5 * gradients[1]
    optimizer.step()
""",
    "two losses of one graph": """
def train(model, optimizer, x):
    out = model(x)
    out.square().mean().backward(retain_graph=True)
    (0.3 * out).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a penalty on gradients": """
def train(model, optimizer, x):
    x = x.clone().requires_grad_()
    optimizer.zero_grad()
    of_input, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (model(x).square().mean() + of_input.square().sum(1).mean()).backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.detach()
    optimizer.step()
""",
}

ROUNDS = ("bsp", "all-reduce", "hsp:idle=none")
BY_DEFAULT = {
    ("adversarial", "bsp", 2),
    ("adversarial", "all-reduce", 2),
    ("gradients by hand", "all-reduce", 2),
    ("two steps of a batch", "all-reduce", 2),
    ("gradients of several tasks put together", "bsp", 4),
}
CASES = [(habit, protocol, workers) for habit in HABITS for protocol in ROUNDS for workers in (2, 4)]


def alone(habit: str, *batches: slice, samples: int) -> dict[str, Tensor]:
    """The parameters after two epochs of these batches, in one process."""
    names: dict[str, Any] = {}
    exec(MODEL + HABITS[habit], names)
    torch.manual_seed(1)
    data = torch.randn(samples, 3)
    model, optimizer = names["made"]()
    for _ in range(2):
        for batch in batches:
            names["train"](model, optimizer, data[batch])
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train(launch: Launch, habit: str, protocol: str, workers: int, samples: int) -> Run:
    script = MODEL + HABITS[habit] + RUN
    flags = ("-n", str(workers), "-p", protocol, "--threads", "1")
    return launch.run(script, *flags, args=(str(samples),)).completed()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize(("habit", "protocol", "workers"), each(CASES, default=BY_DEFAULT))
def test_workers_make_the_step_of_the_whole_batch(habit: str, protocol: str, workers: int, launch: Launch) -> None:
    """Each worker has one batch of an epoch, and the last one has half as many samples."""
    samples = 4 * workers - 2
    run = train(launch, habit, protocol, workers, samples)
    torch.testing.assert_close(run.final(), alone(habit, slice(None), samples=samples), rtol=0.0, atol=1e-6)
    assert (run.summary["samples"], run.summary["samples_missed"]) == (2 * samples, 0), "each batch counts once"
    sound(run)


ZEROED = script("""
torch.set_num_threads(1)
whole = nn.ModuleDict({"part": nn.Linear(1, 1, bias=False)})
nn.init.constant_(whole["part"].weight, 0.0)
optimizer = torch.optim.SGD(whole.parameters(), lr=1.0)
data = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]).reshape(8, 1)
loader = DataLoader(TensorDataset(data), batch_size=1)
whole, optimizer, loader = paceline.prepare(whole, optimizer, loader, epochs=1, shards="static")
for i, (x,) in enumerate(loader):
    whole["part"](x).sum().backward()
    if i == 0 and str(paceline.worker()) in sys.argv[2]:
        exec(sys.argv[1])
    if i == 0 and paceline.worker() == 0:
        continue
    optimizer.step()
    optimizer.zero_grad()
paceline.finish()
""")


HOWS = {
    "model": "whole.zero_grad(set_to_none=False)",
    "submodule": "whole['part'].zero_grad(set_to_none=False)",
    "in place": "whole['part'].weight.grad.zero_()",
    "anew": "whole['part'].weight.grad = torch.zeros(1, 1)",
    "none": "whole['part'].weight.grad = None",
}


@pytest.mark.parametrize("how", each(HOWS, default=("model",)))
@pytest.mark.parametrize("protocol", each(("bsp", "all-reduce"), default=("bsp",)))
def test_a_batch_whose_gradient_is_zeroed_in_any_way_weighs_nothing(how: str, protocol: str, launch: Launch) -> None:
    """Worker 0 has 1, 4, 16 and 64, and leaves 1 out. Worker 1 has 2, 8, 32 and 128, the last one on its own."""
    run = launch.run(ZEROED, "-n", "2", "-p", protocol, "--threads", "1", args=(HOWS[how], "0")).completed()
    assert run.rows("SELECT worker, count(*) FROM batches WHERE used = 'skipped' GROUP BY 1") == [(0, 1)]
    assert run.final()["part.weight"].item() == -((4 + 2) / 2 + (16 + 8) / 2 + (64 + 32) / 2 + 128)
    assert run.summary["samples"] == 7
    assert main(["check", str(run.folder)]) == 0


def test_a_gradient_that_is_zero_weighs_like_any_other(launch: Launch) -> None:
    """Worker 0's first step is of 1, whose loss is flat and gives two such gradients, and of 4."""
    flat = "(0 * whole['part'](x).sum()).backward()"
    args = (f"optimizer.zero_grad(); {flat}; {flat}", "01")
    run = launch.run(ZEROED, "-n", "2", "--threads", "1", args=args).completed()
    assert run.rows("SELECT count(*) FROM batches WHERE used = 'skipped'") == [(0,)]
    assert run.final()["part.weight"].item() == pytest.approx(-((2 * 4 + 0) / 3 + (16 + 8) / 2 + (64 + 32) / 2 + 128))


LEFT_OVER = script("""
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
how, loaders = sys.argv[1], int(sys.argv[2])
data = torch.randn(44, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(data), batch_size=4, num_workers=loaders)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2, shards="static")
for epoch in range(2):
    if how == "zeroed":
        optimizer.zero_grad()
    for i, (x,) in enumerate(loader):
        if how == "before":
            last = loader.last
        model(x).square().mean().backward()
        if how == "after":
            last = loader.last
        if how == "length":
            last = i + 1 == len(loader)
        if how == "zeroed":
            last = False
        if (i + 1) % 4 == 0 or last:
            optimizer.step()
            optimizer.zero_grad()
paceline.finish()
""")


@pytest.mark.parametrize("how", each(["before", "after"], long=("before",)))
@pytest.mark.parametrize(
    ("protocol", "loaders"),
    each([("bsp", 0), ("bsp", 2), ("all-reduce", 0), ("asp", 0), ("ps-plus", 0), ("ad-psgd", 0)], default={("bsp", 0)}),
)
def test_a_script_that_steps_at_its_last_batch_applies_every_batch_in_its_epoch(
    how: str, protocol: str, loaders: int, launch: Launch
) -> None:
    """Of 11 batches one worker has 6, as a rule, whose last window has 2."""
    flags = ("-n", "2", "-p", protocol, "--threads", "1")
    run = launch.run(LEFT_OVER, *flags, args=(how, str(loaders))).completed()
    assert run.rows("SELECT epoch, count(*) FROM batches WHERE used = 'step' GROUP BY 1") == [(0, 11), (1, 11)]
    mixed = "SELECT 1 FROM batches GROUP BY worker, step HAVING min(epoch) < max(epoch)"
    assert run.rows(mixed) == []
    assert run.summary["samples"] == 88
    assert "in no step" not in run.err
    assert main(["check", str(run.folder)]) == 0


@pytest.mark.parametrize(("how", "why"), [("length", "left over at the end"), ("zeroed", "zeroed in a later loop")])
def test_a_line_says_so_if_gradients_are_in_no_step(how: str, why: str, launch: Launch) -> None:
    run = launch.run(LEFT_OVER, "-n", "2", "--threads", "1", args=(how, "0")).completed()
    assert f"batches that are in no step: they were {why}. Step after a worker's last batch of a loop: loader.last" in (
        run.err.replace("1 batch ", "1 batches ")
    )


AHEAD = """
def ahead(batches):
    batches = iter(batches)
    present = next(batches)
    for following in batches:
        yield present
        present = following
    yield present

def copied(batches):
    for present in ahead([one.clone()] for (one,) in batches):
        yield present
"""


def ahead_script(how: str) -> str:
    """The script with its batches fetched ahead. A loss of few samples shows which weights there are."""
    weigh = "        paceline.weigh(len(x))\n" if how == "weigh" else ""
    function = how if how in ("copied", "list") else "ahead"
    return AHEAD + RUN.replace("in loader:\n", f"in {function}(loader):\n{weigh}")


@pytest.mark.parametrize(
    ("how", "protocol"),
    each(
        [(how, protocol) for how in ("weigh", "copied", "list") for protocol in ROUNDS],
        default={("weigh", "all-reduce"), ("list", "bsp")},
    ),
)
def test_batches_that_the_script_fetches_ahead_are_all_used_and_weigh_what_they_should(
    how: str, protocol: str, launch: Launch
) -> None:
    """Each of two workers has two batches of an epoch, of 4 and 4 samples and of 4 and 2."""
    habit = "two losses of one graph"
    flags = ("-n", "2", "-p", protocol, "--threads", "1")
    run = launch.run(MODEL + HABITS[habit] + ahead_script(how), *flags, args=("14",)).completed()
    expected = alone(habit, slice(8), slice(8, None), samples=14)
    torch.testing.assert_close(run.final(), expected, rtol=0.0, atol=1e-6)
    assert (run.summary["samples"], run.summary["samples_missed"]) == (28, 0)
    assert main(["check", str(run.folder)]) == 0


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf"), "8", None, True])
def test_a_weight_that_is_none_is_refused_in_one_line(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"paceline.weigh\(\) got .*; it must be a finite number, 0 or more"):
        paceline.weigh(number)


def test_alone_a_weight_changes_nothing() -> None:
    paceline.weigh(3)
    paceline.weigh(torch.tensor(2.5))  # type: ignore[arg-type]
