"""What can be known of the streams that people look at: whether they can be drawn anew, and whether they are read."""

from __future__ import annotations

import os
import select
from typing import TextIO


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
