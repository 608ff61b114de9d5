"""When a run is kept on disk, and what a snapshot lacks until it is whole.

A snapshot is of the moment at which the orders of one fact are carried out. What the coordinator knows is noted then,
and nobody stops: the arithmetic process copies what it has beside the next commit, and each worker packs its own part
when its script comes by.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.facts import Fact, GradientReady, TrainingBegan
from paceline.host import messages
from paceline.host.host import Host
from paceline.host.member import Member
from paceline.records.due import Due
from paceline.records.ledger import Ledger
from paceline.records.snapshots import FORMAT, KEPT, State, draft_of, folder_of, whole, worker_file
from paceline.runtime.clock import Clock
from paceline.runtime.data import Data


@dataclass(slots=True)
class _Draft:
    """A snapshot that is not whole yet."""

    fact: int
    state: State
    folder: Path
    awaited: set[str]
    """The files that it lacks."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each that is there."""


class Snapshots:
    """Takes a snapshot several times an epoch, and at a clean end. One is taken at a time."""

    def __init__(
        self,
        folder: Path,
        times_an_epoch: int,
        host: Host,
        members: Mapping[int, Member],
        data: Data,
        ledger: Ledger,
        clock: Clock,
        *,
        send: Callable[[Member, messages.Message], None],
        say: Callable[[str], None],
        memory: Callable[[], Any],
        version: Callable[[], int],
    ) -> None:
        """`memory()` is what the machine declares durable, and `version()` the newest version that was ordered.

        `times_an_epoch` is 0 if no snapshot is taken at all.
        """
        self.facts = 0
        """How many facts the machine was told."""
        self._run = folder
        self._takes = times_an_epoch > 0
        self._due = Due(times_an_epoch)
        self._host = host
        self._members = members
        self._data = data
        self._ledger = ledger
        self._clock = clock
        self._send = send
        self._say = say
        self._memory = memory
        self._version = version
        self._next_steps: dict[int, int] = {}
        self._wanted = False
        """Whether a snapshot is due at the end of this fact's orders."""
        self._number = 0
        """How many times workers were told to pack."""
        self._asked: dict[int, Member] = {}
        """The workers that were told to pack and have not said that they have."""
        self._packed: dict[int, list[int]] = {}
        """By worker: the descriptor of what it has packed, until the snapshot's files are written."""
        self._draft: _Draft | None = None
        self._newest = 0
        """The fact of the newest whole snapshot."""

    def epoch_opened(self, samples: int) -> None:
        """Set how far apart snapshots are, from the first epoch's samples."""
        self._due.epoch_opened(samples)

    def told(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        self.facts += 1
        match fact:
            case GradientReady(worker=worker, step=step):
                self._next_steps[worker] = step + 1
            case TrainingBegan(members=members):
                self._next_steps |= {worker: step for worker, _, step in members}

    def ordered(self, samples: int) -> None:
        """So many samples are in the model, or ordered to be."""
        if self._due.reached(samples) and self._draft is None and not self._asked:
            self._wanted = True

    def before_release(self, members: Iterable[Member]) -> None:
        """Workers are about to go on: if a snapshot is due, they pack their parts first."""
        if self._wanted and not self._asked:
            self.ask(members)

    def ask(self, members: Iterable[Member]) -> None:
        """Tell these workers to pack their parts of the next snapshot, as their scripts are now."""
        if not self._takes:
            return
        self._number += 1
        for member in members:
            self._asked[member.worker] = member
            self._send(member, messages.Keep(self._number))

    def go_on(self, members: Iterable[Member]) -> None:
        """The orders of a fact are carried out: take the snapshot if it is due."""
        if self._wanted:
            self.before_release(members)
            self._wanted = False
            self._take()

    def packed(self, member: Member, number: int, descriptors: list[int]) -> None:
        """The worker has packed its part, which comes along."""
        if number != self._number or self._asked.pop(member.worker, None) is None:
            _close(descriptors)
            return
        self._packed[member.worker] = descriptors
        self._pass_on()

    def gone(self, worker: int) -> None:
        """The worker's process has ended: if it has not packed its part, the snapshot does without."""
        if self._asked.pop(worker, None) is not None and self._draft is not None:
            self._draft.awaited.discard(worker_file(worker))
            self._seal_if_there()

    def written(self, file: str, sha256: str) -> None:
        """That file of the snapshot is on disk."""
        if self._draft is not None:
            self._draft.files[file] = sha256
            self._draft.awaited.discard(file)
            self._seal_if_there()

    def sealed(self) -> None:
        """The snapshot is whole, and on disk."""
        assert self._draft is not None
        self._newest, self._draft = self._draft.fact, None

    def failed(self, why: str) -> None:
        """The snapshot can't be written. The run goes on, and an earlier one stays."""
        if self._draft is not None:
            self._say(f"{self._draft.folder}: the snapshot can't be written: {why}")
            self._draft = None

    def close(self, members: Iterable[Member]) -> bool:
        """All scripts have ended: take the last snapshot. Return whether there is something to wait for."""
        if not self._takes or not self._next_steps:
            return False
        if self._draft is None and self._newest < self.facts:
            self.ask(member for member in members if member.worker not in self._packed)
            self._take()
        return self._draft is not None

    def _take(self) -> None:
        """Note how things are, and have all that is large written."""
        host, fact = self._host, self.facts
        state = State(
            format=FORMAT,
            fact=fact,
            version=self._version(),
            at=self._clock.at(),
            steps=host.applied,
            samples=host.samples,
            memory=self._memory(),
            leases=self._data.plain(),
            next_steps=dict(self._next_steps),
            scalars={member.worker: member.scalars for member in self._members.values() if member.worker in self._next_steps},
            files={},
        )
        self._ledger.mark(fact)
        folder = draft_of(folder_of(self._run, fact))
        awaited = host.keep(str(folder.absolute()))
        own = [worker_file(worker) for worker in (*self._asked, *self._packed)]
        self._draft = _Draft(fact, state, folder, {*awaited, *own})
        self._pass_on()

    def _pass_on(self) -> None:
        """Have what workers have packed written."""
        if self._draft is None:
            return
        for worker, descriptors in self._packed.items():
            self._host.keep_packed(worker_file(worker), descriptors)
            _close(descriptors)
        self._packed.clear()

    def _seal_if_there(self) -> None:
        draft = self._draft
        if draft is not None and not draft.awaited:
            text = msgspec.json.encode(msgspec.structs.replace(draft.state, files=draft.files))
            old = [str(path.absolute()) for path in list(whole(self._run))[KEPT - 1 :]]
            self._host.seal(text, old)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
