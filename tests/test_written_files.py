"""Files that commands write: whole or not at all, on the disk, and never through a link that somebody has put there."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline.files import to_disk, write_whole


def test_a_link_that_waits_where_a_draft_was_once_written_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    for name in ("report.html.tmp", "report.html"):
        (tmp_path / name).symlink_to(mine)
    write_whole(tmp_path / "report.html", "a report")
    assert mine.read_text() == "precious"
    assert not (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "report.html").read_text() == "a report"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "report.html", "report.html.tmp"}


def test_what_can_t_be_written_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.json"
    file.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, "after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, True), (errno.EINVAL, False)])
@pytest.mark.parametrize("of", ["file", "."])
def test_a_sync_that_fails_is_told_unless_the_file_system_can_not_sync(
    tmp_path: Path, of: str, number: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") if told else nullcontext():
        to_disk(tmp_path / of)
