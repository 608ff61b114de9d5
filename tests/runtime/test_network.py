"""A scenario's network in real runs: the ledger's times are the fluid model's, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from paceline.core.facts import ParametersTaken, ReduceFinished, UpdateArrived
from paceline.records.ledger import read_facts
from paceline.scenario.group_links import GroupLinks
from paceline.scenario.network import SharedLink
from support.recorded import checked
from support.runs import Run, run, side_by_side
from support.scripts import training

pytestmark = pytest.mark.real_run

SECONDS = 0.02  # a message alone on the link
LATENCY = 0.001
NETWORK = """
[cluster]
compute = "30ms"
[network]
bandwidth = "50MB/s"
message = "1MB"
latency = "1ms"
incast = 0.8
"""
INCAST = 0.8
OVERLAPPED = """
[cluster]
compute = "100ms"
[network]
bandwidth = "50MB/s"
message = "1MB"
"""

NODES = """
[cluster]
nodes = 2
compute = "10ms"
[network]
between_nodes = "20MB/s"
within_nodes = "100MB/s"
message = "1MB"
latency = "1ms"
"""

SLOW = """
[cluster]
nodes = 2
compute = "10ms"
[network]
bandwidth = "10MB/s"
within_nodes = "10MB/s"
message = "1MB"
[[event]]
worker = 1
at_step = 2
kill = true
"""

Runs = dict[str, Future[Run]]
Row = tuple[int, str, int, int, float, float, float]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Four workers with a network between them and the store, or between replicas; one alone; and four without one."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "network.toml").write_text(NETWORK)
    script, flags = training(), ("--threads", "1", "--tee", "none")
    network = ("--scenario", str(folder / "network.toml"))
    calls = {
        f"{protocol} {workers}": partial(run, script, "-n", workers, "-p", protocol, *network, *flags, tmp_path=folder)
        for protocol, workers in [("bsp", "1"), *((name, "4") for name in ("bsp", "asp", "hsp", "ps-plus"))]
    }
    (folder / "overlapped.toml").write_text(OVERLAPPED)
    for protocol in ("asp", "ps-plus"):
        overlapped = ("--scenario", str(folder / "overlapped.toml"))
        calls[f"{protocol} overlapped"] = partial(
            run, script, "-n", "2", "-p", protocol, *overlapped, *flags, tmp_path=folder
        )
    calls["all-reduce 2"] = partial(run, script, "-n", "2", "-p", "all-reduce", *network, *flags, tmp_path=folder)
    (folder / "nodes.toml").write_text(NODES)
    nodes = ("--scenario", str(folder / "nodes.toml"))
    calls["ad-psgd 4"] = partial(run, script, "-n", "4", "-p", "ad-psgd", *nodes, *flags, tmp_path=folder)
    calls["without"] = partial(run, script, "-n", "4", "-p", "asp", *flags, tmp_path=folder)
    with side_by_side(calls) as futures:
        yield futures


def transfers(ended: Run) -> list[Row]:
    """In the order in which they began."""
    return ended.rows(
        "SELECT worker, direction, number, bytes, began, ended, delivered FROM transfers ORDER BY began, rowid"
    )


@pytest.mark.parametrize("protocol", ["bsp", "asp", "hsp", "ps-plus"])
def test_every_transfer_ends_when_the_model_says_that_it_does(protocol: str, runs: Runs) -> None:
    """The model is fed with the beginnings alone.

    A worker that leaves may cut off a pull, which the others' transfers have shared the link with and no row tells of.
    So only what ended before any worker's last push is compared.
    """
    rows = transfers(runs[f"{protocol} 4"].result().completed())
    assert {row[1] for row in rows} == {"push", "pull"}
    link = SharedLink(50e6, LATENCY, INCAST)
    numbers, ends = {}, {}
    for worker, direction, number, size, began, _, _ in rows:
        while (end := link.next_end()) is not None and end <= began:
            if (transfer := link.finish(end)) is not None:
                ends[transfer.number] = transfer.ended
        numbers[link.begin(worker, "push" if direction == "push" else "pull", size, began)] = (direction, number)
    while (end := link.next_end()) is not None:
        if (transfer := link.finish(end)) is not None:
            ends[transfer.number] = transfer.ended
    pushes = [(worker, began) for worker, direction, _, _, began, _, _ in rows if direction == "push"]
    whole = min(dict(pushes).values())
    told = sorted(ended for *_, ended, _ in rows if ended < whole)
    assert len(told) > len(rows) // 2
    assert sorted(end for end in ends.values() if end < whole) == pytest.approx(told, rel=1e-12)


def test_a_transfer_alone_takes_its_bytes_at_the_link_s_speed_and_the_latency(runs: Runs) -> None:
    rows = transfers(runs["bsp 1"].result().completed())
    assert len(rows) == 2 * 32 + 1  # a pull more than pushes: the release that no data was left for
    for *_, size, began, ended, delivered in rows:
        assert size == 1_000_000
        assert ended - began == pytest.approx(SECONDS + LATENCY, rel=1e-9)
        assert delivered >= ended


def test_n_at_once_take_n_times_as_long(runs: Runs) -> None:
    """BSP releases all four on a version at the same moment."""
    rows = [row for row in transfers(runs["bsp 4"].result().completed()) if row[1] == "pull"]
    full = [ended - began for _, _, version, _, began, ended, _ in rows if version < 8]  # none has run out of data
    assert full == pytest.approx([4 * SECONDS + LATENCY] * len(full), rel=1e-9)


def test_the_facts_have_the_model_s_times_and_follow_each_other_in_time(runs: Runs) -> None:
    for protocol in ("bsp", "asp", "hsp", "ps-plus"):
        ended = runs[f"{protocol} 4"].result().completed()
        facts = [fact for fact, _ in read_facts(ended.folder / "ledger.sqlite")]
        assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
        arrived = {(fact.worker, fact.step, fact.at) for fact in facts if isinstance(fact, UpdateArrived)}
        taken = {(fact.worker, fact.version, fact.at) for fact in facts if isinstance(fact, ParametersTaken)}
        rows = transfers(ended)
        assert arrived == {(row[0], row[2], row[5]) for row in rows if row[1] == "push"}
        assert taken == {(row[0], row[2], row[5]) for row in rows if row[1] == "pull"}


def test_what_a_worker_waits_for_its_transfers_is_in_the_summary(runs: Runs) -> None:
    (row,) = runs["bsp 1"].result().completed().summary["per_worker"]
    assert row["transfer_seconds"] >= 31 * 2 * (SECONDS + LATENCY)


def test_where_the_worker_computes_on_a_transfer_costs_it_nothing(runs: Runs) -> None:
    """PS+ pushes and pulls beside the next step's computation, which is the longer here; ASP waits for both."""
    shares = {}
    for protocol in ("asp", "ps-plus"):
        ended = runs[f"{protocol} overlapped"].result().completed()
        waited = sum(row["transfer_seconds"] for row in ended.summary["per_worker"])
        shares[protocol] = waited / sum(row[5] - row[4] for row in transfers(ended))
    assert shares["asp"] > 0.8
    assert shares["ps-plus"] < 0.5


# Averages of groups


def test_an_average_of_two_takes_a_ring_s_time_on_their_links(runs: Runs) -> None:
    """The scenario says nothing of nodes: each worker has a link as fast as the store's."""
    ended = runs["all-reduce 2"].result().completed()
    rows = transfers(ended)
    assert [row[:4] for row in rows] == [
        (worker, "average", group, 1_000_000) for group in range(len(rows) // 2) for worker in range(2)
    ]
    assert len(rows) == 2 * 16
    for *_, began, there, delivered in rows:
        assert there - began == pytest.approx(SECONDS + 2 * LATENCY, rel=1e-9)
        assert delivered >= there
    assert "averages of all-reduce go over a link of each worker, as fast as the store's" in ended.err


def test_every_average_ends_when_the_model_says_that_it_does(runs: Runs) -> None:
    """Pairs across the two nodes share their links. The model is fed with the beginnings alone."""
    rows = transfers(runs["ad-psgd 4"].result().completed())
    pairs: dict[int, list[Row]] = {}
    for row in rows:
        pairs.setdefault(row[2], []).append(row)
    assert all(len(pair) == 2 for pair in pairs.values())
    links, ends = GroupLinks(("a", "a", "b", "b"), 100e6, 20e6, 20e6, LATENCY), dict[int, float]()
    for group, ((one, _, _, size, began, *_), (other, *_)) in sorted(pairs.items(), key=lambda pair: pair[1][0][4]):
        while (moved := links.finish(began)) is not None:
            ends[moved.group] = moved.ended
        links.begin(group, (one, other), size, began)
    while (moved := links.finish(math.inf)) is not None:
        ends[moved.group] = moved.ended
    assert ends == {group: pytest.approx(pair[0][5], rel=1e-12) for group, pair in pairs.items()}


@pytest.mark.parametrize("name", ["all-reduce 2", "ad-psgd 4"])
def test_an_average_has_the_model_s_time_unless_its_shares_were_made_later(name: str, runs: Runs) -> None:
    ended = runs[name].result().completed()
    there = {row[2]: (row[5], row[6]) for row in transfers(ended)}
    facts = [fact for fact, _ in read_facts(ended.folder / "ledger.sqlite")]
    assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
    averaged = {fact.group: fact.at for fact in facts if isinstance(fact, ReduceFinished)}
    assert averaged.keys() <= there.keys()
    for group, at in averaged.items():
        end, delivered = there[group]
        assert at == end or at >= delivered >= end


@pytest.mark.parametrize("protocol", ["all-reduce", "ad-psgd", "ripples"])
def test_a_run_whose_members_die_or_stop_while_their_bytes_move_goes_on_and_ends(protocol: str, tmp_path: Path) -> None:
    """An average takes ten times as long as a step."""
    (tmp_path / "slow.toml").write_text(SLOW)
    flags = ("--scenario", str(tmp_path / "slow.toml"), "--threads", "1", "--tee", "none", "--max-steps", "24")
    ended = run(training(), "-n", "4", "-p", protocol, *flags, tmp_path=tmp_path).completed()
    assert ended.summary["per_worker"][1]["left"]["reason"] == "died"
    assert checked(ended.folder).wrong is None


def test_without_a_network_nothing_is_paced(runs: Runs) -> None:
    assert transfers(runs["without"].result().completed()) == []
