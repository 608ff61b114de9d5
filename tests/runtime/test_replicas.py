"""Where every worker owns a replica: real runs, and what their ledgers say that must have come of them."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import safetensors.torch
import torch

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, StepDeclined, WorkerLeft
from paceline.core.orders import Order, Reduce, Release, StepReplica
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.rounding import apart
from support.runs import Run, ended, side_by_side
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


def gradient(kind, worker, step):
    "Of every element: `apart` moves the replicas apart in their first step, and never again."
    if kind == "apart":
        return (worker + 1.0) ** 2 if step == 0 else 0.0
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
    kind, call, early = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
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
            (model.value * gradient(kind, me, step)).sum().backward()
            model.seen.fill_(seen(me, step))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            assert model.state_dict()["value"].unique().numel() == 1
    paceline.finish()
    print("value", model.value.unique().tolist(), model.state_dict()["value"].unique().tolist())
"""

PADDED = '[cluster]\ncompute = "5ms"\n'
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

Runs = dict[str, Future[Run]]
TWIN = functions_of(KNOWN)


class Launches:
    """Runs of this module, each with a folder of its own; what one leaves behind fails whoever asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(
        self, protocol: str, scenario: str = "", kind: str = "busy", workers: int = 5, inside: int = 0, early: int = 0
    ) -> Run:
        """KNOWN, to its end."""
        folder = self._folder / f"{protocol.replace(':', ' ')} {kind} {workers} {inside}"
        folder.mkdir()
        (folder / "scenario.toml").write_text(scenario)
        launch = Launch(folder)
        flags = ("-n", str(workers), "-p", protocol, "--scenario", str(folder / "scenario.toml"), "--record", "8")
        run = launch.run(KNOWN, *flags, "--threads", "1", "--tee", "none", args=(kind, str(inside), str(early)))
        launch.close()
        return run


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def runs(launches: Launches) -> Iterator[Runs]:
    """The runs that this module looks at, by name."""

    def hurt(protocol: str, inside: int) -> Callable[[], Run]:
        return lambda: launches.known(protocol, HURT, inside=inside, early=4)

    calls: dict[str, Callable[[], Run]] = {
        "nodes smart": lambda: launches.known("ripples", NODES, workers=8),
        "nodes static": lambda: launches.known("ripples:schedule=static", NODES, workers=8),
        "apart ad-psgd": lambda: launches.known("ad-psgd", PADDED, "apart"),
        "apart ripples": lambda: launches.known("ripples:schedule=random", PADDED, "apart", workers=6),
        **{f"hurt {protocol}": hurt(protocol, inside) for protocol, inside in SYSTEMS.items()},
    }
    with side_by_side(calls) as futures:
        yield futures


def history(run: Run) -> list[tuple[Fact, tuple[Order, ...]]]:
    return list(read_facts(run.folder / "ledger.sqlite"))


# --- what must have come of a run, as its ledger has it ------------------------------------------------


@dataclass
class Replicas:
    """Every worker's replica, of which all elements are the same, and its buffer: worked out in float64."""

    kind: str
    values: dict[int, list[float]] = field(default_factory=dict)
    """By worker: (an element, the buffer)."""
    steps: dict[int, int] = field(default_factory=dict)
    began: dict[int, tuple[Reduce, list[float]]] = field(default_factory=dict)
    """By group: what it averages to."""
    means: dict[int, float] = field(default_factory=dict)
    """By steps in all: the mean of an element after them."""
    distances: dict[int, list[float]] = field(default_factory=dict)
    """By steps in all: the consensus distances that there were before the next one."""
    died: set[int] = field(default_factory=set)

    def happen(self, fact: Fact, orders: tuple[Order, ...]) -> None:
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
        self._note()

    def mean(self) -> list[float]:
        """Of those who count at the end."""
        counted = self.counted()
        return [sum(values) / len(counted) for values in zip(*(self.values[w] for w in counted), strict=True)]

    def counted(self) -> list[int]:
        """Who has not died; where gradients are averaged, of them those who have made the most steps."""
        workers = [worker for worker in self.values if worker not in self.died]
        if any(order.what == "gradients" for order, _ in self.began.values()):
            most = max(self.steps[worker] for worker in workers)
            workers = [worker for worker in workers if self.steps[worker] == most]
        return workers

    def distance(self) -> float:
        """Consensus distance of the 2000 elements."""
        centre, counted = self.mean()[0], self.counted()
        return math.sqrt(2000 * sum((self.values[worker][0] - centre) ** 2 for worker in counted) / len(counted))

    def _step(self, order: StepReplica) -> None:
        worker, step = order.worker, order.step
        value, _ = self.values[worker]
        gradient = TWIN.gradient(self.kind, worker, step)
        if order.group is not None:
            (gradient, *_) = self.began[order.group][1]
        self.values[worker] = [value - gradient, TWIN.seen(worker, step)]
        self.steps[worker] += 1
        self._note()

    def _note(self) -> None:
        steps = sum(self.steps.values())
        self.means[steps] = self.mean()[0]
        self.distances.setdefault(steps, []).append(self.distance())

    def _average(self, order: Reduce) -> list[float]:
        if order.what == "gradients":
            return [sum(weight * TWIN.gradient(self.kind, w, step) for w, step, weight in order.contributions)]
        members = [self.values[worker] for worker in order.members]
        return [sum(values) / len(members) for values in zip(*members, strict=True)]


def replicas_of(run: Run, workers: int, kind: str = "busy") -> Replicas:
    replicas = Replicas(kind, {worker: [0.0, 0.0] for worker in range(workers)}, dict.fromkeys(range(workers), 0))
    for fact, orders in history(run.completed()):
        replicas.happen(fact, orders)
    return replicas


def rounding_of(replicas: Replicas) -> float:
    """How far rounding can take an element from what is worked out: each step and each average is a mean at most."""
    largest = max(1.0, *(abs(value) for values in replicas.values.values() for value in values))
    done = sum(replicas.steps.values()) + len(replicas.began)
    return apart(torch.float64, steps=done, summands=len(replicas.values), largest=largest)


def has_the_mean(run: Run, replicas: Replicas) -> None:
    """Every element of the last version is the mean of the replicas that the ledger's orders make, and no other."""
    value, buffer = replicas.mean()
    bound = rounding_of(replicas)
    for name, expected in (("value", value), ("seen", buffer)):
        assert all(abs(one - expected) <= bound for one in run.final()[name].tolist()), (name, expected)


def applied_each_sample_once(run: Run) -> None:
    counted = run.rows("SELECT epoch, sample, COUNT(*) FROM applied_samples GROUP BY epoch, sample")
    assert {count for *_, count in counted} == {1}
    assert len(counted) == TWIN.SAMPLES * TWIN.EPOCHS
    assert run.summary["samples_missed"] == 0
    assert run.summary["samples"] == TWIN.SAMPLES * TWIN.EPOCHS


# --- averages conserve the mean, and bring replicas together ---------------------------------------------

APART = {"ad-psgd": 5, "ripples": 6}


@pytest.mark.parametrize("name", APART)
def test_with_learning_rate_0_all_recorded_means_are_the_same_and_replicas_come_together(name: str, runs: Runs) -> None:
    """After the first steps, which set them apart."""
    run, workers = runs[f"apart {name}"].result().completed(), APART[name]
    replicas = replicas_of(run, workers, "apart")
    mean = -sum(TWIN.gradient("apart", worker, 0) for worker in range(workers)) / workers
    rounding = rounding_of(replicas)
    since = 4 * min(steps for steps, value in replicas.means.items() if abs(value - mean) <= rounding)
    recorded = run.rows("SELECT samples / 4, file FROM versions WHERE samples >= ? ORDER BY version", since)
    assert len(recorded) > 2
    for _, file in recorded:
        value = safetensors.torch.load_file(run.folder / file)["value"]
        torch.testing.assert_close(value, torch.full_like(value, mean), rtol=0.0, atol=rounding)
    distances = [row["distance"] for row in run.summary["consensus"]][-len(recorded) :]
    # each of 2000 elements may be that far off, then their squares are summed, and the summary has nine digits
    most = max(distances)
    far = math.sqrt(2000) * rounding + apart(torch.float64, summands=2000, largest=most) + 1e-8 * most
    assert all(after <= before + far for before, after in pairwise(distances))
    assert distances[-1] < 0.2 * replicas.distances[since // 4][0]
    # an average is everybody's before the machine is told that it has finished, a few steps of others later maybe
    for (steps, _), distance in zip(recorded, distances, strict=True):
        worked_out = [one for n in range(steps, steps + workers) for one in replicas.distances.get(n, [])]
        assert any(abs(distance - one) <= far for one in worked_out)


def test_random_groups_of_three_of_six_bring_replicas_together_at_the_predicted_rate(runs: Runs) -> None:
    """The expected squared distance shrinks by 1 − (g − 1)/(n − 1) with each group; half that rate is chance."""
    run = runs["apart ripples"].result().completed()
    replicas, groups = Replicas("apart", {w: [0.0, 0.0] for w in range(6)}, dict.fromkeys(range(6), 0)), 0
    first = None
    for fact, orders in history(run):
        if isinstance(fact, StepDeclined):
            break
        replicas.happen(fact, orders)
        if first is None and min(replicas.steps.values()) > 0:
            first = replicas.distance()
        elif first is not None:
            groups += isinstance(fact, ReduceFinished)
    assert first is not None
    assert groups > 20
    assert all(len(order.members) == 3 for order, _ in replicas.began.values())
    assert replicas.distance() ** 2 <= first**2 * (1 - 2 / 5) ** (groups / 2)


# --- two nodes, and workers that leave or die --------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["smart", "static"])
def test_eight_workers_on_two_nodes_end_with_the_mean_of_what_their_groups_made(schedule: str, runs: Runs) -> None:
    run = runs[f"nodes {schedule}"].result().completed()
    applied_each_sample_once(run)
    has_the_mean(run, replicas_of(run, 8))
    groups = {order.members for _, orders in history(run) for order in orders if isinstance(order, Reduce)}
    assert any({worker // 4 for worker in members} == {0, 1} for members in groups), "some meet across nodes"
    if schedule == "static":
        assert (0, 1, 2, 3) in groups
        assert (4, 5, 6, 7) in groups


def survives(run: Run) -> None:
    """Of five workers 1 and 3 have died, the first inside an average, and 2 has left early; all is as it should be."""
    run.completed()
    reasons = [row["left"]["reason"] for row in run.summary["per_worker"]]
    assert reasons == ["finished", "died", "finished", "died", "finished"]
    facts = [fact for fact, _ in history(run)]
    assert any(isinstance(fact, ReduceFailed) and 1 in fact.lost for fact in facts), "inside an average"
    applied_each_sample_once(run)
    has_the_mean(run, replicas_of(run, 5))


@pytest.mark.parametrize("protocol", SYSTEMS)
def test_who_leaves_or_dies_even_inside_an_average_holds_up_nobody_and_no_sum_is_left_half_made(
    protocol: str, runs: Runs
) -> None:
    survives(runs[f"hurt {protocol}"].result())


@pytest.mark.long
@pytest.mark.parametrize("inside", [1, 2, 7, 10])
@pytest.mark.parametrize("protocol", SYSTEMS)
def test_the_same_at_other_moments(protocol: str, inside: int, launches: Launches) -> None:
    survives(launches.known(protocol, HURT, inside=inside, early=4))


def test_a_passive_worker_of_ad_psgd_computes_on_while_its_replica_is_averaged(runs: Runs) -> None:
    computing: set[int] = set()
    members: dict[int, tuple[int, ...]] = {}
    averaged = 0
    for fact, orders in history(runs["apart ad-psgd"].result().completed()):
        if isinstance(fact, GradientReady | StepDeclined | WorkerLeft):
            computing.discard(fact.worker)
        if isinstance(fact, ReduceFinished):
            averaged += sum(worker % 2 == 1 and worker in computing for worker in members[fact.group])
        for order in orders:
            if isinstance(order, Release):
                computing.add(order.worker)
            if isinstance(order, Reduce):
                members[order.group] = order.members
    assert averaged > 5


def test_after_finish_every_model_has_the_mean_of_all_replicas(runs: Runs) -> None:
    run = runs["nodes smart"].result().completed()
    (value,) = run.final()["value"].unique().tolist()
    assert [run.log(worker) for worker in range(8)] == [f"value [{value}] [{value}]\n"] * 8


AT_ONCE = """
import os, time
import paceline
from paceline.training.averages import AreaAverages

me, folder = paceline.worker(), os.environ["MEETING"]
share, met = AreaAverages.share, []


def together(self, sources, *args, **kwargs):
    "In its first pair, each waits in the middle until both pairs are there."
    if len(sources) == 2 and not met:
        met.append(sources)
        open(f"{folder}/{me}", "w").close()
        while len(os.listdir(folder)) < 4:
            time.sleep(0.001)
    share(self, sources, *args, **kwargs)


AreaAverages.share = together
"""


def test_groups_without_a_common_member_average_at_the_same_time(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were they to take turns, the first pair would wait for ever."""
    (tmp_path / "meeting").mkdir()
    monkeypatch.setenv("MEETING", str(tmp_path / "meeting"))
    (tmp_path / "nodes.toml").write_text(NODES)
    flags = ("-n", "4", "-p", "ripples:schedule=static", "--scenario", str(tmp_path / "nodes.toml"))
    run = launch.run(AT_ONCE + training(), *flags, "--max-seconds", "60").completed()
    assert "--max-seconds" not in run.out + run.err
    assert len(list((tmp_path / "meeting").iterdir())) == 4


# --- other ends ------------------------------------------------------------------------------------------


def test_a_replica_that_is_not_finite_ends_the_run_with_4(launch: Launch) -> None:
    spoils = "if me == 1 and step == 3: model.bias.register_hook(lambda gradient: gradient * float('nan'))"
    run = launch.run(training(spoils, **ENDLESS), "-n", "3", "-p", "ripples", "--tee", "none")
    assert run.code == 4, run.err
    assert run.summary["outcome"] == "diverged"
    assert run.summary["error"] == 'the parameter "bias" is NaN or infinite after step 3 of worker 1'
    assert "Traceback" not in run.out + run.err


@pytest.mark.parametrize("protocol", ["all-reduce", "ad-psgd", "ripples"])
def test_max_steps_ends_a_run_of_replicas(protocol: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", protocol, "--max-steps", "20", "--tee", "none")
    run = launch.run(training(samples=4000), *flags).completed()
    assert 20 <= run.summary["steps"] <= 22
    assert run.final().keys() == {"weight", "bias"}


def test_ctrl_c_ends_a_run_of_replicas_cleanly(launch: Launch) -> None:
    script = training("if step == 3: tell('trains', me)", **ENDLESS)
    process = launch.start(script, "-n", "4", "-p", "ripples:schedule=random")
    for worker in range(4):
        launch.events.wait_for("trains", worker)
    os.killpg(process.pid, signal.SIGINT)
    run = ended(process)
    assert run.code == 130, run.err
    assert "Traceback" not in run.out + run.err
    assert run.summary["outcome"] == "interrupted"
    assert run.final().keys() == {"weight", "bias"}


@pytest.mark.parametrize("protocol", ["ad-psgd", "ripples"])
def test_what_a_script_fills_in_before_its_first_step_is_what_all_replicas_begin_with(
    protocol: str, launch: Launch
) -> None:
    """Also where groups average before that, and where a worker was killed while it waited in `prepare`."""
    script = training(
        before="""
        import threading
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
        """,
        inside="""
        if step == 0:
            time.sleep(0.1 * me)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(5.0)
        """,
        epochs=1,
    ).replace("import os,", "import contextlib, os,")
    together = ("--start", "together")  # its workers wait for one of them before `prepare`
    run = launch.run(script, "-n", "4", "-p", protocol, *together, args=(str(launch.tmp_path),)).completed()
    assert "worker 2 died (killed by SIGKILL)" in run.err
    assert all((value == 5.0).all() for value in run.final().values())
    assert run.summary["samples"] == 64


RATES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), batch_size=4)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + RATE * step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("hosts", each([1, 3], long=[1]))
def test_all_replicas_are_stepped_with_the_rate_of_the_round_s_lowest_worker(hosts: int, launch: Launch) -> None:
    """Rates that differ come to the same bits as if all workers had worker 0's."""
    finals = set()
    for rate in ("paceline.worker()", "0"):
        script = RATES.replace("RATE", rate)
        flags = ("-n", "3") if hosts == 1 else ("-n", "1", "--emulate-hosts", "3")
        run = launch.run(script, *flags, "-p", "all-reduce").completed()
        assert run.rows("SELECT max(distance) FROM consensus") == [(0.0,)]
        finals.add(run.summary["final_parameters_sha256"])
    assert len(finals) == 1
