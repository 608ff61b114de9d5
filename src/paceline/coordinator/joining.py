"""How workers take part that come while others train, and which processes begin anew in the place of dead ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from paceline.coordinator.clock import Clock
from paceline.coordinator.data import Data
from paceline.coordinator.member import Member
from paceline.coordinator.recordings import Recordings
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.sample_accounting import SampleAccounting
from paceline.core.facts import Fact, GradientReady, ReplicaCopied, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.core.membership import Membership
from paceline.core.orders import Release
from paceline.errors import RunFailed
from paceline.host.contract import Host
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.processes import NoProcess
from paceline.job.compatibility import difference, unequal_hosts
from paceline.job.settings import Settings
from paceline.records.ledger import Ledger
from paceline.scenario.scenario import Kill

if TYPE_CHECKING:
    from paceline.host.all_workers import AllWorkers


There = Literal["here", "away", "gone"]
"""Where a worker's host is. `away`: it was lost, and may come again; `gone`: it won't."""
AWAY = 60.0
"""Seconds that a lost host has to come again if nobody trains meanwhile."""


class Returns:
    """Begins a process in the place of one that has died: after a while, if the scenario says so, or `--restart`."""

    def __init__(
        self,
        settings: Settings,
        membership: Membership[Member],
        workers: Workers | AllWorkers,
        host: Host,
        loop: Loop,
        *,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        there: Callable[[int], There],
    ) -> None:
        """`stopping()`: whether the run is about to end, so that no process begins. `there(worker)`: see `There`."""
        self._settings = settings
        self._membership = membership
        self._workers = workers
        self._host = host
        self._loop = loop
        self._say = say
        self._stopping = stopping
        self._there = there
        self.in_vain: Callable[[Member], None] = lambda member: None
        """Told of a worker that can't be started again. The coordinator sets it."""
        self._due: list[Member] = []
        """Workers whose time to come back has come."""
        self._killed: dict[int, Kill] = {}
        """By worker: the event that has killed it, by time."""
        self._over = False
        """Whether no worker trains any more."""
        self._alone_since: float | None = None
        """Since when nobody trains, and hosts are awaited to go on with."""

    def kill(self, event: Kill) -> None:
        """The moment of that event has come. A worker that is away can't die."""
        if any(member.worker == event.worker for member in self._membership.here()):
            self._killed[event.worker] = event
            self._workers.end(event.worker)

    def due(self, member: Member, step: int | None) -> float | None:
        """The worker has died in that step, if in any. Return after how many seconds it is to come back, if at all."""
        event = self._killed.pop(member.worker, None) or self._settings.scenario.kill_at_step(member.worker, step)
        if self._stopping() or self._over or self._there(member.worker) == "gone":
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

    def go_on(self) -> None:
        """Begin what is due. The machine has been told how the last processes ended, and all that they had said.

        A round waits for who comes back, whose last processes may have updates in it. They go first if they take all
        places: the round would wait for the worker, and the worker for a place.
        """
        due, self._due = [member for member in self._due if member.comes_back], []
        for member in due:
            match self._there(member.worker):
                case "here" if self._host.updates(member.worker).full:
                    self._due.append(member)
                case "here":
                    self._begin(member)
                case "gone":
                    self._give_up(member, "its host has ended")
                case "away":
                    self._due.append(member)
        self._await_hosts()

    def awaits(self, workers: Sequence[int]) -> bool:
        """Whether any of these workers is to begin again."""
        return any(one.worker in workers for one in self._membership.awaited())

    def close(self) -> None:
        """No worker trains any more: none comes back, as nothing would be left for it."""
        self._over = True
        self._membership.nobody_comes_back()

    def begin(self, member: Member) -> None:
        """Begin a process as this worker, whose own has ended. Raises NoProcess."""
        self._membership.returns(member.worker)
        member.begins_anew()
        self._host.returns(member.worker)
        self.start([member.worker])

    def start(self, workers: Sequence[int]) -> None:
        """Begin processes as these workers, whose scripts begin beside others. Raises NoProcess."""
        self._workers.start(workers)
        if self._settings.start == "staggered":
            for one in self._membership.to_begin():
                self._membership.begins(one.worker)
                self._workers.send(one.worker, messages.worker.Start())

    def _begin(self, member: Member) -> None:
        if not member.comes_back:  # the run ends
            return
        try:
            self.begin(member)
        except NoProcess as error:
            self._membership.goes(member.worker)
            self._host.gone(member.worker)
            self._give_up(member, str(error))

    def _give_up(self, member: Member, why: str) -> None:
        member.comes_back = False
        self._say(f"worker {member.worker} can't be started again: {why}")
        self.in_vain(member)

    def _await_hosts(self) -> None:
        """If nobody trains, hosts that are away are not awaited for ever."""
        if not self._due or self._membership.any_trains:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = self._loop.now()
            self._loop.after(AWAY, _nothing)  # which comes by here once more
        elif self._loop.now() - self._alone_since >= AWAY:
            due, self._due = self._due, []
            for member in due:
                self._give_up(member, f"its host has not come back within {AWAY:.0f} s")


class Joining:
    """Tells the machine of workers that join, at the first step of their scripts, and sees to what they begin with."""

    def __init__(
        self,
        settings: Settings,
        membership: Membership[Member],
        host: Host,
        data: Data,
        applied: SampleAccounting,
        recordings: Recordings,
        ledger: Ledger,
        policy: RunPolicy,
        clock: Clock,
        *,
        hosts: Mapping[int, str],
        happened: Callable[[Fact], None],
        say: Callable[[str], None],
        give_up: Callable[[Member, str], None],
        stopping: Callable[[], bool],
        admitted: Callable[[int, int], None],
    ) -> None:
        """`hosts`: see `Rooms`. `happened` takes the fact that a worker has joined. `stopping()`: whether workers were
        told to stop. `admitted(worker, epoch)` is told in which epoch a worker's script goes on.
        """
        self._settings = settings
        self._hosts = hosts
        self._membership = membership
        self._host = host
        self._data = data
        self._applied = applied
        self._recordings = recordings
        self._ledger = ledger
        self._policy = policy
        self._clock = clock
        self._happened = happened
        self._say = say
        self._give_up = give_up
        self._stopping = stopping
        self._tell_admitted = admitted
        self._next_steps: dict[int, int] = {}
        """By worker: the next step number that is unused."""
        self._ready: dict[int, int] = {}
        """By worker that takes part, as the machine was told: how many gradients of it were ready."""
        self._joins: Counter[int] = Counter()
        """How often each worker has joined, as the machine was told."""
        self._handed: list[tuple[int, int, int | None]] = []
        """Worker, its how manieth return, and who has handed over to it then."""
        self._without: set[int] = set()
        """Workers that have joined, as the machine was told, and were given no replica."""
        self._admitted: list[tuple[int, int, int]] = []
        """Worker, its how manieth return, and the epoch in which its script went on then."""

    def offered(self, member: Member, first: messages.worker.Offered, offer: messages.worker.Offered) -> None:
        """The worker has come to `prepare`, and the others train on that first offer: let its script go on."""
        if why := difference(first, offer):
            self._give_up(member, f"it differs from the others: {why}")
            return
        hosts = self._hosts if self._settings.hosts > 1 else {}
        if why := unequal_hosts({0: first, member.worker: offer}, hosts):
            self._give_up(member, why)
            return
        member.scalars = offer.scalars
        self._membership.comes(member.worker)
        nth = self._joins[member.worker] + 1
        epoch = self._policy.admitted_in(member.worker, nth)
        epoch = self._data.epoch(self._applied.in_replicas()) if epoch is None else epoch
        self._admitted.append((member.worker, nth, epoch))
        self._tell_admitted(member.worker, epoch)
        self._ledger.note("admitted", self._admitted)
        self._host.admit(member.worker, epoch, self._clock.at())

    def wanted(self, member: Member, epoch: int) -> None:
        """The worker, which takes no part yet, asks for a batch in that epoch. If there may be one, it joins."""
        first = self._policy.joins_in(member.worker)
        if self._data.leases.offers(member.worker, epoch) if first is None else epoch >= first:
            self.joins(member)

    def joins(self, member: Member) -> None:
        """The script of that worker makes its first step: it takes part from now on."""
        if member.stage != "offered" or self._stopping():
            return
        worker = member.worker
        self._membership.trains(worker)
        self._data.leases.join(worker)
        self._ledger.leased(worker, None, None)
        step = self._next_steps.get(worker, 0)
        here = f"is back, and goes on with step {step}" if member.incarnation else f"takes part from step {step} on"
        self._say(f"worker {worker} {here}")
        self._happened(WorkerJoined(worker=worker, host=self._hosts[worker], step=step, at=self._clock.at()))

    def released(self, order: Release) -> None:
        """The order is about to be carried out. A joiner that was given no replica begins with the recorded mean."""
        worker = order.worker
        self._next_steps[worker] = max(self._next_steps.get(worker, 0), order.step + 1)
        if worker not in self._without or order.parameters != "own" or worker in self._membership.absent():
            return  # one that is absent has left since: the machine is about to hear that
        self._without.discard(worker)
        newest = self._recordings.newest.version
        if not newest and self._settings.resumed is not None:
            raise RunFailed(f"worker {worker} has nothing to begin with: no other is left, and no mean is recorded")
        self._applied.begins_anew(worker)
        self._host.begin_anew(worker, newest or None, self._recordings.file(newest))

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
            case GradientReady(worker=worker):
                self._ready[worker] += 1
            case WorkerLeft(worker=worker):
                self._ready.pop(worker, None)
            case ReplicaCopied(worker=worker):
                self._without.discard(worker)
            case WorkerJoined(worker=worker):
                self._without.add(worker)
                others = sorted(self._ready, key=lambda one: (-self._ready[one], one))
                self._ready[worker] = 0
                self._joins[worker] += 1
                if worker in self._membership.absent():  # it has left since, and the machine is about to hear that
                    return
                self._host.join(worker, self._policy.hand_over(worker, self._joins[worker], others))


def _nothing() -> None:
    pass
