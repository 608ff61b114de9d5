"""`--on ray`: one agent on each of several nodes of a Ray cluster, besides the head, which is on a node of it, too.

All that speaks to Ray is in a process of its own; see `ray_broker`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from paceline.core.phrases import printable
from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.ipc.processes import fork_child
from paceline.launch.ssh import leading_to
from paceline.net.tcp import Address, shown
from paceline.net.token import Token

ADDRESS_VARIABLE = "RAY_ADDRESS"
CURRENT = Path("/tmp/ray/ray_current_cluster")
"""Where `ray start` notes the address of the cluster that this machine belongs to."""
COMES_WITHIN = 60
"""Seconds that an agent looks for the head, which listens before Ray is asked for anything."""
ANSWERS_WITHIN = 5.0
"""Seconds that the cluster has to answer at its address."""
ENDS_WITHIN = 25.0
"""Seconds that the broker has to end, with all agents. It gives these 15 s."""
HELD = 100
"""Lines of a host that are held until it has come."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """A Ray cluster, and how many nodes of it take part besides this one."""

    cluster: str
    """The address of its control store."""
    least: int
    """Hosts besides the head that training begins with."""
    most: int
    """As many may be there at a time; see `--hosts`."""
    workers: int
    """Of each host."""

    @property
    def names(self) -> list[str]:
        """What the hosts besides the head are called."""
        return [f"ray-{number}" for number in range(1, self.most + 1)]

    def address(self) -> str:
        """Return this machine's address on the way to the cluster. Raises ConfigError if none is known."""
        try:
            return leading_to([self.cluster.rpartition(":")[0].strip("[]")])
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"--on ray: no address of this machine leads to {self.cluster} ({why})") from None


class RayAgent:
    """One host's agent, as far as the broker says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: str | None = None
        """How it ended; None: it has not."""
        self._show: Callable[[str], object] | None = None
        self._held: list[str] = []
        self._ended: Callable[[], object] = lambda: None
        self.watched: Callable[[Loop], None] = lambda loop: None

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """See `coordinator.rendezvous.AgentProcess`."""
        self._ended = ended
        self.watched(loop)

    def came(self, show: Callable[[str], object]) -> None:
        """See `coordinator.rendezvous.AgentProcess`. What is printed there has the host's name before each line."""
        self._show, held, self._held = show, self._held, []
        for line in held:
            show(f"{self.name}: {line}")

    def failure(self, show: Callable[[str], object]) -> ConfigError:
        """See `coordinator.rendezvous.AgentProcess`."""
        last = self._held.pop() if self._held else ""
        self.came(show)
        return ConfigError(f"host {self.name}: {last or self.ended}")

    def printed(self, line: str) -> None:
        """That was printed there."""
        text = printable(line.strip()).removeprefix("paceline: ")
        if text and self._show is not None:
            self._show(f"{self.name}: {text}")
        elif text:
            self._held = [*self._held, text][-HELD:]

    def has_ended(self, how: str) -> None:
        """It has ended."""
        if self.ended is None:
            self.ended = how
            self._ended()


@dataclass(slots=True)
class Broker:
    """The process that speaks to Ray. All agents end with it, and it ends with this process."""

    agents: Mapping[str, RayAgent]
    say: Callable[[str], object]
    process: int
    input: int
    output: int
    watching: bool = False
    partial: bytes = field(default=b"")
    error: str = "the process that speaks to Ray has ended"

    def watch(self, loop: Loop) -> None:
        """Hear what it says, as it comes."""
        if self.watching:
            return
        self.watching = True

        def heard() -> None:
            if self._take() == 0:
                loop.unwatch(self.output)

        loop.watch(self.output, heard)

    def end(self) -> None:
        """Have all agents end, and wait for that. Those that don't end in time end with the broker."""
        self.close_input()
        deadline, pidfd = time.monotonic() + ENDS_WITHIN, os.pidfd_open(self.process)
        os.set_blocking(self.output, False)
        try:
            while self._take() != 0 and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            os.close(pidfd)
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            os.close(self.output)

    def close_input(self) -> None:
        """Tell it to end."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def _take(self) -> int | None:
        """Take what it has said. Return how many bytes. None: no more now; 0: it has ended."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return None
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        if not data:
            for agent in self.agents.values():
                agent.has_ended(self.error)
        return len(data)

    def _hear(self, said: Mapping[str, str]) -> None:
        match said:
            case {"host": name, "line": line}:
                self.agents[name].printed(line)
            case {"host": name, "ended": how}:
                self.agents[name].has_ended(how)
            case {"line": line}:
                self.say(line)
            case {"error": error}:
                self.error = error


def looked_up(address: str | None, environ: Mapping[str, str], least: int, most: int, workers: int) -> OnRay:
    """Return what `--on ray` means here. Raises ConfigError, in one line, where there is no Ray, or no cluster."""
    if find_spec("ray") is None:
        raise ConfigError("--on ray needs the package ray, which is not installed: pip install 'paceline[ray]'")
    cluster = address or environ.get(ADDRESS_VARIABLE, "")
    if cluster in ("", "auto"):
        with suppress(OSError):
            cluster = CURRENT.read_text().strip()
    if cluster in ("", "auto"):
        raise ConfigError(
            "--on ray: this machine belongs to no Ray cluster that is known here; say which with --address, such as "
            "--address 10.0.0.1:6379, or start one with ray start --head"
        )
    if "://" in cluster or ":" not in cluster:
        raise ConfigError(
            f"--on ray: {cluster[:60]} is not the address of a cluster's head node, such as 10.0.0.1:6379; the head of "
            "a run is on a node of the cluster itself"
        )
    host, _, port = cluster.rpartition(":")
    try:  # Ray itself takes minutes to give up
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no answer" if isinstance(error, OSError) else "that is no port"
        raise ConfigError(f"--on ray: no Ray cluster answers at {cluster[:60]} ({why}); see ray status") from None
    return OnRay(cluster, least - 1, most - 1, workers)


@contextmanager
def agents(
    on: OnRay, flags: Sequence[str], directory: str | None, head: Address, token: Token
) -> Iterator[dict[str, RayAgent]]:
    """Have Ray start an agent on each node, which joins the head with these flags, by name of host.

    `directory`: where it begins; None: where Ray has it begin. See `coordinator.rendezvous.Launch`, too.
    """
    words = ["join", shown(head), "-n", str(on.workers), "--wait", str(COMES_WITHIN), "--stdin", *flags]
    order = {
        "address": on.cluster,
        "name": f"paceline at {shown(head)}",
        "workers": on.workers,
        "directory": directory,
        "first_line": token.text,
        "least": on.least,
        "hosts": [{"name": name, "workers": on.workers, "words": [*words, "--name", name]} for name in on.names],
    }
    found = {name: RayAgent(name) for name in on.names}
    broker = _started(found, json.dumps(order))
    for agent in found.values():
        agent.watched = broker.watch
    try:
        yield found
    finally:
        for agent in found.values():
            agent.came(lambda line: None)  # how the run has ended is said here
        broker.end()


def _started(found: Mapping[str, RayAgent], order: str) -> Broker:
    """Start the broker with that order."""
    theirs, own_input = os.pipe()
    own_output, printed = os.pipe()

    def body() -> int:
        os.dup2(theirs, 0)
        os.dup2(printed, 1)
        os.execv(sys.executable, [sys.executable, "-m", "paceline.launch.ray_broker"])

    try:
        process = fork_child(body)
    except BaseException:
        os.close(own_input)
        os.close(own_output)
        raise
    finally:
        os.close(theirs)
        os.close(printed)
    os.set_blocking(own_output, False)
    with suppress(BrokenPipeError):  # it has ended already
        os.write(own_input, f"{order}\n".encode())
    return Broker(found, lambda line: sys.stderr.write(f"paceline: {line}\n"), process, own_input, own_output)
