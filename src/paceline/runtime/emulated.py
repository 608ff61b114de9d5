"""Several hosts on one machine: an agent for each besides the head's, over loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from paceline.fabric.token import Token
from paceline.host.opening import Keys
from paceline.host.processes import end_in_time, fork_child
from paceline.host.tcp import listen
from paceline.runtime.agent import agent
from paceline.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Emulated:
    """What the head has of them."""

    listener: socket.socket
    """Where agents dial."""
    keys: Keys
    processes: list[int]

    def let_go(self) -> None:
        """In a process that was forked: to listen is not its business."""
        self.listener.close()


@contextmanager
def emulated(settings: Settings, let_go: Callable[[], None]) -> Iterator[Emulated]:
    """Fork the agents, before anything that they are not to inherit.

    They end with this process, or before; those that have not ended by then are ended.
    """
    listener, token = listen(), Token.drawn()
    address = listener.getsockname()

    def body(name: str, host: int) -> int:
        let_go()
        listener.close()
        return agent(settings, name, settings.workers_of(host), address, Keys.plain(token))

    names = settings.scenario.hosts(settings.workers)
    processes = [
        fork_child(partial(body, names[settings.workers_of(host)[0]], host)) for host in range(1, settings.hosts)
    ]
    try:
        yield Emulated(listener, Keys.plain(token), processes)
    finally:
        for process in processes:
            end_in_time(process)
