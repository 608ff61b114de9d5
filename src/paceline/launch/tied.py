"""The end of `paceline join --stdin`: who started it speaks through its standard input, and ends it by closing that."""

from __future__ import annotations

import fcntl
import os
import select
import signal

LONGEST = 4096
"""Bytes that the first line may have."""


def first_line() -> str:
    """Return the first line of standard input, and leave the rest there."""
    line = b""
    while len(line) < LONGEST and (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode(errors="replace")


def end_with_input() -> None:
    """Have the kernel send this process SIGTERM when its standard input ends, or more of it comes.

    So whoever holds the other end ends this process by ending, however that happens. It works while nothing here
    waits for input, as when torch is imported.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if has_ended():  # before
        os.kill(os.getpid(), signal.SIGTERM)


def has_ended() -> bool:
    """Whether standard input has ended, or more of it has come."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))
