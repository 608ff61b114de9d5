"""How many workers a run has, if -n and the scenario differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.runs.run import check_room, whose_workers
from paceline.scenario.scenario_file import load


@pytest.mark.parametrize(
    ("workers", "note"),
    [(None, ""), (3, ""), (4, "-n is 4, and three.toml says 3 workers: -n counts"), (2, "-n is 2, and three.toml")],
)
def test_what_counts_is_said_if_they_differ(
    workers: int | None, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("three.toml").write_text("[cluster]\nworkers = 3\n")
    Path("free.toml").write_text("[[worker]]\nindex = 1\nspeed = 0.5\n")
    assert whose_workers(load(Path("three.toml")), workers).startswith(note)
    assert (whose_workers(load(Path("three.toml")), workers) == "") == (note == "")
    assert whose_workers(load(Path("free.toml")), workers) == ""


def test_a_comparison_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("three.toml").write_text("[cluster]\nworkers = 3\n")
    Path("train.py").write_text("pass\n")
    assert main(["compare", "-n", "4", "-p", "bsp", "--scenario", "three.toml", "--dry-run", "train.py"]) == 0
    assert capsys.readouterr().err == "paceline: -n is 4, and three.toml says 3 workers: -n counts\n"


def test_an_outer_step_after_as_many_differences_as_workers_begin_needs_their_number_where_that_is_open() -> None:
    said = "after how many, as in async-diloco:delay=2$"
    for protocol in ("async-diloco", "sync-switch:first=bsp,then=async-diloco"):
        with pytest.raises(ConfigError, match=said):
            check_room(choose(protocol, registry()), 2, 8)
    for protocol in ("async-diloco:delay=2", "diloco", "asp", "quorum:m=1"):
        check_room(choose(protocol, registry()), 2, 8)
