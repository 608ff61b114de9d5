"""Checks whether this machine has what runs need, and says what to do if it hasn't."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline.launch.environment import without_engine
from paceline.version import OLDEST_TORCH, TORCH

PYTHON = (3, 11)
GIB, MIB = 1 << 30, 1 << 20
LEAST_MEMORY = GIB
LEAST_SHARED = 64 * MIB
LEAST_FILES = 256
"""Descriptors. A launcher uses about ten, and five for each worker."""
LEAST_MESSAGES = 2_000
LEAST_STREAM = 100 * MIB
"""Bytes a second, and messages a second above. A slower machine is overloaded or emulated."""
WORST_CLOCK = 1e-4  # seconds
SELF_TEST_SECONDS = 180.0
DEVICES_SECONDS = 90.0
"""A process that measures devices imports torch, and begins to use each device."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    found: str
    advice: str = ""
    """What to do; empty where all is well."""

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.advice


def looked(look: Callable[[], Finding]) -> Finding:
    """Return what this check finds. A check that fails to run is a finding, too."""
    try:
        return look()
    except (OSError, ValueError, PacelineError, subprocess.SubprocessError) as error:
        return Finding(f"{type(error).__name__}: {error}", "this could not be examined; mend that first")


# --- what is looked at


def python_version() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}"
    old = sys.version_info < PYTHON
    return Finding(found, f"install Python {'.'.join(map(str, PYTHON))} or newer" if old else "")


def torch_version() -> Finding:
    """Look up torch's version without importing torch."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("not installed", f"pip install torch=={TORCH}")
    if _numbers(found) < _numbers(OLDEST_TORCH):
        return Finding(found, f"older than {OLDEST_TORCH}; pip install torch=={TORCH}")
    tested = _numbers(found) == _numbers(TORCH)
    return Finding(f"{found}, {'the tested one' if tested else f'where {TORCH} is the tested one'}")


def cores() -> Finding:
    """Count the cores that this process may use."""
    usable, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, _quota()
    found = f"{usable} of {there}" + ("" if quota is None else f", a quota of {quota:g}")
    if quota is not None and quota < usable:
        advice = f"runs count on {usable}: pin them (taskset -c 0-{max(0, int(quota) - 1)} paceline …) or say --threads"
        return Finding(found, advice)
    return Finding(found)


def memory() -> Finding:
    """Measure the free memory. Parameters, gradients and versions lie in anonymous memory."""
    from paceline.ipc.memory import available_bytes

    free = available_bytes()
    return Finding(f"{free / GIB:.1f} GiB free", "free some: 1 GiB is little" if free < LEAST_MEMORY else "")


def shared_memory() -> Finding:
    """Measure /dev/shm. Paceline doesn't use it, but torch does for loaders with processes."""
    usage = shutil.disk_usage("/dev/shm")
    found = f"/dev/shm has {usage.free / MIB:.0f} of {usage.total / MIB:.0f} MiB free"
    advice = "loaders with num_workers need it: empty it, or enlarge it (docker run --shm-size=1g)"
    return Finding(found, advice if usage.free < LEAST_SHARED else "")


def file_limit() -> Finding:
    """Look up how many descriptors a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)} open files, at most {_limit(hard)}"
    few = soft != resource.RLIM_INFINITY and soft < LEAST_FILES
    return Finding(found, f"raise it: ulimit -n {4 * LEAST_FILES}" if few else "")


def kernel() -> Finding:
    """Try the system calls that runs depend on."""
    calls: dict[str, Callable[[], int]] = {
        "pidfd_open": lambda: os.pidfd_open(os.getpid()),
        "memfd_create": lambda: os.memfd_create("paceline-doctor"),
    }
    lacking = []
    for name, open_one in calls.items():
        try:
            os.close(open_one())
        except (OSError, AttributeError) as error:
            lacking.append(f"{name} ({error})")
    found = f"{platform.system()} {platform.release()}" + (f", without {', '.join(lacking)}" if lacking else "")
    return Finding(found, "Linux 5.3 or newer is needed, and a sandbox that allows it" if lacking else "")


def clock() -> Finding:
    """Measure the resolution of the clock that runs use."""
    steps = []
    for _ in range(100):
        now = before = time.monotonic()
        while now == before:
            now = time.monotonic()
        steps.append(now - before)
    step = min(steps)
    found = f"resolution {step * 1e9:.0f} ns"
    return Finding(found, "too coarse to measure the time of steps" if step > WORST_CLOCK else "")


def loopback() -> Finding:
    """Measure how fast two processes of this machine exchange bytes and messages."""
    stream, messages = _stream_speed(), _message_speed()
    found = f"{stream / GIB:.1f} GiB/s, {messages:,.0f} messages and answers/s"
    slow = stream < LEAST_STREAM or messages < LEAST_MESSAGES
    return Finding(found, "that is slow: end what else keeps the machine busy" if slow else "")


def gpus() -> Finding:
    """Check whether torch can use the machine's GPUs, and measure copies to and from them."""
    from paceline.host.devices import VARIABLE, there, visible
    from paceline.runs.devices import PROGRAM

    number = there()
    if not number:
        return Finding("none, and workers train on the CPU")
    if not visible(os.environ, number):
        return Finding(f"{VARIABLE} leaves none of {number} visible, and workers train on the CPU")
    done = _alone([sys.executable, "-c", PROGRAM], DEVICES_SECONDS)
    if done.returncode != 0:
        return _failed(done)
    return of_gpus(json.loads(done.stdout.splitlines()[-1]), number)


def of_gpus(told: Mapping[str, Any], there: int) -> Finding:
    """Return the finding for what `runs.devices.measured` returned on a machine with `there` GPUs."""
    if told["cuda"] is None:
        found = f"this machine has {there}, and torch {told['torch']} was built without CUDA"
        return Finding(found, f"pip install --force-reinstall torch=={TORCH}, which is the build with CUDA")
    if not told["devices"]:
        found = f"this machine has {there}, and torch can use none: {told['unusable']}"
        return Finding(found, f"see whether nvidia-smi works, and shows CUDA {told['cuda']} or newer")
    each = [
        f"{number}: {one['name']}, {one['memory'] / GIB:.1f} GiB, {one['to'] / 1e9:.1f} GB/s to it and "
        f"{one['from'] / 1e9:.1f} GB/s from it"
        for number, one in enumerate(told["devices"])
    ]
    found = "; ".join(each)
    if told["unlocked"]:
        found += f". Copies are slower than they could be: shared memory can't be page-locked ({told['unlocked']})"
    return Finding(found)


def self_test() -> Finding:
    """Train with two workers, and compare the parameters with those of plain training, bit by bit."""
    import torch

    from paceline.runs import selftest
    from paceline.training.tensor_bits import parameters_sha256

    flags = ["-n", "2", "-p", "bsp", "--threads", "1", "--record", "0", "--tee", "none", "--quiet", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline", "run", *flags, "--out", str(Path(folder, "run"))]
        done = _alone([*command, selftest.__file__], SELF_TEST_SECONDS)
    if done.returncode != 0:
        return _failed(done)
    summary = json.loads(done.stdout)
    torch.set_num_threads(1)
    expected = parameters_sha256(selftest.plain(selftest.BATCHES // 2))
    if (summary["versions"], summary["final_parameters_sha256"]) != (selftest.BATCHES // 2, expected):
        found = f"two workers came to {summary['final_parameters_sha256']}, plain training to {expected}"
        return Finding(found, f"results can't be trusted here; try torch {TORCH}, and tell us")
    return Finding(f"two workers trained to plain training's bits in {summary['wall_seconds']:.2f} s")


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": python_version,
    "torch": torch_version,
    "cores": cores,
    "memory": memory,
    "shared memory": shared_memory,
    "file limit": file_limit,
    "kernel": kernel,
    "clock": clock,
    "loopback": loopback,
    "GPUs": gpus,
    "self-test": self_test,
}


def _alone(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the command for at most this many seconds, without input and outside any engine's run."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=without_engine(os.environ),
        timeout=seconds,
        stdin=subprocess.DEVNULL,
    )


def _failed(done: subprocess.CompletedProcess[str]) -> Finding:
    """Return the finding for a process that failed: its last line."""
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return Finding(f"exit code {done.returncode}: {said}", "mend what it says, and look again")


def _numbers(version: str) -> tuple[int, ...]:
    """Return `2.13.0+cpu` as (2, 13, 0)."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdigit())


def _quota() -> float | None:
    """Return the control group's quota in cores; None if it has none."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return None


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else str(number)


@contextmanager
def _other(body: Callable[[], None], ours: socket.socket) -> Iterator[None]:
    """Run `body` in a forked process meanwhile. `ours` is this process's end of their socket pair."""
    process = os.fork()
    if not process:
        try:
            ours.close()
            body()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        ours.close()
        os.waitpid(process, 0)


def _stream_speed(size: int = 64 * MIB) -> float:
    """Return bytes a second through a socket pair, from another process."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        block = bytes(MIB)
        for _ in range(size // MIB):
            theirs.sendall(block)

    with _other(send, ours):
        theirs.close()
        buffer, taken, began = bytearray(MIB), 0, time.perf_counter()
        while taken < size and (count := ours.recv_into(buffer)):
            taken += count
        return taken / (time.perf_counter() - began)


def _message_speed(count: int = 2_000) -> float:
    """Return how many messages a second another process answers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> None:
        while message := theirs.recv(64):
            theirs.send(message)

    with _other(answer, ours):
        theirs.close()
        began = time.perf_counter()
        for _ in range(count):
            ours.send(b"message")
            if not ours.recv(64):
                raise OSError("the other process has ended")
        return count / (time.perf_counter() - began)
