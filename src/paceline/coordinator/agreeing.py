"""`paceline.agree`: answers workers that decide together, and pauses those that wait. No step waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.coordinator.clock import RunClock
from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.agreements import Agreements, Call, Value
from paceline.core.facts import Fact, StepDeclined, WorkerLeft, WorkerResumed
from paceline.core.orders import DropUpdate
from paceline.errors import ConfigError
from paceline.host.cluster import Cluster
from paceline.host.events import Report
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.records.ledger import Ledger

NOT_SIMULATED = "paceline.agree() is not simulated: workers wait there for each other, which no model of time knows of"


@dataclass(slots=True, eq=False)
class Agreeing:
    """Knows who waits in `agree`, and for whom."""

    _members: Members
    _cluster: Cluster
    _ledger: Ledger
    _policy: RunPolicy
    _clock: RunClock
    _report: Report
    _output: WorkerOutput
    _book: Agreements = field(default_factory=Agreements)
    _waiting: dict[int, messages.worker.Agrees] = field(default_factory=dict)
    """By worker: the call that it waits in."""
    _pausing: dict[int, bool] = field(default_factory=dict)
    """Workers that were told to pause, and whether they have declined their step."""
    _going_on: set[int] = field(default_factory=set)
    """Workers that go on, and are not released yet."""

    def resumed(self, decided: Mapping[Call, Value]) -> None:
        """The run goes on, with what was decided before."""
        self._book.decided |= decided

    def joins(self, worker: int, epoch: int) -> None:
        """The worker's script begins in that epoch, while others train."""
        self._book.joins(worker, epoch)

    def wants(self, member: Member, wanted: messages.worker.Agrees) -> None:
        """The worker's script has called `agree`. Raises ConfigError if that can't be answered."""
        worker = member.worker
        if not (member.trains or member.stage == "offered"):
            return  # it is told that the run is stopped
        self._waiting[worker] = wanted
        if self._policy.directed:
            self._as_recorded(member)
            return
        call = Call(wanted.epoch, wanted.nth)
        if self._book.give(worker, call, wanted.how, wanted.value):  # it was decided before
            self._answer(member, self._book.decided[call])
            return
        self.go_on()
        if worker in self._waiting:
            self._name_awaited(call)
            if member.step is not None and wanted.epoch:  # before the first loop no worker trains
                self._pause(member)

    def goes_on(self, worker: int, batches: Iterable[tuple[int, int]]) -> None:
        """The worker's script has made a step of these (epoch, batch), so it makes no call of an earlier epoch."""
        if not self._book.open:
            return
        epoch = max((epoch for epoch, _ in batches), default=-1)
        if self._members[worker].trains and (line := self._book.goes_on(worker, epoch)):
            self._output.say(line)

    def paused(self, member: Member, *, revoked: bool = False) -> None:
        """The worker has declined the step that it was released for. `revoked`: its round was ended, and it goes on."""
        if member.step is None or not (revoked or member.worker in self._pausing):
            return
        worker, step, member.step = member.worker, member.step, None
        self._cluster.carry_out(DropUpdate(worker=worker, step=step, samples="return"), self._clock.moment())
        self._report(StepDeclined(worker=worker, step=step, at=self._clock.at(), paused=True, revoked=revoked))
        self._pausing[worker] = True
        if worker not in self._waiting:  # it has its answer by now
            self._go_on_with(worker)

    def go_on(self) -> None:
        """Decide the calls that no further worker is awaited for."""
        if not self._book.open:
            return
        for call, values, result in self._book.decide(self._training()):
            for worker in sorted(values):
                if (wanted := self._waiting.get(worker)) is not None and call == (wanted.epoch, wanted.nth):
                    self._answer(self._members[worker], result)

    def resume(self, worker: int) -> None:
        """As recorded, the worker goes on now: it has its answer."""
        if self._pausing.pop(worker, None):
            self._going_on.add(worker)
        if worker in self._waiting and (recorded := self._policy.agreement(worker)):
            self._answer(self._members[worker], *recorded)

    def copies(self, worker: int) -> None:
        """The worker is to get another replica. One that goes on is told to wait for it, which a joiner does anyway."""
        if worker in self._going_on:
            self._going_on.discard(worker)
            self._members.send(self._members[worker], messages.worker.Behind())

    def released(self, worker: int) -> None:
        """The worker is released."""
        self._going_on.discard(worker)

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        if isinstance(fact, WorkerLeft):
            self._book.left(fact.worker)
            self._waiting.pop(fact.worker, None)
            self._pausing.pop(fact.worker, None)
            self._going_on.discard(fact.worker)

    def _as_recorded(self, member: Member) -> None:
        if self._policy.decides:
            raise ConfigError(NOT_SIMULATED)
        if member.step is not None and (member.worker, member.step) in self._policy.paused:
            self._pause(member)
        else:
            self.resume(member.worker)

    def _pause(self, member: Member) -> None:
        self._pausing[member.worker] = False
        self._members.send(member, messages.worker.Pause())

    def _answer(self, member: Member, result: Value) -> None:
        worker, wanted = member.worker, self._waiting.pop(member.worker)
        self._ledger.agreed(worker, (wanted.epoch, wanted.nth), wanted.how, wanted.value, result)
        member.wait(None)
        self._members.send(member, messages.worker.Agreed(wanted.epoch, wanted.nth, result))
        if self._pausing.get(worker):
            self._go_on_with(worker)

    def _go_on_with(self, worker: int) -> None:
        del self._pausing[worker]
        if self._members[worker].trains:
            self._going_on.add(worker)
            self._report(WorkerResumed(worker=worker, at=self._clock.at()))

    def _name_awaited(self, call: Call) -> None:
        awaited = self._book.awaited(call, self._training())
        for worker, wanted in self._waiting.items():
            if call == (wanted.epoch, wanted.nth):
                self._members[worker].wait(("agree", tuple(awaited)))

    def _training(self) -> list[int]:
        return [member.worker for member in self._members.values() if member.trains]
