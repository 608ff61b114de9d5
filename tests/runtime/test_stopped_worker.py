"""What a worker has of a version stays as it is, however long the worker takes and whatever others do meanwhile.

As in `test_store_under_fire`, the model's elements are all equal in each version and differ between versions.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from paceline.core.facts import GradientReady
from paceline.core.orders import ApplyUpdate
from paceline.records.ledger import read_facts
from support.events import TELL, await_stop
from support.launch import Launch
from support.runs import Run, ended

EVEN = f"""
import os, signal, sys
import torch
from torch import nn
import paceline
{TELL}

class Even(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = [(3,), (600, 1000), (1,), (200, 100), (4099,), (300, 100)]  # the second one is made in two parts
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self):
        return sum(part.sum() for part in self.parts)  # the gradient of every element is 1


def value_of(tensors):
    values = {{one for tensor in tensors for one in (tensor.min().item(), tensor.max().item())}}
    if len(values) != 1:
        raise SystemExit(f"two versions at once: {{sorted(values)}}")
    return values.pop()


folder, me = sys.argv[1], paceline.worker()
there = lambda name: os.path.exists(os.path.join(folder, str(name)))
model = Even()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)


def train():
    before = value_of(model.parameters())
    model().backward()
    if value_of(model.parameters()) != before:
        raise SystemExit("a version came during a step")
    optimizer.step()
    optimizer.zero_grad()
"""

IN_A_BACKWARD = (
    EVEN
    + """
class Stop(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        tell("has", *[int(part.grad is not None) for part in model.parts])
        tell("stops", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
        return gradient


further = 0
for step in range(5):
    train()
if me == 1:
    seen = [part.detach().clone() for part in model.parts]
    value = value_of(seen)
    halves = [(part * part).sum() / 2 for part in model.parts[:3]]  # autograd keeps the part itself: its gradient
    whole = Stop.apply(sum(halves))
    (whole + sum((part * part).sum() / 2 for part in model.parts[3:])).backward()
    for part, before in zip(model.parts, seen, strict=True):
        if not torch.equal(part.detach(), before):
            raise SystemExit("the parameters are others than before the stop")
        if not torch.equal(part.grad, before):
            raise SystemExit("the gradient is not that of the version that was seen before the stop")
    tell("saw", value)
    optimizer.step()
    optimizer.zero_grad()
    train()
    open(os.path.join(folder, "over"), "w").close()
while me != 1 and not there("over"):
    train()
    further += there("stopped")
    if further == 40:
        tell("further", me)
"""
)


def assert_every_element_is(run: Run, value: float) -> None:
    assert {one for tensor in run.final().values() for one in tensor.unique().tolist()} == {value}


def test_a_worker_stopped_in_its_backward_goes_on_with_the_version_it_had_and_its_gradient_is_applied(
    launch: Launch,
) -> None:
    """The others make 40 steps each meanwhile, more than there are slots."""
    flags = ("-n", "3", "-p", "asp", "--threads", "1", "--on-loss", "stop", "--tee", "none")
    process = launch.start(IN_A_BACKWARD, *flags, args=(str(launch.tmp_path),))
    stopped = int(launch.events.wait_for("stops")[1])
    assert launch.events.wait_for("has")[1:] == ["0", "0", "0", "1", "1", "1"], "it was to be half-way"
    await_stop(stopped)
    (launch.tmp_path / "stopped").touch()
    for worker in (0, 2):
        launch.events.wait_for("further", worker)
    assert not launch.events.so_far("saw")
    os.kill(stopped, signal.SIGCONT)
    run = ended(process).completed()
    saw = float(launch.events.wait_for("saw")[1])
    pushed = {row["worker"]: row["steps"] for row in run.summary["per_worker"]}
    assert pushed[1] == 5 + 1 + 1
    assert all(pushed[worker] >= 5 + 40 for worker in (0, 2))
    # each push takes 1 off, except worker 1's sixth, which takes off what it saw
    assert_every_element_is(run, -(sum(pushed.values()) - 1) - saw)
    history = list(read_facts(run.folder / "ledger.sqlite"))
    (computed_on,) = [f.version for f, _ in history if isinstance(f, GradientReady) and (f.worker, f.step) == (1, 5)]
    (applied_in,) = [
        order.version
        for _, orders in history
        for order in orders
        if isinstance(order, ApplyUpdate) and (1, 5) in [(worker, step) for worker, step, _ in order.contributions]
    ]
    assert -saw == computed_on
    assert applied_in - 1 - computed_on >= 2 * 40, "so many versions came between"


AT_ANY_MOMENT = (
    EVEN
    + """
tell("runs", me, os.getpid())
stop = 0
while not there("over"):
    train()
    if me == 1:
        if there(f"gone-on-{stop}"):
            tell("trains", stop)
            stop += 1
    elif there(f"stopped-{stop}"):
        for step in range(15):  # more than there are slots, of the two of them
            train()
        tell("past", me, stop)
        stop += 1
"""
)


def test_a_worker_stopped_at_random_moments_while_others_train_never_sees_two_versions_mixed(launch: Launch) -> None:
    chance = random.Random(0)
    flags = ("-n", "3", "-p", "asp", "--threads", "1", "--on-loss", "stop", "--tee", "none")
    process = launch.start(AT_ANY_MOMENT, *flags, args=(str(launch.tmp_path),))
    stopped = int(launch.events.wait_for("runs", 1)[2])
    for stop in range(6):
        time.sleep(chance.uniform(0.0, 0.02))
        os.kill(stopped, signal.SIGSTOP)
        await_stop(stopped)
        (launch.tmp_path / f"stopped-{stop}").touch()
        for worker in (0, 2):
            launch.events.wait_for("past", worker, stop)
        os.kill(stopped, signal.SIGCONT)
        (launch.tmp_path / f"gone-on-{stop}").touch()
        launch.events.wait_for("trains", stop)
    (launch.tmp_path / "over").touch()
    run = ended(process).completed()
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished"] * 3
    assert_every_element_is(run, -run.summary["steps"])


# --- what a script keeps of its own

KEPT = """
import sys
import torch
from torch import nn
import paceline

torch.manual_seed(0)
model = nn.ParameterDict({"large": torch.randn(200, 200), "small": torch.randn(7)})  # 160,000 bytes and 28
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = paceline.prepare(model, optimizer)
WAYS = {
    "itself": lambda gradient: gradient,
    "data": lambda gradient: gradient.data,
    "detach": lambda gradient: gradient.detach(),
    "view": lambda gradient: gradient.view(-1),
    "numpy": lambda gradient: torch.from_numpy(gradient.numpy()),
    "nothing": lambda gradient: gradient.clone(),
}
way = WAYS[sys.argv[1]]
references = {"data": [p.data for p in model.values()], "detach": [p.detach() for p in model.values()]}
kept, copies, passed, places = [], [], [], []
for step in range(6):
    before = [p.detach().clone() for p in model.values()]
    sum((p * p).sum() * (step + 1) for p in model.values()).backward()
    if step != 2:  # also after a step of which nothing is kept
        kept.append([way(p.grad) for p in model.values()])
        copies.append([way(p.grad).clone() for p in model.values()])
    places.append(model["large"].grad.data_ptr())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    passed.append([not torch.equal(p, was) for p, was in zip(model.values(), before, strict=True)])
    for name, of_it in references.items():
        for key, p, reference in zip(model, model.values(), of_it, strict=True):
            print(f"{name} of {key}:", "follows" if torch.equal(p, reference) else "does not follow")
for key, number in (("large", 0), ("small", 1)):
    values = [torch.equal(ours[number], copy[number]) for ours, copy in zip(kept, copies, strict=True)]
    print(f"kept of {key}:", values)
print("passed:", passed)
print("places:", len(set(places)))
"""


def of_kept(launch: Launch, way: str) -> list[str]:
    return launch.run(KEPT, "-n", "1", "-p", "asp", "--threads", "1", args=(way,)).completed().log(0).splitlines()


KEEPS = [f"kept of {key}: {[True] * 5}" for key in ("large", "small")]


def test_a_gradient_that_the_script_keeps_keeps_its_values_and_references_to_parameters_follow(launch: Launch) -> None:
    lines = of_kept(launch, "itself")
    assert [line for line in lines if line.startswith("kept")] == KEEPS
    assert lines.count(f"passed: {[[True, True]] * 6}") == 1, "each step was to change both"
    for name in ("data", "detach"):
        for key in ("large", "small"):
            assert [line for line in lines if line.startswith(f"{name} of {key}")] == [f"{name} of {key}: follows"] * 6


@pytest.mark.parametrize("way", ["data", "detach", "view", "numpy"])
def test_an_alias_of_a_gradient_that_the_script_keeps_keeps_its_values(way: str, launch: Launch) -> None:
    assert [line for line in of_kept(launch, way) if line.startswith("kept")] == KEEPS


def test_a_gradient_that_nobody_keeps_lies_in_the_same_memory_in_every_step(launch: Launch) -> None:
    """Else each step would pay for mapping it elsewhere and copying what nobody wants."""
    assert "places: 1" in of_kept(launch, "nothing")
    assert "places: 5" in of_kept(launch, "itself")  # the step after the one of which nothing is kept finds its own


STOPPED_IN_COMMIT = """
import torch
from torch import nn
import paceline

model = nn.ParameterList(nn.Parameter(torch.zeros(2_000_000)) for _ in range(5))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(40):
    sum((p * 10.0 ** (step % 4)).sum() for p in model).backward()  # so the gradient is the same everywhere
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
paceline.finish()
print("values", sorted({value for p in model for value in (p.min().item(), p.max().item())}))
"""


def test_the_last_version_is_not_torn_by_what_the_scripts_do_while_it_is_made(launch: Launch) -> None:
    """At a limit the workers are let on before the store has made the last version of their gradients."""
    run = launch.run(STOPPED_IN_COMMIT, "-n", "3", "-p", "bsp", "--record", "0", "--max-steps", "12").completed()
    assert run.log(0).splitlines()[-1] == "values [-1111.0]"
