"""A scenario's network in real runs: the ledger's times are the fluid model's, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from paceline.cluster.network import SharedLink
from paceline.core.facts import ParametersTaken, UpdateArrived
from paceline.records.ledger import read_facts
from support.runs import Run, run, side_by_side
from support.scripts import training

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

Runs = dict[str, Future[Run]]
Row = tuple[int, str, int, int, float, float, float]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Four workers with a network between them and the store; one alone; and four without one."""
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
    """The model is fed with the beginnings alone; those that the run's end cut off come last and are left out."""
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
    told = sorted(ended for *_, ended, _ in rows)
    assert sorted(ends.values()) == pytest.approx(told, rel=1e-12)


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


def test_without_a_network_nothing_is_paced(runs: Runs) -> None:
    assert transfers(runs["without"].result().completed()) == []
