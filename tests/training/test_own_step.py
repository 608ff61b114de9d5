"""Where the optimizer runs in the worker (PS+): what a script may do with it, in real runs against plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest
import torch

from paceline.store.store import scalars_of
from paceline.training.holders.stepping import with_scalars
from support.orders import epoch_order
from support.rounding import apart
from support.runs import Run, run, side_by_side
from support.scripts import functions_of, script

SEED, STEPS = 2, 30

SCRIPT = script("""
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data = parameter.data - group["lr"] / self.steps**0.5 * parameter.grad

def build(what):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    model[0].unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    groups = [{"params": model[0].parameters()}]
    groups += [{"params": model[2].parameters(), "lr": 0.02}]
    optimizer = Mine(groups, lr=0.1) if what == "mine" else torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(120, 5).double(), torch.randn(120, 2).double())
    return model, optimizer, DataLoader(data, batch_size=4, shuffle=True)

def changed(what, model, optimizer):
    # between prepare and the first step
    if what == "loaded":
        other_model, other, _ = build(what)
        nn.functional.mse_loss(other_model(torch.ones(4, 5).double()), torch.ones(4, 2).double()).backward()
        other.step()
        optimizer.load_state_dict(other.state_dict())
    if what == "clamped":
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

def train(model, optimizer, x, y):
    nn.functional.mse_loss(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)

if __name__ == "__main__":
    what = sys.argv[1]
    model, optimizer, loader = paceline.prepare(*build(what))
    changed(what, model, optimizer)
    for step, (x, y) in enumerate(loader):
        train(model, optimizer, x, y)
        if what == "late" and step == 3:
            model[0].weight.data.clamp_(-0.1, 0.1)
        if what == "late state" and step == 3:
            for state in optimizer.state.values():
                state["momentum_buffer"].mul_(0.5)
            optimizer.load_state_dict(optimizer.state_dict())
            torch.save(optimizer.state_dict(), sys.argv[2])
""")

EQUAL = ("mine", "loaded", "clamped")

Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    flags = ("-p", "ps-plus", "--threads", "1", "--seed", str(SEED), "--record", "0", "--tee", "none")

    def call(what: str, workers: int) -> partial[Run]:
        return partial(run, SCRIPT, "-n", str(workers), *flags, args=(what, str(folder / "state.pt")), tmp_path=folder)

    calls = {what: call(what, 1) for what in (*EQUAL, "late", "late state")}
    calls["clamped by two"] = call("clamped", 2)
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("what", EQUAL)
def test_any_optimizer_trains_as_in_plain_pytorch(what: str, runs: Runs) -> None:
    """To the rounding of what is pushed: the difference that a step makes."""
    twin = functions_of(SCRIPT)
    model, optimizer, loader = twin.build(what)
    twin.changed(what, model, optimizer)
    for ids in epoch_order(loader.batch_sampler, SEED, 0):
        twin.train(model, optimizer, *loader.dataset[ids])
    final = runs[what].result().completed().final()
    for name, value in model.state_dict().items():
        # a gradient sums over a batch of 4 and at most 8 units; the norm that it is clipped to over all 69 elements
        bound = apart(torch.float64, steps=STEPS, summands=4 * 8 + 69, largest=float(value.abs().max()))
        torch.testing.assert_close(final[name], value, rtol=0.0, atol=bound)


def test_what_comes_too_late_is_refused_by_name(runs: Runs) -> None:
    ended = runs["late"].result()
    assert ended.code == 2
    assert 'the script changed the parameter "0.weight" after the first step' in ended.err


def test_the_optimizer_s_state_is_the_script_s_own_to_change_at_any_time(runs: Runs) -> None:
    ended = runs["late state"].result().completed()
    state = torch.load(ended.folder.parent / "state.pt")["state"]
    assert state[0]["momentum_buffer"].abs().sum() > 0
    assert state[0]["momentum_buffer"].shape == (8, 5)


def test_what_all_changed_before_the_first_step_is_adopted(runs: Runs) -> None:
    ended = runs["clamped by two"].result().completed()
    assert ended.final()["0.unused"].tolist() == [0.1] * 3


# --- steps with hyperparameters of another worker's


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as some optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_a_step_uses_another_worker_s_hyperparameters_and_the_script_keeps_its_own() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=0.5, betas=(0.9, 0.99))
    groups = optimizer.param_groups
    before = scalars_of(optimizer)
    theirs = [dict(before[0], lr=0.25, betas=[0.5, 0.99])]
    with with_scalars(optimizer, theirs):
        assert (groups[0]["lr"], groups[0]["betas"]) == (0.25, (0.5, 0.99))
    assert scalars_of(optimizer) == before
    assert groups[0]["betas"] == (0.9, 0.99)


def test_a_rate_in_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    with with_scalars(optimizer, [{"lr": 0.25}]):
        assert rate.item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


def test_what_the_step_itself_changes_stays() -> None:
    optimizer = Counting([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    optimizer.param_groups[0]["steps"] = 3
    with with_scalars(optimizer, [{"lr": 0.25, "steps": 5}]):
        optimizer.step()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["steps"]) == (0.5, 6)
