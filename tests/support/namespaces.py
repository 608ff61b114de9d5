"""Machines of their own on this one: network namespaces, joined by a switch over links of a given rate.

Each is a host to all that runs in it, with an address of its own. The namespaces have no names. They go when this
process and all that runs in them have ended, however that comes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NETWORK = 0x40000000  # CLONE_NEWNET
QUEUE = "burst 128kb latency 20ms"
"""Before a link, as tc writes it for tbf."""

ENTER = """
import ctypes, os
there = os.open({path!r}, os.O_RDONLY)
assert ctypes.CDLL(None).setns(there, 0x40000000) == 0
os.close(there)
"""


class NotHere(Exception):
    """This machine can't have them. The text says why."""


class Network:
    """So many namespaces, all on one switch. Each link is shaped both ways."""

    def __init__(self, hosts: int, rate: str | None = "1gbit") -> None:
        """`rate`: of each link, each way, as tc writes it; None: as fast as it goes. Raises NotHere."""
        if os.geteuid():
            raise NotHere("network namespaces need root")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise NotHere(f"there is no {tool}, of iproute2")
        self._switch, *self._hosts = [_namespace() for _ in range(1 + hosts)]
        try:
            self._join(rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def address(host: int) -> str:
        """Return where the other hosts find this one."""
        return f"10.98.0.{host + 1}"

    def enter(self, host: int) -> Callable[[], None]:
        """Return what takes a process there, between its fork and its first instruction."""
        return lambda: _enter(self._hosts[host])

    def first(self, host: int) -> str:
        """Return Python that takes its process there. See `support.runs.start`."""
        return ENTER.format(path=str(_path(self._hosts[host])))

    def shape(self, host: int, rate: str, outward: str = QUEUE, inward: str = QUEUE) -> None:
        """Give that host's link this rate each way, with such a queue before it at its own end and at the switch's."""
        ends = ((self._hosts[host], "e0", outward), (self._switch, f"link{host}", inward))
        for namespace, end, queue in ends:
            _do(namespace, f"tc qdisc replace dev {end} root tbf rate {rate} {queue}")

    def cut(self, host: int) -> None:
        """Pull the cable of that host out of the switch. Nobody is told."""
        _do(self._switch, f"ip link set link{host} down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        _do(self._switch, f"ip link set link{host} up")

    def separate(self, one: int, other: int) -> None:
        """Have nothing pass between these two, as a firewall does that drops what it does not like. Nobody is told."""
        for here, there in ((one, other), (other, one)):
            nobody = "02:00:00:00:00:99"
            _do(self._hosts[here], f"ip neigh replace {self.address(there)} lladdr {nobody} dev e0 nud permanent")

    def processes(self, host: int) -> list[int]:
        """Return the processes that are in that host."""
        there, found = os.fstat(self._hosts[host]), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it has ended
                here = os.stat(f"/proc/{entry}/ns/net")
                if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                    found.append(int(entry))
        return found

    def kill(self, host: int) -> None:
        """Kill all that is in that host, as a power cut does."""
        for process in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """Let the namespaces go."""
        for namespace in (self._switch, *self._hosts):
            os.close(namespace)
        self._hosts = []

    def _join(self, rate: str | None) -> None:
        _do(self._switch, "ip link add switch type bridge")
        _do(self._switch, "ip link set switch up")
        for number, host in enumerate(self._hosts):
            ends = ((self._switch, f"link{number}"), (host, "e0"))
            _do(self._switch, f"ip link add link{number} type veth peer name e0 netns {_path(host)}")
            _do(self._switch, f"ip link set link{number} master switch")
            _do(host, f"ip addr add {self.address(number)}/24 dev e0")
            _do(host, "ip link set lo up")
            for namespace, end in ends:
                _do(namespace, f"ip link set {end} up")
            if rate is not None:
                self.shape(number, rate)


def _namespace() -> int:
    """Return a descriptor of a new one. A thread is made for it, and never seen again."""
    made: list[int | OSError] = []

    def make() -> None:
        if LIBC.unshare(NETWORK):
            made.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
        else:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    (namespace,) = made
    if isinstance(namespace, OSError):
        raise NotHere(f"network namespaces: {namespace.strerror}")
    return namespace


def _enter(namespace: int) -> None:
    if LIBC.setns(namespace, NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _path(namespace: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{namespace}")


def _do(namespace: int, command: str) -> None:
    done = subprocess.run(command.split(), preexec_fn=lambda: _enter(namespace), capture_output=True, text=True)
    if "nknown" in done.stderr:  # device type, or qdisc
        raise NotHere(f"this kernel can't do `{command}`: {done.stderr.strip()}")
    assert done.returncode == 0, f"{command}: {done.stderr}"
