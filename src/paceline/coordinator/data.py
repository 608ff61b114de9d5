"""Which worker gets which batch of data, and which steps with their samples are in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.leases import Batch, Leases
from paceline.core.membership import Left
from paceline.core.orders import ApplyUpdate, CopyReplica, DropUpdate, Reduce, Release, StartPush, StepReplica, steps_of
from paceline.ipc import messages
from paceline.records.journal import Journal


@dataclass(slots=True, eq=False)
class TrainingData:
    """Answers the workers' loaders from the book of leases, and writes down what comes of each batch.

    Steps are counted as they are ordered. Their batches are settled once no death can take them away.
    """

    _members: Members
    _journal: Journal
    _policy: RunPolicy
    owned: bool = field(kw_only=True)
    """Whether each worker owns a replica now."""
    leases: Leases = field(default_factory=lambda: Leases("queue", []))
    steps: int = 0
    """Steps whose updates are in a version that is ordered, or in a replica."""
    samples: int = 0
    """Samples in these."""
    _several: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, last step) of updates on their way that have several steps: how many."""
    ordered_steps: int = 0
    """Steps in replicas, also those that were lost with one since."""
    _own: Counter[int] = field(default_factory=Counter)
    """By worker: batches in its steps since it last took a version."""
    _round: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By worker in a round of own steps: batches that the run had used as it began, and workers that trained."""
    _live: set[int] = field(default_factory=set)
    """Workers that train, by what the machine was told. Their processes may have died before that."""
    _anew: set[int] = field(default_factory=set)
    """Epochs that are opened with another order than before the run was resumed."""
    _untold: dict[tuple[int, int], tuple[Batch, ...]] = field(default_factory=dict)
    """By (worker, step): batches that the script skipped before it, until the machine is told of that step."""
    _of: Counter[int] = field(default_factory=Counter)
    """By worker: how many steps its replica was ordered to make, and makes."""
    _unshared: dict[int, list[int]] = field(default_factory=dict)
    """By worker: steps in its replica that are in no other one yet."""
    _groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By number: members of the groups that average replicas now."""
    _owners: dict[int, None] = field(default_factory=dict)
    """Workers that own a replica which counts: not of those that died."""
    _copies: dict[int, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)
    """By worker that gets a copy: whose replica it is of, how many steps were in that then, and which of these were
    in no other one."""

    # --- what loaders say ---------------------------------------------------------------------------

    def wanted(self, member: Member, wanted: messages.worker.LeaseWanted) -> None:
        """The worker's loader wants its next batch: lease it one, or have the order drawn that it comes from.

        Raises ConfigError if its data isn't what it was.
        """
        if not member.trains:
            self._members.send(member, messages.worker.EpochOver())
            return
        if not self._policy.answers(member.worker, wanted.epoch):
            return
        if self.leases.opens_anew(wanted.epoch, wanted.digest, wanted.blocks):
            self._anew.add(wanted.epoch)
        if (undrawn := self.leases.undrawn(member.worker, wanted.epoch)) is not None:
            self._members.send(member, messages.worker.OrderWanted(*undrawn))
            return
        leases, worker = self.leases, member.worker
        begun = wanted.begins is None or leases.begin(worker, Batch(*wanted.begins))
        batch = leases.take(worker, wanted.epoch, wanted.digest, wanted.blocks, wanted.ahead)
        if batch is None and (found := leases.take_over(worker, wanted.epoch, wanted.ahead)) is not None:
            other, batch = found
            self._journal.ledger.taken(other, (batch.epoch, batch.index))
        if batch is not None:
            self._journal.ledger.leased(worker, wanted.epoch, (batch.epoch, batch.index))
            if was_taken := batch not in leases.held.get(worker, {}):  # as in the recorded run
                self._journal.ledger.taken(worker, (batch.epoch, batch.index))
            ahead = was_taken or batch in leases.ahead.get(worker, {})
            along = [] if was_taken else leases.take_along(worker, wanted.epoch, wanted.most - 1, joins=wanted.joins)
            for one in along:
                self._journal.ledger.leased(worker, wanted.epoch, (one.epoch, one.index), along=True)
            indices = [one.index for one in along]
            self._members.send(member, messages.worker.Leased(batch.epoch, batch.index, ahead, begun, indices))
            return
        for_now = leases.may_get_more(wanted.ahead)
        self._journal.ledger.leased(worker, wanted.epoch, None, for_now)
        self._members.send(member, messages.worker.EpochOver(for_now, begun))

    def begins(self, member: Member, wanted: messages.worker.BeginWanted) -> None:
        """The worker begins with a batch that it leased ahead of use, unless another worker has taken it over."""
        begun = not member.trains or self.leases.begin(member.worker, Batch(wanted.epoch, wanted.index))
        self._members.send(member, messages.worker.MayBegin(begun))

    def drawn(self, drawn: messages.worker.OrderDrawn) -> int | None:
        """Open the epoch, or its next block, in the order that the worker has drawn. Then it asks for its batch again.

        Do nothing if another worker has drawn that block meanwhile. Return the samples of the epoch that begins with
        this, if their number is known.
        """
        opened = self.leases.epochs.get(drawn.epoch)
        if drawn.block != (0 if opened is None else len(opened.digests)):
            return None
        first = 0 if opened is None else len(opened.sizes)
        self.leases.open(drawn.epoch, [len(batch) for batch in drawn.order], drawn.digest, drawn.last)
        self._journal.ledger.epoch_opened(drawn.epoch, drawn.order, drawn.digest, first, drawn.samples)
        if drawn.epoch in self._anew:
            self._anew.remove(drawn.epoch)
            self._journal.ledger.opened_otherwise(drawn.epoch)
        return drawn.samples if drawn.block == 0 else None

    def given_back(self, member: Member, batches: list[tuple[int, int]]) -> None:
        """The worker will not use these batches."""
        if not member.trains:
            return
        kept = self.leases.still_with(member.worker, _batches(batches))
        if self.holds(member, [(batch.epoch, batch.index) for batch in kept]):
            self.leases.give_back(member.worker, kept)

    def looked_at(self, member: Member, looked: messages.worker.LookedAt) -> None:
        """The worker only looked at these batches: they are as if never leased."""
        if not member.trains:
            return
        if looked.ran_out:
            self._journal.ledger.looked_at(member.worker, looked.epoch, None)
        kept = self.leases.still_with(member.worker, _batches(looked.batches))
        for batch in self.leases.put_back(member.worker, looked.epoch, kept):
            self._journal.ledger.looked_at(member.worker, batch.epoch, batch.index)

    def used(self, worker: int, done: messages.worker.StepFinished) -> int | None:
        """Note which batches went into that step, and which the script skipped. Return the samples in the step.

        Return None if samples are not counted.
        """
        if done.skipped:
            self.leases.skip(worker, _batches(done.skipped))
            self._untold[worker, done.step] = _batches(done.skipped)
        for epoch, index in done.skipped:
            self._journal.ledger.batch_used(worker, done.step, epoch, index, "skipped")
        if done.batches is None:
            return None
        self._own[worker] += len(done.batches)
        samples = self.leases.bind(worker, done.step, _batches(done.batches), _batches(done.again))
        for epoch, index in done.batches:
            self._journal.ledger.batch_used(worker, done.step, epoch, index, "step")
        for epoch, index in done.again:
            self._journal.ledger.batch_used(worker, done.step, epoch, index, "again")
        return samples

    def joins(self, worker: int) -> None:
        """The worker takes part from now on."""
        self.leases.join(worker)
        self._journal.ledger.leased(worker, None, None)

    def holds(self, member: Member, batches: list[tuple[int, int]], again: Collection[tuple[int, int]] = ()) -> bool:
        """Return whether these batches were leased to the worker, each once. If not, give the worker up.

        `again`: batches that it has used up before. They have to be of epochs that were opened.
        """
        held = self.leases.held.get(member.worker, {})
        strange = [pair for pair in batches if Batch(*pair) not in held]
        strange += [pair for pair in again if not self.leases.knows(Batch(*pair))]
        if not strange and len(set(batches)) == len(batches):
            return True
        epoch, index = (strange or batches)[0]
        self._members.give_up(member, f"it used batch {index} of epoch {epoch}, which it was not leased")
        return False

    # --- what is in the model -----------------------------------------------------------------------

    def ordered(self, order: ApplyUpdate | StepReplica | Reduce | CopyReplica) -> None:
        """A version is to be made, a replica to make a step or to be copied, or a group to average."""
        match order:
            case ApplyUpdate(contributions=contributions):
                self.steps += sum(self._several.pop((worker, step), 1) for worker, step, _ in contributions)
                self.samples += sum(self.leases.settle(worker, step) for worker, step, _ in contributions)
            case StepReplica():
                self._step(order)
            case Reduce(group=group, members=members, what="parameters"):
                self._groups[group] = members
            case CopyReplica(source=source, worker=worker):
                self._copies[worker] = source, self._of[source], tuple(self._unshared.get(source, ()))

    def switches(self, members: Sequence[int], *, owned: bool) -> None:
        """A version is ordered that has all replicas, or that replicas begin as. `owned`: whether these workers' do."""
        for worker in list(self._unshared):
            self._share(worker)
        self._of.clear()
        self.owned, self._owners = owned, dict.fromkeys(members) if owned else {}

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        match fact:
            case GradientReady(worker=worker, step=step):  # what was skipped before it is used up for good
                self._untold.pop((worker, step), None)
            case ReduceFinished(group=group):
                for worker in self._groups.pop(group, ()):
                    self._share(worker)
            case ReduceFailed(group=group):
                self._groups.pop(group, None)
            case WorkerJoined(worker=worker):
                self._live.add(worker)
            case WorkerLeft(worker=worker):
                self._live.discard(worker)
            case TrainingBegan(members=members):
                self._live = {worker for worker, _, _ in members}
                self._owners = {worker: None for worker, _, _ in members} if self.owned else {}
            case ReplicaCopied(worker=worker):
                self._owners[worker] = None
                source, self._of[worker], steps = self._copies.pop(worker)
                for step in steps:
                    if step in (unshared := self._unshared.get(source, [])):
                        unshared.remove(step)
                        self.leases.settle(source, step)

    def pushed(self, order: StartPush) -> None:
        """An update begins to move. From now on the batches of all its steps are those of the last one."""
        if len(steps := steps_of(order)) > 1:
            self._several[order.worker, order.step] = len(steps)
            self.leases.join_steps(order.worker, steps)

    def dropped(self, order: DropUpdate) -> None:
        """The update will be in no version: its step is in no replica, or its replica is gone."""
        worker, step = order.worker, order.step
        if step in (unshared := self._unshared.get(worker, [])):
            unshared.remove(step)
            self.steps -= 1
            self.samples -= self.leases.samples(worker, step)
        self._several.pop((worker, step), None)
        for one in steps_of(order):
            self.leases.drop(worker, one, order.samples)

    def left(self, worker: int, how: Left) -> None:
        """The worker has left training. Unless it died, its replica stays in the means."""
        if self._members[worker].left != "died":
            self._share(worker)
        else:
            self._owners.pop(worker, None)
        self.leases.leave(worker, died=how in ("died", "drained"))  # others take what was set aside for it

    def plain(self) -> dict[str, Any]:
        """The book of leases as it is with all that the machine was told. See `Leases.plain`."""
        return self.leases.plain(self._in_replicas, self._unskipped)

    @property
    def epoch(self) -> int:
        """The epoch that a run goes on in which has all that the machine was told. See `Leases.epoch`."""
        return self.leases.epoch(self._in_replicas, self._unskipped)

    def progress(self, order: Release) -> tuple[int, int]:
        """Batches that the run has used, as the worker of this order is to see it, and how many more with each of its.

        In a round of own steps it sees those as of the round's beginning, and for each of its own since, one of every
        worker. So a schedule goes on in a round as it does between rounds.
        """
        if self.owned or (order.parameters != "own" and order.steps == 1):
            return self.batches, 0
        worker = order.worker
        if order.parameters != "own":
            self._own[worker] = 0
            self._round[worker] = self.batches, len(self._live)
        used, pace = self._round[worker]
        return used + self._own[worker] * pace, pace

    @property
    def batches(self) -> int:
        """Batches that are in the model, or that no step will use, by what the machine was told."""
        bound = self.leases.bound
        unshared = sum(len(bound.get((worker, step), ())) for worker, step in self._in_replicas)
        return self.leases.used_up + unshared - sum(map(len, self._untold.values()))

    @property
    def replicas(self) -> list[int]:
        """Workers whose replicas have made steps, or could: none where there is a store."""
        return sorted(self._owners)

    def begins_anew(self, worker: int) -> None:
        """The worker begins with a recorded mean, as no replica is left."""
        self._owners[worker], self._of[worker] = None, max(self._of.values(), default=0)

    def resumed(self, steps: int, samples: int) -> None:
        """The run goes on, with so many steps of so many samples in the model."""
        self.steps, self.samples = steps, samples

    def foremost(self, workers: Sequence[int]) -> list[int]:
        """Those of these workers whose replicas make the most steps."""
        most = max((self._of[worker] for worker in workers), default=0)
        return [worker for worker in workers if self._of[worker] == most]

    def _step(self, order: StepReplica) -> None:
        worker, step = order.worker, order.step
        trains = self._members[worker].trains and (worker, step) not in self._policy.undone
        if not trains:
            self._journal.undone(worker, step)
        if order.group is None and not trains:
            return  # it will not be made: the machine is about to hear that its worker has left
        self.steps += 1
        self.ordered_steps += 1
        self._of[worker] += trains
        if order.group is None:
            self._unshared.setdefault(worker, []).append(step)
            self.samples += self.leases.samples(worker, step)
        else:  # the mean gradient is in every replica
            self.samples += self.leases.settle(worker, step)

    def _share(self, worker: int) -> None:
        """What this worker's replica has is in another one, too, or counts for the last mean."""
        for step in self._unshared.pop(worker, ()):
            self.leases.settle(worker, step)

    @property
    def _in_replicas(self) -> list[tuple[int, int]]:
        """Each (worker, step) that is in that worker's replica, and in no other one yet."""
        return [(worker, step) for worker, steps in self._unshared.items() for step in steps]

    @property
    def _unskipped(self) -> list[Batch]:
        """What was skipped before steps that the machine was not told of."""
        return [batch for batches in self._untold.values() for batch in batches]


def _batches(pairs: list[tuple[int, int]]) -> tuple[Batch, ...]:
    return tuple(Batch(epoch, index) for epoch, index in pairs)
