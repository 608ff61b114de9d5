"""`paceline join --stdin`: the process that started it writes to its standard input, and closes that to end it."""

from __future__ import annotations

import fcntl
import os
import select
import signal

LONGEST = 4096
"""Bytes of the longest first line."""


def first_line() -> str:
    """Read the first line of standard input, and no more."""
    line = b""
    while len(line) < LONGEST and (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode(errors="replace")


def end_with_input() -> None:
    """Have the kernel send this process SIGTERM when its standard input ends, or more of it comes.

    So this process ends with the one at the other end, however that ends. It works at any time, such as while torch is
    imported.
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
