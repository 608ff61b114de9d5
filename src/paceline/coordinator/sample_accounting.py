"""Which steps are in the model: how many, of how many samples, and whose replica has what no other one has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.coordinator.data import Data
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.facts import Fact, ReduceFailed, ReduceFinished, ReplicaCopied, TrainingBegan
from paceline.core.membership import Standing
from paceline.core.orders import ApplyUpdate, CopyReplica, Reduce, StepReplica
from paceline.records.journal import Journal


class SampleAccounting:
    """Counts steps as they are ordered. Settles their batches once no death can take them away."""

    def __init__(
        self,
        members: Mapping[int, Standing],
        data: Data,
        journal: Journal,
        policy: RunPolicy,
        *,
        owned: bool,
    ) -> None:
        """`owned`: whether each worker owns a replica."""
        self.steps = 0
        """Steps whose updates are in a version that is ordered, or in a replica."""
        self.samples = 0
        """Samples in these."""
        self.ordered_steps = 0
        """Steps in replicas, also those that were lost with one since."""
        self._members = members
        self._data = data
        self._journal = journal
        self._policy = policy
        self._owned = owned
        self._of: Counter[int] = Counter()
        """By worker: steps that its replica was ordered and makes."""
        self._unshared: dict[int, list[int]] = {}
        """By worker: steps in its replica that are in no other one yet."""
        self._groups: dict[int, tuple[int, ...]] = {}
        """By number: members of the groups that average replicas now."""
        self._owners: dict[int, None] = {}
        """Workers that own a replica which counts: not of those that died."""
        self._copies: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        """By worker that gets a copy: whose replica it is of, how many steps were in that then, and which of these were
        in no other one."""

    def ordered(self, order: ApplyUpdate | StepReplica | Reduce | CopyReplica) -> None:
        """A version is to be made, a replica to make a step or to be copied, or a group to average."""
        match order:
            case ApplyUpdate(contributions=contributions):
                self.steps += len(contributions)
                self.samples += sum(self._data.leases.settle(worker, step) for worker, step, _ in contributions)
            case StepReplica():
                self._step(order)
            case Reduce(group=group, members=members, what="parameters"):
                self._groups[group] = members
            case CopyReplica(source=source, worker=worker):
                self._copies[worker] = source, self._of[source], tuple(self._unshared.get(source, ()))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        match fact:
            case ReduceFinished(group=group):
                for worker in self._groups.pop(group, ()):
                    self._share(worker)
            case ReduceFailed(group=group):
                self._groups.pop(group, None)
            case TrainingBegan(members=members):
                self._owners = {worker: None for worker, _, _ in members} if self._owned else {}
            case ReplicaCopied(worker=worker):
                self._owners[worker] = None
                source, self._of[worker], steps = self._copies.pop(worker)
                for step in steps:
                    if step in (unshared := self._unshared.get(source, [])):
                        unshared.remove(step)
                        self._data.leases.settle(source, step)

    def dropped(self, worker: int, step: int) -> None:
        """The step is in no replica, or its replica is gone."""
        if step in (unshared := self._unshared.get(worker, [])):
            unshared.remove(step)
            self.steps -= 1
            self.samples -= self._data.leases.samples(worker, step)

    def left(self, worker: int) -> None:
        """The worker takes no part any more. Unless it died, its replica counts in the means from now on."""
        if self._members[worker].left != "died":
            self._share(worker)
        else:
            self._owners.pop(worker, None)

    @property
    def batches(self) -> int:
        """Batches that are in the model, or that no step will use."""
        bound = self._data.leases.bound
        unshared = sum(len(bound.get((worker, step), ())) for worker, step in self.in_replicas())
        return self._data.leases.used_up + unshared

    @property
    def replicas(self) -> list[int]:
        """Workers whose replicas have made steps, or could: none where there is a store."""
        return sorted(self._owners)

    def begins_anew(self, worker: int) -> None:
        """The worker begins with a recorded mean, as no replica is left."""
        self._owners[worker], self._of[worker] = None, max(self._of.values(), default=0)

    def in_replicas(self) -> list[tuple[int, int]]:
        """Each (worker, step) that is in that worker's replica, and in no other one yet."""
        return [(worker, step) for worker, steps in self._unshared.items() for step in steps]

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
            self.samples += self._data.leases.samples(worker, step)
        else:  # the mean gradient is in every replica
            self.samples += self._data.leases.settle(worker, step)

    def _share(self, worker: int) -> None:
        """What this worker's replica has is in another one, too, or counts for the last mean."""
        for step in self._unshared.pop(worker, ()):
            self._data.leases.settle(worker, step)
