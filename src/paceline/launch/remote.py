"""An agent that ssh has started on another machine: what it prints, and how it ends.

The token goes over ssh's standard input, which stays open until the run is over. The agent ends with it. So agents
end with the launcher, however that ends, and with the connection.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from paceline.core.phrases import printable
from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.ipc.processes import fork_child
from paceline.launch.machines import Machine

ENDS_WITHIN = 5.0
"""Seconds that agents have to end, when the run is over and once more when they are told to."""
GIVES_UP_WITHIN = 2.0
"""Seconds that an ssh has to end whose host has not come. It may still wait for the machine to answer."""
LONGEST = 1 << 12
"""Bytes of a line that is not over yet, which are kept until it is."""
HELD = 100
"""Lines that are held until a host has come."""

Why = Callable[[Machine, int, str], str]
"""Says in one line why a host has not come: from how ssh ended, and the last line that was printed. See `why_not`."""


class Remote:
    """One machine's agent, as far as ssh shows it: a process of this machine that ends with it."""

    def __init__(self, machine: Machine, command: Sequence[str], first_line: str, why: Why) -> None:
        """Start that command, with that line as its input. It ends with this process. Raises NoProcess."""
        self.machine = machine
        self._why = why
        self.status: int | None = None
        """How ssh ended; None: it runs."""
        self._show: Callable[[str], object] | None = None
        """Shows what is printed there. None: that is held."""
        self._held: list[str] = []
        self._partial = b""
        theirs, self._input = os.pipe()
        self._output, printed = os.pipe()

        def body() -> int:
            for number, end in enumerate((theirs, printed, printed)):
                os.dup2(end, number)
            os.execvp(command[0], list(command))

        try:
            self.process = fork_child(body)
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
            os.close(printed)
        self._watch = os.pidfd_open(self.process)
        os.set_blocking(self._output, False)
        with suppress(BrokenPipeError):  # it has ended already
            os.write(self._input, f"{first_line}\n".encode())

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """Take what it prints, as it comes, and call once when it has ended."""

        def has_ended() -> None:
            loop.unwatch(self._watch)
            if loop.watches(self._output):
                loop.unwatch(self._output)
            self._take_end()
            ended()

        def printed() -> None:
            if self._take() == 0:
                loop.unwatch(self._output)

        loop.watch(self._output, printed)
        loop.watch(self._watch, has_ended)

    @property
    def here(self) -> bool:
        """Whether the host has come."""
        return self._show is not None

    def came(self, show: Callable[[str], object]) -> None:
        """The host has come. Show what was printed there, and what will be, with its name before each line."""
        self._show, held, self._held = show, self._held, []
        for line in held:
            show(f"{self.machine.name}: {line}")

    def failure(self, show: Callable[[str], object]) -> ConfigError:
        """Return what to raise if it has ended before the host came. What else was printed there is shown before."""
        assert self.status is not None
        last = self._held.pop() if self._held else ""
        self.came(show)
        return ConfigError(self._why(self.machine, self.status, last))

    def close_input(self) -> None:
        """Tell the agent there to end."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def ends_before(self, deadline: float) -> bool:
        """Wait until that time for it to end. Return whether it has."""
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        while self.status is None:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if self._watch in ready:
                self._take_end()
            elif self._output in ready:
                if self._take() == 0:
                    poll.unregister(self._output)
            else:
                return False
        return True

    def close(self) -> None:
        """End ssh if it runs, and leave no descriptor."""
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)
            self._take_end()
        self.close_input()
        os.close(self._output)
        os.close(self._watch)

    def _take_end(self) -> None:
        """Take how it ended, and all that it printed before. Another process of ssh may hold the pipe open."""
        _, self.status = os.waitpid(self.process, 0)
        while self._take():
            pass
        if self._partial:
            self._say(self._partial)
            self._partial = b""

    def _take(self) -> int | None:
        """Take what has come. Return how many bytes. None: no more now; 0: the end."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self._say(line)
        return len(data)

    def _say(self, line: bytes) -> None:
        text = printable(line.decode(errors="replace").strip()).removeprefix("paceline: ")
        if text and self._show is not None:
            self._show(f"{self.machine.name}: {text}")
        elif text:
            self._held = [*self._held, text][-HELD:]


@contextmanager
def over_ssh(
    commands: Sequence[tuple[Machine, Sequence[str]]], first_line: str, why: Why, say: Callable[[str], object]
) -> Iterator[list[Remote]]:
    """Start these commands, each on its machine. Leave none of them behind."""
    remotes: list[Remote] = []
    try:
        for machine, command in commands:
            remotes.append(Remote(machine, command, first_line, why))
        yield remotes
    finally:
        _end(remotes, say)


def _end(remotes: Sequence[Remote], say: Callable[[str], object]) -> None:
    """Wait for agents that know that the run is over, and tell the others to end. Name those that don't end."""
    here, awaited = [one for one in remotes if one.here], [one for one in remotes if not one.here]
    for remote in remotes:
        remote.came(lambda line: None)  # how the run has ended is said here
    _end_in_time(awaited, GIVES_UP_WITHIN)
    deadline = time.monotonic() + ENDS_WITHIN
    for remote in _end_in_time([one for one in here if not one.ends_before(deadline)], ENDS_WITHIN):
        say(f"host {remote.machine.name} has not ended within {2 * ENDS_WITHIN:.0f} s: its connection is cut")
    for remote in remotes:
        remote.close()


def _end_in_time(remotes: Sequence[Remote], patience: float) -> list[Remote]:
    """Tell these to end, and wait for that. Return those that have not."""
    for remote in remotes:
        remote.close_input()
    deadline = time.monotonic() + patience
    return [remote for remote in remotes if not remote.ends_before(deadline)]
