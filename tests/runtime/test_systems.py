"""What the published systems promise, in real runs of eight workers: the ledger is the witness."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from paceline.core.counts import Counts
from paceline.core.facts import Fact, GradientReady, StepDeclined, TrainingBegan, UpdateArrived, WorkerLeft
from paceline.core.orders import AdjustTraining, ApplyUpdate, Hold, Order, Release, StartPush, SwitchProtocol
from paceline.records.ledger import read_facts
from support.orders import epoch_order
from support.rounding import apart
from support.runs import Run, longer, run, side_by_side
from support.scripts import functions_of, training
from support.suites import each

pytestmark = pytest.mark.real_run

SAMPLES, EPOCHS = 640, 2  # 160 batches of 4 an epoch, 20 for each of eight workers
SCRIPT = training(samples=SAMPLES, epochs=EPOCHS)

BURSTS = """
[cluster]
compute = "8ms"
""" + "".join(
    f"""
[[event]]
worker = {worker}
at = "{worker % 2 * 100}ms"
for = "100ms"
every = "200ms"
slow = 3.0
"""
    for worker in range(8)
)

CONTENDED = """
[cluster]
compute = "20ms"
[network]
bandwidth = "100MB/s"
message = "200KB"
[[worker]]
index = 3
speed = 0.5
"""

STRAGGLER = """
[cluster]
compute = "20ms"
[[event]]
worker = 2
at_step = 6
for_steps = 2
slow = 30.0
"""

DEATH = (
    STRAGGLER
    + """
[[event]]
worker = 5
at_step = 12
kill = true
"""
)

DETECTOR = "window=2,consecutive=1,min_gap=0.85"  # sees so great a slowness, and not that of a busy machine
SWITCHES = {
    "none": "switch_at=0.5",
    "greedy": f"switch_at=0.3,stragglers=greedy,{DETECTOR}",
    "elastic": f"switch_at=0.3,stragglers=elastic,{DETECTOR}",
}

LONG = ("hsp guarded", "ps-plus free gated", "switch elastic death")
"""Runs of two settings, each of which is in another run, too."""

Runs = dict[str, Future[Run]]
History = list[tuple[Fact, tuple[Order, ...]]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The runs that this module looks at, by name."""
    folder = tmp_path_factory.mktemp("runs")
    scenarios = {"bursts": BURSTS, "contended": CONTENDED, "straggler": STRAGGLER, "death": DEATH}
    for name, text in scenarios.items():
        (folder / f"{name}.toml").write_text(text)

    def call(protocol: str, scenario: str | None, script: str = SCRIPT, workers: int = 8) -> Any:
        flags = ["-n", str(workers), "-p", protocol, "--threads", "1", "--tee", "none", "--seed", "3"]
        flags += [] if scenario is None else ["--scenario", str(folder / f"{scenario}.toml")]
        return partial(run, script, *flags, tmp_path=folder)

    calls = {
        "dssp": call("dssp:lower=1,upper=4", "bursts"),
        "hsp": call("hsp:idle=always", "contended"),
        "hsp guarded": call("hsp:idle=guarded", "contended"),
        "bsp": call("bsp", None),
        "hsp like bsp": call("hsp:idle=none", "contended"),
        "ps-plus": call("ps-plus:pull=after-push", "contended"),
        "ps-plus free": call("ps-plus:pull=free", "contended"),
        "ps-plus gated": call("ps-plus:pull=after-push,gate=1", "contended"),
        "ps-plus free gated": call("ps-plus:pull=free,gate=1", "contended"),
        "alone after-push": call("ps-plus:modulation=off,pull=after-push", None, SEQUENTIAL, workers=1),
        "alone free": call("ps-plus:modulation=off,pull=free", None, SEQUENTIAL, workers=1),
        **{f"switch {name}": call(f"sync-switch:{text}", "straggler") for name, text in SWITCHES.items()},
        "switch death": call(f"sync-switch:{SWITCHES['greedy']}", "death"),
        "switch elastic death": call(f"sync-switch:{SWITCHES['elastic']}", "death"),
        "switch back": call("sync-switch:first=asp,then=bsp,switch_at=0.5", "straggler"),
        "switch once": call("sync-switch:switch_at=1,rescale=none", None),
    }
    with side_by_side({name: one for name, one in calls.items() if name not in LONG or longer(request)}) as futures:
        yield futures


def history(ended: Run) -> History:
    return list(read_facts(ended.completed().folder / "ledger.sqlite"))


def orders_of(ended: Run, kind: type) -> list[Any]:
    return [order for _, orders in history(ended) for order in orders if isinstance(order, kind)]


# --- DSSP -------------------------------------------------------------------------------------------


def test_under_bursts_no_worker_of_dssp_leads_by_more_than_its_upper_bound_and_one(runs: Runs) -> None:
    ended = runs["dssp"].result()
    counts, most, held = Counts(), 0, 0
    for fact, orders in history(ended):
        match fact:
            case TrainingBegan(members=members):
                for worker, _, _ in members:
                    counts.enter(worker)
            case UpdateArrived(worker=worker):
                counts.advance(worker)
                most = max(most, counts.lead(worker))
                for order in orders:
                    if isinstance(order, Hold):
                        held += 1
                        assert counts.lead(order.worker) > 1, "nobody is held at a lead of the lower bound or less"
            case StepDeclined() | WorkerLeft():
                break  # who has run out of data counts no more
            case _:
                pass
    assert held > 0
    assert 2 <= most <= 5
    assert all(row["max_lead"] <= 5 for row in ended.summary["per_worker"])


# --- HSP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    each(["hsp", "hsp guarded", "hsp like bsp"], long=("hsp guarded", "hsp like bsp")),
)
def test_hsp_never_transfers_two_gradients_at_a_time(name: str, runs: Runs) -> None:
    pushes = runs[name].result().rows("SELECT began, ended FROM transfers WHERE direction = 'push' ORDER BY began")
    assert len(pushes) == SAMPLES * EPOCHS / 4
    for (_, ended), (began, _) in pairwise(pushes):
        assert began >= ended


@pytest.mark.parametrize("name", ["hsp", pytest.param("hsp guarded", marks=pytest.mark.long)])
def test_hsp_applies_gradients_at_most_one_version_old(name: str, runs: Runs) -> None:
    ended = runs[name].result().completed()
    assert ended.summary["staleness"]["max"] <= 1
    contributions = [order.contributions for order in orders_of(ended, ApplyUpdate)]
    assert all(len({worker for worker, _, _ in parts}) == len(parts) for parts in contributions), "one from each worker"


def test_hsp_computes_ahead_where_it_may(runs: Runs) -> None:
    assert runs["hsp"].result().completed().summary["staleness"]["histogram"]["1"] > 0


def test_hsp_without_idle_work_makes_bsp_s_weights_bit_for_bit(runs: Runs) -> None:
    ended, plain = runs["hsp like bsp"].result().completed(), runs["bsp"].result().completed()
    assert ended.summary["final_parameters_sha256"] == plain.summary["final_parameters_sha256"]


# --- PS+ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ps-plus", pytest.param("ps-plus gated", marks=pytest.mark.long)])
def test_a_worker_of_ps_plus_has_one_exchange_in_flight_at_most(name: str, runs: Runs) -> None:
    rows = runs[name].result().completed().rows("SELECT worker, began, ended FROM transfers ORDER BY worker, began")
    for (worker, _, ended), (other, began, _) in pairwise(rows):
        assert worker != other or began >= ended


@pytest.mark.parametrize("name", ["ps-plus free", pytest.param("ps-plus free gated", marks=pytest.mark.long)])
def test_with_free_pulls_it_has_one_exchange_in_flight_each_way(name: str, runs: Runs) -> None:
    ended = runs[name].result().completed()
    rows = ended.rows("SELECT worker, direction, began, ended FROM transfers ORDER BY worker, direction, began")
    for (*way, _, ended_at), (*other, began, _) in pairwise(rows):
        assert way != other or began >= ended_at


@pytest.mark.parametrize("name", ["ps-plus", "ps-plus free"])
def test_a_worker_of_ps_plus_goes_on_with_the_next_step_as_its_push_begins(name: str, runs: Runs) -> None:
    pushes = 0
    for _, orders in history(runs[name].result()):
        started = {order.worker for order in orders if isinstance(order, StartPush)}
        released = {order.worker for order in orders if isinstance(order, Release) and order.parameters == "eager"}
        assert started == released
        pushes += len(started)
    assert pushes == SAMPLES * EPOCHS / 4


def test_updates_of_ps_plus_weigh_one_part_in_as_many_as_there_are_workers(runs: Runs) -> None:
    weights = [
        weight for order in orders_of(runs["ps-plus"].result(), ApplyUpdate) for _, _, weight in order.contributions
    ]
    assert set(weights[:200]) == {1 / 8}


@pytest.mark.parametrize("name", ["ps-plus gated", pytest.param("ps-plus free gated", marks=pytest.mark.long)])
def test_a_gate_of_ps_plus_bounds_the_lead(name: str, runs: Runs) -> None:
    assert max(row["max_lead"] for row in runs[name].result().completed().summary["per_worker"]) <= 2


SEQUENTIAL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(96, 5).double(), torch.randn(96, 2).double())
    return model, optimizer, DataLoader(data, batch_size=4, shuffle=True)


def train(model, x, y):
    nn.functional.mse_loss(model(x), y).backward()


if __name__ == "__main__":
    model, optimizer, loader = paceline.prepare(*build())
    for x, y in loader:
        train(model, x, y)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("name", ["alone after-push", "alone free"])
def test_one_worker_of_ps_plus_without_modulation_is_sequential_sgd(name: str, runs: Runs) -> None:
    script = functions_of(SEQUENTIAL)
    model, optimizer, loader = script.build()
    for ids in epoch_order(loader.batch_sampler, 3, 0):
        script.train(model, *loader.dataset[ids])
        optimizer.step()
        optimizer.zero_grad()
    final = runs[name].result().completed().final()
    for name, value in model.state_dict().items():
        # 24 steps, whose gradients sum over a batch of 4 and at most 8 units
        bound = apart(torch.float64, steps=24, summands=4 * 8, largest=float(value.abs().max()))
        torch.testing.assert_close(final[name], value, rtol=0.0, atol=bound)


# --- Sync-Switch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["none", "greedy", "elastic", "death", pytest.param("elastic death", marks=pytest.mark.long), "back"]
)
def test_sync_switch_does_all_the_work_once(name: str, runs: Runs) -> None:
    ended = runs[f"switch {name}"].result().completed()
    counted = ended.rows("SELECT epoch, sample, COUNT(*) FROM applied_samples GROUP BY epoch, sample")
    assert {count for *_, count in counted} == {1}
    assert len(counted) + ended.summary["samples_missed"] == SAMPLES * EPOCHS
    assert ended.summary["samples_missed"] == 0
    died = [row["worker"] for row in ended.summary["per_worker"] if row["left"]["reason"] == "died"]
    assert died == ([5] if "death" in name else [])
    versions = [order.version for order in orders_of(ended, ApplyUpdate)]
    assert versions == list(range(1, len(versions) + 1))


def test_sync_switch_switches_at_the_planned_work(runs: Runs) -> None:
    ended = runs["switch none"].result().completed()
    (switch,) = ended.summary["switches"]
    assert (switch["from"], switch["to"]) == ("bsp", "asp")
    assert switch["why"] == "the first part has done 640 (planned: 640)"
    applied = 0
    for _, orders in history(ended):
        applied += 4 * sum(len(order.contributions) for order in orders if isinstance(order, ApplyUpdate))
        if any(isinstance(order, SwitchProtocol) for order in orders):
            break
    assert applied == SAMPLES * EPOCHS / 2


@pytest.mark.parametrize("name", ["none", "back"])
def test_the_first_gradients_after_a_switch_are_computed_on_the_last_version_before_it(name: str, runs: Runs) -> None:
    at, first = None, {}
    version = 0
    for fact, orders in history(runs[f"switch {name}"].result()):
        if at is not None and isinstance(fact, GradientReady):
            first.setdefault(fact.worker, fact.version)
        for order in orders:
            if isinstance(order, ApplyUpdate):
                version = order.version
            if isinstance(order, SwitchProtocol):
                assert at is None
                at = version
    assert first == dict.fromkeys(range(8), at)


def test_greedy_goes_to_the_second_protocol_while_somebody_is_slow_and_comes_back(runs: Runs) -> None:
    for name in ("greedy", "death"):
        switches = runs[f"switch {name}"].result().completed().summary["switches"]
        turns = [switch["to"] for switch in switches]
        assert turns == (["asp", "bsp"] * len(turns))[: len(turns)]
        assert turns[-1] == "asp"
        whys = [switch["why"] for switch in switches]
        assert "worker 2 straggled" in whys
        assert "no worker straggles any more, and the first part has work left" in whys


def test_elastic_goes_on_without_the_straggler_until_the_switch(runs: Runs) -> None:
    ended = runs["switch elastic"].result().completed()
    assert [switch["to"] for switch in ended.summary["switches"]] == ["asp"]
    sizes = [len(order.contributions) for order in orders_of(ended, ApplyUpdate)]
    assert 7 in sizes, "rounds without it"
    scales = [order.learning_rate_scale for order in orders_of(ended, AdjustTraining)]
    assert scales[:8] == [8.0] * 8
    assert 7.0 in scales
    assert scales[-8:] == [1.0] * 8


def test_a_version_of_the_synchronous_part_is_made_with_the_rate_of_as_many_workers(tmp_path: Any) -> None:
    """One parameter whose gradient is always 1: it says which rates it was stepped with."""
    script = """
    import torch
    from torch import nn
    import paceline

    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = paceline.prepare(model, optimizer)
    for step in range(10**6):
        model.weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.paceline_session.go is None:
            break
    """
    flags = ("-n", "2", "-p", "sync-switch:switch_at=0.5", "--max-steps", "20", "--threads", "1")
    ended = run(script, *flags, tmp_path=tmp_path).completed()
    first = sum(fact_orders_steps(ended, until_switch=True))
    assert first == 10
    # five versions of two gradients at twice the rate, then one for each update at the rate itself
    assert ended.final()["weight"].item() == -(5 * 2.0 + (ended.summary["steps"] - 10) * 1.0)


def fact_orders_steps(ended: Run, until_switch: bool) -> Iterator[int]:
    for _, orders in history(ended):
        yield from (len(order.contributions) for order in orders if isinstance(order, ApplyUpdate))
        if until_switch and any(isinstance(order, SwitchProtocol) for order in orders):
            return


def test_sync_switch_that_never_switches_makes_bsp_s_weights(runs: Runs) -> None:
    ended, plain = runs["switch once"].result().completed(), runs["bsp"].result().completed()
    assert ended.summary["switches"] == []
    assert ended.summary["final_parameters_sha256"] == plain.summary["final_parameters_sha256"]


@pytest.mark.parametrize("name", ["death", pytest.param("elastic death", marks=pytest.mark.long)])
def test_nobody_who_died_is_waited_for_after_a_switch(name: str, runs: Runs) -> None:
    dead = None
    for fact, orders in history(runs[f"switch {name}"].result()):
        if isinstance(fact, WorkerLeft) and fact.reason == "died":
            dead = fact.worker
        for order in orders:
            if dead is not None and isinstance(order, SwitchProtocol):
                assert dead not in [worker for worker, _, _ in order.members]
