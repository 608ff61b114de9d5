"""What a run must not leave behind: processes, shared memory, sockets, temporary files.

A run is known by a mark in its environment, which every process that it starts inherits, and by a folder of
its own for temporary files.
"""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

VARIABLE = "PACELINE_TEST_MARK"
UNMARKED = "0" * 32
"""In the place of a mark, as long as one."""
SHARED = Path("/dev/shm")

TRIED = re.compile("[a-z0-9_]{8}")
"""The file with which Python's `tempfile` tries a folder. It stays if the process is killed just then."""


@dataclass
class Traces:
    """One run's traces. To be made before the run; its processes are to have `environment`."""

    temporary: Path
    """A folder of this run's own for temporary files; it is made."""
    mark: str = field(default_factory=lambda: uuid4().hex)
    shared_before: frozenset[str] = field(default_factory=lambda: frozenset(os.listdir(SHARED)))

    def __post_init__(self) -> None:
        self.temporary.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.mark, "TMPDIR": str(self.temporary)}

    def processes(self) -> dict[int, str]:
        """The run's processes that are there now, with what they were started as."""
        found = {}
        wanted = f"{VARIABLE}={self.mark}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with suppress(OSError):  # it ends this very moment, or is another user's; a zombie has none
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found[int(entry)] = _described(int(entry))
        return found

    def left(self) -> list[str]:
        """Everything of the run that is there now, one line for each thing."""
        lines = [f"process {number}: {what}" for number, what in self.processes().items()]
        new = {str(SHARED / name) for name in set(os.listdir(SHARED)) - self.shared_before}
        if new:  # to look into all processes takes a tenth of a second
            new -= _files_in_use()  # what is in use belongs to another
        lines += [f"shared memory {path}" for path in sorted(new)]
        for path in sorted(self.temporary.rglob("*")):  # torch makes itself an empty folder there
            if not path.is_dir() and not TRIED.fullmatch(path.name):
                lines.append(f"{'socket' if stat.S_ISSOCK(path.lstat().st_mode) else 'temporary file'} {path}")
        return lines

    def assert_nothing_left(self, within: float = 5.0) -> None:
        """Wait for the run's processes to end, that long at most; then nothing may be there."""
        deadline = time.monotonic() + within
        while (there := self.processes()) and time.monotonic() < deadline:
            _await_ends(list(there), deadline)
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)  # what lies in shared memory for a moment may be another's
        for number in self.processes():  # the next test is to be alone
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert not left, f"left behind after {within} s:\n" + "\n".join(left)


def _await_ends(processes: list[int], deadline: float) -> None:
    """Until all of them have ended, or the deadline."""
    for process in processes:
        with suppress(ProcessLookupError), Watch(process) as watch:
            watch.ends(deadline - time.monotonic())


class Watch:
    """Tells a process's end, also once another process has its number.

    It polls: `select` refuses descriptors from 1024 on, and one process of the suite may come to have so many.
    """

    def __init__(self, process: int) -> None:
        """Raises ProcessLookupError if there is no such process any more."""
        self._descriptor = os.pidfd_open(process)

    def ends(self, within: float) -> bool:
        """Whether it has ended, after that many seconds at most."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, within) * 1000))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _described(process: int) -> str:
    command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    what = [f"state {state[0]}, child of {state[1]}: {command}"]
    with suppress(OSError):
        ends = [os.readlink(f"/proc/{process}/fd/{number}") for number in os.listdir(f"/proc/{process}/fd")]
        what += sorted(end for end in ends if end.startswith(("socket:", "/memfd:")))
    return ", ".join(what)


def _files_in_use() -> set[str]:
    """What lies in /dev/shm and is open or mapped by any process that can be looked into."""
    used = set()
    for process in (entry for entry in os.listdir("/proc") if entry.isdigit()):
        with suppress(OSError):
            used.update(_in_shared(Path(f"/proc/{process}/maps").read_text().split()))
        with suppress(OSError):
            for number in os.listdir(f"/proc/{process}/fd"):
                with suppress(OSError):
                    used.update(_in_shared([os.readlink(f"/proc/{process}/fd/{number}")]))
    return used


def _in_shared(words: list[str]) -> Iterator[str]:
    return (word for word in words if word.startswith(f"{SHARED}/"))
