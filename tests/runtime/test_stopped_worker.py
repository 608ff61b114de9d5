"""What a worker has of a version stays as it is, however long the worker takes and whatever others do meanwhile.

As in `test_store_under_fire`, the model's elements are all equal in each version and differ between versions.
"""

from __future__ import annotations

import os
import signal

from paceline.core.facts import GradientReady
from paceline.core.orders import ApplyUpdate
from paceline.records.ledger import read_facts
from support.events import TELL, await_stop
from support.launch import Launch
from support.runs import ended

IN_A_BACKWARD = f"""
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
    value = -(sum(pushed.values()) - 1) - saw
    assert {one for tensor in run.final().values() for one in tensor.unique().tolist()} == {value}
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
