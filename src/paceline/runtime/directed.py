"""Real workers and a real store, whose facts come from elsewhere: a clock of its own, or a recording.

Each order is carried out to its end before the next one, and its results are kept until they are asked for. So
what a run comes to depends only on the sequence of the orders, and not on how fast any worker was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.core.facts import (
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    StepDeclined,
    TrainingBegan,
    WorkerLeft,
)
from paceline.core.leases import Batch, Dealing, Leases
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StepReplica
from paceline.errors import ConfigError, RunFailed
from paceline.runtime import messages
from paceline.runtime.coordinator import GRACE_AT_LIMIT, Coordinator
from paceline.runtime.member import Member
from paceline.runtime.progress import shower

Result = GradientReady | StepDeclined | WorkerLeft
"""The result of a released step."""


Prescribed = dict[int, deque[tuple[int, Batch | None]]]
"""By worker: the epoch in which it asks for a batch, and what it gets."""


@dataclass(slots=True, kw_only=True)
class PrescribedLeases(Leases):
    """A book of leases that says beforehand which worker gets what."""

    prescribed: Prescribed
    """See `Directed.prescribed`."""
    accounted: set[Batch] = field(default_factory=set)
    """Batches applied, skipped or missed. One may be taken here before it has returned, so the pool doesn't tell."""

    def undrawn(self, worker: int, epoch: int) -> tuple[int, int] | None:
        """See `Leases`."""
        if epoch not in self.epochs:
            return epoch, 0
        _, batch = self.prescribed[worker][0]
        if batch is not None and batch.epoch not in self.epochs:  # in the run, another worker was there first
            return batch.epoch, 0
        if batch is None or batch.index < len(self.epochs[batch.epoch].sizes):
            return None
        return batch.epoch, len(self.epochs[batch.epoch].digests)

    def take(self, worker: int, epoch: int, digest: str, blocks: int = 1) -> Batch | None:
        """See `Leases`."""
        if self.epochs[epoch].differs(digest, blocks):
            raise ConfigError(f"worker {worker} draws another order of samples for epoch {epoch} than in the recording")
        _, batch = self.prescribed[worker].popleft()
        return None if batch is None else self._lease(worker, batch)

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
        waiting = {*self.pool, *(batch for held in self.held.values() for batch in held)}
        waiting |= {batch for batches in self.bound.values() for batch in batches}
        return self.missed + sum(map(self.size, waiting - self.accounted))


class Directed(Coordinator):
    """A coordinator that is told at which moment each order is carried out, and tells no machine when it was done.

    `begin`, then `direct` for each order, `result` for each release, `tell` for each group. `lose` is for workers to
    be killed, and `see_off` for workers without data left. Then `end`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._host.averages.deaths_are_told = True
        self.prescribed: Prescribed | None = None
        """What each worker gets when it asks for a batch; None at an epoch's end. A worker that asks again waits. None:
        batches are dealt as in any run."""
        self._opened: set[int] = set()
        """Epochs in which some worker is to ask for a batch."""
        self._asks_in_vain: dict[int, None] = {}
        self._astray: dict[int, str] = {}
        """Workers that can't get what they were to get when they asked for a batch, and the line that says so."""
        self._lost: dict[int, None] = {}
        """Workers that were to be killed."""
        self._moment = 0.0
        self._results: dict[tuple[int, int], Result] = {}
        """By (worker, step), the releases that no `result` has asked about yet."""
        self._gone: dict[int, WorkerLeft] = {}
        self._began: TrainingBegan | None = None

    @property
    def model_bytes(self) -> int:
        """The worker and step, or version, of a push or a pull."""
        assert self._offer is not None
        return self._offer.model_bytes

    def leave_undone(self, steps: Iterable[tuple[int, int]]) -> None:
        """Do not make these (worker, step) when replicas are ordered to."""
        self._host.steps.undone = frozenset(steps)

    def begin(self) -> TrainingBegan:
        """Wait until training begins. Raises RunFailed if it doesn't, or not with all workers."""
        self.open()
        self._await(lambda: self._began is not None or not self._any_here())
        if self._began is None:
            raise RunFailed(self.error or "all workers ended before training began")
        missing = self.members.keys() - {worker for worker, _, _ in self._began.members}
        if missing:
            raise RunFailed(f"worker {min(missing)} ended before training began")
        return self._began

    def show(self, share: Callable[[], float]) -> None:
        """From now on show how the run goes. `share` says how much is done, 0 to 1, apart from the script's data."""
        began = time.monotonic()
        self._watch.share, self._watch.passed = share, lambda: time.monotonic() - began
        self._shower = shower(self.settings, self._output)
        self._show_progress()

    def direct(self, order: Order, at: float) -> None:
        """Carry the order out at that moment, to its end."""
        self._moment = at
        if isinstance(order, Release) and self._adoption.adopted is not None:  # in a run the release comes before that
            self._adoption.shown.add(order.worker)
        self.carry_out(order)
        match order:
            case Release(worker=worker, step=step):
                self._expect_area(self.members[worker], step)
                self._await(lambda: self._has_come_of(self.members[worker], step))
            case ApplyUpdate():
                self._await(lambda: self._host.idle)
            case StepReplica() | Reduce():
                # a mean that is being recorded, too, is of replicas that have made their steps
                self._await(lambda: self._host.settled and self._host.idle)

    def _expect_area(self, member: Member, step: int) -> None:
        """Raise RunFailed if that step waits for a push area that none of the orders to come could free."""
        waiting = self._host.pushes.awaited(member.worker)
        if not waiting:
            return
        spec, most = self._spec.name, self.settings.choice.unapplied
        steps = ", ".join(map(str, waiting))
        raise RunFailed(
            f"{spec} releases worker {member.worker} for step {step} while its steps {steps} are not "
            f"applied, and declares at most {most} at once; declare more (Spec.unapplied)"
        )

    @property
    def interrupted(self) -> bool:
        """Whether the end was asked for: the results of orders mean nothing from then on."""
        return self._interrupted

    def result(self, worker: int, step: int) -> Result:
        """Return the result of that released step. Raises RunFailed if its script has failed or asks for other data."""
        if worker in self._astray:
            raise RunFailed(self._astray[worker])
        left = self._gone.get(worker)
        if left is not None and left.reason == "died":
            raise RunFailed(f"worker {worker} died in step {step}: its script failed")
        made = self._results.pop((worker, step), None)
        return made or left or StepDeclined(worker=worker, step=step, at=self._moment)

    def tell(self, fact: ReduceFinished | ReduceFailed) -> None:
        """That group's average is made, or has failed."""
        self._host.tell(fact)

    def lose(self, worker: int, untold: int | None = None) -> None:
        """Kill the worker. `untold`: a step of it that came to a gradient of which the machine won't hear."""
        member = self.members[worker]
        self._lost[worker] = None
        self._kill(member)
        self._await(lambda: not member.here)
        member.left = "died"  # also if its script had ended by itself
        self._host.tell(WorkerLeft(worker=worker, reason="died", at=self._moment))
        if untold is not None:
            self.leases.drop(worker, untold, "return")

    def see_off(self, worker: int) -> None:
        """The worker has no data left: its script goes on to its end, or to `finish()`.

        Raises RunFailed if it asks for another batch than it was to get.
        """
        self._await(lambda: worker in self._gone or worker in self._asks_in_vain or worker in self._astray)
        if worker in self._astray:
            raise RunFailed(self._astray[worker])
        if worker in self._asks_in_vain and worker not in self._gone and not self._stopping:
            raise RunFailed(f"worker {worker} asks for a batch once more than the table leases has it")

    def stop(self) -> None:
        """No worker makes a step any more."""
        if not self._stopping:
            self._stop(GRACE_AT_LIMIT, at_once=False)
            for member in self.members.values():
                member.left = "finished" if member.here else member.left

    def end(self) -> None:
        """No more orders will come: record the last version, have versions evaluated, and let all processes go."""
        if any(member.trains for member in self.members.values()):
            self.stop()
        while True:
            self._take()
            self._host.averages.conclude()
            writing = self._conclude() and not self._at_once
            if not writing and not self._any_here():
                break
            self._loop.wait()
        self._look_at_ends()

    def _at(self) -> float:
        return self._moment

    def _committed(self, version: int, at: float) -> None:
        """The caller knows them."""

    def _step_times(self, member: Member, wait: float, pull: float) -> None:
        """The caller knows them."""
        member.finished = None

    def _goes_on_without(self, member: Member, status: int) -> bool:
        return member.worker in self._lost  # otherwise its script has failed, and so will all: see `result`

    def _any_here(self) -> bool:
        return any(member.here for member in self.members.values())

    def _has_come_of(self, member: Member, step: int) -> bool:
        """Whether that step's gradient is there, or there will be none."""
        worker = member.worker
        leaving = worker in self._asks_in_vain or any(one is member for one, _ in self._leaving)
        return (worker, step) in self._results or worker in self._gone or leaving or worker in self._astray

    def _lease(self, member: Member, wanted: messages.LeaseWanted) -> None:
        epoch = wanted.epoch
        if self.prescribed is not None and member.trains and not self.prescribed[member.worker]:
            self._asks_in_vain[member.worker] = None
            return
        if self.prescribed is not None and member.trains:
            during, batch = self.prescribed[member.worker][0]
            what = None
            if during != epoch:
                what = f"asks for a batch in epoch {epoch}, and the table leases has its next one in epoch {during}"
            elif batch is not None and batch.epoch not in self._opened:
                what = f"is to get a batch of epoch {batch.epoch} by the table leases, and no worker opened that epoch"
            if what is not None:
                self._astray[member.worker] = f"worker {member.worker} {what}"
                return
        super()._lease(member, wanted)

    def _new_leases(self, dealing: Dealing, workers: list[int]) -> Leases:
        if self.prescribed is None:
            return super()._new_leases(dealing, workers)
        self._opened = {during for leases in self.prescribed.values() for during, _ in leases}
        return PrescribedLeases(dealing, workers, prescribed=self.prescribed)

    def _await(self, done: Callable[[], bool]) -> None:
        """Listen until that is true, or the run is to stop."""
        while True:
            self._take()
            if done() or self._stopping:
                return
            self._loop.wait()

    def _take(self) -> None:
        """Keep what will be asked for of what has happened."""
        self._end_postponed()
        while self._happened:
            match fact := self._happened.popleft():
                case TrainingBegan():
                    self._began = fact
                case GradientReady(worker=worker, step=step) | StepDeclined(worker=worker, step=step):
                    self._results[worker, step] = fact
                case WorkerLeft(worker=worker):
                    self._gone[worker] = fact
                case _:  # the caller says when
                    pass
