"""`paceline.agree`: workers decide together between loops, and nobody's step waits for those that wait there."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

import paceline
from paceline.errors import ConfigError
from paceline.protocols import registry
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, replayed
from support.suites import each

SCRIPT = """
import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.manual_seed(0)
x = torch.randn(68, 4)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
if "before" in sys.argv:
    paceline.agree(True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * len(loader))
model, optimizer, loader, schedule = paceline.prepare(model, optimizer, loader, schedule)
me = paceline.worker()
for epoch in paceline.epochs(8):
    steps = 0
    for x, y in loader:
        if "inside" in sys.argv:
            paceline.agree(True)
        if me == 1:
            time.sleep(0.002)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        steps += 1
    if "look" in sys.argv and me == 1 and epoch < 7:
        next(iter(loader))
    if "leave" in sys.argv and me == 0 and epoch == 2:
        break
    if "kill" in sys.argv and me == 0 and epoch == 2:
        os.kill(os.getpid(), 9)
    if "clamp" in sys.argv and epoch == 2:
        with torch.no_grad():
            next(model.parameters()).clamp_(-0.01, 0.01)
    how = "all" if "differ" in sys.argv and me == 1 else "any"
    if "skip" in sys.argv and me == 1 and epoch == 2:
        continue
    stops = paceline.agree(me == paceline.workers() - 1 and epoch == 4, how)
    mean, of_first = paceline.agree(steps, "mean"), paceline.agree(f"{me} in {epoch}", "first")
    print(json.dumps(["agreed", epoch, stops, mean, of_first]))
    if stops:
        break
paceline.finish()
print(json.dumps(["ends", sum(p.double().sum().item() for p in model.parameters())]))
"""


def told(out: str) -> tuple[dict[int, list[list[object]]], set[object]]:
    """By epoch: what each worker got, and what all ended with."""
    agreed, ends = defaultdict(list), set()
    for line in out.splitlines():
        what, *rest = json.loads(line[line.index('["') :]) if '["' in line else ("",)
        if what == "agreed":
            agreed[rest[0]].append(rest[1:])
        elif what == "ends":
            ends.add(rest[0])
    return agreed, ends


def sound(run: Run) -> dict[int, list[list[object]]]:
    """The run's records are right, and it is made again. Return what workers got, the same in each epoch."""
    agreed, _ = told(run.completed().out)
    for epoch, results in agreed.items():
        assert results.count(results[0]) == len(results), epoch
    assert (found := checked(run.folder)).ok, found.wrong
    assert replayed(run.folder).code == 0
    return agreed


CASES = [(protocol, hosts) for protocol in sorted(registry()) for hosts in ("1", "3")]


@pytest.mark.parametrize(
    ("protocol", "hosts"),
    each(CASES, default=[("bsp", "3"), ("ps-plus", "1"), ("all-reduce", "3"), ("ad-psgd", "1")]),
)
def test_all_workers_get_the_same_and_stop_after_the_same_epoch(protocol: str, hosts: str, launch: Launch) -> None:
    each_has = "3" if hosts == "1" else "1"
    run = launch.run(SCRIPT, "-n", each_has, "--emulate-hosts", hosts, "-p", protocol, "--tee", "all").completed()
    for epoch, results in (agreed := sound(run)).items():
        stops, mean, of_first = results[0]
        assert (len(results), stops, of_first) == (3, epoch == 4, f"0 in {epoch}")
        assert mean == pytest.approx(17 / 3) or protocol == "hsp"  # 17 batches; hsp computes some of them twice
    assert sorted(agreed) == [0, 1, 2, 3, 4]
    assert len(told(run.out)[1]) == 1
    assert run.summary["samples"] == 5 * 68
    if protocol == "all-reduce":  # who has missed the last round of an epoch gets a replica, its momentum and its rate
        assert run.rows("SELECT * FROM orders WHERE kind = 'CopyReplica'")
        assert run.rows("SELECT max(distance) FROM consensus") == [(0.0,)]


def test_one_worker_alone_makes_the_steps_that_it_makes_without(launch: Launch) -> None:
    with_it = launch.run(SCRIPT, "-n", "1", "-p", "bsp").completed()
    without = SCRIPT.replace("paceline.agree(", "(lambda value, how='any': value)(")
    assert told(with_it.out)[1] == told(launch.run(without, "-n", "1", "-p", "bsp").completed().out)[1]
    assert not with_it.rows("SELECT * FROM facts WHERE kind = 'WorkerResumed'")


@pytest.mark.parametrize(
    ("protocol", "how"),
    each(
        [(protocol, how) for protocol in ("bsp", "all-reduce", "asp", "ad-psgd") for how in ("leave", "kill")],
        default=[("bsp", "leave"), ("ad-psgd", "kill")],
    ),
)
def test_a_worker_that_leaves_is_waited_for_no_more(protocol: str, how: str, launch: Launch) -> None:
    flags = "-n", "3", "-p", protocol, "--tee", "all", "--on-loss", "continue"
    agreed = sound(launch.run(SCRIPT, *flags, args=(how,)))
    assert {epoch: len(results) for epoch, results in agreed.items()} == {0: 3, 1: 3, 2: 2, 3: 2, 4: 2}
    assert agreed[4][0][::2] == [True, "1 in 4"]


@pytest.mark.parametrize("protocol", each(["bsp", "all-reduce", "asp", "ad-psgd"], long=["bsp", "asp", "ad-psgd"]))
def test_a_worker_that_comes_back_meets_the_others_in_the_epoch_that_it_comes_to(protocol: str, launch: Launch) -> None:
    once = SCRIPT.replace('if "kill" in sys.argv', "if not paceline.resumed()")
    agreed = sound(launch.run(once, "-n", "3", "-p", protocol, "--tee", "all", "--restart", "1"))
    assert sorted(agreed) == [0, 1, 2, 3, 4]


def test_a_look_at_the_data_before_it_is_no_step_into_the_next_epoch(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "bsp", "--tee", "all", args=("look",))
    assert {epoch: len(results) for epoch, results in sound(run).items()} == dict.fromkeys(range(5), 2)
    assert "has gone on to the next epoch" not in run.err


def test_a_worker_that_goes_on_without_calling_is_named_and_nobody_hangs(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp", args=("skip",)).completed()
    assert (
        "worker 0 waits in paceline.agree(), and worker 1 has gone on to the next epoch without calling it" in run.err
    )


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("before", "paceline.agree() came before paceline.prepare()"),
        ("inside", "the script calls paceline.agree() inside a loop over the prepared loader"),
        ("differ", 'calls paceline.agree(how="'),
        ("clamp", 'the script changed the parameter "0.weight" after the first step'),
    ],
)
def test_what_can_t_be_agreed_on_is_refused_in_one_line(argument: str, line: str, launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "bsp", args=(argument,))
    assert run.code == 2
    assert line in run.err
    assert "Traceback" not in run.err


def test_under_ddp_it_is_the_same(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "ddp")
    assert run.code == 0, run.err
    agreed, _ = told(run.out)
    assert [results[0] for results in agreed.values()] == [[epoch == 4, 9.0, f"0 in {epoch}"] for epoch in range(5)]


def test_alone_the_result_is_what_the_own_value_comes_to() -> None:
    assert paceline.agree(0) is False
    assert paceline.agree(2, "mean") == 2.0
    assert paceline.agree("best.pt", how="first") == "best.pt"
    with pytest.raises(ConfigError, match="allowed: any, all, mean, first"):
        paceline.agree(1, "most")  # type: ignore[arg-type]
