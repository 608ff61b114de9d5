"""Reads files that a user names, and waits until files are on disk."""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_OF_A_RECORD = 64 << 20
"""Bytes of a configuration or a summary that are read at most: parsing takes many times their size."""


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for anything else: reading a pipe might wait for ever."""
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "Not a regular file")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read all of a regular file. Raises OSError for anything else."""
    with opened(path) as file:
        return file.read()


def opened_record(path: Path) -> BufferedReader:
    """Open a file of a run's folder, which somebody may have sent. Raises OSError for a link, too."""
    if path.is_symlink():
        raise OSError(errno.EINVAL, "It is a link")
    return opened(path)


def read_record(path: Path) -> bytes:
    """Read all of a short file of a run's folder."""
    with opened_record(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_OF_A_RECORD:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read()


def read_json(path: Path) -> Any:
    """Read such a file that is JSON. Raises OSError and ValueError, the latter also for what is nested too deeply."""
    try:
        return json.loads(read_record(path))
    except RecursionError as error:
        raise ValueError(str(error)) from None


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
