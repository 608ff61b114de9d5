"""Rows of `leases` that say that a worker's next process asks, changed by hand: each is caught, and its rule named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline.records import violations
from support import nursery
from support.recorded import checked, edited, wrong
from support.scripts import training

pytestmark = pytest.mark.real_run

CLUSTER = """
[cluster]
workers = 3
compute = "100ms"
jitter = 0.2
[[event]]
worker = 1
at = "350ms"
kill = true
rejoin_after = "300ms"
[[event]]
worker = 1
at = "1s"
kill = true
rejoin_after = "100ms"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real gradients in virtual time, so that the same worker comes back at the same moments."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "train.py").write_text(training())
    out = folder / "run"
    flags = ("--out", str(out), "-p", "asp", "--gradients", str(folder / "train.py"))
    process = nursery.Process(["simulate", str(folder / "cluster.toml"), *flags], {})
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert checked(out).wrong is None
    return out


LAST = "WHERE rowid = (SELECT max(rowid) FROM leases WHERE during IS NULL)"
"""The row of its second return."""


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE leases SET worker = 0 {LAST}",
        f"UPDATE leases SET worker = 9 {LAST}",
        f"UPDATE leases SET worker = NULL {LAST}",
        f"UPDATE leases SET during = 0 {LAST}",
        f"UPDATE leases SET epoch = 0 {LAST}",
        f"UPDATE leases SET batch = 0 {LAST}",
        f"UPDATE leases SET epoch = 0, batch = 0 {LAST}",
        f"DELETE FROM leases {LAST}",
        "DELETE FROM leases WHERE during IS NULL",
        "INSERT INTO leases VALUES (1, NULL, NULL, NULL)",
        "INSERT INTO leases VALUES (0, NULL, NULL, NULL)",
        "UPDATE leases SET during = NULL WHERE worker = 1 AND batch IS NULL AND during = 1",
    ],
)
def test_a_changed_row_of_a_return_is_caught(made: Path, tmp_path: Path, statement: str) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    edited(folder, statement)
    found = wrong(folder)
    assert (found.rule, found.table) == (violations.READABLE, "leases")


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE leases SET during = NULL WHERE batch = 3 AND epoch = 0", "batches"),
        ("INSERT INTO leases VALUES (9, NULL, 0, 3)", "leases"),
    ],
)
def test_a_row_that_takes_a_lease_away_that_was_never_given_is_caught(
    made: Path, tmp_path: Path, statement: str, table: str
) -> None:
    """The worker's use of such a batch is told first."""
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    edited(folder, statement)
    found = wrong(folder)
    assert (found.rule, found.table) == (violations.LEASED, table)
    assert isinstance(found.row, int)


def test_the_row_of_a_return_that_was_not_told_is_borne_where_a_run_crashed(made: Path, tmp_path: Path) -> None:
    """A worker had asked for its first batch, and the run was killed at that moment."""
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    edited(folder, "INSERT INTO leases VALUES (0, NULL, NULL, NULL)", "DELETE FROM run WHERE key = 'end'")
    (folder / "summary.json").unlink()
    assert checked(folder).wrong is None
