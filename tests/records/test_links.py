"""What hosts fetched is compared with what the model of their links says."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cluster.scenario import HostTable, Kill, Network, Scenario
from paceline.records import broken
from support.recorded import checked, edited, simulated, wrong

SCENARIO = Scenario(
    nodes=2,
    workers=4,
    compute=1.0,
    network=Network(message=50),
    host_tables=(
        HostTable(name="head", workers=range(1), bandwidth=100.0),
        HostTable(name="far", workers=range(1, 4), bandwidth=100.0, latency=0.125),
    ),
)
"""An update takes from 0.6 to 1.6 seconds, and a version 0.6."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return simulated(tmp_path / "run", "bsp", scenario=SCENARIO, steps=40)


def proved(folder: Path) -> list[str]:
    found = checked(folder)
    assert found.ok, found.wrong
    return [line for line in found.proved if "the links' model" in line]


def test_the_model_confirms_every_fetch(run: Path) -> None:
    assert proved(run) == ["39 of 39 fetches between hosts take what the links' model gives, asked again"]


@pytest.mark.parametrize(
    ("what", "seconds"),
    [("began = began + {}, ended = ended + {}", 0.001), ("ended = ended + {}", 0.001), ("ended = ended - {}", 0.001)],
)
def test_a_fetch_that_takes_other_than_the_model_says_is_found(run: Path, what: str, seconds: float) -> None:
    edited(run, f"UPDATE fetches SET {what.format(seconds, seconds)} WHERE kind = 'version' AND number = 3")
    assert wrong(run).rule in (broken.LINK, broken.FETCHED)


def test_a_fetch_that_is_too_fast_for_its_link_is_found(run: Path) -> None:
    edited(run, "UPDATE fetches SET began = began + 0.5 WHERE kind = 'version' AND number = 3")
    found = wrong(run)
    assert (found.rule, found.table) == (broken.LINK, "fetches")
    assert "version 3 comes from head to far at" in str(found.expected)


def test_what_was_on_its_way_beside_a_worker_that_died_is_not_judged(tmp_path: Path) -> None:
    """Nobody noted what became of the part of the link that its update had."""
    scenario = Scenario(
        nodes=2,
        workers=4,
        compute=1.0,
        network=Network(message=50),
        host_tables=SCENARIO.host_tables,
        events=(Kill(worker=2, at=1.25),),
    )
    (line,) = proved(simulated(tmp_path / "run", "bsp", scenario=scenario, steps=40))
    confirmed, _, of = line.partition(" of ")
    assert 0 < int(of.split()[0]) - int(confirmed) <= 3
