"""Where each worker's time went, step by step, and what its script logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.host import messages
from paceline.records.journal import Journal
from paceline.records.times import StepTimes, exposed
from paceline.runtime.clock import Clock
from paceline.runtime.member import Member


class Accounts:
    """Completes the times of each finished step, which lack the wait after it, and writes them down."""

    def __init__(self, journal: Journal, clock: Clock, measures: bool) -> None:
        """`measures`: whether times are written down as they were measured."""
        self.logged: dict[int, dict[str, float]] = {}
        """By worker: the last values that its script logged, by name."""
        self._journal = journal
        self._clock = clock
        self._measures = measures
        self._finished: dict[int, tuple[messages.StepFinished, float]] = {}
        """By worker: its last finished step and when that was told, until the step's times are complete."""

    def step_finished(self, member: Member, message: messages.StepFinished) -> None:
        """The worker has finished a step. Its message says how long it had waited after the step before."""
        self._complete(member, message.waited, message.pulled)
        self._finished[member.worker] = message, self._clock.at()

    def left(self, member: Member) -> None:
        """The worker takes no part any more: it has waited until now, or until its last release."""
        if member.worker in self._finished:
            _, at = self._finished[member.worker]
            self._complete(member, self._waited_until(member, at) - at, 0.0)

    def pushed(self, worker: int, step: int, scalars: list[dict[str, Any]], samples: int | None) -> None:
        """The worker has pushed that step, with these hyperparameters of its optimizer."""
        rates = [float(group.get("lr", 0.0)) for group in scalars]
        self._journal.ledger.pushed(worker, step, rates, samples)

    def logs(self, worker: int, step: int, scalars: Mapping[str, float]) -> float:
        """The worker's script has logged these values in that step. Return when."""
        self.logged.setdefault(worker, {}).update(scalars)
        at = self._clock.at()
        for name, value in scalars.items():
            self._journal.ledger.logged(worker, step, at, name, value)
        return at

    def committed(self, version: int, at: float) -> None:
        """The store has made that version."""
        if self._measures:
            self._journal.ledger.committed(version, at)

    def _complete(self, member: Member, wait: float, pull: float) -> None:
        if member.worker not in self._finished:
            return
        done, at = self._finished.pop(member.worker)
        pushing, pulling = exposed(member.transfers, at, self._waited_until(member, at))
        member.transfers.clear()
        pushing = min(pushing, wait)  # another host's moments are late by as long as its messages take
        pulling = min(pulling, wait - pushing)
        wait -= pushing + pulling
        began = self._clock.of(done.began)
        push, pull = done.push + pushing, pull + pulling
        times = StepTimes(began, done.compute, push, wait, pull, done.other, done.to_device, done.from_device)
        if self._measures:
            self._journal.step_times(member.worker, done.step, times)

    def _waited_until(self, member: Member, finished: float) -> float:
        """When the worker's wait after its last finished step was over: at the next release, or now."""
        return self._clock.at() if member.released_at < finished else member.released_at
