"""What agents on other machines print, and the processes here that it comes through."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from paceline.core.phrases import printable
from paceline.ipc.processes import fork_child

HELD = 100
"""Lines of an agent that are held until its host has come."""


class AgentOutput:
    """What one host's agent prints. It is held until the host has come, and then shown after the host's name."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._show: Callable[[str], object] | None = None
        """Shows a line. None: lines are held."""
        self._held: deque[str] = deque(maxlen=HELD)

    @property
    def here(self) -> bool:
        """Whether the host has come."""
        return self._show is not None

    def came(self, show: Callable[[str], object]) -> None:
        """The host has come. Show what its agent has printed, and what it will print."""
        self._show = show
        while self._held:
            show(f"{self.host}: {self._held.popleft()}")

    def printed(self, line: str) -> None:
        """Show or hold a line that the agent has printed."""
        text = printable(line.strip()).removeprefix("paceline: ")
        if text and self._show is not None:
            self._show(f"{self.host}: {text}")
        elif text:
            self._held.append(text)

    def last_words(self, show: Callable[[str], object]) -> str:
        """Return the last line that was held, and show those before it. Empty: there is none."""
        last = self._held.pop() if self._held else ""
        self.came(show)
        return last


def start_piped(command: Sequence[str], first_line: str, *, with_errors: bool) -> tuple[int, int, int]:
    """Start a command whose standard input begins with that line. Return its process, and our ends of both pipes.

    The second pipe brings its standard output, and its standard error if `with_errors`. The process ends with this one.
    Raises NoProcess.
    """
    their_input, our_input = os.pipe()
    our_output, their_output = os.pipe()

    def body() -> int:
        os.dup2(their_input, 0)
        os.dup2(their_output, 1)
        if with_errors:
            os.dup2(their_output, 2)
        os.execvp(command[0], list(command))

    try:
        process = fork_child(body)
    except BaseException:
        os.close(our_input)
        os.close(our_output)
        raise
    finally:
        os.close(their_input)
        os.close(their_output)
    os.set_blocking(our_output, False)
    with suppress(BrokenPipeError):  # the process has ended already
        os.write(our_input, f"{first_line}\n".encode())
    return process, our_input, our_output
