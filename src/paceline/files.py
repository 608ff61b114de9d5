"""Reads and writes files safely, waits until they are on disk, and writes tracebacks."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import tempfile
import traceback
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from paceline.core.phrases import printable

MODE = 0o666
"""The mode of every file that a run makes, before the umask."""
MOST_OF_A_RECORD = 64 << 20
"""The most bytes of a configuration or a summary that are read, as parsing takes many times their size."""
MOST_OF_A_TRACE = 1 << 16
"""The most characters of a traceback that are kept."""
OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors that a disk is to blame for."""
traces: Path | None = None
"""The folder for tracebacks, which a run sets before it forks processes. None: the one for temporary files."""


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for anything else, as reading a pipe might never end."""
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
    """Open a file of a run's folder, which may come from another user. Raises OSError also for a link."""
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
    """Read a short JSON file of a run's folder. Raises OSError and ValueError, the latter also for too much nesting."""
    try:
        return json.loads(read_record(path))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def write_whole(path: Path, text: str) -> None:
    """Write a file, or replace it, atomically. Raises OSError, and then leaves any old file as it was.

    The draft has a random name, so no other user can have put a link to another file there.
    """
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def to_disk(path: Path) -> None:
    """Wait until the file's bytes, or the folder's names, are on disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system can't sync
            raise
    finally:
        os.close(descriptor)


def of_disk(error: BaseException) -> str:
    """Return one line about an error that the disk is to blame for. Empty: it is none of these."""
    if not isinstance(error, OSError) or error.errno not in OF_DISK:
        return ""
    return f"{error.filename or 'a file'}: {error.strerror}; is the disk full, or failing?"


def unforeseen(error: BaseException, part: str) -> str:
    """Return one line about an unexpected error. See `traced`."""
    return of_disk(error) or f"an error in Paceline that should not be: {traced(error, part)}; please report it"


def traced(error: BaseException, part: str) -> str:
    """Write the traceback to that part's file. Return one line with the error, where it was raised, and the file.

    The traceback has no values but those in the error's own message.
    """
    places = traceback.extract_tb(error.__traceback__)
    line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if places:
        line += f" ({places[-1].filename}, line {places[-1].lineno})"
    with suppress(OSError):  # without the file, the line still says where the error was raised
        if traces is None:
            descriptor, path = tempfile.mkstemp(".txt", f"paceline-error-{part}-")
        else:
            traces.mkdir(parents=True, exist_ok=True)
            path = f"{traces}/internal-error-{part}.txt"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, MODE)
        with open(descriptor, "a", encoding="utf-8") as file:
            for one in "".join(traceback.format_exception(error))[-MOST_OF_A_TRACE:].splitlines():
                print(printable(one), file=file)
        line += f", traceback in {path}"
    return line
