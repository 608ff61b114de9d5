"""What can be known of the streams that people look at: whether they can be drawn anew, and whether they are read."""

from __future__ import annotations

import os
import re
import select
from typing import TextIO

from paceline.core.listed import printable

_MOVES = re.compile(
    r"\x1b\[(?:[0-9;]*[A-GKm]|0?J|\?25[hl])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+"
)
"""Colours and moves of the cursor as progress bars have them, or what else would move it, or turn text around."""


def redraws(*streams: TextIO) -> bool:
    """Whether each of these is a terminal whose lines can be drawn anew.

    A notebook's terminal shows every picture below the one before; so does the log that a CI service keeps. Jupyter's
    kernel, Colab and CI services say what they are in the environment. What is drawn needs more than ASCII.
    """
    return (
        all(stream.isatty() and (stream.encoding or "").lower().startswith("utf") for stream in streams)
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        and os.environ.get("CI", "").lower() in ("", "0", "false")
        and not any(name in os.environ for name in ("JPY_PARENT_PID", "COLAB_GPU"))
    )


def is_read(stream: TextIO, within: float = 0.0) -> bool:
    """Whether this stream takes more in so many seconds: a pipe or a terminal whose reader has stopped doesn't."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # it is no file, or closed
        return True
    return bool(poll.poll(within * 1000))


def tame(text: str) -> str:
    """Return what another machine has printed, with colours and progress bars. Nothing else is sent to a terminal."""
    return _MOVES.sub(lambda found: found[0] if found[0][:2] == "\x1b[" else printable(found[0]), text)
