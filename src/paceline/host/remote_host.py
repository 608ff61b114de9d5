"""Hosts besides the head's and their workers, as the head has them."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol

from paceline.core.orders import Release, StartPull
from paceline.host import messages as host_messages
from paceline.host.message_validation import MessageValidation
from paceline.ipc import messages


@dataclass(slots=True)
class RemoteHost:
    """A host that is not the head's."""

    name: str
    workers: range
    """None, if it only makes a range of each version."""
    send: Callable[[messages.Message], None]
    """Sends it a message of `host_messages.FromHead`. One that is lost gets nothing."""
    releases: list[Release] = field(default_factory=list)
    """Those of its workers that it is still to be told, in one message and before any other."""
    away: set[int] = field(default_factory=set)
    """Workers that ended with an earlier incarnation of the host, and have not begun again: this one knows nothing of
    them."""
    knows: int = 0
    """The last version that it was told is made."""
    stored: bool = True
    """See `MessageValidation`."""
    begun: bool = False
    """Whether it has what training begins with, or is about to."""
    stands_in: bool = False
    """Whether it was told to run the script without workers."""
    offer: messages.worker.Offered | None = None
    """What the script has brought to `prepare` there, if it has no workers."""
    turns: dict[int, MessageValidation] = field(default_factory=dict)
    """By worker: what it may say. Its host judges that, too, and may be another one than ours."""

    @property
    def awaits_offer(self) -> bool:
        """Whether it is to say what the script has brought to `prepare` there."""
        return self.stands_in and self.offer is None

    def tell(self, message: messages.Message) -> None:
        """Send it this message of `host_messages.FromHead`, after all that it is still to be told."""
        self.tell_releases()
        self.send(message)

    def tell_releases(self) -> None:
        """Tell it the releases that it is still to be told."""
        if self.releases:
            releases, self.releases = self.releases, []
            self.send(host_messages.CarryOutReleases.of(releases))

    def tell_of(self, worker: int, message: messages.Message) -> None:
        """Send it this about one of its workers, unless that is away."""
        if worker not in self.away:
            if isinstance(message, host_messages.TellWorker):
                self.turns_of(worker).told(message.message)
            elif isinstance(message, host_messages.TakeStep) and message.change is not None:
                self.turns_of(worker).steps(message.step)
            elif isinstance(message, host_messages.Adopt):
                self.turns_of(worker).adopts()
            self.tell(message)

    def turns_of(self, worker: int) -> MessageValidation:
        """The turns of that worker's process."""
        if worker not in self.turns:
            self.turns[worker] = MessageValidation(stored=self.stored, forks_store=True)
        return self.turns[worker]

    def made(self, version: int) -> None:
        """That version is made, and all before it."""
        if version > self.knows:
            self.knows = version
            self.tell(host_messages.VersionMade(version))


@dataclass(slots=True)
class RemoteWorker:
    """A worker of another host."""

    host: RemoteHost
    gone: bool = False
    """Whether its process has ended."""
    left: bool = False
    """Whether it takes no part any more."""
    pull: StartPull | Release | None = None
    """The last order to pull, until it has that version."""
    computes_on: int | None = None
    """The version that it computes on once it has taken that."""
    step: int | None = None
    """The step that it was released for, until it is known to compute that."""


class HostDirectory(Protocol):
    """Who knows which hosts take part, and where they are."""

    def amiss(self, host: str, why: str) -> None:
        """The host has said what it may not: end it."""

    def sums_lost(self, host: str, why: str) -> None:
        """The host adds up no updates any more, though it trains."""

    def before_waiting(self, call: Callable[[], None]) -> None:
        """Call this once, before the head waits for anything."""

    @property
    def leaving(self) -> Container[str]:
        """Hosts that were asked to leave. One of them takes a range over only if no other can."""

    def range_moves(self, host: str, by: str) -> None:
        """The range of the first host begins to move to the second one."""

    def exchanges(self, host: str) -> None:
        """The host makes a range of each version from now on, or averages with others."""

    def neighbours(self, host: str, hosts: Container[str]) -> tuple[host_messages.Neighbour, ...]:
        """Return with which of these hosts that one exchanges bytes, itself included."""

    def idles(self, host: str) -> None:
        """The host has no workers, and makes no range: let it go."""
