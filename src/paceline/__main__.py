"""`python -m paceline`, and the program `paceline`."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn


def command() -> NoReturn:
    """The program, from its first moment on: a signal that asks for an end gets one, until a command sees to it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)
    from paceline.cli.main import command

    command()


def _interrupted(*_: Any) -> NoReturn:
    os._exit(130)


if __name__ == "__main__":
    command()
