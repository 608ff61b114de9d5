"""Which snapshot a run goes on from: the newest one that is whole."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from paceline.records.snapshots import (
    FORMAT,
    SNAPSHOTS,
    STORE,
    SnapshotState,
    draft_of,
    folder_of,
    newest,
    read,
    remove_undone,
)

STATE = SnapshotState(
    format=FORMAT, fact=0, version=3, at=1.5, steps=6, samples=48, memory=None, leases={}, epoch=0,
    next_steps={0: 4, 1: 3}, scalars={0: [{"lr": 0.1}]}, files={},
)  # fmt: skip


def written(run: Path, fact: int, content: bytes = b"parameters") -> Path:
    """A whole snapshot of that fact."""
    folder = folder_of(run, fact)
    folder.mkdir(parents=True)
    (folder / STORE).write_bytes(content)
    files = {STORE: hashlib.sha256(content).hexdigest()}
    state = msgspec.structs.replace(STATE, fact=fact, files=files)
    (folder / "state.json").write_bytes(msgspec.json.encode(state))
    return folder


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    snapshot = read(written(tmp_path, 7))
    assert snapshot.state.next_steps == {0: 4, 1: 3}
    assert snapshot.folder == folder_of(tmp_path, 7)
    assert list(snapshot.state.files) == [STORE]


def test_the_newest_whole_snapshot_is_taken(tmp_path: Path) -> None:
    (tmp_path / SNAPSHOTS / "²").mkdir(parents=True)  # a digit, and no number
    assert newest(tmp_path) == (None, [])
    draft_of(folder_of(tmp_path, 300)).mkdir()  # it was being written when the run was killed
    for fact in (7, 120, 99_999_999, 100_000_000):  # the last one's name has more digits
        written(tmp_path, fact)
        snapshot, passed = newest(tmp_path)
        assert snapshot is not None
        assert (snapshot.state.fact, passed) == (fact, [])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / STORE).write_bytes(b"parameterz"), "store.safetensors is damaged"),
        (lambda folder: (folder / STORE).unlink(), "No such file or directory"),
        (lambda folder: (folder / "state.json").write_bytes(b"{"), "truncated"),
        (lambda folder: (folder / "state.json").write_bytes(msgspec.json.encode(STATE)), "is of the snapshot 00000000"),
        (
            lambda folder: (folder / "state.json").write_bytes(
                msgspec.json.encode(msgspec.structs.replace(STATE, fact=120, files={"../../config.toml": ""}))
            ),
            "config.toml",
        ),
    ],
)
def test_a_damaged_snapshot_is_passed_over_and_named(tmp_path: Path, damage, why: str) -> None:
    written(tmp_path, 7)
    damage(written(tmp_path, 120))
    snapshot, passed = newest(tmp_path)
    assert snapshot is not None
    assert snapshot.state.fact == 7
    assert len(passed) == 1
    assert str(folder_of(tmp_path, 120)) in passed[0]
    assert why in passed[0]


def test_what_came_after_the_snapshot_that_a_run_goes_on_from_is_removed(tmp_path: Path) -> None:
    written(tmp_path, 3), written(tmp_path, 7), written(tmp_path, 120)
    draft_of(folder_of(tmp_path, 300)).mkdir()
    remove_undone(tmp_path, 7)
    assert sorted(path.name for path in (tmp_path / SNAPSHOTS).iterdir()) == ["00000003", "00000007"]


def test_a_snapshot_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, 7), written(tmp_path, 120)
    snapshot, passed = newest(tmp_path, lambda state: "the ledger ends before it" if state.fact > 100 else "")
    assert snapshot is not None
    assert snapshot.state.fact == 7
    assert "the ledger ends before it" in passed[0]
