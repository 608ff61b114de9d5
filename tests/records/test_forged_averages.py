"""Averages at a network's pace that somebody has changed by hand: each is caught, and its rule named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from paceline.records import violations
from support import runs
from support.recorded import checked, edited, wrong
from support.scripts import training

pytestmark = pytest.mark.real_run

SCENARIO = """
[cluster]
nodes = 2
compute = "10ms"
[network]
between_nodes = "20MB/s"
message = "100KB"
latency = "1ms"
"""
"""Seven milliseconds for a pair across the nodes that is alone."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, whose pairs share the nodes' links."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "scenario.toml").write_text(SCENARIO)
    flags = ("-p", "ad-psgd", "-n", "4", "--scenario", str(folder / "scenario.toml"))
    run = runs.run(training(epochs=1), *flags, tmp_path=folder).completed()
    assert checked(run.folder).wrong is None
    return run.folder


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("UPDATE transfers SET ended = ended + 0.001 WHERE rowid = 1", violations.LINK),
        ("UPDATE transfers SET began = began - 0.002, ended = ended - 0.002 WHERE number = 0", violations.LINK),
        ("UPDATE transfers SET bytes = bytes + 1 WHERE number = 0", violations.LINK),
        ("UPDATE transfers SET began = 0.0 WHERE number = 0", violations.LINK),
        ("UPDATE transfers SET worker = 3 - worker WHERE number = 0", violations.TRANSFERS),
        ("UPDATE transfers SET number = 1000 WHERE number = 0", violations.TRANSFERS),
        ("DELETE FROM transfers WHERE rowid = 1", violations.TRANSFERS),
        ("DELETE FROM transfers WHERE number = 0", violations.TRANSFERS),
        ("UPDATE transfers SET delivered = ended - 0.001 WHERE number = 0", violations.AVERAGED),
        (
            "UPDATE transfers SET ended = ended + 0.00001, delivered = delivered + 60 WHERE number = 0",
            violations.AVERAGED,
        ),
    ],
)
def test_a_changed_transfer_of_an_average_is_caught(made: Path, tmp_path: Path, statement: str, rule: str) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    edited(folder, statement)
    assert wrong(folder).rule == rule
