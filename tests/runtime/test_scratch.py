"""A folder for what workers of another host save."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.coordinator.agent import scratch


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_named_and_not_made() -> None:
    with scratch("node-1", print) as folder, scratch("node-1", print) as another:
        assert folder != another
        assert not os.listdir()


def test_a_line_says_where_it_is_if_anything_was_saved(there: Path) -> None:
    said: list[str] = []
    with scratch("node-1", said.append) as folder:
        file = folder / "worker-2" / "saved" / "best.pt"
        file.parent.mkdir(parents=True)
        file.touch()
    assert said == [f"what workers of host node-1 saved is in {folder}"]
    assert file.exists()
    assert folder.parent == there


def test_it_is_removed_if_nothing_is_in_it(there: Path) -> None:
    """A save may have failed, and a script may remove what it has saved."""
    said: list[str] = []
    with scratch("node-1", said.append) as folder:
        (folder / "worker-2" / "saved").mkdir(parents=True)
    assert (said, os.listdir()) == ([], [])


def test_it_is_with_temporary_files_where_nobody_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr("tempfile.tempdir", None)
    with scratch("node-1", print) as folder:
        assert folder.parent == Path("/tmp")
