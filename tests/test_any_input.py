"""Command lines and records drawn at random, most of them wrong: each ends, with a documented code and no traceback."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from support.recorded import leased, simulated

CODES = {0, 2, 3, 4, 130}
PATIENCE = 30  # seconds: each takes a fraction of one
SEEDS = [range(30), pytest.param(range(30, 530), marks=pytest.mark.long)]

JUNK: list[Any] = [
    None, "", "x", "[]", "{}", "null", '"x"', "[[1, 2], [3]]", '{"a": {}}', "NaN", "[1e999]", "[" * 3000, "\ud800",
    -1, 0, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 1e18, 1e300, -1.5, float("inf"), b"\xff\x00", "é" * 50,
]  # fmt: skip
"""What a cell, a file or a flag may be instead of what it should be."""

WORDS = [
    "0", "1", "2", "-1", "1e9", "nan", "inf", "x", "", "-", "--", "=", "1" * 400, "1.5", "run", "sim", "c.toml", "pipe",
    "bsp", "ssp:bound=2", "dssp:lower=2,upper=1", "hsp:order=", "ps-plus:gate=none", "ripples:group_size=3", "::",
    "a=b", "loss<=1", "accuracy>=x", "true", "all", "none", "dynamic", "/dev/null", "\udcff", "é",
]  # fmt: skip
FLAGS = [
    "-n", "-p", "--workers", "--protocol", "--scenario", "--seed", "--threads", "--json", "--target", "--shards",
    "--epochs", "--record", "--on-loss", "--tee", "--max-steps", "--max-seconds", "--report-waits", "--progress",
    "--quiet", "--worker", "--step", "--from", "--seconds", "--versions", "--batch", "--until", "--runs", "--settings",
    "--seeds", "--unknown",
]  # fmt: skip
COMMANDS = ["run", "compare", "simulate", "tune", "report", "replay", "check", "explain", "protocols", "nonsense"]


@contextmanager
def patience(what: object) -> Iterator[None]:
    def over(*_: object) -> None:
        raise AssertionError(f"not over after {PATIENCE} s: {what}")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(arguments: list[str], what: object, capsys: pytest.CaptureFixture[str]) -> None:
    with patience(what):
        try:
            code = main(arguments)
        except SystemExit as end:  # of --help and --version
            code = int(end.code or 0)
    printed = capsys.readouterr()
    said = f"{what}\n{printed.err[-2000:]}"
    assert code in CODES, said
    assert "Traceback" not in printed.err, said
    assert "that should not be" not in printed.err, said
    assert code not in (2, 3) or printed.err or printed.out, said


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("honest")
    return {"run": leased(folder / "run"), "sim": simulated(folder / "sim", "ssp")}


@pytest.mark.parametrize("seeds", SEEDS, ids=["30", "500"])
def test_any_command_line_ends_with_a_documented_code(
    seeds: range,
    honest: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No script that could be run is there: what a run does is for other tests."""
    monkeypatch.chdir(tmp_path)
    for name, folder in honest.items():
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "c.toml").write_text("[cluster]\nworkers = 2\n'compute' = '10ms'\n")  # no Python
    for seed in seeds:
        chance = random.Random(seed)
        words = [chance.choice(COMMANDS)]
        for _ in range(chance.randrange(6)):
            words.append(chance.choice(FLAGS if chance.random() < 0.5 else WORDS))
        if words[0] == "simulate":
            words += ["c.toml", "-p", "bsp", "--steps", "20"]
        ends_well(words, (seed, words), capsys)


def spoiled(run: Path, chance: random.Random) -> str:
    """Spoil one thing of a run's folder; returns what."""
    kind = chance.choice(["cell", "cell", "cell", "cell", "rows", "table", "bytes", "summary", "summary"])
    ledger = run / "ledger.sqlite"
    if kind in ("cell", "rows", "table"):
        with closing(sqlite3.connect(ledger)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            full = [name for name in names if database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]]
            table = chance.choice(full)
            rows = [row for (row,) in database.execute(f"SELECT rowid FROM {table}")]
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            row, column, junk = chance.choice(rows), chance.choice(columns), chance.choice(JUNK)
            if kind == "cell":
                with suppress(sqlite3.Error, UnicodeEncodeError):
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (junk, row))
            elif kind == "rows":
                database.execute(f"DELETE FROM {table} WHERE rowid >= ?", (row,))
            else:
                database.execute(f"DROP TABLE {table}")
            database.commit()
        return f"{kind}: {table}.{column} of row {row} = {junk!r:.60}"
    if kind == "bytes":
        file = chance.choice([ledger, run / "summary.json", run / "config.toml"])
        data = bytearray(file.read_bytes())
        place = chance.randrange(len(data))
        data[place : place + 8] = chance.randbytes(8)
        file.write_bytes(data)
        return f"{kind}: {file.name} at {place}"
    return _spoiled_summary(run / "summary.json", chance)


def _spoiled_summary(file: Path, chance: random.Random) -> str:
    place = summary = json.loads(file.read_text())
    where: list[Any] = []
    while isinstance(place, dict | list) and place and (not where or chance.random() < 0.7):
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        where.append(key)
        before, place = place, place[key]
    junk = chance.choice([one for one in JUNK if not isinstance(one, bytes)] + [[], {}, [1], {"a": 1}])
    before[where[-1]] = junk
    file.write_text(json.dumps(summary if chance.random() < 0.9 else junk))
    return f"summary: {where} = {junk!r:.60}"


READERS = [
    ["check"], ["check", "--json"], ["explain"], ["explain", "--worker", "0"], ["explain", "--step", "1", "--json"],
    ["report", "--out", "report.html"], ["report", "--json", "--out", "r.html", "--trace", "trace.json"],
    ["simulate", "-p", "asp", "--steps", "20", "--from"], ["replay"],
]  # fmt: skip


@pytest.mark.parametrize("seeds", SEEDS, ids=["30", "500"])
def test_any_record_is_read_or_refused(
    seeds: range,
    honest: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        chance = random.Random(seed)
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(honest[chance.choice(list(honest))], run)
        what = spoiled(run, chance)
        for arguments in chance.sample(READERS, 3):
            ends_well([*arguments, "run"], (seed, what, arguments), capsys)
