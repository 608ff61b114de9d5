"""Real workers and a real store, whose facts come from elsewhere: a clock of its own, or a recording.

Each order is carried out to its end before the next one, and its results are kept until they are asked for. So
what a run comes to depends only on the sequence of the orders, and not on how fast any worker was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.coordinator.coordinator import Coordinator
from paceline.coordinator.lifecycle import Training
from paceline.coordinator.member import Member
from paceline.coordinator.versions import RecordedVersions
from paceline.core.facts import (
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.membership import Left
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StartPush, StepReplica, SwitchProtocol
from paceline.errors import RunFailed
from paceline.records.summary import Outcome

Result = GradientReady | StepDeclined | WorkerLeft
"""The result of a released step."""


class Director:
    """Has a coordinator carry out each order at a given moment, and tells no machine when it was done.

    `begin`, then `direct` for each order, `result` for each release, `tell` for each group and copy. `lose` is for
    workers to be killed, `join` for others that begin in their place, and `see_off` for workers without data left.
    Then `end`.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._run_state = coordinator.run_state
        self.policy = coordinator.run_state.policy
        """What the coordinator is to do, apart from the orders. It is filled before `begin`."""
        self._results: dict[tuple[int, int], Result] = {}
        """By (worker, step), the releases that no `result` has asked about yet."""
        self._averaged: dict[int, ReduceFinished] = {}
        """By group: averages that are made, until the caller tells of them."""
        self._gone: dict[int, WorkerLeft] = {}
        self._joined: dict[int, WorkerJoined] = {}
        self._copied: dict[int, ReplicaCopied] = {}
        """By worker: copies that are made, until the caller tells of them."""
        self._began: TrainingBegan | None = None

    @property
    def model_bytes(self) -> int:
        """The size of what a push or a pull transfers."""
        assert isinstance(self._coordinator.phase, Training)
        return self._coordinator.phase.offer.model_bytes

    @property
    def versions(self) -> RecordedVersions:
        """The versions that are written to disk."""
        return self._run_state.versions

    @property
    def outcome(self) -> Outcome:
        """What the run comes to, as far as is known."""
        return self._run_state.shutdown.outcome

    @property
    def interrupted(self) -> bool:
        """Whether the end was asked for: the results of orders mean nothing from then on."""
        return self._run_state.shutdown.interrupted

    def begin(self, absent: Sequence[int] = ()) -> TrainingBegan:
        """Wait until training begins, with all workers but those that are absent. Raises RunFailed if it doesn't.

        In the recorded run these had ended before. They are ended here, too.
        """
        self._coordinator.open()
        for worker in absent:
            self.policy.lost[worker] = None
            self._run_state.cluster.end(worker)
        self._await(lambda: self._began is not None or not self._run_state.members.here())
        if self._began is None:
            raise RunFailed(self._run_state.shutdown.error or "all workers ended before training began")
        missing = self._run_state.members.keys() - {worker for worker, _, _ in self._began.members} - set(absent)
        if missing:
            raise RunFailed(f"worker {min(missing)} ended before training began")
        self._run_state.tell(self._began)
        return self._began

    def has_opened(self, epoch: int, batch: int) -> bool:
        """Whether a worker has drawn the order of that epoch's samples, up to that batch."""
        opened = self._run_state.data.leases.epochs.get(epoch)
        return opened is not None and batch < len(opened.sizes)

    def show(self, share: Callable[[], float]) -> None:
        """From now on show how the run goes. `share` says how much is done, 0 to 1, apart from the script's data."""
        self._run_state.display.show_share(share)

    def direct(self, order: Order, at: float) -> None:
        """Carry the order out at that moment, to its end."""
        self._carry_out(order, at)
        self._end(order)

    def direct_first(self, orders: Sequence[Order], at: float) -> None:
        """Carry out what follows from the beginning of training, to its end.

        All workers are released before one of them is awaited, as in a run: each script has what training began with
        before another one may change it for all.
        """
        for order in orders:
            self._carry_out(order, at)
        for order in orders:
            self._end(order)

    def _carry_out(self, order: Order, at: float) -> None:
        self.policy.moment = at
        if isinstance(order, Release):  # in a run the release comes before that
            self._run_state.adopting.book.shows(order.worker)
        self._coordinator.carry_out(order)

    def _end(self, order: Order) -> None:
        """Wait until the order is carried out."""
        run_state = self._run_state
        match order:
            case Release(worker=worker, step=step):
                self._expect_area(run_state.members[worker], step)
                self._await(lambda: self._has_come_of(run_state.members[worker], step))
            case StartPush(worker=worker):
                self._await(lambda: not run_state.cluster.own_steps.awaits(worker))
            case ApplyUpdate() | SwitchProtocol():
                self._await(lambda: run_state.cluster.progress.idle)
            case StepReplica() | Reduce():
                # a mean that is being recorded, too, is of replicas that have made their steps
                self._await(lambda: (now := run_state.cluster.progress).settled and now.idle)

    def _expect_area(self, member: Member, step: int) -> None:
        """Raise RunFailed if that step waits for a push area that none of the orders to come could free."""
        steps = self._run_state.cluster.updates(member.worker).in_the_way
        if not steps:
            return
        settings, waiting = self._run_state.settings, ", ".join(map(str, steps))
        choice, declared = settings.choice, settings.choice.unapplied(settings.workers)
        raise RunFailed(
            f"{choice.spec.name} releases worker {member.worker} for step {step} while its steps {waiting} are not "
            f"applied, and declares at most {declared} at once; declare more (Spec.unapplied)"
        )

    def result(self, worker: int, step: int) -> Result:
        """Return the result of that released step. Raises RunFailed if its script has failed or asks for other data."""
        if worker in self.policy.astray:
            raise RunFailed(self.policy.astray[worker])
        left = self._gone.get(worker)
        made = self._results.pop((worker, step), None)
        # a worker that dies right after the step may be gone before anybody asks about the step
        if made is None and left is not None and left.reason == "died":
            raise RunFailed(f"worker {worker} died in step {step}: its script failed")
        if isinstance(made, GradientReady):
            self._run_state.tell(made)
        return made or left or StepDeclined(worker=worker, step=step, at=self.policy.moment)

    def arrived(self, fact: UpdateArrived) -> None:
        """That update is here, as all are. It may be in a sum."""
        self._run_state.cluster.tell(fact)

    def tell(self, fact: ReduceFinished | ReduceFailed | ReplicaCopied) -> None:
        """That group's average is made, or has failed; or that copy is made."""
        if isinstance(fact, ReplicaCopied):
            self._await(lambda: fact.worker in self._copied or fact.worker in self._gone)
            if self._copied.pop(fact.worker, None) is None:
                return  # its script had no step to make
        else:
            self._averaged.pop(fact.group, None)
        self._run_state.tell(fact)

    def join(self, worker: int, step: int) -> None:
        """Have a process begin as this worker, which was lost. Return when its script makes that step, or ends.

        Raises RunFailed if it begins with another step.
        """
        member = self._run_state.members[worker]
        self.policy.returns(worker)
        self._gone.pop(worker, None)
        self._run_state.returns.begin(member)
        self._await(lambda: worker in self._joined or worker in self._gone or not member.comes)
        joined = self._joined.pop(worker, None)
        if joined is None:  # there is no data left for it
            self._gone.setdefault(worker, WorkerLeft(worker=worker, reason="finished", at=self.policy.moment))
        elif joined.step != step:
            raise RunFailed(f"worker {worker} joins with step {joined.step}, and not with {step}")
        else:
            self._run_state.tell(joined)

    def resume(self, fact: WorkerResumed) -> None:
        """The worker, which has paused in `agree`, goes on."""
        self._run_state.agreeing.resume(fact.worker)
        self._run_state.tell(fact)

    def bring_one_back(self) -> None:
        """If all workers have died, have a process begin as one of them. No data is left for it.

        Where the recorded run did not fail of their deaths, a worker came back after them, or was about to.
        """
        members = self._run_state.members.values()
        if not any(member.here for member in members):
            member = min(members, key=lambda member: member.worker)
            self.policy.returns(member.worker)
            self._run_state.returns.begin(member)
            self._await(lambda: not member.comes or member.worker in self._joined)

    def lose(self, worker: int, untold: int | None = None, how: Left = "died") -> None:
        """Kill the worker. The machine hears that it leaves in this way.

        `untold`: a step of the worker whose gradient the machine won't hear of. Nor will it hear of the gradients that
        no `result` has asked about. The batches of all these steps return.
        """
        member = self._run_state.members[worker]
        self.policy.lost[worker] = None
        if how == "drained":
            member.left = how  # so its end is no death
        self._run_state.cluster.end(worker)
        self._await(lambda: not member.here)
        self.policy.leaves(worker)
        self._copied = {joiner: copied for joiner, copied in self._copied.items() if copied.source != worker}
        member.left = how  # also if its script had ended by itself
        self._run_state.tell(WorkerLeft(worker=worker, reason=how, at=self.policy.moment))
        unasked = [step for one, step in self._results if one == worker]
        for step in unasked if untold is None else [*unasked, untold]:
            self._results.pop((worker, step), None)
            self._run_state.data.leases.drop(worker, step, "return")

    def see_off(self, worker: int) -> None:
        """The worker has no data left: its script goes on to its end, or to `finish()`.

        Raises RunFailed if it asks for another batch than it was to get.
        """
        self._await(lambda: worker in self._gone or worker in self.policy.asks_in_vain or worker in self.policy.astray)
        if worker in self.policy.astray:
            raise RunFailed(self.policy.astray[worker])
        if worker in self.policy.asks_in_vain and worker not in self._gone and not self._run_state.shutdown.stopping:
            raise RunFailed(f"worker {worker} asks for a batch once more than the table leases has it")
        self.policy.leaves(worker)
        self._run_state.tell(WorkerLeft(worker=worker, reason="finished", at=self.policy.moment))

    def stop(self) -> None:
        """End training: the workers' scripts go on after their loops."""
        self._run_state.shutdown.conclude()

    def end(self) -> None:
        """No more orders will come: record the last version, have versions evaluated, and let all processes go."""
        if self._run_state.members.any_trains:
            self.stop()
        while True:
            self._take()
            for fact in list(self._averaged.values()):  # no other facts will come: these take effect
                self.tell(fact)
            if self._coordinator.ended():
                self._run_state.inbox.hear()
                break
            self._run_state.inbox.wait()

    def _has_come_of(self, member: Member, step: int) -> bool:
        """Whether that step's gradient is there, or there will be none."""
        worker = member.worker
        leaving = worker in self.policy.asks_in_vain or self._run_state.departures.awaits(member)
        return (worker, step) in self._results or worker in self._gone or leaving or worker in self.policy.astray

    def _await(self, done: Callable[[], bool]) -> None:
        """Listen until that is true, or the run is to stop."""
        while True:
            self._take()
            if done() or self._run_state.shutdown.stopping:
                return
            self._run_state.inbox.wait()

    def _take(self) -> None:
        """Keep what will be asked for of what has happened."""
        self._run_state.inbox.hear()
        self._run_state.departures.go_on()
        self._run_state.inbox.hear()
        while self._run_state.happened:
            match fact := self._run_state.happened.popleft():
                case TrainingBegan():
                    self._began = fact
                case GradientReady(worker=worker, step=step) | StepDeclined(worker=worker, step=step):
                    self._results[worker, step] = fact
                case WorkerLeft(worker=worker):
                    self._gone[worker] = fact
                case ReduceFinished(group=group):  # the caller says when
                    self._averaged[group] = fact
                case WorkerJoined(worker=worker):
                    self._joined[worker] = fact
                case ReplicaCopied(worker=worker):
                    self._copied[worker] = fact
