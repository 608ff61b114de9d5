"""What happens inside a run, told to the test as it happens: through a pipe with a name, or on its output."""

from __future__ import annotations

import os
import re
import select
import time
from pathlib import Path

from support.runs import Launcher

VARIABLE = "PACELINE_TEST_EVENTS"

TELL = f"""
def tell(*words):
    import os
    pipe = os.open(os.environ["{VARIABLE}"], os.O_WRONLY)
    os.write(pipe, (" ".join(map(str, words)) + "\\n").encode())
    os.close(pipe)
"""
"""A script that begins with this tells the test: `tell("step", paceline.worker(), os.getpid())`."""

LONG = 60.0  # seconds: nothing that a test waits for takes as long


class Events:
    """The test's end of the pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._text = ""
        self.environment = {VARIABLE: str(path)}
        self.seen: list[list[str]] = []
        """The words of each line so far."""

    def wait_for(self, *words: object, within: float = LONG) -> list[str]:
        """The words of the first line that begins with these; waits for it."""
        wanted = [str(word) for word in words]
        deadline = time.monotonic() + within
        while True:
            for line in self.seen:
                if line[: len(wanted)] == wanted:
                    return line
            assert _readable(self._pipe, deadline), f"no {' '.join(wanted)!r} in {within} s; there were {self.seen}"
            self._read()

    def so_far(self, *words: object) -> bool:
        """Whether there has been a line that begins with these."""
        if _readable(self._pipe, 0.0):
            self._read()
        wanted = [str(word) for word in words]
        return any(line[: len(wanted)] == wanted for line in self.seen)

    def close(self) -> None:
        os.close(self._pipe)

    def _read(self) -> None:
        *lines, self._text = (self._text + os.read(self._pipe, 1 << 16).decode()).split("\n")
        self.seen += [line.split() for line in lines]


def said(process: Launcher, pattern: str, within: float = LONG) -> str:
    """What the process has written to standard error until the pattern was in it; waits for it.

    What is returned is gone from what `communicate` returns later.
    """
    assert process.stderr is not None
    deadline, text = time.monotonic() + within, ""
    while not re.search(pattern, text):
        assert _readable(process.stderr.fileno(), deadline), f"no {pattern!r} in {within} s; it said:\n{text}"
        data = os.read(process.stderr.fileno(), 1 << 16)
        assert data, f"it ended without {pattern!r}; it said:\n{text}"
        text += data.decode(errors="replace")
    return text


def _readable(descriptor: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def await_stop(process: int) -> None:
    """Wait until the process is stopped: a SIGCONT before that would be lost, and it stopped for ever."""
    deadline = time.monotonic() + LONG
    while (state := Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < deadline, f"process {process} is not stopped; its state is {state}"
        time.sleep(0.001)


def await_file(path: Path) -> None:
    """Wait until there is such a file."""
    deadline = time.monotonic() + LONG
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path} in {LONG} s"
        time.sleep(0.005)
