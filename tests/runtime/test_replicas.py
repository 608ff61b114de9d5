"""Where every worker owns a replica: real runs, and what their ledgers say that must have come of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch

from paceline.core.facts import Fact, ReduceFailed, ReduceFinished, WorkerLeft
from paceline.core.orders import Order, Reduce, StepReplica
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.rounding import apart
from support.runs import Run, side_by_side
from support.scripts import ENDLESS, functions_of, training
from support.suites import each

KNOWN = """
import os, signal, sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.store import chunks as parts
from paceline.training.averages import AreaAverages

SAMPLES, EPOCHS = 256, 2  # 64 batches of 4 an epoch


def gradient(worker, step):
    return (worker + 1.0) * ((7 * step + worker) % 5 - 2)


def seen(worker, step):
    return worker + 0.1 * step


def die_inside(call):
    "Half of this worker's share of so manieth average is made when it dies."
    whole, calls = AreaAverages.share, []

    def share(self, sources, target, weights, part, parts, **keys):
        calls.append(target)
        if len(calls) < call:
            return whole(self, sources, target, weights, part, parts, **keys)
        whole(self, sources, target, weights, 2 * part, 2 * parts, **keys)
        os.kill(os.getpid(), signal.SIGKILL)

    AreaAverages.share = share


if __name__ == "__main__":
    call, early = int(sys.argv[1]), int(sys.argv[2])
    me = paceline.worker()
    parts.CHUNK = 100
    if call and me == 1:
        die_inside(call)
    model = nn.Module()
    model.value = nn.Parameter(torch.zeros(2000, dtype=torch.float64))
    model.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_size=4, shuffle=True)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(EPOCHS):
        for _ in loader:
            if early and me == 2 and step == early:
                sys.exit()
            (model.value * gradient(me, step)).sum().backward()
            model.seen.fill_(seen(me, step))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            assert model.state_dict()["value"].unique().numel() == 1
    paceline.finish()
    print("value", model.value.unique().tolist(), model.state_dict()["value"].unique().tolist())
"""

NODES = "[cluster]\nnodes = 2\n"
HURT = "[[event]]\nworker = 3\nat_step = 7\nkill = true\n"

SYSTEMS = {
    "all-reduce": 3,
    "ad-psgd": 4,
    "ad-psgd:topology=bipartite-complete": 2,
    "ripples:schedule=random": 5,
    "ripples:schedule=static": 4,
    "ripples": 6,
}
"""With the number of the average inside which worker 1 dies."""
SHORT = ("all-reduce", "ad-psgd", "ripples")
MOMENTS = each([(name, at) for name in SYSTEMS for at in (1, 2, 7, 10)], default=())

Runs = dict[str, Future[Run]]
Known = Callable[..., Run]
TWIN = functions_of(KNOWN)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Makes runs of KNOWN, each with a folder of its own."""

    def run(protocol: str, scenario: str, workers: int, inside: int = 0, early: int = 0) -> Run:
        folder = tmp_path_factory.mktemp("known")
        (folder / "scenario.toml").write_text(scenario)
        launch = Launch(folder)
        flags = ("-n", str(workers), "-p", protocol, "--scenario", str(folder / "scenario.toml"), "--record", "8")
        made = launch.run(KNOWN, *flags, "--threads", "1", "--tee", "none", args=(str(inside), str(early)))
        launch.close()
        return made.completed()

    return run


@pytest.fixture(scope="module")
def runs(known: Known) -> Iterator[Runs]:
    calls = {
        name: partial(known, name, HURT, 5, inside=inside, early=4) for name, inside in SYSTEMS.items() if name in SHORT
    }
    with side_by_side({"nodes": partial(known, "ripples", NODES, 8), **calls}) as futures:
        yield futures


@dataclass
class Replicas:
    """Every worker's replica, of which all elements are the same, and its buffer: worked out in float64."""

    values: dict[int, list[float]]
    """By worker: (an element, the buffer)."""
    steps: dict[int, int]
    began: dict[int, tuple[Reduce, list[float]]] = field(default_factory=dict)
    """By group: what it averages to."""
    died: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, run: Run, workers: int) -> Replicas:
        replicas = cls({worker: [0.0, 0.0] for worker in range(workers)}, dict.fromkeys(range(workers), 0))
        for fact, orders in read_facts(run.folder / "ledger.sqlite"):
            replicas._happen(fact, orders)
        return replicas

    def mean(self) -> list[float]:
        """Of those that count at the end.

        None has died, and where gradients are averaged, all have made the most steps.
        """
        counted = [worker for worker in self.values if worker not in self.died]
        if any(order.what == "gradients" for order, _ in self.began.values()):
            most = max(self.steps[worker] for worker in counted)
            counted = [worker for worker in counted if self.steps[worker] == most]
        return [sum(values) / len(counted) for values in zip(*(self.values[w] for w in counted), strict=True)]

    def rounding(self) -> float:
        """How far rounding can take an element from what is worked out: each step and average is a mean at most."""
        largest = max(1.0, *(abs(value) for values in self.values.values() for value in values))
        done = sum(self.steps.values()) + len(self.began)
        return apart(torch.float64, steps=done, summands=len(self.values), largest=largest)

    def _happen(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """A group's members have its average when it has finished, whatever is ordered first then."""
        if isinstance(fact, ReduceFinished) and self.began[fact.group][0].what == "parameters":
            order, mean = self.began[fact.group]
            for worker in order.members:
                self.values[worker] = list(mean)
        if isinstance(fact, WorkerLeft) and fact.reason == "died":
            self.died.add(fact.worker)
        for order in orders:
            if isinstance(order, StepReplica):
                self._step(order)
            if isinstance(order, Reduce):
                self.began[order.group] = order, self._average(order)

    def _step(self, order: StepReplica) -> None:
        gradient = TWIN.gradient(order.worker, order.step)
        if order.group is not None:
            (gradient, *_) = self.began[order.group][1]
        self.values[order.worker] = [self.values[order.worker][0] - gradient, TWIN.seen(order.worker, order.step)]
        self.steps[order.worker] += 1

    def _average(self, order: Reduce) -> list[float]:
        if order.what == "gradients":
            return [sum(weight * TWIN.gradient(w, step) for w, step, weight in order.contributions)]
        members = [self.values[worker] for worker in order.members]
        return [sum(values) / len(members) for values in zip(*members, strict=True)]


def is_what_its_orders_make(run: Run, workers: int) -> None:
    """Each sample is applied once, and all of the last version is the mean of the replicas that the orders make."""
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (run.summary["samples"], run.summary["samples_missed"]) == (TWIN.SAMPLES * TWIN.EPOCHS, 0)
    replicas = Replicas.of(run, workers)
    for name, expected in zip(("value", "seen"), replicas.mean(), strict=True):
        assert all(abs(one - expected) <= replicas.rounding() for one in run.final()[name].tolist()), (name, expected)


def survives(run: Run) -> None:
    """Of five workers 1 and 3 have died, the first inside an average, and 2 has left early; all is as it should be."""
    reasons = [row["left"]["reason"] for row in run.summary["per_worker"]]
    assert reasons == ["finished", "died", "finished", "died", "finished"]
    facts = [fact for fact, _ in read_facts(run.folder / "ledger.sqlite")]
    assert any(isinstance(fact, ReduceFailed) and 1 in fact.lost for fact in facts), "inside an average"
    is_what_its_orders_make(run, 5)


@pytest.mark.parametrize("protocol", SHORT)
def test_who_leaves_or_dies_even_inside_an_average_holds_up_nobody_and_no_sum_is_left_half_made(
    protocol: str, runs: Runs
) -> None:
    survives(runs[protocol].result())


@pytest.mark.real_run
@pytest.mark.parametrize(("protocol", "inside"), MOMENTS)
def test_the_same_at_other_moments(protocol: str, inside: int, known: Known) -> None:
    survives(known(protocol, HURT, 5, inside=inside, early=4))


def test_eight_workers_on_two_nodes_end_with_the_mean_of_what_their_groups_made(runs: Runs) -> None:
    run = runs["nodes"].result()
    is_what_its_orders_make(run, 8)
    orders = [order for _, orders in read_facts(run.folder / "ledger.sqlite") for order in orders]
    groups = [{worker // 4 for worker in order.members} for order in orders if isinstance(order, Reduce)]
    assert {0, 1} in groups, "some meet across nodes"
    (value,) = run.final()["value"].unique().tolist()
    assert [run.log(worker) for worker in range(8)] == [f"value [{value}] [{value}]\n"] * 8


def test_a_replica_that_is_not_finite_ends_the_run_with_4(launch: Launch) -> None:
    spoils = "if me == 1 and step == 3: model.bias.register_hook(lambda gradient: gradient * float('nan'))"
    run = launch.run(training(spoils, **ENDLESS), "-n", "3", "-p", "ripples", "--tee", "none")
    assert run.code == 4, run.err
    assert run.summary["outcome"] == "diverged"
    assert run.summary["error"] == 'the parameter "bias" is NaN or infinite after step 3 of worker 1'


def test_max_steps_ends_a_run_of_replicas(launch: Launch) -> None:
    run = launch.run(training(samples=4000), "-n", "2", "-p", "ripples", "--max-steps", "20", "--tee", "none")
    assert 20 <= run.completed().summary["steps"] <= 22
    assert run.final().keys() == {"weight", "bias"}


WAITS_FOR_A_DEATH = """
doomed = os.path.join(sys.argv[1], "doomed")
if me == 2:
    with open(doomed + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(doomed + ".new", doomed)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
else:
    while not os.path.exists(doomed):
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(int(open(doomed).read()), 0)
            time.sleep(0.01)
for group in optimizer.param_groups:
    group["lr"] = 0.0
"""
FILLS = """
if step == 0:
    time.sleep(0.1 * me)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5.0)
"""


@pytest.mark.parametrize("protocol", ["ad-psgd", "ripples"])
def test_what_a_script_fills_in_before_its_first_step_is_what_all_replicas_begin_with(
    protocol: str, launch: Launch, tmp_path: Path
) -> None:
    """Also where groups average before that, and where a worker was killed while it waited in `prepare`."""
    script = training(FILLS, before="import contextlib, threading" + WAITS_FOR_A_DEATH, epochs=1)
    together = ("--start", "together")  # its workers wait for one of them before `prepare`
    run = launch.run(script, "-n", "4", "-p", protocol, *together, args=(str(tmp_path),)).completed()
    assert "worker 2 died (killed by SIGKILL)" in run.err
    assert all((value == 5.0).all() for value in run.final().values())
    assert run.summary["samples"] == 64


@pytest.mark.parametrize("hosts", each([1, 3], long=[1]))
def test_all_replicas_are_stepped_with_the_rate_of_the_round_s_lowest_worker(hosts: int, launch: Launch) -> None:
    """Rates that differ come to the same bits as if all workers had worker 0's."""
    finals = set()
    for rate in ("me", "0"):
        script = training(f"optimizer.param_groups[0]['lr'] = 0.01 / (1 + {rate} * step)")
        flags = ("-n", "3") if hosts == 1 else ("-n", "1", "--emulate-hosts", "3")
        run = launch.run(script, *flags, "-p", "all-reduce", "--threads", "1").completed()
        assert run.rows("SELECT max(distance) FROM consensus") == [(0.0,)]
        finals.add(run.summary["final_parameters_sha256"])
    assert len(finals) == 1
