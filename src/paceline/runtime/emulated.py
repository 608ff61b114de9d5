"""Several hosts on one machine: an agent for each besides the head's, over loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from paceline.fabric.token import Token
from paceline.host.processes import end_in_time, fork_child
from paceline.host.tcp import listen
from paceline.runtime.agent import agent
from paceline.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Emulated:
    """What the head has of them."""

    control: socket.socket
    data: socket.socket
    """Where agents dial: for what they and the head say, and for bytes of items."""
    token: Token
    processes: list[int]

    def let_go(self) -> None:
        """In a process that was forked: to listen is not its business."""
        self.control.close()
        self.data.close()


@contextmanager
def emulated(settings: Settings, let_go: Callable[[], None]) -> Iterator[Emulated]:
    """Fork the agents, before anything that they are not to inherit.

    They end with this process, or before; those that have not ended by then are ended.
    """
    control, data, token = listen(), listen(), Token.drawn()
    addresses = control.getsockname(), data.getsockname()

    def body(name: str, host: int) -> int:
        let_go()
        control.close()
        data.close()
        return agent(settings, name, settings.workers_of(host), addresses, token)

    names = settings.scenario.hosts(settings.workers)
    processes = [
        fork_child(partial(body, names[settings.workers_of(host)[0]], host)) for host in range(1, settings.hosts)
    ]
    try:
        yield Emulated(control, data, token, processes)
    finally:
        for process in processes:
            end_in_time(process)
