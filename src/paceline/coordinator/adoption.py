"""What the script changed between `prepare` and its first step. All begin with it, if all workers changed the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.coordinator.member import Member, Members
from paceline.core.facts import Fact, WorkerJoined
from paceline.errors import ConfigError
from paceline.host.cluster import Cluster
from paceline.ipc import messages
from paceline.records.ledger import Ledger


@dataclass(slots=True)
class Adoption:
    """Which workers asked for what. One worker writes it where all read it. The others wait for that and go on."""

    digests: dict[int, str] = field(default_factory=dict)
    """By worker: the digest of what it changed its beginning to."""
    adopted: str | None = None
    pushed: set[int] = field(default_factory=set)
    """Workers that have pushed a gradient of what they began with."""
    shown: set[int] = field(default_factory=set)
    """Workers whose first parameters were the adopted ones, or later ones. A script that writes the same there changes
    nothing."""
    _waiting: list[int] = field(default_factory=list)
    _writing: int | None = None
    """The worker that writes."""
    _author: int | None = None

    def wanted(self, worker: int, digest: str) -> None:
        """The worker asks for its change to be adopted."""
        self.digests[worker] = digest
        self._waiting.append(worker)

    def to_write(self) -> int | None:
        """The worker that is to write now, if there is one."""
        free = self.adopted is None and self._writing is None
        return self._waiting[0] if free and self._waiting else None

    def writes(self, worker: int) -> None:
        """The worker was told to write."""
        self._waiting.remove(worker)
        self._writing = worker
        self._author = worker

    def done(self, worker: int) -> None:
        """The worker has written."""
        self.adopted, self._writing = self.digests[worker], None

    def to_let_on(self) -> list[int]:
        """The workers that waited for what is adopted now."""
        if self.adopted is None:
            return []
        waited, self._waiting = self._waiting, []
        return waited

    def lost(self, worker: int) -> None:
        """The worker has left. Another one writes if it was to."""
        if worker in self._waiting:
            self._waiting.remove(worker)
        if self._writing == worker:
            self._writing = None

    def agrees(self, worker: int) -> bool:
        """Whether this worker, which is about to train, began with what all begin with.

        While one worker writes, no other can have begun with that: a worker that changed something waits, so this one
        changed nothing.
        """
        own = self.adopted if worker in self.shown else None
        return self._writing is None and self.digests.get(worker, own) == self.adopted

    def shows(self, worker: int) -> None:
        """The worker is released on what is adopted now, if anything is: it had asked for nothing before."""
        if self.adopted is not None:
            self.shown.add(worker)

    def joins(self, worker: int) -> None:
        """The worker takes part from now on. It begins with what others have come to, whatever its script changed."""
        self.digests.pop(worker, None)
        self.shows(worker)

    def disagreement(self, worker: int) -> str:
        """Why the worker did not begin with what all begin with, in one line."""
        return self._differ(self._author, worker)

    def too_late(self, worker: int) -> str:
        """Why it is too late to adopt this worker's change, in one line."""
        return self._differ(worker, min(self.pushed))

    def _differ(self, one: int | None, other: int) -> str:
        if other in self.shown:  # it is simulated, or has come while others train
            return (
                f"the script changed the parameters or the optimizer's state between prepare() and its first step in a "
                f"way that depends on the values before, and worker {other} had what worker {one} has made of them: "
                "set them to values (copy_(), fill_(), load_state_dict()), or do it before prepare()"
            )
        how = "something else" if other in self.digests else "nothing"
        return (
            f"worker {one} changed the parameters or the optimizer's state between prepare() and its first "
            f"step, and worker {other} changed {how}; do the same in every worker, or do it before prepare()"
        )


@dataclass(slots=True, eq=False)
class Adopting:
    """Tells workers what follows from the book: which of them writes, and which may go on.

    Each method raises ConfigError if the workers don't begin with the same.
    """

    _cluster: Cluster
    _members: Members
    _ledger: Ledger
    book: Adoption = field(default_factory=Adoption)

    def wanted(self, member: Member, digest: str) -> None:
        """The worker's script changed the parameters or the optimizer before its first step."""
        if member.trains:
            self.book.wanted(member.worker, digest)
            self._go_on()

    def written(self, worker: int) -> None:
        """The worker has written what it was told to, and all begin with that."""
        self.book.done(worker)
        self._ledger.note("beginning", self.book.adopted)
        self._go_on()

    def pushed(self, worker: int) -> None:
        """The worker has made a step."""
        self.book.pushed.add(worker)
        if not self.book.agrees(worker):
            raise ConfigError(self.book.disagreement(worker))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        if isinstance(fact, WorkerJoined):
            self.book.joins(fact.worker)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: what it was writing is void, and another one writes."""
        self.book.lost(worker)
        self._go_on()

    def _go_on(self) -> None:
        worker = self.book.to_write()
        if worker is not None:
            if self.book.pushed:
                raise ConfigError(self.book.too_late(worker))
            self.book.writes(worker)
            self._cluster.adopt(worker)
        for worker in self.book.to_let_on():
            if not self.book.agrees(worker):
                raise ConfigError(self.book.disagreement(worker))
            self._members.send(self._members[worker], messages.worker.AdoptedAlready())
