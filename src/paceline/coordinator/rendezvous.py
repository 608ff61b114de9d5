"""How the head meets the other hosts of a run: machines that join, or agents of this one."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from paceline.errors import ConfigError, PacelineError
from paceline.host.messages import HostOffer
from paceline.ipc.loop import Loop
from paceline.job.sent_folder import SentFolder
from paceline.job.settings import Settings
from paceline.launch.announced import PATIENCE, Announcement
from paceline.net.handshake import Keys
from paceline.net.tcp import Address, listen, shown, told
from paceline.net.token import FILE_VARIABLE, IN_FOLDER, Token, find, write
from paceline.scenario.scenario import HostTable, Scenario
from paceline.transfer.movers import ForkedMover, forked_mover

Settle = Callable[[Mapping[str, HostOffer]], Settings]
"""Settles the run, once all hosts have said what they have. Raises ConfigError if they can't make it."""


class AgentProcess(Protocol):
    """What the head knows of an agent that it has started, besides what that says over its connection."""

    def watch(self, loop: Loop, ended: Callable[[], object]) -> None:
        """Call once, when it has ended."""

    def came(self, show: Callable[[str], object]) -> None:
        """Its host has come. `show` prints a line."""

    def failure(self, show: Callable[[str], object]) -> PacelineError:
        """Return what to raise if it has ended before its host came."""


Launch = Callable[[Address, Token], AbstractContextManager[Mapping[str, AgentProcess]]]
"""Starts agents, by host, that join the head, which listens there, with that token. Leaves none of them behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where other hosts come, and which."""

    head: str
    """The name of the head's host."""
    listener: socket.socket
    """Where agents dial."""
    keys: Keys
    mover: ForkedMover | None = None
    """The process that moves bytes of items. None: the loop does."""
    token: Path | None = None
    """The file with the token in the run's folder, if it is there: other machines may not have it yet."""
    token_file: str | None = None
    """The file with the token as joiners are to name it; None: it is in no file."""
    settle: Settle
    least: int
    """Hosts that training begins with, the head's included. More may come while it goes on, up to `Settings.hosts`."""
    room: int | None = None
    """Workers of all hosts, at most, where hosts may come while others train. None: all come before."""
    threads: int | None
    """Of each worker; None: as its own host's cores allow."""
    agents: Mapping[str, AgentProcess] = field(default_factory=dict)
    """By host: its agent, where the head has started them. Then no other hosts may come."""
    patience: float | None = None
    """Seconds that they have to come; None: as long as it takes."""
    sent: SentFolder | None = None
    """What they are sent; None: they have the script."""
    engine: str = ""
    """What has started the other hosts, where neither this head nor a person has."""
    run: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """Stands for the run: hosts that have taken part in it take part in no other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """What the command line says of hosts that join."""

    address: Address
    name: str
    """Of the head's host."""
    trusted: bool
    """Whether the network is trusted, so that nothing is encrypted."""
    threads: int | None
    """See `Rendezvous`."""
    scenario: Callable[[tuple[HostTable, ...], int | None], Scenario]
    """The scenario with these hosts, and room for so many workers. Raises ConfigError if the run can't have them."""
    least: int
    """See `Rendezvous`."""
    room: int | None
    """See `Rendezvous`."""
    launch: Launch | None = None
    """Starts the hosts. None: a person or an engine does."""
    sent: SentFolder | None = None
    """See `Rendezvous`."""
    announcement: Announcement | None = None
    """How hosts that an engine has started hear of this head. None: no engine has."""
    run: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    """See `Rendezvous`. A run that goes on by itself stays the same run."""

    def at_one_port(self) -> Listen:
        """Return the same at a port that stays the same when machines join anew, if any free one was to be taken.

        Raises ConfigError if that address isn't to be had.
        """
        with closing(listener_at(self.address)) as listener:
            return replace(self, address=listener.getsockname()[:2])


@contextmanager
def meeting(settings: Settings, listening: Listen, let_go: Callable[[], None]) -> Iterator[Rendezvous]:
    """Listen where machines are to join. Raises ConfigError if that address isn't to be had.

    Call this while the process has no thread. `let_go`: see `forked_mover`.
    """

    def settle(came: Mapping[str, HostOffer]) -> Settings:
        tables: tuple[HostTable, ...] = (HostTable(name=listening.name, workers=range(settings.workers)),)
        for name, here in sorted(came.items()):
            tables = with_host(tables, name, here)
        scenario = listening.scenario(tables, listening.room)
        return replace(settings, scenario=scenario, workers=listening.room or tables[-1].workers.stop)

    launch, here, there = listening.launch, None, os.environ.get(FILE_VARIABLE)
    token = find(os.environ) if launch is None else Token.drawn()
    if token is None:
        here, there = settings.folder / IN_FOLDER, IN_FOLDER
        if (token := find({}, settings.folder)) is None:
            token = Token.drawn()
            write(token, here)
    keys = Keys.plain(token) if listening.trusted else Keys.encrypted(token)
    announcement = listening.announcement
    if announcement is not None:
        announcement.mark(settings.folder)
    with (
        forked_mover(keys, let_go) as mover,
        closing(listener_at(listening.address)) as listener,
        nullcontext({}) if launch is None else launch(listener.getsockname()[:2], token) as agents,
    ):
        if announcement is not None:
            announcement.publish(listener.getsockname()[:2])
        yield Rendezvous(
            head=listening.name,
            listener=listener,
            keys=keys,
            mover=mover,
            token=here,
            token_file=there,
            settle=settle,
            least=listening.least,
            room=listening.room,
            threads=listening.threads,
            agents=agents,
            patience=None if announcement is None else PATIENCE,
            sent=listening.sent,
            engine="" if announcement is None else announcement.placed.engine,
            run=listening.run,
        )


def with_host(tables: tuple[HostTable, ...], name: str, here: HostOffer) -> tuple[HostTable, ...]:
    """Return these hosts and another one, whose workers have the next numbers."""
    first = tables[-1].workers.stop
    return (*tables, HostTable(name=name, workers=range(first, first + here.workers)))


def listener_at(address: Address) -> socket.socket:
    """Return a socket that listens there. Raises ConfigError, in one line, if that address isn't to be had."""
    try:
        return listen(address)
    except OSError as error:
        why = "name an address of this machine, and a port that is free"
        raise ConfigError(f"--listen {shown(address)}: {told(error)}; {why}") from None
