"""How the head meets the other hosts of a run: machines that join, or agents of this one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.cluster.scenario import HostTable, Scenario
from paceline.errors import ConfigError
from paceline.fabric.token import IN_FOLDER, Token, find, write
from paceline.host.between import Here
from paceline.host.opening import Keys
from paceline.host.tcp import Address, listen, shown
from paceline.runtime.settings import Settings

Settle = Callable[[Mapping[str, Here]], Settings]
"""Settles the run, once all hosts have said what they have. Raises ConfigError if they can't make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where other hosts come, and which."""

    head: str
    """The name of the head's host."""
    listener: socket.socket
    """Where agents dial."""
    keys: Keys
    token: Path | None = None
    """The file with the token, where this run has drawn one: other machines don't have it yet."""
    settle: Settle
    threads: int | None
    """Of each worker; None: as its own host's cores allow."""
    agents: Mapping[str, int] = field(default_factory=dict)
    """By host: its agent's process, where that is this process's child. Then no other hosts may come."""
    patience: float | None = None
    """Seconds that they have to come; None: as long as it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """What the command line says of hosts that join."""

    address: Address
    name: str
    """Of the head's host."""
    trusted: bool
    """Whether the network is trusted, so that nothing is encrypted."""
    threads: int | None
    """See `Meeting`."""
    scenario: Callable[[tuple[HostTable, ...]], Scenario]
    """The scenario with these hosts. Raises ConfigError if the run can't have them."""


@contextmanager
def meeting(settings: Settings, listening: Listen) -> Iterator[Meeting]:
    """Listen where machines are to join. Raises ConfigError if that address isn't to be had."""

    def settle(came: Mapping[str, Here]) -> Settings:
        tables = [HostTable(name=listening.name, workers=range(settings.workers))]
        for name, here in sorted(came.items()):
            first = tables[-1].workers.stop
            tables.append(HostTable(name=name, workers=range(first, first + here.workers)))
        scenario = listening.scenario(tuple(tables))
        return replace(settings, scenario=scenario, workers=tables[-1].workers.stop)

    token, drawn = find(os.environ, settings.folder), None
    if token is None:
        token, drawn = Token.drawn(), settings.folder / IN_FOLDER
        write(token, drawn)
    listener = _listening(listening.address)
    try:
        yield Meeting(
            head=listening.name,
            listener=listener,
            keys=Keys.plain(token) if listening.trusted else Keys.encrypted(token),
            token=drawn,
            settle=settle,
            threads=listening.threads,
        )
    finally:
        listener.close()


def _listening(address: Address) -> socket.socket:
    try:
        return listen(address)
    except OSError as error:
        why = "name an address of this machine, and a port that is free"
        raise ConfigError(f"--listen {shown(address)}: {os.strerror(error.errno or 0)}; {why}") from None
