"""A folder that another worker of the run has just made is there for every worker that makes it.

Scripts name a folder by the time, or find that it isn't there, and make it. `os.mkdir`, `os.makedirs` and `Path.mkdir`
raise FileExistsError in every worker but the first. A script that runs alone never meets that. So each worker notes a
folder that isn't there before it makes it. Where another worker has noted the same folder, making it is no error. Nor
is it where the worker has removed the folder, and it stayed as it is another's. A folder that was there before the run
is an error, and so is a folder that the worker has made itself.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paceline.worker_process.touched import Touched


def notes(with_first: bool = False) -> int:
    """A file without a name, for all workers of a run on this host. Returns its descriptor.

    Whoever writes there adds to what the others have written. `with_first`: worker 0 is one of them.
    """
    shared = os.memfd_create(f"paceline-notes-{secrets.token_hex(8)}")
    fcntl.fcntl(shared, fcntl.F_SETFL, os.O_APPEND)
    if with_first:
        Touched(0, shared).note("first", "")
    return shared


def told(notes: int) -> tuple[str, str]:
    """Where other processes of this machine find these notes, and what is found there: no other file has that name."""
    at = f"/proc/{os.getpid()}/fd/{notes}"
    return at, os.readlink(at)


def notes_of(run: tuple[str, str] | None) -> int:
    """A descriptor of the run's notes, if its head is on this machine; else of new ones, for this host alone."""
    if run is not None:
        at, name = run
        with suppress(OSError):
            if os.readlink(at) == name:
                return os.open(at, os.O_RDWR | os.O_APPEND)
    return notes()


class Folders:
    """How this worker makes folders."""

    def __init__(self, worker: int, notes: int, mkdir: Callable[..., None]) -> None:
        """`mkdir` is `os.mkdir` as it was."""
        self.touched = Touched(worker, notes)
        self._mkdir = mkdir

    def make(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Take the place of `os.mkdir`."""
        if dir_fd is not None:  # a name in another folder
            self._mkdir(path, mode, dir_fd=dir_fd)
            return
        name = os.path.realpath(os.fsdecode(path))
        touched = self.touched
        with touched.apart():  # so that who finds the folder there finds the note of it, too
            if not os.path.lexists(name):
                touched.note("made", name)
            known = name in touched.folders
            try:
                self._mkdir(path, mode)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise
                touched.folders.add(name)
                if name not in touched.gone and (known or not touched.others("made", name)):
                    raise
            else:
                touched.note("made", name)  # another may have removed it since it was looked for
            touched.gone.discard(name)
            touched.folders.add(name)
