"""A sum of updates on its way counts for all workers of the host that made it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from paceline.records.ledger import TABLES
from paceline.records.links import InTransit, links

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


@pytest.fixture
def ledger() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES)
        rows = [
            (1, "a", "b", "sum", None, 1, 100, 1.0, 2.0),
            (1, "b", "a", "sum", None, 2, 100, 1.0, 4.0),
            (2, "b", "a", "update", 0, 7, 100, 6.0, 6.5),
            (3, "a", "b", "version", None, 1, 100, 7.0, 9.0),
        ]
        database.executemany("INSERT INTO fetches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        times = "INSERT INTO step_times (worker, push, pull) VALUES (?, ?, ?)"
        database.executemany(times, [(0, 2.0, 1.0), (2, 4.0, 3.0)])
        yield database


def test_a_sum_is_under_way_for_the_workers_of_its_host_and_for_no_other(ledger: sqlite3.Connection) -> None:
    moving = InTransit(ledger, HOSTS)
    moving.read(10.0)
    assert [moving.seconds(worker, 0.0, 5.0) for worker in HOSTS] == [3.0, 3.0, 1.0, 1.0]
    assert [moving.seconds(worker, 6.0, 10.0) for worker in HOSTS] == [2.5, 2.0, 0.0, 0.0]


def test_a_wait_for_an_update_is_one_for_the_link_that_brought_its_sum(ledger: sqlite3.Connection) -> None:
    found = {str(link): link for link in links(ledger, HOSTS)}
    assert found["a → b"].updates == {0: 2.0}
    assert found["b → a"].updates == {2: 4.0}
    assert found["b → a"].versions == {0: 1.0}
