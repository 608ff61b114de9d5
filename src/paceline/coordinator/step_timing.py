"""Where each worker's time went, step by step, and what its script logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.coordinator.clock import RunClock
from paceline.coordinator.member import Member
from paceline.ipc import messages
from paceline.records.journal import Journal
from paceline.records.times import StepTimes, exposed

LEAST = 1e-9  # seconds that a push takes, whoever says that it took none


class _Finished(NamedTuple):
    """A finished step. What its worker says of its times is cut to what there was, by the run's clock."""

    said: messages.worker.StepFinished
    ordered: float
    """When the worker was released for it."""
    began: float
    compute: float
    at: float
    """When it was told."""

    @classmethod
    def of(cls, said: messages.worker.StepFinished, began: float, ordered: float, at: float) -> _Finished:
        """`began` is by the worker's own clock: another machine's has another zero."""
        compute = min(said.compute, at - ordered)
        latest = at - compute
        return cls(said, ordered, began if ordered <= began <= latest else latest, compute, at)


@dataclass(slots=True, eq=False)
class StepTiming:
    """Completes the times of each finished step, which lack the wait after it, and writes them down."""

    _journal: Journal
    _clock: RunClock
    _measures: bool
    """Whether times are written down as they were measured."""
    _finished: dict[int, _Finished] = field(default_factory=dict)
    """By worker: its last finished step, until the step's times are complete."""

    def step_finished(self, member: Member, message: messages.worker.StepFinished) -> None:
        """The worker has finished a step. Its message says how long it had waited after the step before."""
        done = _Finished.of(message, self._clock.of(message.began), member.ordered_at, self._clock.at())
        self._complete(member, message.waited, message.pulled, done.began)
        self._finished[member.worker] = done

    def left(self, member: Member) -> None:
        """The worker has left training: it has waited until now, or until its last release."""
        if member.worker in self._finished:
            at = self._finished[member.worker].at
            self._complete(member, self._waited_until(member, at) - at, 0.0, self._clock.at())

    def pushed(self, worker: int, step: int, scalars: list[dict[str, Any]], samples: int | None) -> None:
        """The worker has pushed that step, with these hyperparameters of its optimizer."""
        rates = [float(group.get("lr", 0.0)) for group in scalars]
        self._journal.ledger.pushed(worker, step, rates, samples)

    def logs(self, member: Member, step: int, scalars: Mapping[str, float]) -> float:
        """The worker's script has logged these values in that step. Return when."""
        member.logged.update(scalars)
        at = self._clock.at()
        for name, value in scalars.items():
            self._journal.ledger.logged(member.worker, step, at, name, value)
        return at

    def committed(self, version: int, at: float) -> None:
        """The store has made that version."""
        if self._measures:
            self._journal.ledger.committed(version, at)

    def _complete(self, member: Member, wait: float, pull: float, until: float) -> None:
        """The worker's last step and its waits are over. `until`: when its next step began, or now."""
        if member.worker not in self._finished:
            return
        done = self._finished.pop(member.worker)
        pushing, pulling = exposed(member.transfers, done.at, self._waited_until(member, done.at))
        member.transfers.clear()
        pushing = min(pushing, wait)  # another host's moments are late by as long as its messages take
        pulling = min(pulling, wait - pushing)
        wait -= pushing + pulling
        said, left = done.said, until - done.ordered - done.compute
        fitted = []
        for part in (max(said.push, LEAST) + pushing, wait, pull + pulling, said.other):
            fitted.append(max(0.0, min(part, left)))
            left -= fitted[-1]
        push, wait, pull, other = fitted
        parts = done.compute, max(push, LEAST), wait, pull, other
        if self._measures:
            times = StepTimes(done.began, *parts, said.to_device, said.from_device)
            self._journal.step_times(member.worker, said.step, times)

    def _waited_until(self, member: Member, finished: float) -> float:
        """When the worker's wait after its last finished step was over: at the next release, or now."""
        return self._clock.at() if member.released_at < finished else member.released_at
