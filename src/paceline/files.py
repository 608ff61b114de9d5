"""Files that a user names."""

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
