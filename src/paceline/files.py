"""Reads files that a user names, and waits until files are on disk."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read all of a regular file. Raises OSError for anything else: reading a pipe might wait for ever."""
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return file.read()


def to_disk(path: Path) -> None:
    """Wait until the file's bytes, or the folder's names, are on disk. Raises OSError if they can't be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system can't sync
            raise
    finally:
        os.close(descriptor)
