"""Files that a user names."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import TextIO


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


def is_read(stream: TextIO, within: float = 0.0) -> bool:
    """Whether this stream takes more in so many seconds: a pipe or a terminal whose reader has stopped doesn't."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # it is no file, or closed
        return True
    return bool(poll.poll(within * 1000))
