"""Runs that were stopped and resumed are made again, segment by segment, to the same bits."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.protocols import registry
from paceline.records.snapshots import whole
from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended
from support.suites import each

pytestmark = pytest.mark.real_run

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={"scheduler": scheduler})
for epoch in paceline.epochs(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        paceline.log(loss=loss.item())
    scheduler.step()
paceline.finish()
"""


def replayed(recorded: Run, *flags: str, name: str = "again") -> Run:
    folder = recorded.folder.parent / name
    process = nursery.Process(["replay", str(recorded.folder), "--out", str(folder), *flags])
    out, err = process.communicate(timeout=120)
    return Run(code=process.returncode, out=out, err=err, folder=folder)


def copied(recorded: Run, name: str) -> Run:
    """The same run in another folder."""
    folder = shutil.copytree(recorded.folder, recorded.folder.parent / name)
    return Run(code=0, out="", err="", folder=folder)


def edited(recorded: Run, statement: str, *values: object) -> Run:
    """The same run with a ledger that somebody has changed."""
    copy = copied(recorded, "edited")
    with closing(sqlite3.connect(copy.folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(statement, values)
    return copy


def same(recorded: Run, again: Run, query: str) -> bool:
    return recorded.rows(query) == again.rows(query)


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("ripples", "ps-plus")))
def test_a_run_of_three_segments_ends_on_the_same_bits_again(protocol: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", protocol, "--checkpoint", "2", "--threads", "1")
    stopped = launch.run(SCRIPT, *flags, "--max-steps", "31").completed()
    launch.resume(stopped.folder, "--max-steps", "50").completed()
    recorded = launch.resume(stopped.folder).completed()
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err
    assert again.summary["segments"] == 3
    assert again.summary["samples"] == 288
    assert again.summary["final_parameters_sha256"] == recorded.summary["final_parameters_sha256"]
    for query in (
        "SELECT kind, body FROM facts ORDER BY id",
        "SELECT version, checksum FROM checksums ORDER BY version",
        "SELECT version, sha256, samples FROM versions ORDER BY version",
        "SELECT version, worker, step, epoch, sample FROM applied_samples ORDER BY version, worker, step, sample",
    ):
        assert same(recorded, again, query), query
    assert checked(again.folder).ok


@pytest.mark.parametrize(
    "protocol",
    each(["bsp", "asp", "all-reduce", "ad-psgd", "ps-plus"], long=("bsp", "all-reduce", "ad-psgd", "ps-plus")),
)
def test_a_run_that_was_killed_and_resumed_ends_on_the_same_bits_again(protocol: str, launch: Launch) -> None:
    process = launch.start(SCRIPT, "-n", "2", "-p", protocol, "--checkpoint", "4", "--threads", "1")
    folder: Path = process.folder  # type: ignore[union-attr, assignment]
    while len(list(whole(folder))) < 2:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    ended(process)
    recorded = launch.resume(folder).completed()
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err
    assert again.summary["final_parameters_sha256"] == recorded.summary["final_parameters_sha256"]
    assert same(recorded, again, "SELECT worker, step, epoch, batch FROM batches ORDER BY worker, step, batch")
    assert ("replicas from which segment 1 went on" in again.out) == (protocol in ("all-reduce", "ad-psgd"))
    assert checked(again.folder).ok


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two segments, of which the second has another worker."""
    launch = Launch(tmp_path_factory.mktemp("resumed"))
    flags = ("-n", "2", "-p", "asp", "--checkpoint", "2", "--threads", "1")
    stopped = launch.run(SCRIPT, *flags, "--max-steps", "31").completed()
    run = launch.resume(stopped.folder, "-n", "3").completed()
    launch.close()
    return run


def test_until_a_version_of_the_first_segment_the_second_is_not_made(resumed: Run) -> None:
    again = replayed(resumed, "--until", "20", name="until-20")
    assert again.code == 0, again.out + again.err
    assert again.rows("SELECT max(segment) FROM segments") == [(0,)]
    assert again.summary["versions"] == 20


def test_until_a_version_of_the_second_segment_with_another_worker_both_are_made(resumed: Run) -> None:
    again = replayed(resumed, "--until", "50", name="until-50")
    assert again.code == 0, again.out + again.err
    assert again.rows("SELECT segment, workers FROM segments") == [(0, 2), (1, 3)]
    assert again.summary["versions"] == 50
    checksums = "SELECT version, checksum FROM checksums WHERE version <= 50 ORDER BY version"
    assert same(resumed, again, checksums)


def test_a_replay_with_other_bits_than_the_snapshot_ends_there_and_says_so(resumed: Run) -> None:
    (version,) = resumed.rows("SELECT version FROM segments WHERE segment = 1")[0]
    other = edited(resumed, "UPDATE checksums SET checksum = ? WHERE version = ?", "0" * 16, version)
    again = replayed(other, name="edited-again")
    assert again.code == 3
    assert f"the run went on from a snapshot of version {version}; the replay has other bits" in again.out
    assert f"version {version} is the first that differs" in again.out
    assert again.rows("SELECT max(segment) FROM segments") == [(0,)]


def test_a_replay_without_the_snapshot_that_a_segment_began_from_is_refused_in_one_line(resumed: Run) -> None:
    (fact,) = resumed.rows("SELECT snapshot FROM segments WHERE segment = 1")[0]
    without = copied(resumed, "without")
    shutil.rmtree(without.folder / "snapshots" / f"{fact:08d}")
    again = replayed(without, name="without-again")
    assert again.code == 2
    _, refused = again.err.splitlines()  # before that, which script the run names
    assert "the run went on from this snapshot" in refused
    assert not again.folder.exists()
