"""A run's folder that somebody sent: no command that reads it hangs, fails on it, or touches a file outside."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.records.check.segments import _files
from paceline.records.segments import Stretch
from paceline.records.violations import Violation
from support.recorded import edited, leased, said, summarized

PATIENCE = 20
"""Seconds. Each command takes a fraction of one."""
NESTED = "[" * 100_000
READERS = {
    "check": ["check", "RUN"],
    "explain": ["explain", "RUN"],
    "report": ["report", "RUN"],
    "runs": ["runs", "list", "."],
    "du": ["runs", "du", "RUN"],
    "rm": ["runs", "rm", "RUN"],
    "simulate": ["simulate", "-p", "asp", "--steps", "20", "--from", "RUN"],
    "replay": ["replay", "RUN"],
    "resume": ["run", "--resume", "RUN"],
    "config": ["run", "--config", "RUN"],
    "config with a script": ["run", "--config", "RUN", "missing.py"],
}
SIDES = ("-wal", "-journal", "-shm")
"""Of the ledger, what SQLite keeps beside it."""


def journal(run: Path, outside: Path) -> None:
    """A transaction that was half written, of several databases: SQLite removes the list of these once it is undone."""
    ledger, page, name = run / "ledger.sqlite", 4096, str(outside).encode()
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">5I", 0, 1, ledger.stat().st_size // page, 512, page)
    tail = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    (run / "ledger.sqlite-journal").write_bytes(head.ljust(512, b"\0") + tail)


def ledger(*statements: str) -> Callable[[Path, Path], None]:
    def hostile(run: Path, outside: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
            for statement in statements:
                database.execute(statement.replace("OUTSIDE", str(outside)))
            database.commit()

    return hostile


def forever(table: str, row: str) -> Callable[[Path, Path], None]:
    endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {row} FROM n"
    return ledger(f"DROP TABLE {table}", f"CREATE VIEW {table} AS {endless}")


def instead(name: str, make: Callable[[Path, Path], Any]) -> Callable[[Path, Path], None]:
    """Something else in the place of that file."""

    def hostile(run: Path, outside: Path) -> None:
        file = run / name
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        make(file, outside)

    return hostile


def sparse(file: Path, outside: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 42)


MAKERS: dict[str, Callable[[Path, Path], Any]] = {
    "a device": lambda file, outside: file.symlink_to("/dev/zero"),
    "a pipe": lambda file, outside: os.mkfifo(file),
    "a folder": lambda file, outside: file.mkdir(),
    "a link": lambda file, outside: file.symlink_to(outside),
    "sparse": sparse,
}


def nested(file: Path, outside: Path) -> None:
    file.write_text(f"a = {NESTED}" if file.suffix == ".toml" else NESTED)


def version(make: Callable[[Path, Path], Any]) -> Callable[[Path, Path], None]:
    """Something else in the place of a recorded version."""

    def hostile(run: Path, outside: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
            (name,) = database.execute("SELECT file FROM versions").fetchone()
        instead(name, make)(run, outside)

    return hostile


def state(run: Path, outside: Path) -> None:
    (run / "snapshots" / "00000005").mkdir(parents=True)
    nested(run / "snapshots" / "00000005" / "state.json", outside)


HOSTILE: dict[str, Callable[[Path, Path], Any]] = {
    **{
        f"{name} is {what}": instead(name, make)
        for name in ("config.toml", "summary.json", "ledger.sqlite", *(f"ledger.sqlite{side}" for side in SIDES))
        for what, make in MAKERS.items()
    },
    **{f"{name} is nested": instead(name, nested) for name in ("config.toml", "summary.json")},
    **{f"a version is {what}": version(make) for what, make in MAKERS.items() if make is not sparse},
    **{f"the page is {what}": instead("report.html", make) for what, make in MAKERS.items()},
    "a version has a header of 2^62 bytes": version(lambda file, _: file.write_bytes(b"\0" * 7 + b"\x40{}")),
    "a version has a nested header": version(
        lambda file, _: file.write_bytes(len(NESTED).to_bytes(8, "little") + NESTED.encode())
    ),
    "a version is a pickle": version(lambda file, _: file.write_bytes(pickle.dumps({"a": 1}))),
    "a journal names a file elsewhere": journal,
    "a snapshot is nested": state,
    "a view in the place of the facts has no end": forever("facts", "i, 1.0, 'TrainingBegan', 0, 0, 0, '{}'"),
    "a view in the place of run has no end": forever("run", "'k' || i, '1'"),
    "a view in the place of the versions has no end": forever("versions", "i, 1.0, 1, '', ''"),
    "the view of updates has no end": ledger(
        "DROP VIEW applied_updates",
        "CREATE VIEW applied_updates AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i AS version, 0 AS position, 0 AS worker, i AS step, 1.0 AS weight FROM n",
    ),
    "a column is computed": ledger(
        "DROP TABLE agreed",
        "CREATE TABLE agreed (fact, worker, epoch, nth, how, value, result AS (hex(zeroblob(100000000))))",
    ),
    "a trigger waits for a run that goes on": ledger(
        "CREATE TRIGGER t AFTER INSERT ON facts BEGIN DELETE FROM facts; END"
    ),
    **{
        f"{column} of {table} moves the cursor": ledger(
            f"UPDATE {table} SET {column} = char(27) || '[2J' WHERE rowid = 1"
        )
        for table, column in (("run", "key"), ("pushes", "samples"), ("epochs", "digest"))
    },
    "a script is a device": lambda run, _: said(run, script="/dev/zero"),
    "a script is no text": lambda run, _: said(run, script=7),
    "names move the cursor": lambda run, _: summarized(
        said(run, script="\x1b[2Ja.py", targets=["\x1b[2Jloss<=1"], seed="\x1b[2J"), error="\x1b[2J"
    ),
    "an error moves the cursor": lambda run, _: summarized(run, outcome="failed", error="\x1b[2J"),
    "a script's name moves the cursor": lambda run, _: said(run, script="\x1b[2Ja.py"),
    "a metric's name moves the cursor": lambda run, _: edited(
        said(run, targets=["\x1b[2Jloss<=1"]),
        "INSERT INTO evaluations SELECT version, char(27) || '[2J', 1 FROM versions",
    ),
    "a script is far up": lambda run, _: said(run, script="../" * 2000),
    "arguments are no list": lambda run, _: said(run, arguments={"a": 1}),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run: Path = leased(tmp_path_factory.mktemp("honest") / "run")
    return run


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory, in which no command may unpickle, and none may take long."""

    def over(*_: object) -> None:
        raise AssertionError(f"not over after {PATIENCE} s")

    def load(*_: object, **__: object) -> None:
        raise AssertionError("something is unpickled")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pickle, "load", load)
    monkeypatch.setattr(pickle, "loads", load)
    before = signal.signal(signal.SIGALRM, over)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_command_fails_on_a_hostile_folder_or_touches_what_is_outside(
    kind: str, honest: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = alone / "mine.txt"
    for reader, words in READERS.items():
        run = alone / reader.replace(" ", "-")
        run.mkdir()
        for file in honest.iterdir():
            (run / file.name).write_bytes(file.read_bytes())
        outside.write_text("SECRET\n")
        HOSTILE[kind](run, outside)
        signal.alarm(PATIENCE)
        code = main([str(run) if word == "RUN" else word for word in words])
        signal.alarm(0)
        shown = capsys.readouterr()
        told = f"{reader}: {code}\n{shown.out[-500:]}\n{shown.err[-1000:]}"
        assert code in ((0, 3) if reader == "check" else (0,)) or (code == 2 and shown.err.count("\n") == 1), told
        assert "Traceback" not in shown.err, told
        assert "should not be" not in shown.err, told
        assert "--help" not in shown.err, told
        assert "\x1b" not in shown.out + shown.err, told
        assert "SECRET" not in shown.out + shown.err, told
        assert outside.read_text() == "SECRET\n", told
        shutil.rmtree(run, ignore_errors=True)
        for made in alone.glob("simulated*"):
            shutil.rmtree(made, ignore_errors=True)


def test_a_report_reads_a_run_whose_hosts_have_said_that_they_fetched_more_bytes_than_there_are(
    honest: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(honest, alone / "run")
    row = "INSERT INTO fetches VALUES (3, 'a', 'b', 'update', 0, 5, 0x7fffffffffffffff, 1, 2)"
    ledger(row, row)(alone / "run", alone)
    assert main(["report", "run"]) == 0, capsys.readouterr().err


COMPARISONS: dict[str, Callable[[Path, Path], None]] = {
    **{what: instead("compare.json", make) for what, make in MAKERS.items()},
    "nested": instead("compare.json", lambda file, _: file.write_text(NESTED)),
    "of runs elsewhere": instead("compare.json", lambda file, _: file.write_text('{"runs": [{"folder": "../run"}]}')),
    "of the root": instead("compare.json", lambda file, _: file.write_text('{"runs": [{"folder": "/"}]}')),
}


@pytest.mark.parametrize("kind", COMPARISONS)
def test_no_report_fails_on_a_hostile_comparison_or_reads_runs_elsewhere(
    kind: str, honest: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(honest, alone / "run")
    (alone / "mine.txt").write_text("SECRET\n")
    (alone / "series").mkdir()
    COMPARISONS[kind](alone / "series", alone / "mine.txt")
    signal.alarm(PATIENCE)
    assert main(["report", "series"]) == 2
    signal.alarm(0)
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1, shown.err
    assert "SECRET" not in shown.err
    assert not (alone / "series" / "report.html").exists()


@pytest.mark.parametrize("what", ["a pipe", "a link", "a device", "a folder"])
def test_no_model_is_loaded_from_what_is_no_file_of_the_run(what: str, honest: Path, alone: Path) -> None:
    shutil.copytree(honest, alone / "run")
    (alone / "mine.txt").write_text("SECRET\n")
    instead("versions/final.safetensors", MAKERS[what])(alone / "run", alone / "mine.txt")
    signal.alarm(PATIENCE)
    with pytest.raises(ConfigError, match="recorded no final version"):
        paceline.Run(alone / "run").state_dict()


@pytest.mark.parametrize("name", ["../elsewhere/ledger.sqlite", "/ledger.sqlite", "a/../../b"])
def test_what_was_undone_is_in_the_folder_itself(name: str, alone: Path) -> None:
    segment, checking = SimpleNamespace(undone=Stretch(facts=1, files=(name,))), SimpleNamespace()
    checking.run = SimpleNamespace(folder=alone / "run")
    with pytest.raises(Violation) as broken:
        _files(checking, segment)  # type: ignore[arg-type]
    assert broken.value.expected == "ledgers in the run's folder"
