"""Processes that leave nothing behind, however they or their parents end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import secrets
import signal
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import RunFailed
from paceline.fabric.memory import available_bytes

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>


class NoProcess(RunFailed):
    """The machine lets no further process be forked. The message says why, and what there is."""

    def __init__(self, error: OSError) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limits = [f"{available_bytes():,} bytes of memory are to be had"]
        if most != resource.RLIM_INFINITY:
            limits.append(f"this user may have {most:,} processes (ulimit -u)")
        with contextlib.suppress(OSError, ValueError):
            group, most = pids_of_group()
            limits.append(f"this control group has {group:,} of {most:,} processes")
        super().__init__(f"no further process can be started: {error.strerror}; {', '.join(limits)}")


def pids_of_group() -> tuple[int, int]:
    """How many processes and threads the control group has, and may have. Raises OSError or ValueError: no limit."""
    line = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    group = Path("/sys/fs/cgroup") / line.split(":", 2)[2].lstrip("/")
    return int((group / "pids.current").read_text()), int((group / "pids.max").read_text())


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
    the kernel's death signal follows the thread that forked. Raises NoProcess if the machine has none to give.
    """
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        raise NoProcess(error) from error
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


_orphaning = False


_parent = 0


def _note_parent() -> None:
    global _parent
    _parent = os.getpid()


def _die_with_parent() -> None:
    if not _orphaning:
        die_with(_parent)


def fork_orphan(body: Callable[[], int], parent: int) -> None:
    """Fork a process whose parent is to be `parent`, an ancestor that adopts orphans; it dies with that one.

    Raises NoProcess if the machine has none to give.
    """
    global _orphaning
    passed, told = os.pipe()
    _orphaning = True
    try:
        between = os.fork()
    except OSError as error:
        os.close(told)
        os.close(passed)
        raise NoProcess(error) from error
    finally:
        _orphaning = False  # of who was forked, too: it forks nothing but the orphan, which has a parent to die with
    if not between:
        _orphaning = True
        try:
            child = os.fork()
        except OSError as error:
            os._exit(error.errno or errno.EAGAIN)
        if child:
            os._exit(0)
        _orphaning = False
        os.close(told)
        adopted = os.read(passed, 1)  # sent when the process in between is gone; nothing if the sender is
        os.close(passed)
        if not adopted:
            os._exit(1)
        _run_child(parent, body)
    code = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
    if not code:
        os.write(told, b"!")
    os.close(told)
    os.close(passed)
    if code:
        raise NoProcess(OSError(abs(code), os.strerror(abs(code))))


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
