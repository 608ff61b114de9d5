"""What a run says while it goes: its own lines, and what its workers print."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from paceline.runtime.member import Member

LAST_LINES = 10  # of a dead worker's log
LONGEST = 1 << 16  # bytes of a line that is not over yet, which are kept until it is
LINE_ENDS = b"\n", b"\r"  # the second is what a progress bar has


class Output:
    """Our own lines go to standard error. Workers' lines go to their logs, and are shown if asked for."""

    def __init__(self, *, shown_on: TextIO, prefix: bool) -> None:
        """`prefix`: name the worker before each line that is shown."""
        self.through: Callable[[str], None] | None = None
        """Prints lines where something else is on the screen, too."""
        self._shown_on = shown_on
        self._prefix = prefix
        self._logs: dict[int, BinaryIO] = {}
        self._unkept: set[int] = set()
        """Whose log can't be written."""
        self._partial: dict[int, bytes] = {}
        self._tails: dict[tuple[str, ...], int] = {}

    def say(self, line: str) -> None:
        """One line of our own."""
        self._print(f"paceline: {line}\n", sys.stderr)

    def pass_on(self, worker: int, log: Path, source: int) -> int | None:
        """Pass on what the worker has printed into this pipe: how many bytes. None: no more now; 0: its end."""
        try:
            data = os.read(source, 1 << 16)
        except BlockingIOError:
            return None
        self._keep(worker, log, data)
        printed = self._partial.pop(worker, b"") + data
        whole = 1 + max(map(printed.rfind, LINE_ENDS))
        if len(printed) - whole > LONGEST:
            whole = len(printed)
        lines, rest = printed[:whole], printed[whole:]
        if data and rest:
            self._partial[worker] = rest
        self._show(worker, lines if data else rest + b"\n" if rest else b"")
        return len(data)

    def died(self, member: Member, how: str, at: str) -> None:
        """A worker has died: say how, and its last words unless they are on the screen already."""
        self.say(f"worker {member.worker} died ({how}){at}")
        if member.shown:
            self.say(f"  what it printed is above, and in {member.log}")
            return
        with contextlib.suppress(OSError):
            tail = tuple(member.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            if tail and tail in self._tails:
                self.say(f"  its last lines are the same as worker {self._tails[tail]}'s; all of it: {member.log}")
            elif tail:
                self._tails[tail] = member.worker
                self.say(f"  its last lines, of {member.log}:")
                for line in tail:
                    self._print(f"  | {line}\n", sys.stderr)

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def _keep(self, worker: int, log: Path, data: bytes) -> None:
        if worker in self._unkept:
            return
        try:
            if worker not in self._logs:
                self._logs[worker] = log.open("ab", buffering=0)
            self._logs[worker].write(data)
        except OSError as error:
            self._unkept.add(worker)
            self.say(f"{log} can't be written ({error.strerror}): it lacks the rest of what worker {worker} prints")

    def _show(self, worker: int, data: bytes) -> None:
        text = data.decode(errors="replace")
        if self._prefix:
            text = "".join(f"[worker {worker}] {line}" for line in text.splitlines(keepends=True))
        self._print(text, self._shown_on)

    def _print(self, text: str, stream: TextIO) -> None:
        with contextlib.suppress(OSError):  # whoever read it has gone, or its disk is full: training goes on
            if self.through is not None and text:
                self.through(text)
            else:
                stream.write(text)
                stream.flush()
