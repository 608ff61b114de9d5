"""`python -m paceline`, and the program `paceline`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from paceline.host import hash_seed


def command(report: Callable[[object], None] | None = None) -> NoReturn:
    """Run the program. `report` shows why a command has failed (default: on standard error)."""
    end_when_asked()
    hash_seed.begin_again_with(hash_seed.of_a_command(sys.argv[1:]), is_program=True)
    from paceline.cli.main import command

    command(report)


def end_when_asked() -> None:
    """Let signals that ask for an end end this process, until a command handles them.

    A shell script starts programs with `&` with SIGINT ignored. A run handles SIGINT all the same, so it must not be
    lost at the start. SIGHUP stays ignored, as `nohup` asks for that.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))  # see `host.hash_seed`


def _interrupted(*_: Any) -> NoReturn:
    os._exit(130)


if __name__ == "__main__":
    command()
