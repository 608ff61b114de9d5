"""A process that has imported torch already, and forks itself into a launcher whenever a test starts a run.

Importing torch is most of a short run's time. So a test session has a *nursery*: a fresh Python that imports what
`paceline run` does, computes nothing and starts no thread. For each run it forks a child, which makes itself what
`python -m paceline` would be in a session of its own, and runs that. The rest of this file is the test's side of it.

A run has the test session's environment, and what the test adds to it. Some variables a library reads only once:
torch reads ATEN_CPU_CAPABILITY when it first computes, OpenMP its own while it is loaded. Without the same values a
replay rounds in another way than its run did. So a run is forked from a nursery that was started with its values of
those (`READ_ONCE`): each set of them has one, and nearly all runs have the session's.

What a fork can't renew: the seed of `str`'s hashes, which is 0, and the command line that `ps` shows. Nor can it be
interrupted while it imports. Nor does such a run wait until what it has written is on disk. A test that is about such a
thing starts its run with `fresh=True`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

READ_ONCE = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "PYTHON", "TORCH")
"""What the names of variables begin with that are read at most once: by the loader, Python, OpenMP, torch and its BLAS.

OPENBLAS_ is missing because every nursery, like `paceline run`, decides that by itself.
"""

_starting = threading.Lock()


class Process:
    """A launcher that a nursery has forked: of `subprocess.Popen[str]`, what tests use."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None, first: str = "") -> None:
        """`variables` are added to the environment of the test session. `first` is Python that it executes first."""
        from support import tiers  # not where this file is a script

        tiers.starts(shlex.join(["paceline", *arguments]))
        environment = {"PYTHONHASHSEED": "0", **os.environ, **(variables or {})}  # a fork can't be given another one
        request = {"arguments": arguments, "environment": environment, "folder": os.getcwd(), "first": first}
        read_once = tuple(sorted((key, value) for key, value in environment.items() if key.startswith(READ_ONCE)))
        with _starting:
            nursery = _nursery(read_once)
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        self._nursery, nursery_end = _pair()
        self._nursery.settimeout(60.0)  # it answers at once, except for the first time
        socket.send_fds(nursery, [json.dumps(request).encode()], [out_end, err_end, nursery_end.fileno()])
        nursery_end.close()
        os.close(out_end)
        os.close(err_end)
        self.args = ["paceline", *arguments]
        self.stdout = open(out, errors="backslashreplace")  # noqa: SIM115  # `communicate` closes them
        self.stderr = open(err, errors="backslashreplace")  # noqa: SIM115
        self.pid = int(self._ask())  # said by the child, once it is in a session of its own
        self.returncode: int | None = None
        self._watch = os.pidfd_open(self.pid)
        self._printed = {self.stdout: bytearray(), self.stderr: bytearray()}

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code. Only this has it reaped, as with `Popen`."""
        if self.returncode is None:
            self._await([self._watch], _deadline(timeout), timeout)
            self._nursery.send(b"!")
            self.returncode = int(self._ask())
            self._nursery.close()
            os.close(self._watch)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed, after its end. After TimeoutExpired it can be called again: nothing is lost."""
        deadline = _deadline(timeout)
        while still := {stream.fileno(): stream for stream in self._printed if not stream.closed}:
            for descriptor in self._await(list(still), deadline, timeout):
                stream = still[descriptor]
                data = os.read(descriptor, 1 << 16)
                self._printed[stream] += data
                if not data:
                    stream.close()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        out, err = (data.decode(errors="backslashreplace") for data in self._printed.values())
        return out.replace("\r\n", "\n").replace("\r", "\n"), err.replace("\r\n", "\n").replace("\r", "\n")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ask(self) -> bytes:
        answer = self._nursery.recv(64)
        if not answer:
            raise RuntimeError("the nursery has ended, or what it forked did before it began; see standard error")
        return answer

    def _await(self, descriptors: list[int], deadline: float | None, timeout: float | None) -> list[int]:
        """Those that can be read, at least one."""
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return [descriptor for descriptor, _ in ready]


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a socket which keeps messages apart, so that threads can share an end."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@cache
def _nursery(read_once: tuple[tuple[str, str], ...]) -> socket.socket:
    """The nursery with these of the variables that are read once, started when it is first wanted.

    It ends when nobody holds this socket any more.
    """
    from support.dispositions import as_from_a_terminal
    from support.leftovers import UNMARKED, VARIABLE

    ours, theirs = _pair()
    session = {key: value for key, value in os.environ.items() if not key.startswith(READ_ONCE)}
    nursery = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno()), VARIABLE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**session, **dict(read_once), VARIABLE: UNMARKED, "OPENBLAS_NUM_THREADS": "1"},  # see `import_torch`
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # a terminal's Ctrl-C is for pytest
        preexec_fn=as_from_a_terminal,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        nursery.wait()

    atexit.register(end)
    return ours


# --- the nursery's side, which runs this file as a script


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. Returns only in a child: what was asked for, and its stdout, its stderr and its socket."""
    children: dict[int, int] = {}  # by the nursery's copy of the child's socket
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                with suppress(OSError):
                    os.read(descriptor, 1)  # what is left unread would take the answer with it
                _reap(children.pop(descriptor), descriptor)
                continue
            data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
            if not data:  # the test session is over, or was killed
                for descriptor, child in children.items():
                    _reap(child, descriptor)
                os._exit(0)
            assert len(os.listdir("/proc/self/task")) == 1, "threads, which a fork would lose"
            child = os.fork()
            if not child:
                return json.loads(data), descriptors
            out, err, run = descriptors
            os.close(out)
            os.close(err)
            children[run] = child
            poll.register(run, select.POLLIN)


def _reap(child: int, run: int) -> None:
    """Collect a child and tell its exit code. If nobody can ask for that any more, it may still run."""
    os.kill(child, signal.SIGKILL)  # which changes nothing for one that has ended
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        os.write(run, str(code).encode())
    os.close(run)


def _become(request: dict[str, Any], out: int, err: int, run: int, mark: str) -> None:
    """Make a forked child what `python -m paceline` would be when it has imported torch."""
    os.setsid()
    os.chdir(request["folder"])
    os.dup2(out, 1)
    os.dup2(err, 2)
    if mark in request["environment"]:
        _overwrite(mark, request["environment"][mark])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    sys.argv = ["paceline", *request["arguments"]]
    tempfile.tempdir = None  # TMPDIR is another one
    import numpy
    import torch

    numpy.random.seed()
    torch.seed()
    os.write(run, str(os.getpid()).encode())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.fsync = lambda descriptor: None  # a run waits for the disk dozens of times, and no test cuts its power
    exec(request["first"], {})


def _overwrite(name: str, value: str) -> None:
    """Change a variable where /proc/…/environ shows it, which is always what a process was started with.

    All its children have it there too. That is how `support.leftovers` knows them.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    place = library.getenv(name.encode())
    assert len(ctypes.string_at(place)) == len(value), f"{name} has no room for {value!r}"
    ctypes.memmove(place, value.encode(), len(value))


def _main() -> None:
    sys.path[0] = ""  # our neighbours are no modules of their own
    import torch  # noqa: F401  # but not its compiler, which takes a second and makes each fork slower; see `import_torch`

    import paceline.cli.main
    import paceline.cli.replay
    import paceline.cli.run
    import paceline.cli.table
    import paceline.coordinator.run
    import paceline.runs.replay
    import paceline.runs.run
    import paceline.worker_process.worker  # noqa: F401
    from paceline.protocols import registry

    registry()  # which imports them

    with socket.socket(fileno=int(sys.argv[1])) as control:
        request, descriptors = _serve(control)
    _become(request, *descriptors, mark=sys.argv[2])
    runpy.run_module("paceline", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
