"""What scripts change between `prepare` and the first step: all begin with it, or nobody trains."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from paceline.coordinator.adoption import Adopting, Adoption
from paceline.core.facts import WorkerJoined
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import functions_of

# --- who writes and who waits


def asked(*workers: int) -> Adoption:
    """These have asked, in order, and the first of them writes."""
    adoption = Adoption()
    for worker in workers:
        adoption.wanted(worker, "a")
    assert adoption.to_write() == workers[0]
    adoption.writes(workers[0])
    return adoption


def test_where_nobody_changed_anything_nobody_writes_or_waits_and_all_agree() -> None:
    adoption = Adoption()
    assert (adoption.to_write(), adoption.to_let_on()) == (None, [])
    assert adoption.agrees(0)


def test_who_asks_first_writes_and_the_others_wait_for_that_and_are_let_on_once() -> None:
    adoption = asked(2, 0)
    assert adoption.to_write() is None
    adoption.wanted(1, "a")
    assert (adoption.to_write(), adoption.to_let_on()) == (None, [])
    adoption.done(2)
    assert adoption.adopted == "a"
    assert adoption.to_let_on() == [0, 1], "who wrote does not wait for itself"
    assert adoption.to_let_on() == []
    adoption.lost(2)
    adoption.wanted(3, "a")
    assert (adoption.to_write(), adoption.to_let_on()) == (None, [3])


def test_when_the_author_dies_while_writing_the_next_one_writes() -> None:
    adoption = asked(0, 2, 1)
    adoption.lost(0)
    assert adoption.to_let_on() == [], "what it wrote may not be whole"
    assert adoption.to_write() == 2
    adoption.writes(2)
    adoption.done(2)
    assert adoption.to_let_on() == [1]
    assert "worker 2 changed" in adoption.disagreement(3)


def test_when_the_author_dies_while_writing_and_nobody_waits_whoever_asks_next_writes_its_own() -> None:
    adoption = asked(0)
    adoption.lost(0)
    assert adoption.to_write() is None
    adoption.wanted(1, "b")
    adoption.writes(1)
    adoption.done(1)
    assert adoption.adopted == "b"
    assert adoption.agrees(1)


def test_who_dies_while_it_waits_is_neither_told_to_write_nor_let_on() -> None:
    adoption = Adoption()
    for worker in (0, 1, 2):
        adoption.wanted(worker, "a")
    adoption.lost(0)
    assert adoption.to_write() == 1
    adoption.writes(1)
    adoption.lost(2)
    adoption.lost(3)  # which never asked
    adoption.done(1)
    assert adoption.to_let_on() == []


def test_who_changed_the_same_agrees_and_who_changed_something_else_or_nothing_does_not() -> None:
    """In a replay the first step of one that was shown what is adopted comes after that: it may change nothing."""
    adoption = asked(1)
    assert not adoption.agrees(0), "it would wait for the other one's change if it had changed the same"
    assert adoption.disagreement(0).startswith("worker 1 changed ")
    adoption.done(1)
    adoption.wanted(0, "a")
    adoption.wanted(2, "b")
    adoption.shows(4)
    adoption.shows(5)
    adoption.wanted(5, "b")
    assert [adoption.agrees(worker) for worker in range(5)] == [True, True, False, False, True]
    assert not adoption.agrees(5)
    assert "in a way that depends on the values before" in adoption.disagreement(5)
    what = "changed the parameters or the optimizer's state between prepare() and its first step"
    hint = "; do the same in every worker, or do it before prepare()"
    assert adoption.disagreement(2) == f"worker 1 {what}, and worker 2 changed something else{hint}"
    assert adoption.disagreement(3) == f"worker 1 {what}, and worker 3 changed nothing{hint}"


def test_who_comes_while_others_train_agrees_whatever_its_script_changed() -> None:
    adopting = Adopting(Mock(), Mock(), Mock(), asked(1))
    adopting.book.wanted(0, "b")
    adopting.book.done(1)
    adopting.tell(WorkerJoined(worker=2, host="a", step=1, at=0.0))
    adopting.tell(WorkerJoined(worker=0, host="a", step=1, at=0.0))
    assert [adopting.book.agrees(worker) for worker in range(4)] == [True, True, True, False]


def test_nobody_disagrees_with_one_that_died_while_it_wrote() -> None:
    adoption = asked(0)
    adoption.lost(1)
    assert not adoption.agrees(1)
    adoption.lost(0)
    assert adoption.agrees(1)


def test_a_change_that_comes_too_late_names_the_worker_and_what_to_do() -> None:
    line = Adoption(pushed={1}).too_late(2)
    assert line.startswith("worker 2 changed ")
    assert "worker 1 changed nothing" in line
    assert line.endswith("do the same in every worker, or do it before prepare()")


# --- real runs

SCRIPT = """
import os, sys, time
import torch
from torch import nn
import paceline


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.trained = nn.Linear(4, 5), nn.Linear(5, 3)  # the optimizer has the second one only
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.trained(self.frozen(x).tanh())


def build(seed, rate=0.1):
    torch.manual_seed(seed)
    model = Model()
    return model, torch.optim.SGD(model.trained.parameters(), lr=rate, momentum=0.9)


def train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x[:, :3].cos()).square().mean().backward()
        optimizer.step()


def load(model, optimizer, path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


if __name__ == "__main__":
    folder, me = sys.argv[1], paceline.worker()
    model, optimizer = paceline.prepare(*build(1, rate=0.5))
    link = optimizer.paceline_session.link

    def reach(name):
        open(os.path.join(folder, name), "w").close()

    def await_(name):
        while not os.path.exists(os.path.join(folder, name)):
            time.sleep(0.001)

{inside}
    train(model, optimizer, range(5, 10))
    paceline.finish()
"""


def script(inside: str) -> str:
    return SCRIPT.replace("{inside}", "\n".join(f"    {line}" for line in inside.splitlines()))


PLAIN = functions_of(script(""))
"""The script's functions, to be called in this process, where they are plain PyTorch."""


def assert_trained_after(change: Callable[[Any, Any], object], run: Run) -> None:
    """The run has trained in plain PyTorch's way what this made of what was prepared."""
    model, optimizer = PLAIN.build(1, rate=0.5)
    change(model, optimizer)
    PLAIN.train(model, optimizer, range(5, 10))
    final = run.final()
    assert final.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(final[name], value), name


def the_line(run: Run) -> str:
    """All that a run says that was refused, apart from what is said of all runs in which no data is shared out."""
    assert run.code == 2, run.err
    assert run.out == ""
    alike = ("paceline: no loader was given to prepare()", "paceline: the first gradients of workers")
    lines = [line for line in run.err.splitlines() if not line.startswith(alike)]
    assert len(lines) == 1, f"one line was to be there:\n{run.err}"
    return lines[0]


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("if me == 0: model.trained.bias.data.fill_(1)", "and worker 1 changed nothing"),
        ("if me == 1: optimizer.load_state_dict(build(0)[1].state_dict())", "and worker 0 changed nothing"),
        ("model.frozen.weight.data.fill_(me)", "changed something else"),
        (
            "state = {0: {'momentum_buffer': torch.full((3, 5), float(me))}}\n"
            "optimizer.load_state_dict({**optimizer.state_dict(), 'state': state})",
            "changed something else",
        ),
    ],
    ids=["one", "the optimizer of one", "frozen parameters", "optimizers"],
)
def test_what_workers_changed_differently_is_refused_in_one_line_that_names_both(
    inside: str, said: str, launch: Launch
) -> None:
    line = the_line(launch.run(script(inside), "-n", "2", "-p", "bsp", args=(str(launch.tmp_path),)))
    assert re.match("paceline: worker [01] changed the parameters or the optimizer's state between prepare", line)
    assert said in line


def test_what_one_worker_changed_after_others_had_begun_to_train_is_refused_in_one_line_that_names_it(
    launch: Launch,
) -> None:
    inside = """
if me == 0:
    await_("trained")
    model.trained.bias.data.fill_(1)
else:
    train(model, optimizer, range(1))
    reach("trained")
    while True:
        train(model, optimizer, range(1))
"""
    line = the_line(launch.run(script(inside), "-n", "2", "-p", "asp", args=(str(launch.tmp_path),)))
    assert line == f"paceline: {Adoption(pushed={1}).too_late(0)}"


def test_an_optimizer_s_state_that_is_loaded_back_changes_nothing_though_others_have_trained_meanwhile(
    launch: Launch,
) -> None:
    """As Accelerate's prepare() does, and so transformers' Trainer."""
    inside = """
if me == 1:
    await_("trained")
shown = optimizer.state_dict()
print(sorted(shown["state"]))
shown["param_groups"][0]["lr"] = 0.25
optimizer.load_state_dict(shown)
train(model, optimizer, range(1))
reach("trained")
print(optimizer.param_groups[0]["lr"], sorted(optimizer.state_dict()["state"]))
"""
    flags = ("-n", "2", "-p", "asp", "--tee", "all")
    run = launch.run(script(inside), *flags, args=(str(launch.tmp_path),)).completed()
    for said in ("[worker 0] []", "[worker 1] [0, 1]", "[worker 0] 0.25 [0, 1]", "[worker 1] 0.25 [0, 1]"):
        assert said in run.out


IN_TURN = """
if me == 0:
    await_("written")
else:
    from paceline.ipc.messages.worker import AdoptionWritten
    say = link.say

    def says(message, *rest):
        say(message, *rest)
        if isinstance(message, AdoptionWritten):
            reach("written")

    link.say = says
"""
"""Worker 0 comes when worker 1's change is adopted."""


@pytest.mark.parametrize(("workers", "protocol", "order"), [(1, "asp", ""), (2, "bsp", IN_TURN)])
def test_a_state_that_every_worker_loads_after_prepare_is_resumed_as_in_plain_pytorch(
    workers: int, protocol: str, order: str, launch: Launch, tmp_path: Path
) -> None:
    """Both of two compute the same gradient, whose mean it is. All that is loaded differs from what was prepared."""
    model, optimizer = PLAIN.build(0)
    model.frozen.bias.fill_(2.0)
    PLAIN.train(model, optimizer, range(5))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved")
    inside = "load(model, optimizer, os.path.join(folder, 'saved'))"
    flags = ("-n", str(workers), "-p", protocol, "--threads", "1")
    run = launch.run(script(order + inside), *flags, args=(str(tmp_path),)).completed()
    assert_trained_after(lambda model, optimizer: PLAIN.load(model, optimizer, tmp_path / "saved"), run)


def test_a_frozen_parameter_changed_after_the_first_step_is_each_workers_own_and_one_line_says_so(
    launch: Launch,
) -> None:
    inside = "train(model, optimizer, range(1))\nmodel.frozen.bias.data.fill_(me + 7)"
    run = launch.run(script(inside), "-n", "2", "-p", "asp", args=(str(launch.tmp_path),)).completed()
    assert run.err.count('moves the parameter "frozen.bias", which the optimizer does not have') == 1
    assert torch.equal(run.final()["frozen.bias"], torch.full((5,), 7.0))


def test_a_change_that_depends_on_the_values_before_is_made_once_also_where_a_worker_comes_back_and_in_a_replay(
    launch: Launch,
) -> None:
    inside = """
with torch.no_grad():
    model.trained.weight.mul_(3)
if me == 0:
    train(model, optimizer, range(3))
    await_("back")
elif not os.path.exists(os.path.join(folder, "died")):
    reach("died")
    os._exit(7)
else:
    reach("back")
"""
    flags = ("-n", "2", "-p", "asp", "--on-loss", "continue", "--restart", "1")
    run = launch.run(script(inside), *flags, args=(str(launch.tmp_path),)).completed()
    assert run.err.count("worker 1 died (exit code 7) in step 0") == 1
    again = replayed(run.folder)
    assert again.code == 0, again.err
