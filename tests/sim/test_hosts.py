"""Hosts in virtual time: a version crosses a link once for all of a host's workers, and an update once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import ParametersTaken
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.ledger import connect, read_facts
from paceline.records.summary import Summary
from paceline.scenario.scenario import HostTable, Kill, Network, Scenario, Slowdown
from paceline.sim.calibration import read
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from support.recorded import checked

STORED = sorted(name for name, spec in registry().items() if spec.state == "store")
M, B = 50, 100.0
"""Bytes of a transfer, and bytes a second of most links: half a second."""


def hosts(*tables: HostTable, **keys: Any) -> Scenario:
    scenario = Scenario(nodes=len(tables), compute=1.0, host_tables=tables, **keys)
    if scenario.narrow:
        scenario = replace(scenario, network=Network(message=M))
    return scenario.checked_for(tables[-1].workers.stop)


def two(each: int, latency: float = 0.0, bandwidth: float | None = B) -> Scenario:
    """Two hosts, each with so many workers."""
    head = HostTable(name="head", workers=range(each), bandwidth=bandwidth, latency=latency)
    return hosts(head, HostTable(name="far", workers=range(each, 2 * each), bandwidth=bandwidth, latency=latency))


def simulated(protocol: str, scenario: Scenario, steps: int, folder: Path | None = None) -> Summary:
    assert scenario.workers is not None
    choice = choose(protocol, registry())
    return simulate(
        Simulation(choice=choice, scenario=scenario, workers=scenario.workers, limit=Limit(steps=steps)), folder
    )


def period(protocol: str, scenario: Scenario) -> float:
    """Seconds of a round, once the beginning is behind."""
    assert scenario.workers is not None
    begun, ended = (simulated(protocol, scenario, rounds * scenario.workers)["wall_seconds"] for rounds in (8, 16))
    return (ended - begun) / 8  # type: ignore[no-any-return]


@pytest.mark.parametrize("latency", [0.0, 0.25])
@pytest.mark.parametrize("each", [1, 2, 5])
def test_a_round_of_bsp_is_a_step_an_update_of_each_worker_elsewhere_and_one_version(each: int, latency: float) -> None:
    expected = 1.0 + (each * M / B + 2 * latency) + (M / B + 2 * latency)
    assert period("bsp", two(each, latency)) == pytest.approx(expected)


def test_hosts_that_fetch_at_the_same_time_share_the_heads_link() -> None:
    tables = [HostTable(name=f"node-{n}", workers=range(n, n + 1), bandwidth=B) for n in range(4)]
    assert period("bsp", hosts(*tables)) == pytest.approx(1.0 + 3 * M / B + 3 * M / B)


def test_a_host_whose_link_is_narrow_takes_its_own_time() -> None:
    head = HostTable(name="head", workers=range(1), bandwidth=B)
    far, near = HostTable(name="far", workers=range(1, 2), bandwidth=B / 10), HostTable(name="n", workers=range(2, 3))
    assert period("bsp", hosts(head, far, near)) == pytest.approx(1.0 + 2 * 10 * M / B)


def test_a_slow_host_slows_each_of_its_workers() -> None:
    tables = HostTable(name="head", workers=range(1)), HostTable(name="slow", workers=range(1, 3), speed=0.25)
    assert period("bsp", hosts(*tables)) == pytest.approx(4.0)
    assert period("bsp", hosts(*tables, speeds={2: 0.5})) == pytest.approx(8.0)


def test_workers_at_the_head_move_nothing() -> None:
    summary = simulated("asp", two(2), 200)
    moved = [row["transfer_seconds"] for row in summary["per_worker"]]
    assert moved[:2] == [0.0, 0.0]
    assert min(moved[2:]) > 1.0


def test_an_update_of_a_worker_that_dies_does_not_come_and_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    """Both are half as fast from 1 s on. Half a second later one dies, and the other one's second half comes alone."""
    tables = [HostTable(name=name, workers=range(n, n + 1), bandwidth=B) for n, name in enumerate("hab")]
    simulated("asp", hosts(*tables, events=(Kill(worker=2, at=1.5),)), 4, tmp_path / "run")
    with closing(connect(tmp_path / "run" / "ledger.sqlite")) as ledger:
        rows = ledger.execute("SELECT worker, began, ended FROM fetches WHERE kind = 'update' AND began < 2").fetchall()
    assert rows == [(1, 1.0, 1.75)]


def test_a_version_goes_to_a_host_once_and_comes_at_once_to_all_that_wait_for_it(tmp_path: Path) -> None:
    simulated("bsp", two(3), 24, tmp_path / "run")
    with closing(connect(tmp_path / "run" / "ledger.sqlite")) as ledger:
        fetched = ledger.execute("SELECT number FROM fetches WHERE kind = 'version' ORDER BY 1").fetchall()
    taken = [fact for fact, _ in read_facts(tmp_path / "run" / "ledger.sqlite") if isinstance(fact, ParametersTaken)]
    assert fetched == [(version,) for version in range(1, 4)]
    for version in range(1, 4):
        far = {fact.at for fact in taken if fact.version == version and fact.worker >= 3}
        assert len(far) == 1


def test_without_links_hosts_change_nothing_but_names() -> None:
    alike, nodes = two(2, bandwidth=None), Scenario(nodes=2, compute=1.0)
    assert simulated("hsp", alike, 40)["wall_seconds"] == simulated("hsp", nodes.checked_for(4), 40)["wall_seconds"]


UPHEAVALS = (
    Slowdown(worker=0, at=3.0, for_=4.0, factor=3.0),
    Kill(worker=1, at_step=5),
    Kill(worker=3, at=6.25, rejoin_after=3.0),
    Kill(worker=4, at=7.1),
)


@pytest.mark.parametrize("protocol", STORED)
def test_every_protocol_with_a_store_goes_to_the_end_and_is_checked(protocol: str, tmp_path: Path) -> None:
    head = HostTable(name="head", workers=range(2), bandwidth=B, latency=0.01)
    far = HostTable(name="far", workers=range(2, 4), bandwidth=B / 2, speed=0.5)
    scenario = hosts(head, far, HostTable(name="wide", workers=range(4, 6)), jitter=0.2, events=UPHEAVALS)
    summary = simulated(protocol, scenario, 200, tmp_path / "run")
    assert summary["outcome"] == "completed"
    assert summary["steps"] >= 200
    assert (found := checked(tmp_path / "run")).ok, found.wrong


def test_a_protocol_without_a_store_is_refused_where_hosts_have_links() -> None:
    with pytest.raises(ConfigError, match=r"all-reduce has no store.*set network\.between_nodes"):
        simulated("all-reduce", two(2), 8)
    assert simulated("ripples", two(2, bandwidth=None), 8)["outcome"] == "completed"


def test_bytes_that_nobody_says_are_asked_for() -> None:
    tables = HostTable(name="head", workers=range(1)), HostTable(name="far", workers=range(1, 2), bandwidth=B)
    scenario = Scenario(nodes=2, workers=2, compute=1.0, host_tables=tables)
    with pytest.raises(ConfigError, match=r"\[\[host\]\] has a bandwidth, and nothing says how many bytes"):
        simulated("bsp", scenario, 8)


def test_a_run_whose_hosts_have_links_is_no_source_of_costs(tmp_path: Path) -> None:
    simulated("bsp", two(1), 8, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"its hosts have links.*simulate its scenario's file"):
        read(tmp_path / "run", registry())
