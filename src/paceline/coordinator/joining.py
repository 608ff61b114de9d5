"""How workers take part that come while others train, and which processes begin anew in the place of dead ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.coordinator.clock import RunClock
from paceline.coordinator.data import TrainingData
from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.versions import RecordedVersions
from paceline.core.facts import Fact, GradientReady, ReplicaCopied, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.core.orders import Release
from paceline.errors import RunFailed
from paceline.host.cluster import Cluster
from paceline.host.events import Report
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.processes import NoProcess
from paceline.job.compatibility import difference, unequal_hosts
from paceline.job.settings import Settings
from paceline.records.ledger import Ledger
from paceline.scenario.scenario import Kill

if TYPE_CHECKING:
    from paceline.coordinator.host_registry import HostRegistry


There = Literal["here", "away", "gone"]
"""Where a worker's host is. `away`: it was lost, and may come again; `gone`: it won't."""
AWAY = 60.0
"""Seconds that a lost host has to come back while no worker trains."""


@dataclass(slots=True, eq=False)
class Returns:
    """Begins a process in the place of one that has died: after a while, if the scenario says so, or `--restart`."""

    _settings: Settings
    _members: Members
    _cluster: Cluster
    _others: HostRegistry | None
    _loop: Loop
    _output: WorkerOutput
    _due: list[Member] = field(default_factory=list)
    """Workers whose time to come back has come."""
    _killed: dict[int, Kill] = field(default_factory=dict)
    """By worker: the event that has killed it, by time."""
    _over: bool = False
    """Whether training is over."""
    _alone_since: float | None = None
    """Since when no worker trains while lost hosts are awaited."""

    def kill(self, event: Kill) -> None:
        """The moment of that event has come: end the worker's process, if there is one."""
        if any(member.worker == event.worker for member in self._members.here()):
            self._killed[event.worker] = event
            self._cluster.end(event.worker)

    def due(self, member: Member, step: int | None) -> float | None:
        """The worker has died in that step, if in any. Return after how many seconds it is to come back, if at all."""
        event = self._killed.pop(member.worker, None) or self._settings.scenario.kill_at_step(member.worker, step)
        if self._over or self._there(member) == "gone":
            return None
        if event is not None:
            return event.rejoin_after
        if member.restarts >= self._settings.restart:
            return None
        member.restarts += 1
        return 0.0

    def begin_after(self, member: Member, seconds: float) -> None:
        """Begin a process as that worker after so many seconds, unless the run ends before."""
        member.comes_back = True
        self._loop.after(seconds, lambda: self._due.append(member))

    def go_on(self) -> list[Member]:
        """Begin the processes that are due. Return the workers that can't be started again.

        The machine has been told how the last processes ended, and all that they had said. A worker whose earlier
        updates take all of its places begins once one is free. Else a round with such an update would wait for the
        worker, and the worker for a place.
        """
        if not self._due:
            self._alone_since = None
            return []
        due, self._due = [member for member in self._due if member.comes_back], []
        why = dict[int, str]()
        for member in due:
            match self._there(member):
                case "here" if not self._cluster.updates(member.worker).full:
                    if error := self._begin(member):
                        why[member.worker] = error
                case "gone":
                    why[member.worker] = "its host has ended"
                case _:
                    self._due.append(member)
        if self._due_alone_for_long():
            why |= {member.worker: f"its host has not come back within {AWAY:.0f} s" for member in self._due}
            self._due = []
        for worker, sentence in why.items():
            self._members[worker].comes_back = False
            self._output.say(f"worker {worker} can't be started again: {sentence}")
        return [self._members[worker] for worker in why]

    def awaits(self, workers: Sequence[int]) -> bool:
        """Whether any of these workers is to begin again."""
        return any(one.worker in workers for one in self._members.awaited())

    def close(self) -> None:
        """Training is over: no worker comes back, as no work would be left for it."""
        self._over = True
        self._members.nobody_comes_back()

    def begin(self, member: Member) -> None:
        """Begin a process as this worker, whose own has ended. Raises NoProcess."""
        self._members.returns(member.worker)
        member.begins_anew()
        self._cluster.returns(member.worker)
        self.start([member.worker])

    def start(self, workers: Sequence[int]) -> None:
        """Begin processes as these workers, whose scripts begin beside others. Raises NoProcess."""
        self._cluster.start(workers)
        if self._settings.start == "staggered":
            for one in self._members.to_begin():
                self._members.begins(one.worker)
                self._members.send(one, messages.worker.Start())

    def _there(self, member: Member) -> There:
        return "here" if self._others is None else self._others.there(member.worker)

    def _begin(self, member: Member) -> str:
        """Begin a process as this worker. Return why that can't be done; empty if it can."""
        try:
            self.begin(member)
        except NoProcess as error:
            self._members.goes(member.worker)
            self._cluster.gone(member.worker)
            return str(error)
        return ""

    def _due_alone_for_long(self) -> bool:
        """Whether no worker has trained for so long that the lost hosts are given up."""
        if not self._due or self._members.any_trains:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = self._loop.now()
            self._loop.after(AWAY, _nothing)  # which comes by here once more
        return self._alone_since is not None and self._loop.now() - self._alone_since >= AWAY


@dataclass(slots=True, eq=False)
class Joining:
    """Tells the machine of workers that join, at the first step of their scripts, and sees to what they begin with."""

    _settings: Settings
    _members: Members
    _cluster: Cluster
    _data: TrainingData
    _versions: RecordedVersions
    _ledger: Ledger
    _policy: RunPolicy
    _clock: RunClock
    _report: Report
    _output: WorkerOutput
    _next_steps: dict[int, int] = field(default_factory=dict)
    """By worker: the next step number that is unused."""
    _last: dict[int, int] = field(default_factory=dict)
    """By worker: the last step of its last release."""
    _ready: dict[int, int] = field(default_factory=dict)
    """By worker that takes part, as the machine was told: how many of its gradients were ready."""
    _joins: Counter[int] = field(default_factory=Counter)
    """How often each worker has joined, as the machine was told."""
    _handed: list[tuple[int, int, int | None]] = field(default_factory=list)
    """(worker, which of its joins, the worker that handed over to it then). Joins count from 1."""
    _without: set[int] = field(default_factory=set)
    """Workers that have joined, as the machine was told, and were given no replica."""
    _admitted: list[tuple[int, int, int]] = field(default_factory=list)
    """(worker, which of its joins, the epoch in which its script went on then)."""

    def offered(self, member: Member, first: messages.worker.Offered, offer: messages.worker.Offered) -> int | None:
        """The worker has come to `prepare`, and the others train on that first offer: let its script go on.

        Return the epoch in which it does; None if the worker is given up.
        """
        hosts = self._members.hosts if self._settings.hosts > 1 else {}
        differs = difference(first, offer)
        why = f"it differs from the others: {differs}" if differs else ""
        if why := why or unequal_hosts({0: first, member.worker: offer}, hosts):
            self._members.give_up(member, why)
            return None
        member.scalars = offer.scalars
        self._members.comes(member.worker)
        nth = self._joins[member.worker] + 1
        epoch = self._policy.admitted_in(member.worker, nth)
        epoch = self._data.epoch if epoch is None else epoch
        self._admitted.append((member.worker, nth, epoch))
        self._ledger.note("admitted", self._admitted)
        self._cluster.admit(member.worker, epoch, self._clock.at())
        return epoch

    def wanted(self, member: Member, epoch: int) -> None:
        """The worker, which takes no part yet, asks for a batch in that epoch. If there may be one, it joins."""
        first = self._policy.joins_in(member.worker)
        if self._data.leases.offers(member.worker, epoch) if first is None else epoch >= first:
            self.joins(member)

    def joins(self, member: Member) -> None:
        """The script of that worker makes its first step: it takes part from now on."""
        if member.stage != "offered":
            return
        worker = member.worker
        self._members.trains(worker)
        self._data.joins(worker)
        step = self._next_steps.get(worker, 0)
        here = f"is back, and goes on with step {step}" if member.incarnation else f"takes part from step {step} on"
        self._output.say(f"worker {worker} {here}")
        host, at = self._members.hosts[worker], self._clock.at()
        self._report(WorkerJoined(worker=worker, host=host, step=step, at=at))

    def released(self, order: Release) -> None:
        """The order is about to be carried out. A joiner that was given no replica begins with the recorded mean."""
        worker = order.worker
        self._next_steps[worker] = max(self._next_steps.get(worker, 0), order.step + 1)
        self._last[worker] = order.last
        if worker not in self._without or order.parameters != "own" or not self._data.owned:
            return
        if worker in self._members.absent():  # it has left since: the machine is about to hear that
            return
        self._without.discard(worker)
        newest = self._versions.newest.version
        if not newest and self._settings.resumed is not None:
            raise RunFailed(f"worker {worker} has nothing to begin with: no other is left, and no mean is recorded")
        self._data.begins_anew(worker)
        self._cluster.begin_anew(worker, newest or None, self._versions.file(newest))

    def switches(self, members: Sequence[int]) -> None:
        """These workers begin the next part of the protocol. Others that train have no replica then."""
        self._without = {worker for worker in self._ready if worker not in members}

    def resumed(self, next_steps: Mapping[int, int]) -> None:
        """The run goes on. A worker that joins goes on as well, if it had made steps before."""
        self._next_steps |= next_steps

    def handed_over(self, worker: int, source: int | None) -> None:
        """The worker gets what that one's script keeps: which of the others live to pack it, no fact says."""
        self._handed.append((worker, self._joins[worker], source))
        self._ledger.note("handed", self._handed)

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        match fact:
            case TrainingBegan(members=members):
                for worker, _, step in members:
                    self._ready[worker] = self._next_steps[worker] = step
            case GradientReady(worker=worker, step=step):
                self._ready[worker] += 1
                if step < self._last.get(worker, -1):  # it is at the next one by now
                    self._next_steps[worker] = step + 2
            case WorkerLeft(worker=worker):
                self._ready.pop(worker, None)
            case ReplicaCopied(worker=worker):
                self._without.discard(worker)
            case WorkerJoined(worker=worker):
                self._without.add(worker)
                others = sorted(self._ready, key=lambda one: (-self._ready[one], one))
                self._ready[worker] = 0
                self._joins[worker] += 1
                if worker in self._members.absent():  # it has left since, and the machine is about to hear that
                    return
                self._cluster.join(worker, self._policy.hand_over(worker, self._joins[worker], others))


def _nothing() -> None:
    pass
