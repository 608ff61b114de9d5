"""`--on ray`: one agent on each of several nodes of a Ray cluster, besides the head, which is on a node of it, too.

A process of its own talks to Ray. See `ray_broker`.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.launch.agent_output import AgentOutput, start_piped
from paceline.launch.ssh import leading_to
from paceline.net.tcp import Address, shown
from paceline.net.token import Token
from paceline.terminal import say

ADDRESS_VARIABLE = "RAY_ADDRESS"
CURRENT = Path("/tmp/ray/ray_current_cluster")
"""Where `ray start` notes the address of this machine's cluster."""
COMES_WITHIN = 60
"""Seconds that an agent looks for the head, which listens before Ray is asked for anything."""
ANSWERS_WITHIN = 5.0
"""Seconds that the cluster has to answer at its address."""
ENDS_WITHIN = 25.0
"""Seconds that the broker has to end, with all agents. It gives the agents 15 s."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """A Ray cluster, and how many nodes of it take part besides this one."""

    cluster: str
    """The address of its control store."""
    least: int
    """Hosts besides the head that training begins with."""
    most: int
    """Hosts besides the head that may take part at a time. See `--hosts`."""
    workers: int
    """Of each host."""

    @property
    def names(self) -> list[str]:
        """The names of the hosts besides the head."""
        return [f"ray-{number}" for number in range(1, self.most + 1)]

    def address(self) -> str:
        """Return this machine's address towards the cluster. Raises ConfigError if there is none."""
        try:
            return leading_to([self.cluster.rpartition(":")[0].strip("[]")])
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"--on ray: no address of this machine leads to {self.cluster} ({why})") from None


class RayAgent(AgentOutput):
    """One host's agent, as the broker tells of it."""

    def __init__(self, host: str, broker: Broker) -> None:
        super().__init__(host)
        self._broker = broker
        self._how: str | None = None
        """How it ended; None: it has not."""
        self._ended: Callable[[], object] | None = None

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """See `coordinator.rendezvous.AgentProcess`."""
        self._ended = ended
        self._broker.watch(loop)

    def failure(self, show: Callable[[str], object]) -> ConfigError:
        """See `coordinator.rendezvous.AgentProcess`."""
        return ConfigError(f"host {self.host}: {self.last_words(show) or self._how}")

    def has_ended(self, how: str) -> None:
        """The agent has ended."""
        if self._how is None:
            self._how = how
            if self._ended is not None:
                self._ended()


class Broker:
    """The process that talks to Ray. All agents end with it, and it ends with this process."""

    def __init__(self, hosts: Sequence[str], order: Mapping[str, object]) -> None:
        """Start the broker with this order, for these hosts. Raises NoProcess."""
        self.agents = {host: RayAgent(host, self) for host in hosts}
        command = [sys.executable, "-m", "paceline.launch.ray_broker"]
        self._process, self._input, self._output = start_piped(command, json.dumps(order), with_errors=False)
        self._watching = False
        self._partial = b""
        self._error = "the process that speaks to Ray has ended"

    def watch(self, loop: Loop) -> None:
        """Read what it says as it comes."""
        if self._watching:
            return
        self._watching = True

        def heard() -> None:
            if self._take() == 0:
                loop.unwatch(self._output)

        loop.watch(self._output, heard)

    def end(self) -> None:
        """Have all agents end, and wait for that. Those that don't end in time are killed with the broker."""
        os.close(self._input)
        deadline = time.monotonic() + ENDS_WITHIN
        try:
            while self._take() != 0 and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            os.close(self._output)

    def _take(self) -> int | None:
        """Read what it has said. Return how many bytes, 0 at its end, or None if there is nothing now."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        if not data:
            for agent in self.agents.values():
                agent.has_ended(self._error)
        return len(data)

    def _hear(self, said: Mapping[str, str]) -> None:
        match said:
            case {"host": name, "line": line}:
                self.agents[name].printed(line)
            case {"host": name, "ended": how}:
                self.agents[name].has_ended(how)
            case {"line": line}:
                say(line)
            case {"error": error}:
                self._error = error


def looked_up(address: str | None, environ: Mapping[str, str], least: int, most: int, workers: int) -> OnRay:
    """Return what `--on ray` means here. Raises ConfigError, in one line, without Ray or a cluster."""
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
    """Have Ray start an agent on each node, which joins the head with these flags. Yield the agents by host.

    `directory`: where they begin; None: where Ray has them begin. See `coordinator.rendezvous.Launch`.
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
    broker = Broker(on.names, order)
    try:
        yield broker.agents
    finally:
        for agent in broker.agents.values():
            agent.came(lambda line: None)  # the head itself says how the run has ended
        broker.end()
