"""Files reach the disk, or it is said that they don't."""

import errno
import os
from pathlib import Path

import pytest

from paceline.files import to_disk


@pytest.mark.parametrize("folder", [False, True])
def test_a_sync_that_fails_is_told(tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        to_disk(tmp_path if folder else tmp_path / "file")


def test_a_file_system_that_cannot_sync_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fail)
    to_disk(tmp_path)
