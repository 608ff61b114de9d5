"""Ledgers that an earlier version wrote, kept in `tests/fixtures`: this version still replays them, to the same bits.

No operation of these runs rounds, so their bits are the same on every processor (see `fixtures/exact.py`).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from support.recorded import checked
from support.runs import Run, replayed

FIXTURES = Path(__file__).parents[1] / "fixtures"
WRITTEN_BY = {"ssp": ("0.1.0", 16), "ps-plus": ("0.1.0", 16), "ripples": ("0.1.0", 16)}
"""By run: the version of Paceline that wrote it, and the schema that its ledger was brought to since."""

Kept = Callable[[str], Run]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Gives a copy of a kept run, as reading it may leave files beside it."""

    def copy(name: str) -> Run:
        return Run(code=0, out="", err="", folder=shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy


@pytest.mark.real_run
@pytest.mark.parametrize("name", WRITTEN_BY)
def test_a_ledger_of_an_earlier_version_is_replayed_to_the_same_bits(name: str, kept: Kept) -> None:
    run = kept(name)
    again = json.loads(replayed(run.folder, "--script", str(FIXTURES / "exact.py"), "--json").completed().out)
    assert again["same"], again["differences"]
    assert not any("has changed" in note for note in again["notes"]), again["notes"]
    recorded = {
        "versions": "SELECT count(*) FROM versions",
        "checksums": "SELECT count(*) FROM checksums",
        "steps": "SELECT count(*) FROM pushes",
    }
    for what, query in recorded.items():
        assert [(again["compared"][what],)] == run.rows(query), what
    assert again["last_version"]["sha256"] == run.summary["final_parameters_sha256"]


@pytest.mark.parametrize(("name", "written_by"), WRITTEN_BY.items())
def test_check_finds_nothing_wrong_with_a_ledger_that_an_earlier_version_wrote(
    name: str, written_by: tuple[str, int], kept: Kept
) -> None:
    path = FIXTURES / name / "ledger.sqlite"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as ledger:
        ((version,),) = ledger.execute("SELECT value FROM run WHERE key = 'paceline'")
        ((schema,),) = ledger.execute("PRAGMA user_version")
    assert (json.loads(version), schema) == written_by
    found = checked(kept(name).folder)
    assert found.wrong is None
    assert found.counts["files"] > 0
