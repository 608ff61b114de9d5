"""How a process that a test starts treats signals, however the test session was started."""

from __future__ import annotations

import signal


def as_from_a_terminal() -> None:
    """Let SIGINT and SIGHUP end this process, for `preexec_fn`.

    A shell script that starts the test session with `&` has SIGINT ignored in it, and `nohup` has SIGHUP ignored. Both
    are inherited. The session itself keeps them, so that it goes on as it was asked to.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
