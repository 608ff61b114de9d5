"""A folder that another worker of the run has just made is there for every worker that makes it.

Scripts name a folder by the time, or find that it isn't there, and make it. `os.mkdir`, `os.makedirs` and `Path.mkdir`
raise FileExistsError in every worker but the first. A script that runs alone never meets that. So each worker notes a
folder that isn't there before it makes it. Where another worker has noted the same folder, making it is no error. A
folder that was there before the run is one, and so is a folder that the worker has made itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 28  # bytes of notes that are read


def notes() -> int:
    """A file without a name, for all workers of a run. Returns its descriptor.

    A process that is handed the descriptor, or inherits it by a fork, writes where the others have written last.
    """
    return os.memfd_create("paceline-folders")


class Folders:
    """How this worker makes folders."""

    def __init__(self, worker: int, notes: int, mkdir: Callable[..., None]) -> None:
        """`mkdir` is `os.mkdir` as it was."""
        self._mark = b"%d " % worker
        self._notes = notes
        self._mkdir = mkdir
        self._made: set[bytes] = set()

    def make(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Take the place of `os.mkdir`."""
        if dir_fd is not None:  # a name in another folder
            self._mkdir(path, mode, dir_fd=dir_fd)
            return
        name = os.path.realpath(os.fsencode(path))
        if not os.path.lexists(name):
            os.write(self._notes, self._mark + name + b"\0")
        try:
            self._mkdir(path, mode)
        except FileExistsError:
            if name in self._made or not os.path.isdir(name) or not self._noted_by_another(name):
                raise
        self._made.add(name)

    def _noted_by_another(self, name: bytes) -> bool:
        noted = os.pread(self._notes, LONGEST, 0).split(b"\0")
        return any(note.partition(b" ")[2] == name and not note.startswith(self._mark) for note in noted)


def share(worker: int, notes: int) -> None:
    """Let this process, and what is forked from it, make folders in this way."""
    os.mkdir = Folders(worker, notes, os.mkdir).make
