"""Cores that workers, store and messages share: in virtual time, and taken apart again from a run's ledger."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.orders import ApplyUpdate, Reduce
from paceline.protocols import registry
from paceline.records.ledger import connect
from paceline.records.summary import Summary
from paceline.scenario.scenario import Kill, Network, Scenario, Slowdown
from paceline.scenario.scenario_file import to_plain
from paceline.sim.calibration import CalibratedRun, read
from paceline.sim.costs import NOTHING, Overhead
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit


@dataclass(frozen=True)
class Given:
    """These costs, of every step alike."""

    cores: int | None = 2
    telling: float = 0.0
    prepare: Overhead = NOTHING
    work: float = 0.0
    sleep: float = 1.0
    tell: Overhead = NOTHING
    version: float = 0.0
    group: float = 0.0

    def release(self, worker: int, step: int) -> float:
        return self.telling

    def before(self, worker: int, step: int) -> Overhead:
        return self.prepare

    def compute(self, worker: int, step: int, at: float) -> float:
        return self.works(worker, step) + self.sleep

    def works(self, worker: int, step: int) -> float:
        return self.work

    def after(self, worker: int, step: int) -> Overhead:
        return self.tell

    def commit(self, order: ApplyUpdate) -> float:
        return self.version

    def average(self, order: Reduce) -> float:
        return self.group


class Uneven(Given):
    """As given, and no worker's like another's."""

    def compute(self, worker: int, step: int, at: float) -> float:
        return self.works(worker, step) + self.sleep * (1.0 + 0.15 * (3 * worker % 4))

    def works(self, worker: int, step: int) -> float:
        return self.work * (1.0 + 0.15 * (3 * worker % 4))


FEW = Uneven(
    cores=2,
    telling=0.001,
    prepare=Overhead(own=0.003, messages=0.001),
    work=0.0,
    sleep=0.02,
    tell=Overhead(own=0.001, messages=0.002),
    version=0.004,
    group=0.006,
)
"""Of steps that sleep, as padded ones do."""
BUSY = replace(FEW, work=0.01, sleep=0.0)
"""Of steps that compute."""


def simulated(protocol: str, costs: Given, workers: int = 4, folder: Path | None = None, **more: Any) -> Summary:
    settings: dict[str, Any] = {"scenario": Scenario(workers=workers), "limit": Limit(steps=40 * workers), **more}
    choice = choose(protocol, registry())
    return simulate(Simulation(choice=choice, workers=workers, costs=costs, **settings), folder)


def seconds(protocol: str, costs: Given, workers: int = 4, rounds: int = 1, **more: Any) -> float:
    """Of so many rounds."""
    return simulated(protocol, costs, workers, limit=Limit(steps=rounds * workers), **more)["wall_seconds"]


# In virtual time


@pytest.mark.parametrize(("cores", "took"), [(None, 0.1), (8, 0.1), (4, 0.1), (2, 0.2), (1, 0.4)])
def test_work_of_more_workers_than_cores_takes_as_much_longer(cores: int | None, took: float) -> None:
    half = Overhead(own=0.06, messages=0.04)
    assert seconds("bsp", Given(cores, prepare=half)) == pytest.approx(1.0 + took)
    assert seconds("bsp", Given(cores, work=0.1, sleep=1.0)) == pytest.approx(1.0 + took)
    assert seconds("bsp", Given(cores, tell=half)) == pytest.approx(1.0 + took)


def test_workers_are_told_to_begin_one_after_another() -> None:
    assert seconds("bsp", Given(None, telling=0.1), rounds=3) == pytest.approx(3 * (1.0 + 4 * 0.1))
    assert seconds("all-reduce", Given(None, telling=0.1), rounds=3) == pytest.approx(3 * (1.0 + 4 * 0.1))


def test_who_dies_before_it_is_told_never_begins() -> None:
    killed = Scenario(workers=2, events=(Kill(worker=1, at=0.15),))
    summary = simulated("asp", Given(None, telling=0.1), 2, limit=Limit(steps=1), scenario=killed)
    assert summary["wall_seconds"] == pytest.approx(1.1)


def test_sleep_takes_no_core() -> None:
    assert seconds("bsp", Given(1), workers=8) == 1.0


def test_the_store_works_on_the_same_cores() -> None:
    costs = Given(1, work=0.0, sleep=0.0, tell=Overhead(messages=0.3), version=0.3)
    alone = seconds("asp", costs, workers=1, rounds=10)
    assert alone == pytest.approx(10 * 0.3 + 9 * 0.3)
    both = seconds("asp", costs, workers=2, rounds=10)
    assert both == pytest.approx(2 * alone, rel=0.1)
    assert seconds("asp", replace(costs, cores=4), workers=2, rounds=10) < 0.7 * both


def test_groups_that_average_share_the_cores() -> None:
    costs = Given(1, work=0.0, sleep=0.01, group=0.1)
    nodes = Scenario(workers=4, nodes=2)
    crowded = seconds("ripples", costs, rounds=10, scenario=nodes)
    assert crowded > 1.2 * seconds("ripples", replace(costs, cores=None), rounds=10, scenario=nodes)


def test_who_dies_leaves_its_share_of_the_cores_to_the_others() -> None:
    costs = Given(1, prepare=Overhead(own=1.0), work=0.0, sleep=0.0)
    killed = Scenario(workers=2, events=(Kill(worker=1, at=0.5),))
    assert simulated("asp", costs, 2, limit=Limit(steps=1), scenario=killed)["wall_seconds"] == pytest.approx(1.25)


def test_what_a_worker_did_itself_and_what_it_waited_for_take_longer_alike(tmp_path: Path) -> None:
    costs = Given(1, prepare=Overhead(own=0.03, messages=0.01), tell=Overhead(own=0.02, messages=0.02))
    for workers, longer in ((1, 1.0), (4, 4.0)):
        simulated("bsp", costs, workers, folder=tmp_path / str(workers))
        with closing(connect(tmp_path / str(workers) / "ledger.sqlite")) as ledger:
            rows = ledger.execute("SELECT push, wait, other FROM step_times WHERE step < 30").fetchall()
        assert len(rows) == 30 * workers
        for push, wait, other in rows:
            assert (push, wait, other) == pytest.approx((longer * 0.02, longer * 0.03, longer * 0.03))


def test_steps_on_shared_cores_add_up_to_the_workers_time() -> None:
    summary = simulated("asp", FEW)
    for row in summary["per_worker"]:
        parts = sum(row[f"{part}_seconds"] for part in ("compute", "wait", "transfer", "other"))
        assert parts == pytest.approx(summary["wall_seconds"], rel=0.05)


# From a run's ledger


def recorded(
    folder: Path, protocol: str, costs: Given, cores: int | None = 2, compute: float | None = None
) -> CalibratedRun:
    """A run's ledger in which everything took what it takes in virtual time, on so many cores."""
    simulated(protocol, costs, folder=folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        environment = {} if cores is None else {"cores": cores}
        scenario = to_plain(replace(Scenario(workers=4), compute=compute))
        rows = {"simulated": False, "environment": environment, "scenario": scenario}
        ledger.executemany(
            "INSERT OR REPLACE INTO run VALUES (?, ?)", [(key, json.dumps(value)) for key, value in rows.items()]
        )
    return read(folder, registry())


@pytest.mark.parametrize("protocol", ["bsp", "asp"])
@pytest.mark.parametrize("costs", [FEW, BUSY], ids=["padded", "unpadded"])
def test_what_work_took_is_told_from_what_it_waited_for_a_core(protocol: str, costs: Given, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", protocol, costs, compute=0.02 if costs is FEW else None)
    for worker, steps in run.costs.steps.items():
        for number, step in list(steps.items())[:-1]:
            expected = costs.compute(worker, number, 0.0), costs.works(worker, number)
            assert (step.compute, step.works) == pytest.approx(expected)
            assert step.release == pytest.approx(costs.telling)
            for found, given in ((step.before, costs.prepare), (step.after, costs.tell)):
                assert (found.own, found.messages) == pytest.approx((given.own, given.messages))
    versions = list(run.costs.commits.given.values())[:-1]  # the end cut off what else was at work beside the last one
    assert len(versions) > 30
    assert [took for _, took in versions] == pytest.approx([costs.version] * len(versions))


@pytest.mark.parametrize("measured", ["bsp", "asp"])
@pytest.mark.parametrize("costs", [FEW, BUSY], ids=["padded", "unpadded"])
def test_a_run_on_few_cores_predicts_what_other_protocols_give_on_them(
    measured: str, costs: Given, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run", measured, costs, compute=0.02 if costs is FEW else None)
    for protocol in ("bsp", "asp", "ssp:bound=3", "dssp", "hsp"):
        choice = choose(protocol, registry())
        predicted = simulate(run.simulation(choice, Limit(steps=120)))
        meant = simulated(protocol, costs, limit=Limit(steps=120))
        assert predicted["steps_per_second"] == pytest.approx(meant["steps_per_second"], rel=1e-3), protocol


def test_a_run_that_does_not_say_how_many_cores_it_had_is_taken_as_it_is(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", "bsp", FEW, cores=None, compute=0.02)
    assert run.costs.cores is None
    assert max(step.before.seconds for step in run.costs.steps[0].values()) > 1.5 * FEW.prepare.seconds


def test_steps_that_the_scenario_pads_sleep_and_what_a_slow_down_adds_to_others_is_sleep(tmp_path: Path) -> None:
    padded = recorded(tmp_path / "padded", "bsp", FEW, compute=0.02)
    assert {step.works for steps in padded.costs.steps.values() for step in steps.values()} == {0.0}
    slow = Slowdown(worker=1, at_step=0, factor=4.0)
    costs = replace(BUSY, cores=None)
    simulated("bsp", costs, folder=tmp_path / "slow", scenario=Scenario(workers=4, events=(slow,)))
    with closing(sqlite3.connect(tmp_path / "slow" / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("INSERT OR REPLACE INTO run VALUES ('simulated', 'false'), ('environment', '{\"cores\": 16}')")
    step = read(tmp_path / "slow", registry()).costs.steps[1][5]
    assert (step.compute, step.works) == pytest.approx((0.0145, 0.0145 / 4))


def test_a_transfer_on_the_link_takes_no_core(tmp_path: Path) -> None:
    network = Scenario(workers=4, network=Network(bandwidth=1e6, message=10_000))
    costs = Given(1, work=0.0, sleep=0.1)
    assert seconds("bsp", costs, scenario=network) == pytest.approx(0.1 + 2 * 4 * 0.01)
