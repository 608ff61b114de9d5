"""`paceline runs`: what it lists, what it removes, and what it refuses. The runs are fabricated; they take no time."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from paceline.cli.main import main
from paceline.core.choice import choose
from paceline.protocols import registry

DAY = 86_400


def make(name: str, protocol: str = "bsp", *, began: float = 1e9, summary: Any = None, **config: Any) -> Path:
    """A run's folder, as a run leaves it; `summary` False: it has come to none."""
    folder = Path("runs", name)
    (folder / "versions").mkdir(parents=True)
    written = {
        "paceline": "0.1.0",
        "script": "/home/me/train.py",
        "protocol": choose(protocol, registry()).to_plain(),
        "workers": 4,
        "simulated": False,
    }
    (folder / "config.toml").write_text(tomli_w.dumps(written | config))
    os.utime(folder / "config.toml", (began, began))
    (folder / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + bytes(84))
    (folder / "worker-0.log").write_bytes(bytes(7))
    (folder / "versions" / "00000001.safetensors").write_bytes(bytes(1000))
    os.link(folder / "versions" / "00000001.safetensors", folder / "versions" / "final.safetensors")
    if summary is not False:
        came_to = {
            "outcome": "completed",
            "error": None,
            "steps": 10,
            "wall_seconds": 2.5,
            "evaluations": [
                {"version": 1, "at_seconds": 1.0, "samples": 8, "accuracy": 0.9, "loss": 0.5},
                {"version": 2, "at_seconds": 1.5, "samples": 12, "accuracy": 0.7, "loss": 0.6},
                {"version": 3, "at_seconds": 2.0, "samples": 16, "accuracy": 0.75, "loss": None},
            ],
            "targets": {},
        }
        (folder / "summary.json").write_text(json.dumps(came_to | (summary or {})))
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listing(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    assert main(["runs", *flags, "--json"]) == 0
    printed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return printed


def names(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    return [run["folder"].removeprefix("runs/") for run in listing(capsys, *flags)]


def test_runs_are_listed_the_newest_first_with_what_they_came_to(capsys: pytest.CaptureFixture[str]) -> None:
    make("old", "ssp:bound=5", summary={"targets": {"accuracy>=0.8": {"at_seconds": 1.0, "samples": 8}}})
    make("new", began=1e9 + DAY, summary={"targets": {"loss<=0.4": None}})
    make("plain", began=1e9 - DAY, simulated=True)
    make("failed", began=1e9 - 2 * DAY, summary={"outcome": "failed", "error": "all\nworkers died"})
    Path("runs/notes").mkdir()
    assert main(["runs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "began", "protocol", "workers", "status", "steps", "seconds", "result"]
    assert [" ".join([row.split()[0], *row.split()[3:]]) for row in rows] == [
        "runs/new bsp 4 completed 10 2.5 loss<=0.4 never, at best 0.5",
        "runs/old ssp:bound=5 4 completed 10 2.5 accuracy>=0.8 after 1.0 s",
        "runs/plain bsp 4 completed, simulated 10 2.5 accuracy 0.75, loss not finite",
        "runs/failed bsp 4 failed 10 2.5 all workers died",
    ]


def test_each_filter_keeps_the_runs_that_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    make("a", "ssp:bound=3")
    make("b", "ssp:bound=5", script="other.py")
    make("c", began=2e9, summary={"outcome": "diverged"})
    assert names(capsys, "--protocol", "ssp") == ["a", "b"]
    assert names(capsys, "--protocol", "ssp:bound=3", "--protocol", "bsp") == ["c", "a"]
    assert names(capsys, "--status", "diverged") == ["c"]
    assert names(capsys, "--since", "2001-10-01") == ["c"]
    assert names(capsys, "--since", "99999w") == ["c", "a", "b"]
    assert names(capsys, "--script", "train.py") == names(capsys, "--script", "/home/me/train.py") == ["c", "a"]
    assert names(capsys, "--script", "other.py", "--status", "diverged") == []


def test_runs_of_a_comparison_are_listed_and_links_and_strangers_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    inner = make("compare-1/bsp-seed0")
    Path("runs/link").symlink_to(inner.absolute())
    Path("runs/other.sqlite").mkdir()
    Path("runs/other.sqlite/ledger.sqlite").write_text("mine")
    assert names(capsys) == ["compare-1/bsp-seed0"]
    assert names(capsys, str(inner)) == ["compare-1/bsp-seed0"]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("summary.json", "{", "summary.json can't be read"),
        ("summary.json", '{"outcome": "fine", "evaluations": []}', "summary.json can't be read"),
        ("config.toml", "protocol = 1", "config.toml can't be read"),
        ("ledger.sqlite", "mine", "ledger.sqlite is no ledger"),
    ],
)
def test_a_damaged_run_is_one_row_that_says_so_beside_the_others(
    file: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make("whole")
    (make("damaged") / file).write_text(text)
    assert main(["runs"]) == 0
    (row,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("runs/damaged")]
    assert " damaged " in row
    assert said in row
    assert names(capsys, "--status", "completed") == ["whole"]


@pytest.fixture
def going_on() -> Iterator[Path]:
    """A run whose ledger a process writes."""
    folder = make("present", summary=False)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield folder
    os.close(descriptor)


def test_a_run_without_a_summary_goes_on_or_has_crashed(going_on: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("past", summary=False)
    assert {run["folder"]: run["status"] for run in listing(capsys)} == {
        "runs/present": "running",
        "runs/past": "crashed",
    }


def test_du_counts_a_file_with_two_names_once_and_the_largest_run_first(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("small", "large"):
        folder = make(name, summary=False)
        (folder / "config.toml").write_bytes(bytes(3))
    (folder / "versions" / "00000002.safetensors").write_bytes(bytes(4000))
    (folder / "ledger.sqlite-wal").write_bytes(bytes(100))
    assert main(["runs", "du", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"folder": "runs/large", "versions": 5000, "ledger": 200, "rest": 10, "total": 5210},
        {"folder": "runs/small", "versions": 1000, "ledger": 100, "rest": 10, "total": 1110},
    ]
    assert main(["runs", "du"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert " ".join(last.split()) == "2 runs 6.0 kB 300 B 20 B 6.3 kB"


def test_rm_removes_runs_damaged_ones_too_and_says_what_it_freed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = make("one", summary=False)
    (folder / "config.toml").write_text("no toml")
    kept = make("three")
    assert main(["runs", "rm", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == ["runs/one: removed, 1.1 kB freed"]
    assert list(Path("runs").iterdir()) == [kept]


def test_a_listing_is_exported_as_csv_and_as_markdown_in_which_no_cell_ends_early(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make("one", summary={"outcome": "failed", "error": "a | b"})
    assert main(["runs", "--export-csv", "runs.csv", "--export-markdown", "runs.md"]) == 0
    with open("runs.csv", newline="") as file:
        (exported,) = csv.DictReader(file)
    head, row = capsys.readouterr().out.splitlines()
    assert list(exported) == head.split()
    assert " ".join(exported.values()).split() == row.split()
    assert exported["result"] == "a | b"
    assert Path("runs.md").read_text().splitlines()[2].endswith("| a \\| b |")


def test_rm_refuses_a_run_that_goes_on_and_removes_none(going_on: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = make("ended")
    assert main(["runs", "rm", str(ended), str(going_on)]) == 2
    said = "paceline: runs/present: this run is still going on; end it first (Ctrl-C), then remove it\n"
    assert capsys.readouterr() == ("", said)
    assert ended.exists()
    assert going_on.exists()


def test_rm_removes_nothing_but_a_run_s_own_folder(capsys: pytest.CaptureFixture[str]) -> None:
    make("outer/inner")
    outer = make("outside")
    (outer / "kept").mkdir()
    Path("runs/outer/inner").rename(outer / "kept" / "inner")
    Path("runs/link").symlink_to(outer.absolute())
    Path("runs/both").mkdir()
    Path("runs/both/compare.json").write_text("{}")
    for folder, why in [
        ("runs/none", "there is no such folder; name a run's folder"),
        ("runs/link", "it is a link; name the run's folder itself"),
        ("runs/outer", "it is not a run's folder; only runs are removed, name those in it"),
        ("runs/both", "it is a comparison's folder; only runs are removed, name those in it"),
        ("runs/outside", "other runs lie in this run's folder; move or remove them first"),
    ]:
        assert main(["runs", "rm", folder]) == 2
        assert capsys.readouterr().err == f"paceline: {folder}: {why}\n"
    assert outer.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "none: there is no such folder; name a folder with runs in it"),
        (["--since", "yesterday"], '--since is "yesterday"; write a date, such as 2026-11-20, or how long ago'),
        (["--protocol", "bps"], 'unknown protocol "bps" (did you mean "bsp"?)'),
        (["--statsu"], 'unrecognized arguments: --statsu (did you mean "--status"?)'),
        (["rm"], "the following arguments are required: RUN"),
        (["list", "runs", "rm"], "unrecognized arguments: rm"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    make("one")
    assert main(["runs", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: {message}")


def test_where_there_are_no_runs_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    make("one")
    assert main(["runs", "--status", "failed"]) == 0
    Path("empty").mkdir()
    assert main(["runs", "empty"]) == 0
    assert main(["runs", "du", "empty"]) == 0
    assert capsys.readouterr().out.splitlines() == ["runs: no runs of these", "empty: no runs", "empty: no runs"]
