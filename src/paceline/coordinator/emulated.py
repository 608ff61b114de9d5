"""Several hosts on one machine: an agent for each besides the head's, over loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from paceline.coordinator.agent import agent
from paceline.coordinator.rendezvous import Rendezvous
from paceline.errors import NotGathered
from paceline.ipc.loop import Loop
from paceline.ipc.processes import end_in_time, fork_child
from paceline.job.interrupts import Interrupts
from paceline.job.settings import Settings
from paceline.net.handshake import Keys
from paceline.net.tcp import listen
from paceline.net.token import Token

GATHERING = 60.0
"""Seconds that agents of one machine have to come."""


@dataclass(frozen=True, slots=True)
class ForkedAgent:
    """An agent that is a fork of this process. It speaks for itself."""

    host: str
    process: int
    quiet: bool
    """Whether its number is of no interest."""

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """See `Agent`."""
        loop.await_end(self.process, ended)

    def came(self, show: Callable[[str], object]) -> None:
        """See `Agent`. Say which process a signal takes out."""
        if not self.quiet:
            show(f"host {self.host} is process {self.process}")

    def failure(self, show: Callable[[str], object]) -> NotGathered:
        """See `Agent`."""
        return NotGathered(f"host {self.host} ended before training could begin")


@contextmanager
def emulated(settings: Settings, let_go: Callable[[], None]) -> Iterator[Rendezvous]:
    """Fork the agents, before anything that they are not to inherit.

    They end with this process, or before; those that have not ended by then are ended. SIGTERM has one leave in good
    order, as `paceline join` does. If the run goes on from a snapshot, all are forked anew.
    """
    listener, token = listen(), Token.drawn()
    address = listener.getsockname()

    def body(name: str, workers: int) -> int:
        let_go()
        listener.close()
        agent(name, workers, address, Keys.plain(token), interrupts=Interrupts(), comes_again=False)
        return 0

    head, *others = settings.scenario.placed(settings.workers).items()
    agents = {
        host: ForkedAgent(host, fork_child(partial(body, host, len(workers))), settings.quiet)
        for host, workers in others
    }
    try:
        yield Rendezvous(
            head=head[0],
            listener=listener,
            keys=Keys.plain(token),
            settle=lambda came: settings,
            least=settings.hosts,
            threads=settings.threads,
            agents=agents,
            patience=GATHERING,
        )
    finally:
        for one in agents.values():
            end_in_time(one.process)
