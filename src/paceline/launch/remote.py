"""An agent that ssh has started on another machine: what it prints, and how it ends.

The token goes over ssh's standard input, which stays open until the run is over. The agent ends when the input does. So
agents end with the launcher, however that ends, and with the connection.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.launch.agent_output import AgentOutput, start_piped
from paceline.launch.machines import Machine

ENDS_WITHIN = 5.0
"""Seconds that agents have to end by themselves when the run is over, and again once they are told to."""
GIVES_UP_WITHIN = 2.0
"""Seconds that ssh has to end if its host has not come. It may still wait for the machine to answer."""
LONGEST = 1 << 12
"""Bytes of an unfinished line that are kept until it ends."""

Why = Callable[[Machine, int, str], str]
"""Says in one line why a host has not come, from ssh's status and the last line that was printed. See `why_not`."""


class Remote(AgentOutput):
    """One machine's agent, as ssh shows it. The process of ssh runs here, and ends with the agent."""

    def __init__(self, machine: Machine, command: Sequence[str], first_line: str, why: Why) -> None:
        """Start that command, whose input begins with that line. It ends with this process. Raises NoProcess."""
        super().__init__(machine.name)
        self.machine = machine
        self._why = why
        self.status: int | None = None
        """How ssh ended; None: it runs."""
        self._partial = b""
        self.process, self._input, self._output = start_piped(command, first_line, with_errors=True)
        self._watch = os.pidfd_open(self.process)

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """Read what it prints as it comes, and call `ended` once it has ended."""

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

    def failure(self, show: Callable[[str], object]) -> ConfigError:
        """Return what to raise if it has ended before the host came, and show what was printed there."""
        assert self.status is not None
        return ConfigError(self._why(self.machine, self.status, self.last_words(show)))

    def close_input(self) -> None:
        """Tell the agent to end."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def ends_before(self, deadline: float) -> bool:
        """Wait until that time for ssh to end. Return whether it has."""
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
        """End ssh if it runs, and close all descriptors."""
        if self.status is None:
            os.kill(self.process, signal.SIGKILL)
            self._take_end()
        self.close_input()
        os.close(self._output)
        os.close(self._watch)

    def _take_end(self) -> None:
        """Note how ssh ended, and read all that it printed before. Another process of ssh may hold the pipe open."""
        _, self.status = os.waitpid(self.process, 0)
        while self._take():
            pass
        if self._partial:
            self._heard(self._partial)
            self._partial = b""

    def _take(self) -> int | None:
        """Read what has come. Return how many bytes, 0 at the end, or None if there is nothing now."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self._heard(line)
        return len(data)

    def _heard(self, line: bytes) -> None:
        self.printed(line.decode(errors="replace"))


@contextmanager
def over_ssh(
    commands: Sequence[tuple[Machine, Sequence[str]]], first_line: str, why: Why, say: Callable[[str], object]
) -> Iterator[list[Remote]]:
    """Start these commands, each on its machine, and end them all at the end."""
    remotes: list[Remote] = []
    try:
        for machine, command in commands:
            remotes.append(Remote(machine, command, first_line, why))
        yield remotes
    finally:
        _end(remotes, say)


def _end(remotes: Sequence[Remote], say: Callable[[str], object]) -> None:
    """Wait for the agents that know that the run is over, and tell the others to end. Name those that don't end."""
    here, awaited = [one for one in remotes if one.here], [one for one in remotes if not one.here]
    for remote in remotes:
        remote.came(lambda line: None)  # the head itself says how the run has ended
    _end_in_time(awaited, GIVES_UP_WITHIN)
    deadline = time.monotonic() + ENDS_WITHIN
    for remote in _end_in_time([one for one in here if not one.ends_before(deadline)], ENDS_WITHIN):
        say(f"host {remote.host} has not ended within {2 * ENDS_WITHIN:.0f} s: its connection is cut")
    for remote in remotes:
        remote.close()


def _end_in_time(remotes: Sequence[Remote], patience: float) -> list[Remote]:
    """Tell these to end, and wait for that. Return those that have not ended."""
    for remote in remotes:
        remote.close_input()
    deadline = time.monotonic() + patience
    return [remote for remote in remotes if not remote.ends_before(deadline)]
