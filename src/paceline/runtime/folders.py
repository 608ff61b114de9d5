"""A folder that another worker of the run has just made is there for every worker that makes it.

Scripts name a folder by the time, or find that it isn't there, and make it. `os.mkdir`, `os.makedirs` and `Path.mkdir`
raise FileExistsError in every worker but the first. A script that runs alone never meets that. So each worker notes a
folder that isn't there before it makes it. Where another worker has noted the same folder, making it is no error. Nor
is it where the worker has removed the folder, and it stayed as it is another's. A folder that was there before the run
is an error, and so is a folder that the worker has made itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from paceline.runtime.touched import Touched


def notes(with_first: bool = False) -> int:
    """A file without a name, for all workers of a run on this host. Returns its descriptor.

    A process that is handed the descriptor, or inherits it by a fork, writes where the others have written last.
    `with_first`: worker 0 is one of them.
    """
    shared = os.memfd_create("paceline-folders")
    if with_first:
        Touched(0, shared).note("first", "")
    return shared


class Folders:
    """How this worker makes folders."""

    def __init__(self, worker: int, notes: int, mkdir: Callable[..., None]) -> None:
        """`mkdir` is `os.mkdir` as it was."""
        self.touched = Touched(worker, notes)
        self._mkdir = mkdir
        self._made: set[str] = set()

    def make(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Take the place of `os.mkdir`."""
        if dir_fd is not None:  # a name in another folder
            self._mkdir(path, mode, dir_fd=dir_fd)
            return
        name = os.path.realpath(os.fsdecode(path))
        if not os.path.lexists(name):
            self.touched.note("made", name)
        try:
            self._mkdir(path, mode)
        except FileExistsError:
            if os.path.isdir(name):
                self.touched.folders.add(name)
            another_s = name in self.touched.gone or (name not in self._made and self.touched.others("made", name))
            if not another_s or not os.path.isdir(name):
                raise
        self.touched.gone.discard(name)
        self._made.add(name)
        self.touched.folders.add(name)
