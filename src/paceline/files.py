"""Reads files that a user names, and waits until files are on disk."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_OF_A_RECORD = 64 << 20
"""Bytes of the longest configuration or summary that is read: parsing takes many times its size."""


def opened(path: str | os.PathLike[str], flags: int = 0) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for anything else: reading a pipe might wait for ever."""
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return open(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read all of a regular file. Raises OSError for anything else."""
    with opened(path) as file:
        return file.read()


def opened_record(path: Path) -> BufferedReader:
    """Open a file of a run's folder, which somebody may have sent. Raises OSError if it leads out of the folder."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "It is a link, which a run's files are not")
    return opened(path, os.O_NOFOLLOW)


def read_record(path: Path) -> bytes:
    """Read all of a configuration or a summary in a run's folder. Raises OSError also if it is very long."""
    with opened_record(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_OF_A_RECORD:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
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
