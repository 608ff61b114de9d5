"""`paceline replay`: real runs made again, to the same bits; and what it says when they can't be."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch

from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run, killed_once_kept, replayed, run, side_by_side
from support.scripts import script, that_draws, that_resumes
from support.sound import right, same_bits
from support.suites import each

pytestmark = pytest.mark.real_run

SCRIPT = that_draws()
PROTOCOLS = ("asp", "bsp", "ad-psgd")
TWO = ("-n", "2", "--threads", "1")
Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of each of these protocols a run. `tests/journeys` has one in which a worker is slow and one dies."""
    folder = tmp_path_factory.mktemp("replays")
    with side_by_side({one: partial(run, SCRIPT, *TWO, "-p", one, tmp_path=folder) for one in PROTOCOLS}) as futures:
        yield futures


def copied(recorded: Run, name: str, *statements: str, values: tuple[object, ...] = ()) -> Run:
    """The same run in another folder, after its ledger was edited."""
    folder = shutil.copytree(recorded.folder, recorded.folder.with_name(name))
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        for statement in statements:
            ledger.execute(statement, values)
    return Run(code=0, out="", err="", folder=folder)


def test_until_stops_at_a_version_and_leaves_it_on_disk(runs: Runs) -> None:
    recorded = runs["asp"].result()
    version, sha256 = recorded.rows("SELECT version, sha256 FROM versions ORDER BY version")[2]
    again = replayed(recorded.folder, "--until", str(version), name="until").completed()
    parameters = safetensors.torch.load_file(recorded.folder / "versions" / f"{version:08d}.safetensors")
    final = again.final()
    assert final.keys() == parameters.keys()
    named = [name for name in final if "running" not in name and "num_batches" not in name]
    assert named
    assert all(final[name].equal(parameters[name]) for name in named)
    assert (again.summary["final_parameters_sha256"], again.summary["versions"]) == (sha256, version)


def test_what_has_changed_since_is_said_before_it_starts(runs: Runs, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("lr=0.1", "lr=0.2"))
    again = replayed(runs["bsp"].result().folder, "--script", str(other), name="changed")
    assert again.code == 3
    assert again.out.splitlines()[0] == f"paceline: {other} has changed since the run was made"
    assert "version 1 is the first that differs" in again.out


def test_another_version_of_torch_is_named(runs: Runs) -> None:
    edit = "UPDATE run SET value = json_set(value, '$.torch', '1.0') WHERE key = 'environment'"
    again = replayed(copied(runs["bsp"].result(), "elsewhere", edit).folder).completed()
    assert again.out.startswith("paceline: the run was made with torch 1.0, and here it is ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--until", "100000"), "--until is 100000; the run's last version is "),
        (("--script", "nowhere.py"), "nowhere.py"),
    ],
)
def test_what_can_t_be_replayed_is_one_line(flags: tuple[str, ...], told: str, runs: Runs) -> None:
    again = replayed(runs["bsp"].result().folder, *flags, name="bad")
    assert again.code == 2
    assert told in again.err
    assert again.err.count("\n") == 1
    assert not again.folder.exists()


def test_a_replica_s_step_that_was_not_made_is_not_made_again(runs: Runs) -> None:
    """Shown the other way round: of a step that was made, the ledger says that it was not."""
    changed = copied(runs["ad-psgd"].result(), "undone", "INSERT INTO undone VALUES (0, 1)")
    again = replayed(changed.folder)
    assert again.code == 3
    assert "is the first that differs" in again.out


INTERRUPTED = """
import os, signal
from paceline.records.ledger import Ledger
record, facts = Ledger.record, []
def counts(self, *given):
    facts.append(given)
    if len(facts) == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return record(self, *given)
Ledger.record = counts
"""


def test_an_interrupted_replay_says_so_and_accuses_nobody(runs: Runs) -> None:
    again = replayed(runs["asp"].result().folder, name="interrupted", first=INTERRUPTED)
    assert again.code == 130, again.out + again.err
    assert "another way" not in again.out + again.err


@pytest.mark.parametrize(
    ("on_loss", "workers", "error"),
    [
        ("continue", "2", "all workers died"),
        ("stop", "1", "worker 0 died (exit code 4) in step 4, and --on-loss is stop"),
    ],
)
def test_a_run_whose_workers_all_died_is_compared_up_to_there(
    on_loss: str, workers: str, error: str, tmp_path: Path
) -> None:
    flags = ("-n", workers, "-p", "asp", "--on-loss", on_loss, "--tee", "none")
    recorded = run(that_draws("if step == 4: raise SystemExit(4)"), *flags, tmp_path=tmp_path)
    assert recorded.code == 3, recorded.out + recorded.err
    assert recorded.summary["error"].startswith(error)
    assert "the same bits" in replayed(recorded.folder).completed().out


ITS_OWN_LOOP = script("""
model = torch.nn.Linear(4, 1)
model, optimizer = paceline.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(1_000):  # of which nobody else knows
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
""")


def test_a_run_whose_work_only_its_limit_of_steps_said_is_made_again(tmp_path: Path) -> None:
    flags = ("-p", "sync-switch:switch_at=0.5", "--max-steps", "8")
    recorded = run(ITS_OWN_LOOP, *TWO, *flags, tmp_path=tmp_path)
    assert recorded.summary["outcome"] == "completed"
    replayed(recorded.folder).completed()


@pytest.mark.parametrize(("protocol", "dies"), [("bsp", "0"), ("ad-psgd", "1")])
def test_a_run_is_made_again_without_a_worker_that_died_before_training_began(
    protocol: str, dies: str, tmp_path: Path
) -> None:
    """What killed it may not befall the replay."""
    kills = 'if os.environ.get("DIES") == str(paceline.worker()): os.kill(os.getpid(), signal.SIGKILL)'
    script = SCRIPT.replace("torch.manual_seed(3)\n", f"torch.manual_seed(3)\n{kills}\n", 1)
    recorded = run(script, "-n", "3", "-p", protocol, tmp_path=tmp_path, env={"DIES": dies}).completed()
    assert f"worker {dies} died" in recorded.err
    assert "the same bits" in replayed(recorded.folder).completed().out


# --- runs of several segments


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("ripples", "ps-plus")))
def test_a_run_of_three_segments_uses_each_sample_once_and_ends_on_the_same_bits_again(
    protocol: str, launch: Launch
) -> None:
    flags = (*TWO, "-p", protocol, "--checkpoint", "2")
    stopped = launch.run(that_resumes(), *flags, "--max-steps", "21").completed()
    launch.resume(stopped.folder, "--max-steps", str(stopped.summary["steps"] + 15)).completed()
    recorded = launch.resume(stopped.folder).completed()
    assert (recorded.summary["samples"], recorded.summary["samples_missed"]) == (480, 0)
    assert recorded.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    again = replayed(recorded.folder).completed()
    assert again.summary["segments"] == recorded.summary["segments"] == 3
    assert same_bits(recorded, again)
    for query in (
        "SELECT kind, body FROM facts ORDER BY id",
        "SELECT version, checksum FROM checksums ORDER BY version",
        "SELECT version, worker, step, epoch, sample FROM applied_samples ORDER BY version, worker, step, sample",
    ):
        assert recorded.rows(query) == again.rows(query), query
    # A replayed segment ends with a recorded version. In the run it may have ended within a worker's last steps.
    versions = "SELECT version, sha256, samples FROM versions"
    assert set(recorded.rows(versions)) <= set(again.rows(versions))
    right(again)


def test_a_run_that_was_killed_is_made_again_up_to_there_and_later_with_the_replicas_of_its_snapshot(
    launch: Launch,
) -> None:
    killed = killed_once_kept(launch.start(that_resumes(), *TWO, "-p", "all-reduce", "--checkpoint", "4"), snapshots=2)
    crashed = replayed(killed.folder, name="crashed").completed()
    assert "the run crashed before its end" in crashed.out
    versions = "SELECT version, sha256 FROM versions WHERE version > 0"
    assert set(killed.rows(versions)) <= set(crashed.rows(versions))
    recorded = launch.resume(killed.folder).completed()
    again = replayed(recorded.folder).completed()
    assert same_bits(recorded, again)
    assert "replicas from which segment 1 went on" in again.out
    right(again)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two segments, of which the second has another worker."""
    launch = Launch(tmp_path_factory.mktemp("resumed"))
    stopped = launch.run(that_resumes(), *TWO, "-p", "asp", "--checkpoint", "2", "--max-steps", "31").completed()
    resumed = launch.resume(stopped.folder, "-n", "3").completed()
    launch.close()
    return resumed


@pytest.mark.parametrize(("until", "segments"), [(20, [(0, 2)]), (50, [(0, 2), (1, 3)])])
def test_until_a_version_no_segment_is_made_that_begins_after_it(
    until: int, segments: list[tuple[int, int]], resumed: Run
) -> None:
    again = replayed(resumed.folder, "--until", str(until), name=f"until-{until}").completed()
    assert again.rows("SELECT segment, workers FROM segments") == segments
    assert again.summary["versions"] == until
    checksums = f"SELECT version, checksum FROM checksums WHERE version <= {until} ORDER BY version"
    assert resumed.rows(checksums) == again.rows(checksums)


def test_a_replay_with_other_bits_than_the_snapshot_ends_there_and_says_so(resumed: Run) -> None:
    (version,) = resumed.rows("SELECT version FROM segments WHERE segment = 1")[0]
    other = copied(resumed, "edited", "UPDATE checksums SET checksum = '0' WHERE version = ?", values=(version,))
    again = replayed(other.folder)
    assert again.code == 3
    assert f"the run went on from a snapshot of version {version}; the replay has other bits" in again.out
    assert f"version {version} is the first that differs" in again.out
    assert again.rows("SELECT max(segment) FROM segments") == [(0,)]


def test_a_replay_without_the_snapshot_that_a_segment_began_from_is_refused_in_one_line(resumed: Run) -> None:
    (fact,) = resumed.rows("SELECT snapshot FROM segments WHERE segment = 1")[0]
    without = copied(resumed, "without")
    shutil.rmtree(without.folder / "snapshots" / f"{fact:08d}")
    again = replayed(without.folder)
    assert again.code == 2
    _, refused = again.err.splitlines()  # before that, which script the run names
    assert "the run went on from this snapshot" in refused
    assert not again.folder.exists()
