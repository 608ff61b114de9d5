"""A scenario's network in real runs: the ledger's times are the fluid model's, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from paceline.core.facts import ParametersTaken, UpdateArrived
from paceline.records.ledger import read_facts
from paceline.scenario.links import ClusterLinks
from paceline.scenario.scenario import Network, Scenario
from support.runs import Run, run, side_by_side
from support.scripts import training

pytestmark = pytest.mark.real_run

LATENCY = 0.001
SCENARIOS = {
    "network": """
        [cluster]
        compute = "30ms"
        [network]
        bandwidth = "50MB/s"
        message = "1MB"
        latency = "1ms"
        incast = 0.8
    """,
    "nodes": """
        [cluster]
        nodes = 2
        compute = "10ms"
        [network]
        between_nodes = "20MB/s"
        within_nodes = "100MB/s"
        message = "1MB"
        latency = "1ms"
    """,
}
INCAST = 0.8
MADE = {
    "asp": ("asp", "4", "network"),
    "ad-psgd": ("ad-psgd", "4", "nodes"),
    "without": ("asp", "2", None),
}
"""By name: protocol, workers and scenario."""

Runs = dict[str, Future[Run]]
Row = tuple[int, str, int, int, float, float, float]


def made(folder: Path, protocol: str, workers: str, scenario: str | None) -> Run:
    flags: tuple[str, ...] = ()
    if scenario is not None:
        file = folder / f"{scenario}.toml"
        file.write_text(SCENARIOS[scenario])
        flags = ("--scenario", str(file))
    fixed = ("-n", workers, "-p", protocol, "--threads", "1", "--tee", "none")
    return run(training(), *fixed, *flags, tmp_path=folder).completed()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    with side_by_side({name: partial(made, folder, *what) for name, what in MADE.items()}) as futures:
        yield futures


def transfers(ended: Run) -> list[Row]:
    """In the order in which they began."""
    return ended.rows(
        "SELECT worker, direction, number, bytes, began, ended, delivered FROM transfers ORDER BY began, rowid"
    )


def test_every_transfer_ends_when_the_model_says_that_it_does(runs: Runs) -> None:
    """The model is fed with the beginnings alone.

    A worker that leaves may cut off a pull, which the others' transfers have shared the link with and no row tells of.
    So only what ended before any worker's last push is compared.
    """
    rows = transfers(runs["asp"].result())
    assert {row[1] for row in rows} == {"push", "pull"}
    network, ends = Network(bandwidth=50e6, latency=LATENCY, incast=INCAST), list[float]()
    links = ClusterLinks[None](Scenario(network=network), 4)
    for _, direction, _, size, began, _, _ in [*rows, (0, "", 0, 0, math.inf, 0.0, 0.0)]:
        while (flow := links.finish(began)) is not None:
            ends.append(flow.ended)
        if direction:
            links.transfer("push" if direction == "push" else "pull", size, began, None)
    last_pushes = {worker: began for worker, direction, _, _, began, _, _ in rows if direction == "push"}
    whole = min(last_pushes.values())
    told = sorted(ended for *_, ended, _ in rows if ended < whole)
    assert len(told) > len(rows) // 2
    assert sorted(end for end in ends if end < whole) == pytest.approx(told, rel=1e-12)


def test_the_facts_have_the_model_s_times_and_follow_each_other_in_time(runs: Runs) -> None:
    ended = runs["asp"].result()
    facts = [fact for fact, _ in read_facts(ended.folder / "ledger.sqlite")]
    assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
    arrived = {(fact.worker, fact.step, fact.at) for fact in facts if isinstance(fact, UpdateArrived)}
    taken = {(fact.worker, fact.version, fact.at) for fact in facts if isinstance(fact, ParametersTaken)}
    rows = transfers(ended)
    assert arrived == {(row[0], row[2], row[5]) for row in rows if row[1] == "push"}
    assert taken == {(row[0], row[2], row[5]) for row in rows if row[1] == "pull"}


def test_every_average_ends_when_the_model_says_that_it_does(runs: Runs) -> None:
    """Pairs across the two nodes share their links. The model is fed with the beginnings alone."""
    pairs: dict[int, list[Row]] = {}
    for row in transfers(runs["ad-psgd"].result()):
        pairs.setdefault(row[2], []).append(row)
    assert all(len(pair) == 2 for pair in pairs.values())
    network, ends = Network(within_nodes=100e6, between_nodes=20e6, latency=LATENCY), dict[int, float]()
    links = ClusterLinks[int](Scenario(nodes=2, network=network), 4)
    for group, ((one, _, _, size, began, *_), (other, *_)) in sorted(pairs.items(), key=lambda pair: pair[1][0][4]):
        while (flow := links.finish(began)) is not None:
            ends[flow.what] = flow.ended
        links.average((one, other), size, began, group)  # of two, each sends as much as there is to average
    while (flow := links.finish(math.inf)) is not None:
        ends[flow.what] = flow.ended
    assert ends == {group: pytest.approx(pair[0][5], rel=1e-12) for group, pair in pairs.items()}


def test_without_a_network_nothing_is_paced(runs: Runs) -> None:
    assert transfers(runs["without"].result()) == []
