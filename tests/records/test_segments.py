"""Ledgers of runs that were interrupted and resumed: cut at a snapshot, gone on in, and read as one run."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from picture import draw, timeline_of

from paceline.core.facts import GradientReady, TrainingBegan, WorkerLeft
from paceline.core.orders import Hold, StepReplica
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records import truncate as cutting
from paceline.records import violations
from paceline.records.explain.findings import findings
from paceline.records.explain.numbers import numbers
from paceline.records.explain.sentences import sentences
from paceline.records.ledger import TABLES, Ledger, connect, read_facts
from paceline.records.reading import open_run, read_before
from paceline.records.report.contents import contents, page
from paceline.records.truncate import cut
from paceline.records.update_outcomes import UpdateOutcomes
from paceline.runs.replay import replay
from paceline.scenario.scenario import Kill, Network, Scenario
from paceline.sim.calibration import read
from records.histories import waits
from support.recorded import checked, edited, wrong
from support.resumed_runs import leased_and_resumed, resumed
from support.suites import each

POINTS = (60, 100)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(connect(path)) as ledger:
        return ledger.execute(query).fetchall()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An asynchronous run of three segments."""
    return resumed(tmp_path_factory.mktemp("made") / "run", "ssp", points=POINTS, steps=120, pause=2.0)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


# --- read as one run --------------------------------------------------------------------------------


EVENTFUL = Scenario(
    compute=0.05,
    jitter=0.2,
    nodes=2,
    speeds={3: 0.5},
    network=Network(bandwidth=1e9, message=10_000_000, latency=0.001),
    events=(Kill(worker=1, at_step=3, rejoin_after=0.3), Kill(worker=0, at_step=9)),
)


@pytest.mark.parametrize("protocol", each(registry(), long=("dssp", "hsp", "ssp")))  # others of their kind are tried
def test_a_run_of_several_segments_with_deaths_and_returns_is_checked_as_one(tmp_path: Path, protocol: str) -> None:
    folder = resumed(tmp_path / "run", protocol, points=(37, 70), beyond=20, steps=120, scenario=EVENTFUL, pause=1.0)
    found = checked(folder)
    assert found.wrong is None
    assert found.counts["applied"] >= 120
    said = "3 segments: the run went on from the snapshots after fact 37, 70"
    assert any(line.startswith(said) for line in found.proved)


@pytest.mark.parametrize("protocol", ["asp", "bsp", "ssp:bound=0", "ssp:bound=2"])
@pytest.mark.parametrize("fact", each([1, 61, 2, 30], default=(1, 61)))
def test_each_sample_is_used_once_over_all_segments(tmp_path: Path, protocol: str, fact: int) -> None:
    found = checked(leased_and_resumed(tmp_path / "run", protocol, seed=fact, fact=fact))
    assert found.wrong is None
    assert (found.counts["samples"], found.counts["samples_used"]) == (100, 100)


@pytest.mark.parametrize("seed", each(range(6), default=(0, 1)))
def test_a_batch_that_a_worker_had_as_the_run_was_interrupted_may_be_leased_again(tmp_path: Path, seed: int) -> None:
    assert checked(leased_and_resumed(tmp_path / "run", "bsp", seed=seed, fact=30, beyond=9, deaths=0.0)).wrong is None


def test_a_run_that_was_stopped_and_resumed_is_judged_by_its_last_end(tmp_path: Path) -> None:
    folder = leased_and_resumed(tmp_path / "run", end="interrupted")
    assert checked(folder).wrong is None
    ((notes,),) = rows(folder / "ledger.sqlite", "SELECT notes FROM segments WHERE segment = 0")
    assert json.loads(notes)["end"]["outcome"] == "interrupted"


@pytest.mark.parametrize("fact", each(range(2, 90, 7), default=range(1, 90, 3)))
def test_a_run_that_was_cut_and_not_resumed_yet_is_one_that_crashed_there(tmp_path: Path, fact: int) -> None:
    found = checked(resumed(tmp_path / "run", "ripples", points=(fact,), steps=90, ends=False))
    assert found.wrong is None
    assert found.counts["facts"] == fact


def test_what_was_undone_is_summed_up_and_nothing_else_counts_it(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    aside = [run / f"undone-{number}.sqlite" for number in (1, 2)]
    gradients = "SELECT coalesce(sum(json_extract(body, '$.samples')), 0) FROM facts WHERE kind = 'GradientReady'"
    versions = "SELECT count(*) FROM orders WHERE kind = 'ApplyUpdate'"
    assert summary["segments"] == 3
    assert summary["undone"]["samples"] == sum(rows(path, gradients)[0][0] for path in aside) > 0
    assert summary["undone"]["versions"] == sum(rows(path, versions)[0][0] for path in aside) > 0
    assert summary["versions"] == rows(run / "ledger.sqlite", versions)[0][0]


def test_the_time_between_two_segments_is_nobodys(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    ((first, last),) = rows(run / "ledger.sqlite", "SELECT min(at), max(at) FROM facts")
    assert summary["wall_seconds"] == pytest.approx(last - first - 2 * 2.0)
    for row in summary["per_worker"]:
        parts = sum(row[f"{part}_seconds"] for part in ("compute", "wait", "transfer", "other"))
        assert parts == pytest.approx(row["left"]["at"] - first - 2 * 2.0)


def test_what_a_replica_had_alone_is_in_its_snapshot() -> None:
    fates = UpdateOutcomes()
    fates.fact(GradientReady(worker=3, step=4, version=0, samples=8, at=1.0))
    fates.order(StepReplica(worker=3, step=4, version=1))
    fates.fact(TrainingBegan(members=(), version=0, at=2.0))
    assert fates.taken_back(3, 4) is None


def test_waits_end_where_the_run_was_interrupted() -> None:
    began = [TrainingBegan(members=((0, "node-0", 0),), version=0, at=at) for at in (0.0, 9.0)]
    left = WorkerLeft(worker=1, reason="died", at=4.0)
    (wait,) = waits([(began[0], (Hold(worker=0, why=("code",)),)), (left, ()), (began[1], ())])
    assert (wait.began, wait.ended, wait.awaited, wait.cause) == (0.0, 4.0, None, None)


def test_explain_says_where_segments_begin_and_what_was_undone(run: Path) -> None:
    with closing((opened := open_run(run, registry())).ledger):
        said = sentences(findings(opened))
        assert said[0].startswith("The run was resumed from version ")
        assert ["undone-1.sqlite" in said[0], "undone-2.sqlite" in said[1]] == [True, True]
        assert [one["version"] for one in numbers(findings(opened))["segments"]] == [
            version for (version,) in opened.ledger.execute("SELECT version FROM segments")
        ]
        fates = UpdateOutcomes()
        undone = []
        for fact, orders in opened.history():
            undone += fates.fact(fact)
            for order in orders:
                fates.order(order)
        one = undone[0]
        assert "Its update was undone: " in " ".join(sentences(findings(opened, one.worker, one.step)))


def test_timelines_show_where_segments_begin(run: Path) -> None:
    timeline = timeline_of(run / "ledger.sqlite")
    began = rows(run / "ledger.sqlite", "SELECT at, version FROM segments WHERE segment > 0")
    assert [(one.at, one.version) for one in timeline.resumed] == began
    for lane in timeline.lanes:
        assert [stay.left for stay in lane.stays] == ["interrupted", "interrupted", "stopped"]
        assert [stay.began for stay in lane.stays[1:]] == [at for at, _ in began]
    assert draw(timeline).count(">resumed</text>") == 2


@pytest.mark.parametrize("slices", [10, 1000])
def test_reports_show_where_segments_begin(run: Path, slices: int) -> None:
    with closing((opened := open_run(run, registry())).ledger):
        (found,) = (told := contents([opened], slices))["runs"]
    assert len(found["resumed"]) == len(found["timeline"]["resumed"]) == 2
    assert "were undone, and are not shown" in page(told)


def test_a_prediction_goes_by_all_segments(run: Path) -> None:
    found = read(run, registry())
    summary = json.loads((run / "summary.json").read_text())
    assert found.limit.steps == summary["steps"]
    taken = {worker: len(steps) for worker, steps in found.costs.steps.items()}
    assert taken == dict(rows(run / "ledger.sqlite", "SELECT worker, count(*) FROM step_times GROUP BY worker"))


def test_a_switch_that_only_goes_on_is_no_change_of_protocol(tmp_path: Path) -> None:
    folder = resumed(tmp_path / "run", "sync-switch:switch_at=0.2", points=POINTS, steps=120)
    switches = json.loads((folder / "summary.json").read_text())["switches"]
    assert [(one["from"], one["to"]) for one in switches] == [("bsp", "asp")]
    assert len(rows(folder / "ledger.sqlite", "SELECT 1 FROM orders WHERE kind = 'SwitchProtocol'")) == 2


def test_a_run_whose_snapshots_have_gone_is_not_replayed(run: Path) -> None:
    with closing((opened := open_run(run, registry())).ledger), pytest.raises(ConfigError, match="snapshot"):
        replay(opened, run / "train.py", run / "again")
    assert not (run / "again").exists()


# --- cutting ----------------------------------------------------------------------------------------


def everything(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {table: rows(path, f"SELECT * FROM {table}") for table in re.findall(r"CREATE TABLE (\w+)", TABLES)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that was killed after its last snapshot, and that snapshot's version."""
    folder = resumed(tmp_path_factory.mktemp("killed") / "run", "asp", points=(40,), steps=60)
    path = folder / "ledger.sqlite"
    with closing(Ledger(path, resume=True)) as ledger:
        facts = ledger.facts
    edited(folder, f"INSERT INTO marks VALUES ({facts - 30}, 0, 0, 0, 0)")
    query = f"SELECT max(version) FROM orders WHERE kind = 'ApplyUpdate' AND fact <= {facts - 30}"
    return folder, rows(path, query)[0][0]


@pytest.fixture
def point(killed: tuple[Path, int], tmp_path: Path) -> tuple[Path, int, int]:
    folder, version = killed
    shutil.copytree(folder, tmp_path / "run")
    ((fact,),) = rows(folder / "ledger.sqlite", "SELECT max(snapshot) FROM marks")
    return tmp_path / "run", fact, version


def test_what_came_after_the_snapshot_is_in_a_ledger_of_its_own(point: tuple[Path, int, int]) -> None:
    folder, fact, version = point
    before = everything(folder / "ledger.sqlite")
    made = cut(folder, fact, version)
    after, aside = everything(folder / "ledger.sqlite"), everything(folder / "undone-2.sqlite")
    for table in ("facts", "orders", "commits", "pushes", "batches", "leases"):
        assert after[table] + aside[table] == before[table]
    assert [row[0] for row in after["facts"]] == list(range(1, fact + 1))
    assert max(row[0] for row in after["commits"]) == version
    assert made.undone.facts == len(aside["facts"]) == 30
    assert list(read_facts(folder / "undone-2.sqlite"))
    assert not (folder / "summary.json").exists()
    assert checked(folder).wrong is None


STAGES = ["_write_aside", "_move", "_take_away", "_shorten", "_move_versions"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_cut_that_is_killed_is_made_by_the_next_one(point: tuple[Path, int, int], stage: str, tmp_path: Path) -> None:
    folder, fact, version = point
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    expected = cut(other, fact, version)
    script = (
        "import os, signal, sys; from pathlib import Path; from paceline.records import truncate as cut\n"
        f"cut.{stage} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"cut.cut(Path(sys.argv[1]), {fact}, {version})"
    )
    before = everything(folder / "ledger.sqlite")
    assert subprocess.run([sys.executable, "-c", script, str(folder)], check=False).returncode == -9
    assert stage == "_move_versions" or everything(folder / "ledger.sqlite") == before
    assert cut(folder, fact, version) == expected
    assert everything(folder / "ledger.sqlite") == everything(other / "ledger.sqlite")
    assert everything(folder / "undone-2.sqlite") == everything(other / "undone-2.sqlite")


def test_a_full_disk_leaves_the_ledger_as_it_was(point: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, fact, version = point
    before = everything(folder / "ledger.sqlite")

    def full(*arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(cutting, "_shorten", full)
    with pytest.raises(Exception, match="cannot be cut: database or disk is full"):
        cut(folder, fact, version)
    assert everything(folder / "ledger.sqlite") == before


def test_a_ledger_can_be_cut_further_back_before_it_goes_on(point: tuple[Path, int, int]) -> None:
    folder, fact, version = point
    first = cut(folder, fact, version)
    edited(folder, f"INSERT INTO marks VALUES ({fact - 20}, 0, 0, 0, 0)")
    query = f"SELECT max(version) FROM orders WHERE kind = 'ApplyUpdate' AND fact <= {fact - 20}"
    second = cut(folder, fact - 20, rows(folder / "ledger.sqlite", query)[0][0])
    assert second.segment == first.segment == 2
    assert second.undone.facts == first.undone.facts + 20
    assert second.undone.files == ("undone-2.sqlite", "undone-2-2.sqlite")
    assert checked(folder).wrong is None


def test_a_whole_segment_can_be_undone(point: tuple[Path, int, int]) -> None:
    folder, _, _ = point
    ((facts,),) = rows(folder / "ledger.sqlite", "SELECT count(*) FROM facts")
    before = rows(folder / "ledger.sqlite", "SELECT undone_facts FROM segments WHERE segment = 1")[0][0]
    edited(folder, "INSERT INTO marks VALUES (20, 0, 0, 0, 0)")
    query = "SELECT max(version) FROM orders WHERE kind = 'ApplyUpdate' AND fact <= 20"
    made = cut(folder, 20, rows(folder / "ledger.sqlite", query)[0][0])
    assert (made.segment, made.undone.facts) == (1, before + facts - 20)
    assert checked(folder).wrong is None


def test_files_of_undone_versions_are_moved_aside(point: tuple[Path, int, int]) -> None:
    folder, fact, version = point
    (folder / "versions").mkdir()
    kept, gone = (f"{number:08d}.safetensors" for number in (version, version + 1))
    for name in (kept, gone, "final.safetensors"):
        (folder / "versions" / name).write_text(name)
    cut(folder, fact, version)
    assert [file.name for file in (folder / "versions").iterdir()] == [kept]
    assert (folder / "undone-2" / gone).read_text() == gone


def test_a_mark_counts_the_rows_that_were_told_before_it_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger(path)) as ledger:
        for number in range(3):
            ledger.record(WorkerLeft(worker=0, reason="died", at=float(number)), ())
            ledger.leased(0, 0, (0, number))
            ledger.epoch_opened(number, [[1]], "digest")
            ledger.mark()
            ledger.looked_at(0, 0, 0)
    assert rows(path, "SELECT * FROM marks") == [(1, 1, 0, 1, 0), (2, 2, 1, 2, 0), (3, 3, 2, 3, 0)]


@pytest.mark.parametrize(
    ("table", "row"),
    [("fetches", "'node-1', 'node-0', 'version', NULL, 3, 40, 0.1, 0.2"), ("agreed", "0, 1, 0, 'any', 'true', 'true'")],
)
def test_what_came_after_the_snapshot_is_undone(point: tuple[Path, int, int], table: str, row: str) -> None:
    folder, fact, version = point
    edited(folder, *(f"INSERT INTO {table} VALUES ({one}, {row})" for one in (fact - 1, fact, fact + 1)))
    cut(folder, fact, version)
    assert rows(folder / "ledger.sqlite", f"SELECT fact FROM {table}") == [(fact - 1,), (fact,)]
    assert rows(folder / "undone-2.sqlite", f"SELECT fact FROM {table}") == [(fact + 1,)]


def test_what_was_measured_of_undone_versions_is_undone(point: tuple[Path, int, int]) -> None:
    folder, fact, version = point
    edited(
        folder,
        *(f"INSERT INTO evaluations VALUES ({number}, 'loss', 0.5)" for number in (version, version + 1)),
        f"INSERT INTO run VALUES ('unmeasured', '[{version - 1}, {version + 2}]')",
    )
    made = cut(folder, fact, version)
    assert rows(folder / "ledger.sqlite", "SELECT version FROM evaluations") == [(version,)]
    assert rows(folder / "ledger.sqlite", "SELECT value FROM run WHERE key = 'unmeasured'") == [(f"[{version - 1}]",)]
    query = "SELECT max(began + compute + push + wait + pull + other) FROM step_times"
    assert rows(folder / "ledger.sqlite", query)[0][0] <= made.at + 1e-9, "no step has time that is undone"


def test_a_ledger_without_the_mark_or_the_version_or_in_use_is_not_cut(point: tuple[Path, int, int]) -> None:
    folder, fact, version = point
    with pytest.raises(ConfigError, match=f"its ledger lacks a part of snapshots/{fact - 1:08}; only an earlier"):
        cut(folder, fact - 1, version)
    with closing(Ledger(folder / "ledger.sqlite", resume=True)):
        for going_on in (cut, lambda *_: Ledger(folder / "ledger.sqlite", resume=True)):
            with pytest.raises(ConfigError, match="still going on"):
                going_on(folder, fact, version)
    edited(folder, f"DELETE FROM commits WHERE version >= {version}")
    with pytest.raises(ConfigError, match=f"version {version} is not noted as made"):
        cut(folder, fact, version)


# --- forged ones ------------------------------------------------------------------------------------

FORGED: dict[str, tuple[str, str]] = {
    "no row": ("DELETE FROM segments WHERE segment = 2", violations.SEGMENTS),
    "another fact": ("UPDATE segments SET fact = fact + 1 WHERE segment = 1", violations.SEGMENTS),
    "another moment": ("UPDATE segments SET at = at + 1 WHERE segment = 1", violations.SEGMENTS),
    "another version": ("UPDATE segments SET version = version + 1 WHERE segment = 2", violations.SEGMENTS),
    "other workers": ("UPDATE segments SET workers = 5 WHERE segment = 0", violations.MEMBERS),
    "another protocol": (
        'UPDATE segments SET protocol = \'{"name": "asp", "config": {}}\' WHERE segment = 2',
        violations.SAME_REASONS,
    ),
    "another environment": ("UPDATE segments SET environment = '{}' WHERE segment = 2", violations.SEGMENTS),
    "another snapshot": ("UPDATE segments SET snapshot = 59 WHERE segment = 1", violations.GOES_ON),
    "no mark": ("DELETE FROM marks WHERE snapshot = 60", violations.GOES_ON),
    "a mark beyond the end": ("UPDATE marks SET leases = 9 WHERE snapshot = 60", violations.SEGMENTS),
    "notes of the newest": ("UPDATE segments SET notes = '{}' WHERE segment = 2", violations.SEGMENTS),
    "no notes of the first": ("UPDATE segments SET notes = NULL WHERE segment = 0", violations.SEGMENTS),
    "something undone before the first": (
        "UPDATE segments SET undone_facts = 1 WHERE segment = 0",
        violations.SEGMENTS,
    ),
    "less than nothing undone": ("UPDATE segments SET undone_versions = -1 WHERE segment = 1", violations.SEGMENTS),
    "fewer facts undone": ("UPDATE segments SET undone_facts = 1 WHERE segment = 1", violations.SEGMENTS),
    "less undone": ("UPDATE segments SET undone_samples = 1 WHERE segment = 1", violations.SUMMED_UP),
    "a segment too many": (
        "INSERT INTO segments (segment, fact, at, version, workers, protocol) "
        "SELECT 3, 150, at, version, workers, protocol FROM segments WHERE segment = 0",
        violations.SEGMENTS,
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_segment_is_found(run: Path, what: str) -> None:
    statement, rule = FORGED[what]
    assert wrong(edited(run, statement)).rule == rule


def test_undone_ledgers_that_are_gone_prove_nothing(run: Path) -> None:
    (run / "undone-1.sqlite").unlink()
    assert checked(run).wrong is None
    (run / "undone-2.sqlite").write_text("no ledger")
    assert wrong(run).rule == violations.SEGMENTS


def test_deaths_are_noted_by_segment(tmp_path: Path) -> None:
    folder = leased_and_resumed(tmp_path / "run", seed=3)
    died = rows(folder / "ledger.sqlite", "SELECT 1 FROM facts WHERE kind = 'WorkerLeft' AND id < 60 LIMIT 1")
    assert died, "a worker dies in the first segment"
    assert checked(folder).wrong is None
    edited(folder, "UPDATE segments SET notes = '{}' WHERE segment = 0")
    assert wrong(folder).rule == violations.DEATHS


def test_what_a_segment_needs_from_before_is_in_the_cut_ledger(run: Path) -> None:
    before = read_before(run)
    assert before.went_on_from == set(POINTS)
    assert before.recorded == dict(rows(run / "ledger.sqlite", "SELECT version, sha256 FROM versions"))
    assert before.epoch_samples == (rows(run / "ledger.sqlite", "SELECT expected FROM epochs") or [(None,)])[0][0]


@pytest.mark.parametrize("change", ["'$.version', 3", "'$.done', 3", "'$.members[1][2]', 99", "'$.members[1][2]', 0"])
def test_a_segment_that_does_not_go_on_from_the_snapshot_is_found(run: Path, change: str) -> None:
    edited(
        run,
        f"UPDATE facts SET body = json_set(body, {change}) WHERE id = (SELECT fact FROM segments WHERE segment = 1)",
        "UPDATE facts SET version = body ->> '$.version' WHERE kind = 'TrainingBegan'",
        "UPDATE segments SET version = (SELECT version FROM facts WHERE id = segments.fact)",
    )
    assert wrong(run).rule == violations.GOES_ON


@pytest.mark.parametrize(
    "change", ["protocol = 'no JSON'", "protocol = NULL", "workers = 'many'", "notes = '[1'", "undone_files = 'none'"]
)
def test_a_segment_that_cannot_be_read_is_refused_in_one_line(run: Path, change: str) -> None:
    edited(run, f"UPDATE segments SET {change} WHERE segment = 1")
    with pytest.raises(ConfigError) as error:
        open_run(run, registry())
    assert "\n" not in str(error.value)
