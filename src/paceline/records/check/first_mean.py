"""Of how many samples the first recorded mean may be, as far as facts and orders tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.facts import Fact, GradientReady, StepDeclined, TrainingBegan, WorkerLeft


@dataclass(slots=True)
class FirstMean:
    """The first mean is recorded when one is due, unless that one can't be made: then the next one is due.

    A mean can't be made of the replica of a worker that died in a step. A ledger does not say whether it died there, so
    both means may be the first one. That the step was made is known from the worker's next gradient. On several hosts
    it proves nothing, as replicas are still to be brought to the head then, and may be lost with their hosts.
    """

    several_hosts: bool = False
    due: int | None = None
    """The samples at which the first mean was due."""
    _may_be: set[int] = field(default_factory=set)
    """How many samples it may have."""
    _any: bool = False
    """Whether it may be any mean."""
    _stepping: dict[int, None] = field(default_factory=dict)
    """Workers of which it is not known that the step that their replicas were last ordered is made."""
    _awaited: dict[int, None] = field(default_factory=dict)
    """Those of them on whose steps it depends whether the mean that is due is made."""
    _again: bool = False
    """Whether that mean may be one that can't be made."""

    def fact(self, fact: Fact) -> None:
        """The machine is told of this fact."""
        match fact:
            case TrainingBegan():
                self._any |= self._again  # a snapshot does not say that a mean is due again
                self._stepping.clear()
                self._awaited.clear()
            case GradientReady(worker=worker) | StepDeclined(worker=worker):
                self._stepping.pop(worker, None)
                self._awaited.pop(worker, None)
            case WorkerLeft(worker=worker, reason=reason):
                self._left(worker, reason)

    def stepped(self, worker: int, samples: int, *, makes: bool, due: bool) -> None:
        """The worker's replica is ordered a step, and makes it or does not. There are so many samples in all then."""
        if makes:
            self._stepping[worker] = None
        if due and self.due is None:
            self.due = samples
        elif not self._again:
            return
        self._may_be.add(samples)
        self._again = bool(self._awaited)  # until these have made their steps, the mean before may be under way
        if not self._again:
            self._awaited = dict(self._stepping)

    def may_be(self, samples: int | None, last: int) -> bool:
        """Whether the first mean may be of so many samples. `last`: how many there were in the end."""
        return self._any or samples in self._may_be or (self._again and samples == last)

    def _left(self, worker: int, reason: str) -> None:
        in_step = worker in self._stepping
        self._stepping.pop(worker, None)
        if worker in self._awaited or (self._again and in_step):
            self._again = True
            self._awaited = dict(self._stepping)  # it may have been tried again before the machine was told
            self._any |= reason != "died"  # such a worker's replica goes on to count
        if self.several_hosts and (reason != "finished" or self.due is None):
            self._any = True
