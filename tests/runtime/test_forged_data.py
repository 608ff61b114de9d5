"""Records that somebody has changed, data and results: what `check` names, and what only a replay can.

Each forgery is consistent as far as its forger can see to it: a changed evaluation is in the summary, too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.protocols import registry
from paceline.records import violations
from paceline.records.journal import Journal
from paceline.records.ledger import connect
from paceline.records.reading import measure, open_run
from paceline.records.replay_comparison import Compared, compare
from paceline.records.summary import MOMENT, Tally, Target, write
from support.recorded import checked, edited, simulated, wrong
from support.runs import Run, replayed, run, side_by_side
from support.scripts import that_draws

SCRIPT = that_draws(
    "if paceline.worker() == 0 and step == 4: os.kill(os.getpid(), signal.SIGKILL)",
    logged="loss=loss.item(), seconds=time.perf_counter()",
)

PROTOCOLS = {"store": "asp", "replicas": "ripples:group_size=2"}
Both = Mapping[str, tuple[Run, Run]]
Edit = Callable[[sqlite3.Connection], Any]
pytestmark = pytest.mark.real_run


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A run with a store and one with replicas, in which the worker dies that would have evaluated; their replays.

    Steps are padded, so that every worker has its part of them, and each version is written before the next is due.
    """
    folder = tmp_path_factory.mktemp("forged")
    (folder / "padded.toml").write_text('[cluster]\ncompute = "20ms"\n')

    def make(name: str) -> Callable[[], tuple[Run, Run]]:
        def call() -> tuple[Run, Run]:
            (folder / name).mkdir()
            flags = ("-n", "3", "-p", PROTOCOLS[name], "--threads", "1", "--tee", "none", "--target", "accuracy>=0.1")
            flags += ("--scenario", str(folder / "padded.toml"))
            recorded = run(SCRIPT, *flags, tmp_path=folder / name).completed()
            return recorded, replayed(recorded.folder, "--except", "seconds", name="again").completed()

        return call

    with side_by_side({name: make(name) for name in PROTOCOLS}) as futures:  # type: ignore[arg-type]
        yield {name: future.result() for name, future in futures.items()}  # type: ignore[misc]


def forged(recorded: Run, folder: Path, edit: Edit) -> Path:
    """A copy whose ledger was edited, and whose summary says what it comes to then."""
    shutil.copytree(recorded.folder, folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        before = database.total_changes
        edit(database)
        assert database.total_changes > before, "nothing was edited"
    with closing((opened := open_run(folder, registry())).ledger):
        tally = Tally()
        for fact, orders in opened.history():
            tally.record(fact, orders)
        measure(opened.ledger, tally)
        last = opened.ledger.execute("SELECT sha256 FROM versions ORDER BY rowid DESC LIMIT 1").fetchone()
        old = opened.summary or {}
        summary = tally.summary(
            protocol=opened.choice,
            workers=opened.workers,
            threads=old["threads"],
            seed=opened.seed,
            outcome=old["outcome"],
            ended=(tally.model.began or 0.0) + old["wall_seconds"],
            samples_missed=old["samples_missed"],
            final_parameters_sha256=None if last is None else last[0],
            targets=[Target.parse(text) for text in opened.config["targets"]],
        )
    write(folder / "summary.json", summary)
    return folder


def compared(folder: Path, again: Run, *excused: str) -> Compared:
    with (
        closing((opened := open_run(folder, registry())).ledger),
        closing(connect(again.folder / "ledger.sqlite")) as now,
    ):
        return compare(opened, now, None, excused)


def does(*statements: str) -> Edit:
    def edit(database: sqlite3.Connection) -> None:
        for statement in statements:
            database.execute(statement)

    return edit


def swaps_the_batches_of_two_steps(database: sqlite3.Connection) -> None:
    """Of one worker, so that it was leased both."""
    steps = "SELECT worker, step FROM batches WHERE used = 'step' AND worker = 1 ORDER BY step LIMIT 2 OFFSET 3"
    (worker, one), (_, other) = database.execute(steps).fetchall()
    database.execute(
        "UPDATE batches SET step = CASE step WHEN ? THEN ? ELSE ? END WHERE worker = ? AND step IN (?, ?)",
        (one, other, one, worker, one, other),
    )


def draws(change: Callable[[list[list[int]]], list[list[int]]]) -> Edit:
    """The second epoch has another order, and that one's digest."""

    def edit(database: sqlite3.Connection) -> None:
        (text,) = database.execute("SELECT batch_order FROM epochs WHERE epoch = 1").fetchone()
        order = change(json.loads(text))
        digest = hashlib.blake2b(repr(order).encode(), digest_size=8).hexdigest()
        values = (json.dumps(order, separators=(",", ":")), digest)
        database.execute("UPDATE epochs SET batch_order = ?, digest = ? WHERE epoch = 1", values)

    return edit


NEVER_MADE = does(
    "INSERT INTO versions SELECT 9999, at, samples, sha256, 'versions/00009999.safetensors' FROM versions "
    "ORDER BY version DESC LIMIT 1",
    "INSERT INTO evaluations VALUES (9999, 'accuracy', 0.99)",
    "INSERT INTO evaluations VALUES (9999, 'drawn', 0.5)",
)
ALL_SEVENS = draws(lambda order: [[7] * len(batch) for batch in order])


def without(which: str) -> Edit:
    """Versions are gone with all that is known of them."""
    tables = ("consensus", "evaluations", "versions")
    return does(*(f"DELETE FROM {table} WHERE version IN (SELECT version FROM versions {which})" for table in tables))


# --- honest ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
def test_honest_records_pass_and_say_what_was_looked_at(name: str, both: Both, tmp_path: Path) -> None:
    recorded, again = both[name]
    versions = len(recorded.rows("SELECT version FROM versions"))
    summed_up_anew = forged(recorded, tmp_path / "same", does("UPDATE facts SET id = id"))
    for folder in (recorded.folder, again.folder, summed_up_anew):
        found = checked(folder)
        assert found.wrong is None, found.wrong
        assert found.counts["files"] == versions
        assert f"{versions} evaluations, one of each recorded version in order" in found.proved
    assert "the same bits: " in again.out
    assert "the same results: 2 epochs' orders" in again.out
    found_same = compared(recorded.folder, again, "seconds")
    assert found_same.same
    assert found_same.counts["scalars"] == found_same.counts["steps"] > 50
    assert found_same.counts["evaluations"] == 2 * versions
    assert found_same.counts["consensus"] == (versions if name == "replicas" else 0)


# --- what check names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "edit", "table", "rule"),
    [
        ("store", NEVER_MADE, "versions", violations.RECORDED),
        ("store", without("ORDER BY version LIMIT 1"), "versions", violations.RECORDED_DUE),
        ("replicas", without("ORDER BY version LIMIT 5"), "versions", violations.RECORDED),
        ("store", does("UPDATE versions SET samples = samples / 2"), "versions", violations.RECORDED_SAMPLES),
        ("store", does("DELETE FROM evaluations WHERE version > 20"), "evaluations", violations.EVALUATED),
        ("store", does("INSERT INTO evaluations VALUES (1, 'accuracy', 0.9)"), "evaluations", violations.EVALUATED),
        (
            "store",
            does("INSERT INTO evaluations SELECT * FROM evaluations ORDER BY rowid DESC LIMIT 1"),
            "evaluations",
            violations.EVALUATED,
        ),
        ("replicas", does("UPDATE versions SET samples = samples + 1"), "versions", violations.RECORDED_SAMPLES),
        ("replicas", does("DELETE FROM consensus WHERE version = 3"), "consensus", violations.CONSENSUS),
        ("replicas", does("UPDATE consensus SET at = at + 1"), "consensus", violations.CONSENSUS),
        ("replicas", does("UPDATE consensus SET replicas = 9"), "consensus", violations.CONSENSUS),
        ("replicas", does("UPDATE consensus SET distance = -distance - 1"), "consensus", violations.CONSENSUS),
        (
            "store",
            does("INSERT INTO consensus SELECT version, at, 3, 0.5 FROM versions LIMIT 1"),
            "consensus",
            violations.CONSENSUS,
        ),
        ("store", swaps_the_batches_of_two_steps, "batches", violations.IN_ORDER),
        ("store", does("INSERT INTO epochs SELECT * FROM epochs LIMIT 1"), "epochs", violations.OPENED_ONCE),
        ("store", does("UPDATE versions SET file = 'elsewhere'"), "versions", violations.FILE_NOTED),
    ],
)
def test_check_names_the_rule_that_forged_data_break(
    name: str, edit: Edit, table: str, rule: str, both: Both, tmp_path: Path
) -> None:
    found = wrong(forged(both[name][0], tmp_path / "forged", edit))
    assert (found.table, found.rule) == (table, rule)


def test_a_hash_that_is_not_its_file_s_is_wrong(both: Both, tmp_path: Path) -> None:
    recorded, _ = both["replicas"]
    (version,) = recorded.rows("SELECT version FROM versions ORDER BY version LIMIT 1 OFFSET 2")[0]
    change = does(f"UPDATE versions SET sha256 = '{'0' * 64}' WHERE version = {version}")
    found = wrong(forged(recorded, tmp_path / "forged", change))
    assert (found.table, found.rule) == (f"versions/{version:08d}.safetensors", violations.FILE_HASH)


def changes_a_parameter(file: Path) -> None:
    data = bytearray(file.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    place = 8 + int.from_bytes(data[:8], "little") + header["0.weight"]["data_offsets"][0]
    data[place] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "table", "rule"),
    [
        (lambda folder: changes_a_parameter(sorted(folder.glob("0*"))[1]), "0", violations.FILE_HASH),
        (lambda folder: changes_a_parameter(folder / "final.safetensors"), "final", violations.FILE_HASH),
        (
            lambda folder: shutil.copy(folder / "final.safetensors", folder / "00009999.safetensors"),
            "",
            violations.FILE_NOTED,
        ),
        (
            lambda folder: (folder / "final.safetensors").write_bytes(b"nothing of the kind"),
            "final",
            violations.READABLE,
        ),
    ],
)
def test_files_that_are_not_those_that_were_recorded_are_wrong(
    change: Callable[[Path], Any], table: str, rule: str, both: Both, tmp_path: Path
) -> None:
    folder = tmp_path / "forged"
    shutil.copytree(both["store"][0].folder, folder)
    final = folder / "versions" / "final.safetensors"
    data = final.read_bytes()
    final.unlink()
    final.write_bytes(data)  # no link to another version's any more
    change(folder / "versions")
    found = wrong(folder)
    assert found.table.startswith(f"versions/{table}")
    assert found.rule == rule


def test_files_that_are_gone_are_counted_and_nothing_is_said_of_them(both: Both, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(both["store"][0].folder, folder)
    files = sorted((folder / "versions").glob("0*"))
    files[0].unlink()
    found = checked(folder)
    assert found.wrong is None
    assert f"{len(files) - 1} files in versions with the hashes that were noted; 1 file is gone" in found.proved


def test_the_last_version_of_a_launcher_that_was_killed_may_not_be_noted(both: Both, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(both["store"][0].folder, folder)
    (folder / "summary.json").unlink()
    of_last = "WHERE version = (SELECT max(version) FROM versions)"
    gone = (f"DELETE FROM {table} {of_last}" for table in ("evaluations", "versions"))
    edited(folder, "DELETE FROM run WHERE key = 'end'", *gone)
    assert checked(folder).wrong is None
    changes_a_parameter(sorted((folder / "versions").glob("0*"))[1])
    assert checked(folder).wrong is not None


def test_a_simulation_without_a_script_has_recorded_nothing(tmp_path: Path) -> None:
    version = f"INSERT INTO versions VALUES (40, 2.5, 320, '{'a' * 64}', 'versions/00000040.safetensors')"
    assert wrong(edited(simulated(tmp_path / "run", "asp"), version)).rule == violations.RECORDED


def test_where_samples_come_more_than_once_no_sample_is_said_to_be_used_once(both: Both, tmp_path: Path) -> None:
    found = checked(forged(both["store"][0], tmp_path / "forged", ALL_SEVENS))
    assert found.wrong is None  # a sampler may draw so: only a replay tells
    assert "480 of 480 samples used, each batch once; 1 of 2 epochs have some sample more than once" in found.proved


# --- what a replay names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "edit", "table", "what"),
    [
        ("store", does("UPDATE evaluations SET value = 0.99 WHERE metric = 'accuracy'"), "evaluations", "accuracy"),
        ("store", does("UPDATE evaluations SET value = NULL WHERE rowid = 4"), "evaluations", "drawn"),
        ("store", does("INSERT INTO evaluations VALUES (60, 'f1', 1.0)"), "evaluations", "f1"),
        ("replicas", without("ORDER BY version DESC LIMIT 1"), "versions", "SHA-256"),
        ("store", does("UPDATE versions SET samples = samples + 1 WHERE version > 30"), "versions", "samples"),
        ("store", does(f"UPDATE checksums SET checksum = '{'0' * 16}' WHERE version = 9"), "checksums", "checksum"),
        ("replicas", does("UPDATE consensus SET distance = 0.0"), "consensus", "[replicas, distance]"),
        ("store", does("UPDATE pushes SET learning_rates = '[0.3]' WHERE step = 5"), "pushes", "learning rates"),
        ("store", does("DELETE FROM pushes WHERE step = 5"), "pushes", "[samples, learning rates]"),
        ("store", swaps_the_batches_of_two_steps, "batches", "[epoch, batch, used]"),
        ("store", does("DELETE FROM leases WHERE batch IS NULL"), "leases", "[during, epoch, batch]"),
        ("store", draws(lambda order: [*order[:-1], order[-1][::-1]]), "epochs", "batch 29"),
        ("store", does("DELETE FROM epochs WHERE epoch = 1"), "epochs", "digest"),
        ("store", does("UPDATE scalars SET value = value / 2 WHERE name = 'loss'"), "scalars", "loss"),
    ],
)
def test_a_replay_names_the_first_row_that_it_does_not_come_to(
    name: str, edit: Edit, table: str, what: str, both: Both, tmp_path: Path
) -> None:
    recorded, again = both[name]
    found = compared(forged(recorded, tmp_path / "forged", edit), again, "seconds")
    assert [(one.table, one.what) for one in found.differences] == [(table, what)]
    assert not found.same
    assert any("is the first that differs" in sentence for sentence in found.sentences)
    plain = found.differences[0].to_plain()
    assert plain["recorded"] != plain["again"]


def test_what_depends_on_time_differs_until_it_is_excused(both: Both) -> None:
    recorded, again = both["store"]
    found = compared(recorded.folder, again)
    assert not found.same
    assert found.bits
    assert [(one.table, one.what) for one in found.differences] == [("scalars", "seconds")]
    assert found.sentences[0].startswith("the same bits: ")
    assert found.sentences[-1].endswith("--except seconds leaves it out.")


def test_a_run_whose_leases_are_gone_is_not_made_again(both: Both, tmp_path: Path) -> None:
    edit = does("DELETE FROM leases WHERE batch IS NULL AND during = 1")
    again = replayed(forged(both["store"][0], tmp_path / "forged", edit))
    assert again.code == 3
    assert "asks for a batch once more than the table leases has it" in again.out


# --- what is no forgery -----------------------------------------------------------------------------


def test_versions_of_which_evaluate_gave_no_metric_are_noted_and_nothing_is_missing(both: Both, tmp_path: Path) -> None:
    recorded, again = both["store"]
    noted: dict[str, Any] = {}
    ledger: Any = SimpleNamespace(evaluated=lambda *_: None, note=noted.__setitem__)
    (first,), (second,) = recorded.rows("SELECT version FROM versions ORDER BY version LIMIT 2")
    journal = Journal(ledger)
    for version in (first, second):
        journal.evaluated(version, {})

    def leave_out(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM evaluations WHERE version IN (?, ?)", (first, second))
        database.execute("INSERT INTO run VALUES ('unmeasured', ?)", (json.dumps(noted["unmeasured"]),))

    folder = forged(recorded, tmp_path / "silent", leave_out)
    assert checked(folder).wrong is None
    assert json.loads((folder / "summary.json").read_text())["evaluations"][0].keys() == set(MOMENT)
    assert [one.table for one in compared(folder, again, "seconds").differences] == ["evaluations"]
