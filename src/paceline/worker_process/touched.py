"""What the workers of a run on one machine have made, saved in and touched: notes that all of them write and read.

Worker 0 notes what it makes, moves and removes. Every other worker notes what it makes. So each can tell its own files
from another's.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Kind = Literal["first", "own", "made", "emptied", "moved", "saved", "touched"]
"""That worker 0 is on this machine; a worker's own folder; a folder that was not there before; one that is emptied or
moved away; one that has come with what is in it; one that the script saves in; and all that a worker makes, moves or
removes."""
AT_ONCE = 1 << 20  # bytes of notes that are read at a time
PATIENCE = 0.5  # seconds that are waited for a worker that was stopped with the notes in its hands


class Touched:
    """The notes of all workers, as this worker and the processes that it forks write and read them."""

    def __init__(self, worker: int, notes: int) -> None:
        """`notes` is the descriptor of a file that the workers share: see `notes`."""
        self.worker = worker
        self.gone: set[str] = set()
        """What this worker has removed, and is still there, as it is another's."""
        self.folders: set[str] = set()
        """Folders that this worker has made, or found when it was to make them. Others may have moved them since."""
        self.own: dict[int, str] = {}
        """Where what each worker makes is, besides worker 0's."""
        self._notes = notes
        self._file = _file_of(notes)
        self._threads = threading.RLock()
        self._depth = 0
        """How often this process is in `apart` now."""
        self._read = 0
        """Bytes of the notes that are in what follows."""
        self._by: dict[tuple[str, str], list[int]] = {}
        """By kind and path: the workers that noted it, in the order in which they did."""
        self._emptied: dict[str, int] = {}
        """Folders that were emptied or moved, and not made again: who did it last."""

    def note(self, kind: Kind, name: str) -> None:
        """Have every worker know that this one has to do with that path."""
        if _file_of(self._notes) != self._file:
            return  # a process of Paceline's own was forked from this one, and has closed it
        if kind == "emptied" or name in self._emptied or self.worker not in self.by(kind, name):
            with self.apart(), suppress(OSError):
                os.write(self._notes, b"%d %s %s\0" % (self.worker, kind.encode(), os.fsencode(name)))

    def by(self, kind: Kind, name: str) -> list[int]:
        """The workers that have noted this, the first one first."""
        self._catch_up()
        return self._by.get((kind, name), [])

    def others(self, kind: Kind, name: str) -> list[int]:
        """The same, without this worker."""
        return [worker for worker in self.by(kind, name) if worker != self.worker]

    def below(self, kind: Kind, folder: str) -> Iterator[str]:
        """The folder itself and the paths in it that anyone has noted."""
        self._catch_up()
        there = [name for noted, name in list(self._by) if noted == kind]
        return (name for name in there if name == folder or name.startswith(f"{folder}/"))

    def emptied_by_another(self, name: str) -> bool:
        """Whether another worker has emptied or moved the path, or a folder above it, and not made it again."""
        self._catch_up()
        return any(self._emptied.get(one, self.worker) != self.worker for one in upwards(name))

    def forget(self, folder: str) -> None:
        """This worker has removed or moved the folder."""
        self.folders = {name for name in self.folders if name != folder and not name.startswith(f"{folder}/")}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let no other worker in here meanwhile. It takes microseconds; a worker that is stopped is not waited for."""
        mine = self._threads.acquire(timeout=PATIENCE)
        outermost = mine and self._depth == 0
        held = outermost and self._locked()
        self._depth += mine
        try:
            yield
        finally:
            self._depth -= mine
            if held:
                with suppress(OSError):
                    fcntl.lockf(self._notes, fcntl.LOCK_UN, 1)
            if mine:
                self._threads.release()

    def _locked(self) -> bool:
        until = time.monotonic() + (PATIENCE if _file_of(self._notes) == self._file else 0)
        while time.monotonic() < until:
            with suppress(OSError):  # another worker has it
                fcntl.lockf(self._notes, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                return True
            time.sleep(0)
        return False

    def _catch_up(self) -> None:
        """Read what is new. Two threads may do so at once, and read some notes twice."""
        if _file_of(self._notes) != self._file:
            return
        began = self._read
        while whole := os.pread(self._notes, AT_ONCE, began).rpartition(b"\0")[0]:  # the last one may be half written
            for note in whole.split(b"\0"):
                number, kind, path = note.split(b" ", 2)
                worker, name = int(number), os.fsdecode(path)
                noted = self._by.setdefault((kind.decode(), name), [])
                if worker not in noted:
                    noted.append(worker)
                if kind == b"emptied":
                    self._emptied[name] = worker
                elif kind == b"own":
                    self.own[worker] = name
                elif kind == b"made":
                    self._emptied.pop(name, None)
            self._read = began = began + len(whole) + 1


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Which file is open under this number, if any is."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def upwards(name: str) -> Iterator[str]:
    """The path itself, its folder, and so on to the root."""
    yield name
    while (above := os.path.dirname(name)) != name:
        name = above
        yield name


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
