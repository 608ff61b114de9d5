"""The streams that people look at: lines of ours, whether lines can be redrawn, and whether anyone reads them."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO

from paceline.core.phrases import printable


def say(line: object) -> None:
    """Print this line on standard error, as Paceline's. What no terminal shows is escaped: some lines quote others."""
    print(f"paceline: {printable(str(line))}", file=sys.stderr, flush=True)


def redraws(*streams: TextIO) -> bool:
    """Return whether each of these is a terminal whose lines can be redrawn.

    A notebook's terminal, or a CI service's log, shows each redrawn line below the one before. Jupyter's kernel, Colab
    and CI services set environment variables. The display needs more than ASCII.
    """
    return (
        all(stream.isatty() and (stream.encoding or "").lower().startswith("utf") for stream in streams)
        and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        and os.environ.get("CI", "").lower() in ("", "0", "false")
        and not any(name in os.environ for name in ("JPY_PARENT_PID", "COLAB_GPU"))
    )


def is_read(stream: TextIO, within: float = 0.0) -> bool:
    """Return whether this stream takes more within so many seconds. One whose reader has stopped doesn't."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # not a file, or closed
        return True
    return bool(poll.poll(within * 1000))
