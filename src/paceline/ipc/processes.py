"""Starts and ends processes so that nothing is left behind, however they or their parents end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import ConfigError, PacelineError, RunFailed
from paceline.files import unforeseen
from paceline.ipc.memory import available_bytes

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>


class NoProcess(RunFailed):
    """No further process can be forked. The message says why."""

    @classmethod
    def because(cls, error: OSError) -> NoProcess:
        """Return what to raise after a fork has failed. The message names the limits."""
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limits = [f"{available_bytes():,} bytes of memory are available"]
        if most != resource.RLIM_INFINITY:
            limits.append(f"this user may have {most:,} processes (ulimit -u)")
        with contextlib.suppress(OSError, ValueError):
            group, most = pids_of_group()
            limits.append(f"this control group has {group:,} of {most:,} processes")
        return cls(f"no further process can be started: {error.strerror}; {', '.join(limits)}")


def pids_of_group() -> tuple[int, int]:
    """Return how many processes and threads the control group has, and may have.

    Raises OSError or ValueError if there is no limit.
    """
    line = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    group = Path("/sys/fs/cgroup") / line.split(":", 2)[2].lstrip("/")
    return int((group / "pids.current").read_text()), int((group / "pids.max").read_text())


def _prctl(option: int, argument: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def asking_to_end() -> list[signal.Signals]:
    """Return the signals that ask for an end. SIGHUP, of a terminal that closes, is one unless `nohup` ignores it."""
    hangs_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangs_up]


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. End at once if the parent has ended already."""
    _prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends."""
    _prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


def allow_descriptors(needed: int, workers: int) -> None:
    """Let this process open so many files. Raises ConfigError if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{workers} workers take {needed} open files, and {hard} are allowed; raise that limit (ulimit -n), or ask "
            "for fewer with -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def adopt_orphans(adopts: bool = True) -> None:
    """Become the parent of descendants whose own parents end, so that they can be found and ended; or stop that."""
    _prctl(SET_CHILD_SUBREAPER, adopts)


def fork_child(body: Callable[[], int]) -> int:
    """Fork a child that runs `body` and exits with its value. It dies with this process. Return its id.

    The child leads a process group of its own. So a terminal's Ctrl-C reaches only the launcher, and the child can be
    ended together with all that it starts. Call this from the main thread, as the kernel's death signal follows the
    thread that forked. Raises NoProcess.
    """
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        raise NoProcess.because(error) from error
    if not child:
        _run_child(parent, body)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # the child did so itself, or has ended
        os.setpgid(child, child)
    return child


def forks_die_with_me() -> None:
    """Have all processes that this one forks from now on, such as a loader's, killed when this one ends.

    The kernel's death signal follows the thread that forked. So a process that was not forked by the main thread has a
    thread that waits for this process's end.
    """
    os.register_at_fork(before=_note_parent, after_in_child=_die_with_parent)


def share_without_files() -> None:
    """Have processes that share tensors, such as a loader's, listen on sockets that leave no file.

    multiprocessing makes a file for each socket, which stays when the process is killed. An abstract name needs no
    file, but every user of the machine can connect to it, send nothing, and stall the run. Here the file is made in a
    private folder, and both are removed at once. This process's descriptor of the file is left, which only its own user
    can reach, below /proc.
    """

    class Listener(connection.Listener):
        def __init__(
            self, address: Any = None, family: str | None = None, backlog: int = 1, authkey: bytes | None = None
        ) -> None:
            if address is not None or family is not None or authkey is None:
                super().__init__(address, family, backlog, authkey)
                return
            with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
                directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
                try:
                    path = f"/proc/self/fd/{directory}/listener"  # a folder's own path may be too long for a socket
                    super().__init__(path, "AF_UNIX", backlog, authkey)
                    self._file = os.open(path, os.O_PATH)
                    inner: Any = self._listener  # type: ignore[attr-defined]
                    inner._unlink()
                    inner._address = f"/proc/{os.getpid()}/fd/{self._file}"
                finally:
                    os.close(directory)

    connection.Listener = Listener  # type: ignore[misc]


def keeps_input(worker: int) -> bool:
    """Return whether this worker's standard input is the launcher's.

    All workers share a terminal, as scripts ask it for its width (`stty size`). Anything else can be read only once, so
    it is worker 0's.
    """
    if sys.stdin is None:  # closed before Python began: descriptor 0 may be another file by now
        return False
    return worker == 0 or os.isatty(0)


def terminals_never_stop_me() -> None:
    """Have reads from the terminal fail, instead of stopping this process.

    The terminal stops a process outside its foreground, as all workers are, that reads from it or changes its mode. The
    run would then wait for ever. With the signals ignored, the read fails with an input/output error. Child processes
    inherit this.
    """
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)


_orphaning = False


class _Forking(threading.local):
    """What a thread notes before a fork, for the child."""

    parent = 0
    main = True


_forking = _Forking()


def _note_parent() -> None:
    _forking.parent = os.getpid()
    _forking.main = threading.get_native_id() == _forking.parent


def _die_with_parent() -> None:
    if _orphaning:
        return
    if _forking.main:
        die_with(_forking.parent)
        return
    watch = os.pidfd_open(_forking.parent)
    if os.getppid() != _forking.parent:
        os._exit(1)
    threading.Thread(target=_die_at_end, args=(watch,), daemon=True).start()


def _die_at_end(watch: int) -> None:
    """Kill this process when the process behind this descriptor has ended."""
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def fork_orphan(body: Callable[[], int], parent: int) -> int:
    """Fork one process. See `fork_orphans`."""
    (child,) = fork_orphans([body], parent)
    return child


def fork_orphans(bodies: Sequence[Callable[[], int]], parent: int) -> list[int]:
    """Fork processes whose parent will be `parent`, an ancestor that adopts orphans. They die with that ancestor.

    Return their ids once they have that parent. Each leads a process group. Raises NoProcess, and then runs no body.
    """
    global _orphaning
    ours, theirs = socket.socketpair()
    _orphaning = True
    try:
        between = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        raise NoProcess.because(error) from error
    finally:
        _orphaning = False  # in the process in between, too
    if not between:
        _orphaning = True
        for body in bodies:
            try:
                child = os.fork()
            except OSError as error:
                os._exit(error.errno or errno.EAGAIN)
            if not child:
                _orphaning = False
                ours.close()
                _await_adoption(theirs)
                _run_child(parent, body)
            os.setpgid(child, child)
            theirs.send(b"%d " % child)
        os._exit(0)
    theirs.close()
    with ours:
        code = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
        if code:
            raise NoProcess.because(OSError(abs(code), os.strerror(abs(code))))
        children = [int(child) for child in ours.recv(1 << 16).split()]
        ours.send(b"!" * len(children))
    return children


def _await_adoption(told: socket.socket) -> None:
    """Wait until the process in between is gone. End at once if the process that tells so is gone, or gave up."""
    try:
        adopted = told.recv(1)
    except OSError:  # the other end closed with bytes unread
        adopted = b""
    told.close()
    if not adopted:
        os._exit(1)


def _run_child(parent: int, body: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in asking_to_end():
            signal.signal(number, signal.SIG_DFL)
        code = body()
    except BaseException as error:
        why = error if isinstance(error, PacelineError) else unforeseen(error, f"process-{os.getpid()}")
        sys.stderr.write(f"paceline: {why}\n")
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)  # another number would raise here, and the child go on as a second launcher


def end_groups(leaders: Collection[int]) -> None:
    """Kill the process groups that these children lead or led, except programs that tidy up after them.

    This process must adopt orphans. A killed process's children become this one's, so only children are looked at,
    however many processes the machine has. A process whose parent has left the group lives on until `end_adopted`.
    """
    seen: set[int] = set()
    while found := {process for process in children() - seen if os.getpgid(process) in leaders}:
        seen |= found
        killed = [process for process in found if not _tidies(process) and _killed(process)]
        deadline = time.monotonic() + GRACE
        for process in killed:
            _ends_before(process, deadline)


SHM_MANAGER = "torch_shm_manag"  # torch_shm_manager, cut to the length that the kernel keeps
TRACKER = b"multiprocessing.resource_tracker"
GRACE = 2.0  # seconds; an end takes some milliseconds


def _tidies(process: int) -> bool:
    """Return whether the program removes shared memory or semaphores once the processes that it serves have ended."""
    try:
        name = Path(f"/proc/{process}/comm").read_text().rstrip("\n")
        return name == SHM_MANAGER or TRACKER in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def end_adopted(before: frozenset[int]) -> None:
    """Kill and collect all adopted processes, and those that they leave behind in turn.

    `before`: the children that this process had when it began to adopt. They are not the run's. Two programs get time
    to tidy up: torch's, which removes the files of `set_sharing_strategy("file_system")`, and Python's, which removes
    the semaphores of processes that a script has spawned.
    """
    spared = set(before)
    tidiers: set[int] = set()
    while adopted := children() - spared - tidiers:
        tidiers |= {process for process in adopted if _tidies(process)}
        spared |= {process for process in adopted - tidiers if not _killed(process)}
        for process in adopted - tidiers - spared:
            os.waitpid(process, 0)
    deadline = time.monotonic() + GRACE
    for process in tidiers:
        if not _ends_before(process, deadline):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _killed(process: int) -> bool:
    """Kill this child. Return whether that was allowed, as it may belong to another user by now."""
    try:
        os.kill(process, signal.SIGKILL)
    except PermissionError:
        return False
    return True


def end_in_time(process: int) -> None:
    """Give this child a second to end, as it was told to, and collect it. It may have ended before."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was collected before
        if not _ends_before(process, time.monotonic() + 1.0):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _ends_before(process: int, deadline: float | None) -> bool:
    """Wait for this child to end, until that time if there is one. Return whether it has ended."""
    watch = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        return bool(poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000))
    finally:
        os.close(watch)


def children() -> frozenset[int]:
    """Return this process's children, whichever of its threads has forked them."""
    found: list[str] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found += file.read().split()
    return frozenset(map(int, found))


def has_handler(process: int, number: int) -> bool:
    """Return whether that process has a handler for the signal."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that this child has used, in hundredths."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def exit_phrase(status: int) -> str:
    """Say how a process ended, as `exit code 1` or `killed by SIGKILL`, by its status from waitpid."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    known = -code in {one.value for one in signal.Signals}  # most real-time signals have no name
    return f"killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
