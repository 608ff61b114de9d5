"""Processes that leave nothing behind, however they or their parents end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NoReturn

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>


def _prctl(option: int, argument: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with(parent: int) -> None:
    """Be killed by the kernel when the parent ends; at once if it is another process already."""
    _prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of any descendant whose own parent ends, so that it can be found and ended."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def fork_child(body: Callable[[], int]) -> int:
    """Fork a child that runs `body` and exits with its value; it dies with this process. Returns its id.

    The child leads a process group of its own: a terminal's Ctrl-C reaches only the launcher, and the
    child can be ended together with whatever it starts. To be called from the main thread, because
    the kernel's death signal follows the thread that forked.
    """
    parent = os.getpid()
    child = os.fork()
    if not child:
        _run_child(parent, body)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it did so itself, or has ended
        os.setpgid(child, child)
    return child


def forks_die_with_me() -> None:
    """Whatever this process forks from now on (a loader's processes, say) is killed when it ends."""
    os.register_at_fork(before=_note_parent, after_in_child=_die_with_parent)


def share_without_files() -> None:
    """Let processes that hand each other tensors (a loader's do) listen on sockets that are no files.

    multiprocessing makes a file for each, which stays when its process is killed. A name that is none needs
    no clean-up; and because it has no permissions either, it is given only to listeners that ask for a key.
    """

    class Listener(connection.Listener):
        def __init__(
            self, address: Any = None, family: str | None = None, backlog: int = 1, authkey: bytes | None = None
        ) -> None:
            if address is None and family is None and authkey is not None:
                address = f"\0paceline-{secrets.token_hex(16)}"
            super().__init__(address, family, backlog, authkey)

    connection.Listener = Listener  # type: ignore[misc]


def keeps_input(worker: int) -> bool:
    """Whether this worker's standard input is the launcher's.

    A terminal is every worker's: scripts ask it for its width as they begin (`stty size`). Anything else can be
    read once, so it is worker 0's.
    """
    if sys.stdin is None:  # closed before Python began: the number may be another file's by now
        return False
    return worker == 0 or os.isatty(0)


def terminals_never_stop_me() -> None:
    """Have the terminal refuse what it would stop this process for.

    A process that is not in the terminal's foreground, as no worker is, is stopped when it reads from the terminal
    or changes its mode, and a run with a stopped worker waits for ever. With the signals ignored, such a read fails
    with an input/output error. What a script starts inherits this.
    """
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


_orphaning = False


_parent = 0


def _note_parent() -> None:
    global _parent
    _parent = os.getpid()


def _die_with_parent() -> None:
    if not _orphaning:
        die_with(_parent)


def fork_orphan(body: Callable[[], int], parent: int) -> None:
    """Fork a process whose parent is to be `parent`, an ancestor that adopts orphans; it dies with that one."""
    global _orphaning
    passed, told = os.pipe()
    _orphaning = True
    between = os.fork()
    if not between:
        if os.fork():
            os._exit(0)
        os.close(told)
        adopted = os.read(passed, 1)  # sent when the process in between is gone; nothing if the sender is
        os.close(passed)
        if not adopted:
            os._exit(1)
        _run_child(parent, body)
    _orphaning = False
    os.waitpid(between, 0)
    os.write(told, b"!")
    os.close(told)
    os.close(passed)


def _run_child(parent: int, body: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end_group(leader: int) -> None:
    """Kill the process group that this child leads, if any of it is left."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def reap_all() -> None:
    """Collect every child that has ended, the adopted ones too."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def exit_phrase(status: int) -> str:
    """`exit code 1` or `killed by SIGKILL`, of what waitpid returned."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
