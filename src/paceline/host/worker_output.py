"""What a run says while it goes: its own lines, and what its workers print."""

from __future__ import annotations

import contextlib
import errno
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from paceline.core.phrases import MOST, count, cut, printable, tame, workers_named
from paceline.terminal import is_read

FIRST = 0  # the worker whose output is shown by default
LAST_LINES = 10  # of a dead worker's log
LONGEST = 1 << 16  # bytes of a line that is not over yet, which are kept until it is
SETTLING = 0.3
"""Seconds that a shown worker has to print the traceback of another one that died, if its script fails there, too."""
TRACEBACK = "Traceback (most recent call last):"
GATHERING = 1.0  # seconds in which what happens to many workers is gathered for one line
PIECE = select.PIPE_BUF // 4  # characters that a pipe takes at once if it takes any, at four bytes each
LONGEST_LINE = 4000  # characters of a line of our own
REMEMBERED = 40  # of these lines, for a reader that comes later
MOST_KEPT = 1 << 30  # bytes of the log of a worker elsewhere, whose host may lie
MOST_WORDS = 60  # lines of one host or one worker in so many seconds
WORDS_WITHIN = 60.0
LINE_ENDS = b"\n", b"\r"  # the second is what a progress bar has


class Unread(BaseException):
    """What is printed may never be read: a signal came meanwhile, or it was not read in time."""


class WorkerOutput:
    """Our own lines go to standard error. Workers' lines go to their logs, and are shown if asked for."""

    full = False
    """Whether no more is to be read of what workers print, for now. See `LogForwarding`."""

    def __init__(
        self,
        *,
        log: Callable[[int], Path],
        shows: Callable[[int], bool],
        shown_on: TextIO,
        prefix: bool,
        patience: float | None = None,
    ) -> None:
        """`log(worker)`: where what it prints is kept. `shows(worker)`: whether that is shown, too.

        `prefix`: name the worker before each line that is shown.

        `patience`: seconds to wait for a pager or a stopped terminal. What it has not taken then is not shown. None:
        wait for as long as that takes.
        """
        self.through: Callable[[str], None] | None = None
        """Prints lines beside whatever else is on the screen."""
        self.after: Callable[[float, Callable[[], None]], None] | None = None
        """Calls after so many seconds, if there is a loop."""
        self.log = log
        """Where what a worker prints is kept. It is another function once all hosts have come."""
        self.shows = shows
        """Whether that is shown, too."""
        self._shown_on = shown_on
        self._prefix = prefix
        self._patience = patience
        self._logs: dict[int, BinaryIO] = {}
        self._unkept: set[int] = set()
        """Workers whose log can't be written."""
        self._partial: dict[int, bytes] = {}
        self._tails: dict[tuple[str, ...], int] = {}
        """By the last lines of a worker that died, the first one that had them."""
        self._unsaid: list[int] = []
        """Workers that died, whose last lines are still to be told."""
        self.printing = False
        """Whether a signal is to raise `Unread`: nothing else ends a wait for a pager or a stopped terminal."""
        self._unread: set[TextIO] = set()
        """The output that took no more in time, or when a signal came. Nothing is printed there until it does again."""
        self.said = deque[str](maxlen=REMEMBERED)
        """Our last lines, without those of progress."""
        self._words: Counter[str] = Counter()
        """How many lines there were of each host and worker, for a while."""
        self._said: Counter[tuple[str, str]] = Counter()
        """How many lines there were of each kind. A kind is the text before and after the worker."""
        self._gathered: dict[tuple[str, str], list[int]] = {}
        """The workers that had no line of that kind by themselves."""

    def say(self, line: str) -> None:
        """Print one line of our own. What others have said is in some, and may be anything."""
        line = printable(cut(line, LONGEST_LINE))
        self.said.append(line)
        self.say_progress(line)

    def say_progress(self, line: str) -> None:
        """Print one line about how the run goes. It is not kept in `said`, as the next one replaces it."""
        self._print(f"paceline: {line}\n", sys.stderr)

    def passes_on(self, who: str, line: str) -> None:
        """Print a line that this host or this worker has said. Of too many the rest is only counted."""
        if not self._words and self.after is not None:
            self.after(WORDS_WITHIN, self._say_left_out)
        self._words[who] += 1
        if self._words[who] <= MOST_WORDS:
            self.say(line)

    def printed(self, worker: int, data: bytes, elsewhere: bool = False) -> None:
        """The worker has printed this, perhaps on another machine. Empty: it will print no more."""
        self._keep(worker, data, MOST_KEPT if elsewhere else None)
        if not self.shows(worker):
            return
        printed = self._partial.pop(worker, b"") + data
        whole = 1 + max(map(printed.rfind, LINE_ENDS))
        if len(printed) - whole > LONGEST:
            whole = len(printed)
        lines, rest = printed[:whole], printed[whole:]
        if data and rest:
            self._partial[worker] = rest
        self._show(worker, lines if data else rest + b"\n" if rest else b"", elsewhere)

    def died(self, worker: int, how: str, at: str) -> None:
        """A worker has died: tell how, and its last words unless they are on the screen, or about to be."""
        log = self.log(worker)
        others = f" died, too ({how}); what was printed there is in {log.parent}"
        if not self._say_of(worker, f"worker {worker} died ({how}){at}", ("", others)):
            return
        if self.shows(worker):
            self.say(f"  what it printed is above, and in {log}")
            return
        self._unsaid.append(worker)
        if self.after is not None and self.shows(FIRST):
            self.after(SETTLING, self._say_last_lines)
        else:
            self._say_last_lines()

    def _say_last_lines(self) -> None:
        """Tell the last lines of the workers that have died. Those that are on the screen are not told again."""
        workers, self._unsaid = self._unsaid, []
        for worker in workers:
            log, tail = self.log(worker), self._last_lines(worker)
            same = self._tails.setdefault(_failure(tail), worker)
            if same == worker and self.shows(FIRST) and _failure(self._last_lines(FIRST)) == _failure(tail):
                same = FIRST
            if tail and same != worker:
                self.say(f"  its last lines are the same as worker {same}'s; all of it: {log}")
            elif tail:
                self.say(f"  its last lines, of {log}:")
                for line in tail:
                    self.said.append(f"  | {tame(line)}")
                    self._print(f"  | {tame(line)}\n", sys.stderr)

    def _last_lines(self, worker: int) -> tuple[str, ...]:
        """Return the last lines of its log; none if there is no log."""
        with contextlib.suppress(OSError):
            return tuple(self.log(worker).read_text(errors="replace").splitlines()[-LAST_LINES:])
        return ()

    def say_gathered(self) -> None:
        """Tell what happened to the workers that had no line of their own, in one line for all."""
        gathered, self._gathered = self._gathered, {}
        for (before, after), workers in gathered.items():
            self.say(f"{before}{workers_named(workers)}{after}")

    def close(self) -> None:
        """Print what is still to be said, and close the logs."""
        self._say_last_lines()
        self._say_left_out()
        self.say_gathered()
        for log in self._logs.values():
            log.close()

    def _say_left_out(self) -> None:
        words, self._words = self._words, Counter()
        for who, said in words.items():
            if said > MOST_WORDS:
                self.say(f"{count(said - MOST_WORDS, 'more line')} of {who} are left out")

    def _say_of(self, worker: int, line: str, kind: tuple[str, str]) -> bool:
        """Tell what happened to a worker, unless there were so many lines of this kind that the rest is gathered."""
        self._said[kind] += 1
        if self._said[kind] <= MOST:
            self.say(line)
            return True
        if not self._gathered and self.after is not None:
            self.after(GATHERING, self.say_gathered)
        self._gathered.setdefault(kind, []).append(worker)
        return False

    def _keep(self, worker: int, data: bytes, most: int | None) -> None:
        if worker in self._unkept:
            return
        log = self.log(worker)
        try:
            if worker not in self._logs:
                self._logs[worker] = log.open("ab", buffering=0)
            if most is not None and self._logs[worker].tell() + len(data) > most:
                raise OSError(errno.EFBIG, f"it has {most >> 20:,} MiB")
            self._logs[worker].write(data)
        except OSError as error:
            self._unkept.add(worker)
            why = f"can't be written ({error.strerror}): "
            line = f"{log} {why}it lacks the rest of what worker {worker} prints"
            self._say_of(worker, line, ("the logs of ", f" {why}they lack the rest of what these workers print"))

    def _show(self, worker: int, data: bytes, elsewhere: bool) -> None:
        text = data.decode(errors="replace")
        text = tame(text) if elsewhere else text
        if self._prefix:
            text = "".join(f"[worker {worker}] {line}" for line in text.splitlines(keepends=True))
        self._print(text, self._shown_on)

    def _print(self, text: str, stream: TextIO) -> None:
        if stream in self._unread and not is_read(stream):
            return
        self._unread.discard(stream)
        with contextlib.suppress(Unread):
            try:
                self.printing = True
                self._print_now(text, stream)
            except Unread:
                self._unread.add(stream)
            finally:
                self.printing = False

    def _print_now(self, text: str, stream: TextIO) -> None:
        with contextlib.suppress(OSError):  # the reader has gone, or its disk is full: training goes on
            if self._patience is not None and not is_read(stream, self._patience):
                raise Unread
            if self.through is not None and text:
                self.through(text)
            elif self._patience is None:
                stream.write(text)
                stream.flush()
            else:
                self._print_in_time(text, stream, self._patience)

    def _print_in_time(self, text: str, stream: TextIO, patience: float) -> None:
        """Print it in pieces, none of which waits. Raises Unread if that takes too long."""
        until = time.monotonic() + patience
        for first in range(0, len(text), PIECE):
            if not is_read(stream, max(0.0, until - time.monotonic())):
                raise Unread
            stream.write(text[first : first + PIECE])
            stream.flush()


def _failure(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last traceback in these lines, or all of them if there is none: progress before it may differ."""
    starts = [place for place, line in enumerate(lines) if line == TRACEBACK]
    return lines[starts[-1] :] if starts else lines
