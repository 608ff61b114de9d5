"""What a run settles by itself, or a director beforehand: the time, which worker gets which data, and who is to die."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from paceline.core.agreements import Value
from paceline.core.leases import Batch, Dealing, Leases
from paceline.errors import ConfigError
from paceline.records.folders import edit_file
from paceline.records.recording_schedule import RecordingSchedule


class Answer(NamedTuple):
    """What a worker gets when it asks for a batch in that epoch."""

    during: int
    batch: Batch | None
    taken: bool = False
    """Whether another worker was given it before this one began with it."""
    for_now: bool = False
    """Whether it gets nothing, and is to ask again."""
    along: bool = False
    """Whether it comes along with the batch before."""


Prescribed = dict[int, deque[Answer | None]]
"""By worker: what it gets each time. None: from here on another process asks, which has begun in the place of the one
that died."""


@dataclass(slots=True, kw_only=True)
class PrescribedLeases(Leases):
    """A book of leases that says beforehand which worker gets what."""

    prescribed: Prescribed
    """See `RunPolicy.prescribed`."""
    for_now: bool = False
    """Whether the worker that got nothing last is to ask again."""
    accounted: set[Batch] = field(default_factory=set)
    """Batches applied, skipped or missed. One may be taken here before it has returned, so the pool doesn't tell."""

    @classmethod
    def of(cls, book: Leases, prescribed: Prescribed) -> PrescribedLeases:
        """Return such a book, which begins as that one does."""
        return cls(
            book.dealing,
            book.members,
            epochs=book.epochs,
            skipped=book.skipped,
            missed=book.missed,
            used_up=book.used_up,
            dealt=book.dealt,
            scattered=book.scattered,
            begun_before=book.begun_before,
            unused=book.unused,
            earlier=book.earlier,
            prescribed=prescribed,
        )

    def undrawn(self, worker: int, epoch: int) -> tuple[int, int] | None:
        """See `Leases`."""
        if epoch not in self.epochs:
            return epoch, 0
        batch = answer.batch if (answer := self.prescribed[worker][0]) is not None else None
        if batch is not None and batch.epoch not in self.epochs:  # in the run, another worker was there first
            return batch.epoch, 0
        if batch is None or self.epochs[batch.epoch].whole or batch.index < len(self.epochs[batch.epoch].sizes):
            return None
        return batch.epoch, len(self.epochs[batch.epoch].digests)

    def take(self, worker: int, epoch: int, digest: str, blocks: int = 1, ahead: int = 0) -> Batch | None:
        """See `Leases`."""
        if self.epochs[epoch].differs(digest, blocks):
            raise ConfigError(f"worker {worker} draws another order of samples for epoch {epoch} than in the recording")
        answer = self.prescribed[worker].popleft() or Answer(epoch, None)
        if answer.batch is not None and answer.batch.index >= (has := len(self.epochs[answer.batch.epoch].sizes)):
            raise ConfigError(
                f"worker {worker} draws {has} batches in epoch {answer.batch.epoch}, and the recording has more: the "
                "data or the batch size has changed since"
            )
        self.for_now = answer.for_now
        if answer.batch is None:
            return None
        if not answer.taken:
            return self._lease(worker, answer.batch)
        self.taken.setdefault(worker, Counter())[answer.batch] += 1
        return answer.batch

    def take_along(self, worker: int, epoch: int, most: int, *, joins: bool = False) -> list[Batch]:
        """See `Leases`. It is prescribed, too."""
        along, answers = list[Batch](), self.prescribed[worker]
        while answers and (answer := answers[0]) is not None and answer.along and self.undrawn(worker, epoch) is None:
            assert answer.batch is not None
            along.append(self._lease(worker, answer.batch))
            answers.popleft()
        return along

    def take_over(self, worker: int, epoch: int, ahead: int = 0) -> tuple[int, Batch] | None:
        """See `Leases`. It is prescribed, too."""
        return None

    def may_get_more(self, ahead: int) -> bool:
        """See `Leases`."""
        return self.for_now

    def skip(self, worker: int, batches: tuple[Batch, ...]) -> None:
        """See `Leases`."""
        self.accounted.update(batches)
        Leases.skip(self, worker, batches)

    def settle(self, worker: int, step: int) -> int:
        """See `Leases`."""
        self.accounted.update(self.bound.get((worker, step), ()))
        return Leases.settle(self, worker, step)

    def drop(self, worker: int, step: int, samples: Literal["return", "missed"]) -> None:
        """See `Leases`."""
        if samples == "missed":
            self.accounted.update(self.bound.get((worker, step), ()))
        Leases.drop(self, worker, step, samples)

    def left_over(self) -> int:
        """See `Leases`."""
        waiting = {*self.earlier, *self.pool, *(batch for held in self.held.values() for batch in held)}
        waiting |= {batch for batches in self.bound.values() for batch in batches}
        return self.missed + sum(map(self.size, waiting - self.accounted))


@dataclass(slots=True)
class RunPolicy:
    """What a run settles by itself, unless a director has settled it beforehand. A real run has only the clock."""

    clock: Callable[[], float] | None = None
    """A clock of real time. None: a director says what time it is, and who is to die."""
    moment: float = 0.0
    """The time that the director says."""
    prescribed: Prescribed | None = None
    """What each worker gets when it asks for a batch; None at an epoch's end. A worker that asks again waits. None:
    batches are dealt as in any run."""
    opened: set[int] = field(default_factory=set)
    """Epochs in which some worker is to ask for a batch, and those that were open before the run was resumed."""
    asks_in_vain: dict[int, None] = field(default_factory=dict)
    """Workers that asked for a batch once more than they were to, or came to `agree` once more."""
    astray: dict[int, str] = field(default_factory=dict)
    """Workers that can't get what they were to get when they asked for a batch, and the line that says so."""
    undone: frozenset[tuple[int, int]] = frozenset()
    """(worker, step) that replicas are ordered and do not make, as their workers had left."""
    handed: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """By worker and which of its joins: the worker that handed over to it; None: no worker lived to."""
    gave: deque[list[int]] = field(default_factory=deque)
    """The workers that gave the store their optimizers' states, at each switch at which it was to get them."""
    averaged: deque[list[int]] = field(default_factory=deque)
    """The workers whose replicas became the version of a switch, for each such switch."""
    recorded: Path | None = None
    """The folder of the run that is made again."""
    admitted: dict[tuple[int, int], int] = field(default_factory=dict)
    """By worker and which of its joins: the epoch in which its script went on."""
    paused: frozenset[tuple[int, int]] = frozenset()
    """(worker, step) that workers declined as they waited in `agree`, or as in `revoked`."""
    revoked: frozenset[tuple[int, int]] = frozenset()
    """(worker, step) before which a round of own steps was ended."""
    agreed: dict[int, deque[Value]] = field(default_factory=dict)
    """By worker: what its calls of `agree` came to, one after the other."""
    leaving: dict[int, deque[str]] = field(default_factory=dict)
    """By worker: how it leaves each time that it is yet to leave, as the reason of `WorkerLeft`."""
    lost: dict[int, None] = field(default_factory=dict)
    """Workers that were to be killed."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By worker: the host that it was on, if there were several."""
    means: deque[tuple[int, int]] | None = None
    """Of each mean of replicas, of how many samples it is due, and of how many replicas at most. None: when one is due
    depends on how fast the one before it was written. With a death samples get fewer, and come to the same number a
    second time; replicas do not."""
    lacking: frozenset[int] = frozenset()
    """Workers whose replicas the last mean goes without. See `segments.LACKING`."""

    # --- what the coordinator asks ------------------------------------------------------------------

    @property
    def directed(self) -> bool:
        """Whether a director says when each thing is and which groups fail. Otherwise times are measured here."""
        return self.clock is None

    @property
    def decides(self) -> bool:
        """Whether a machine decides, which may have to know how much work there is. It had, in a recorded run."""
        return self.prescribed is None

    def now(self) -> float:
        """Return the run's time."""
        return self.moment if self.clock is None else self.clock()

    def leases(self, dealing: Dealing, workers: list[int], before: Mapping[str, Any] | None) -> Leases:
        """Make the book of leases for these workers, from what was kept of an earlier one if the run goes on."""
        book = Leases(dealing, workers) if before is None else Leases.resumed(before, dealing, workers)
        if self.prescribed is None:
            return book
        self.opened = {one.during for leases in self.prescribed.values() for one in leases if one} | book.epochs.keys()
        return PrescribedLeases.of(book, self.prescribed)

    def answers(self, worker: int, epoch: int) -> bool:
        """Whether this worker, which asks for a batch in that epoch, is answered. Otherwise it waits."""
        if self.prescribed is None:
            return True
        if not self.prescribed[worker] or self.prescribed[worker][0] is None:
            self.asks_in_vain[worker] = None
            return False
        during, batch, *_ = self.prescribed[worker][0] or Answer(epoch, None)
        if during != epoch:
            what = f"asks for a batch in epoch {epoch}, and the table leases has its next one in epoch {during}"
        elif batch is not None and batch.epoch not in self.opened:
            what = f"is to get a batch of epoch {batch.epoch} by the table leases, and no worker opened that epoch"
        else:
            return True
        self.astray[worker] = f"worker {worker} {what}"
        return False

    def goes_on_without(self, worker: int, borne: bool) -> bool:
        """Whether the others go on without this worker, which has died. `borne`: whether a run by itself bears that."""
        return worker in self.lost if self.directed else borne  # else its script has failed, and so will all

    def stays(self, worker: int) -> bool:
        """Whether this worker, whose script has no step left to make, does not leave by that, as it is to be killed."""
        return next(iter(self.leaving.get(worker, ())), None) in ("died", "drained")

    def joins_in(self, worker: int) -> int | None:
        """Return the epoch in which this worker, which comes while others train, is to ask for its first batch.

        None: it takes part in the first one that has a batch for it.
        """
        if self.prescribed is None:
            return None
        first = next(iter(self.prescribed[worker]), None)
        return sys.maxsize if first is None else first.during

    def admitted_in(self, worker: int, nth: int) -> int | None:
        """Return the epoch in which this worker's script goes on as it comes for the nth time; None: the present."""
        return self.admitted.get((worker, nth), self.joins_in(worker))

    def hand_over(self, worker: int, nth: int, others: list[int]) -> list[int]:
        """Return those of these workers of whom the first that lives hands over to this one, which joins so often."""
        if self.prescribed is None:
            return others
        if (worker, nth) not in self.handed:  # it died, or the run ended, before it got anything
            return []
        return [one for one in others if one == self.handed[worker, nth]]

    def gives(self, members: list[int]) -> list[int]:
        """Return those of these workers whose optimizers' states the store goes on with."""
        return self.gave.popleft() if self.gave else members

    def averages(self, workers: list[int]) -> list[int]:
        """Return those of these workers whose replicas become the version of a switch."""
        return self.averaged.popleft() if self.averaged else workers

    def told_edit(self, number: int) -> Path | None:
        """Return the file with the values that all take at that change of the model's structure, if it is there.

        Otherwise all take the first worker's.
        """
        file = None if self.recorded is None else edit_file(self.recorded, number)
        return file if file is not None and file.exists() else None

    def agreement(self, worker: int) -> list[Value]:
        """Return what the worker's next call of `agree` comes to, as recorded; nothing if it never came to anything."""
        if results := self.agreed.get(worker):
            return [results.popleft()]
        self.asks_in_vain[worker] = None  # in the run it had died by then, or the run ended
        return []

    def mean_due(self, samples: int, replicas: int, schedule: RecordingSchedule) -> bool:
        """Whether the mean of so many replicas, with so many samples in them, is to be recorded.

        `schedule` says so in a run by itself.
        """
        if self.means is None:
            return schedule.reached(samples)
        due = bool(self.means) and samples >= self.means[0][0] and replicas <= self.means[0][1]
        if due:
            self.means.popleft()
        return due

    # --- what the director says ---------------------------------------------------------------------

    def leaves(self, worker: int) -> None:
        """The worker leaves now."""
        if self.leaving.get(worker):
            self.leaving[worker].popleft()

    def returns(self, worker: int) -> None:
        """A new process begins as this worker, which was lost."""
        for book in (self.lost, self.asks_in_vain, self.astray):
            book.pop(worker, None)
        leases = self.prescribed[worker] if self.prescribed is not None else None
        while leases and leases.popleft() is not None:
            pass
