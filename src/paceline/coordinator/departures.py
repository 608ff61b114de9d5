"""How workers leave: their last update arrives first, and what they held goes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.coordinator.clock import RunClock
from paceline.coordinator.data import TrainingData
from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.step_timing import StepTiming
from paceline.core.facts import StepDeclined, WorkerLeft
from paceline.core.membership import Left
from paceline.host.cluster import Cluster
from paceline.host.events import Report


@dataclass(slots=True, eq=False)
class Departures:
    """Takes workers out of training, at once or when their last update has arrived."""

    _members: Members
    _cluster: Cluster
    _data: TrainingData
    _timing: StepTiming
    _policy: RunPolicy
    _clock: RunClock
    _report: Report
    _finishing: dict[int, Member] = field(default_factory=dict)
    """Workers that wait in `finish()`."""
    _postponed: list[tuple[Member, Callable[[Member], None]]] = field(default_factory=list)
    """Workers that leave when their last update has arrived, or when they are killed, and how."""

    def leave(self, member: Member, how: Left) -> None:
        """The worker trains no more: tell the machine if it did, and return what the worker held."""
        if not self._members.leaves(member.worker, how):
            return
        member.step = None
        member.wait(None)
        self._cluster.left(member.worker, how == "died")
        self._data.left(member.worker, how)
        self._timing.left(member)
        self._report(WorkerLeft(worker=member.worker, reason=how, at=self._clock.at()))

    def finish(self, member: Member) -> None:
        """The worker's script waits in `finish()`."""
        if self._has_to_wait(member, self.finish):
            return
        self._finishing[member.worker] = member
        self.leave(member, "finished")
        member.wait(("finish",))

    def end(self, member: Member, at_once: bool = False) -> None:
        """The worker's script has ended. `at_once`: if its last update is on its way, that never arrives."""
        if not at_once and self._has_to_wait(member, self.end):
            return
        self.leave(member, "finished")
        self._members.ends(member.worker)
        member.wait(("script-ended",))

    def let_finish(self) -> list[Member]:
        """Return the workers that waited in `finish()` until now."""
        finishing, self._finishing = self._finishing, {}
        return list(finishing.values())

    def gone(self, member: Member, how: Left) -> bool:
        """The worker's process has ended. Return whether its script had not. `how` it left training is then this."""
        died = member.stage != "ended"
        if died:
            self.leave(member, how)
        self._members.goes(member.worker)
        self._finishing.pop(member.worker, None)
        self._postponed = [(one, end) for one, end in self._postponed if one is not member]
        return died

    def go_on(self) -> None:
        """Workers that only waited for their last update leave now."""
        postponed, self._postponed = self._postponed, []
        for member, end in postponed:
            end(member)  # or is put off once more

    def awaits(self, member: Member) -> bool:
        """Return whether the worker waits for its last update."""
        return any(one is member for one, _ in self._postponed)

    def _has_to_wait(self, member: Member, end: Callable[[Member], None]) -> bool:
        """Whether the worker may not leave yet, as its last update is still on its way. It leaves after that."""
        waits = self._cluster.updates(member.worker).coming or self._policy.stays(member.worker)
        if not (member.trains and member.here and waits):
            return False
        member.wait(("last-update",))
        step, member.step = member.step, None  # it was released for this step, and has no data for it
        # its own steps are pushed only at the end of a round, or once it declines a further step
        if step is not None and self._cluster.spec.updates_of_rounds:
            self._report(StepDeclined(worker=member.worker, step=step, at=self._clock.at()))
        self._postponed.append((member, end))
        return True
