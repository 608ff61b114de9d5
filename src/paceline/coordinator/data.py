"""Which worker gets which batch of data: what loaders ask for, use, give back, and only look at."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from paceline.coordinator.member import Member
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.leases import Batch, Leases
from paceline.errors import ConfigError
from paceline.ipc import messages
from paceline.records.ledger import Ledger


class Data:
    """Answers the workers' loaders from the book of leases, and writes down what comes of each batch."""

    def __init__(
        self,
        ledger: Ledger,
        policy: RunPolicy,
        *,
        send: Callable[[Member, messages.Message], None],
        refuse: Callable[[str], None],
        give_up: Callable[[Member, str], None],
        opened: Callable[[int], None],
    ) -> None:
        """`refuse(why)` ends the run, and `give_up(member, why)` a worker that says what is false.

        `opened(samples)` is called when an epoch of so many samples begins.
        """
        self.leases = Leases("queue", [])
        self._ledger = ledger
        self._policy = policy
        self._send = send
        self._refuse = refuse
        self._give_up = give_up
        self._opened = opened
        self._anew: set[int] = set()
        """Epochs that are opened with another order than before the run was resumed."""
        self._untold: dict[tuple[int, int], tuple[Batch, ...]] = {}
        """By (worker, step): batches that the script skipped before it, until the machine is told of that step."""

    def wanted(self, member: Member, wanted: messages.worker.LeaseWanted) -> None:
        """The worker's loader wants its next batch: lease it one, or have the order drawn that it comes from."""
        if not member.trains:
            self._send(member, messages.worker.EpochOver())
            return
        if not self._policy.answers(member.worker, wanted.epoch):
            return
        if self.leases.opens_anew(wanted.epoch, wanted.digest, wanted.blocks):
            self._anew.add(wanted.epoch)
        if (undrawn := self.leases.undrawn(member.worker, wanted.epoch)) is not None:
            self._send(member, messages.worker.OrderWanted(*undrawn))
            return
        leases, worker = self.leases, member.worker
        begun = wanted.begins is None or leases.begin(worker, Batch(*wanted.begins))
        try:
            batch = leases.take(worker, wanted.epoch, wanted.digest, wanted.blocks, wanted.ahead)
        except ConfigError as error:
            self._refuse(str(error))
            return
        if batch is None and (found := leases.take_over(worker, wanted.epoch, wanted.ahead)) is not None:
            other, batch = found
            self._ledger.taken(other, (batch.epoch, batch.index))
        if batch is not None:
            self._ledger.leased(worker, wanted.epoch, (batch.epoch, batch.index))
            if was_taken := batch not in leases.held.get(worker, {}):  # as in the recorded run
                self._ledger.taken(worker, (batch.epoch, batch.index))
            ahead = was_taken or batch in leases.ahead.get(worker, {})
            self._send(member, messages.worker.Leased(batch.epoch, batch.index, ahead, begun))
            return
        for_now = leases.may_get_more(wanted.ahead)
        self._ledger.leased(worker, wanted.epoch, None, for_now)
        self._send(member, messages.worker.EpochOver(for_now, begun))

    def begins(self, member: Member, wanted: messages.worker.BeginWanted) -> None:
        """The worker begins with a batch that it was leased ahead of use."""
        begun = not member.trains or self.leases.begin(member.worker, Batch(wanted.epoch, wanted.index))
        self._send(member, messages.worker.MayBegin(begun))

    def drawn(self, drawn: messages.worker.OrderDrawn) -> None:
        """The worker asks for its batch once more. Another worker may have drawn the same block meanwhile."""
        opened = self.leases.epochs.get(drawn.epoch)
        if drawn.block != (0 if opened is None else len(opened.digests)):
            return
        first = 0 if opened is None else len(opened.sizes)
        self.leases.open(drawn.epoch, [len(batch) for batch in drawn.order], drawn.digest, drawn.last)
        self._ledger.epoch_opened(drawn.epoch, drawn.order, drawn.digest, first, drawn.samples)
        if drawn.epoch in self._anew:
            self._anew.remove(drawn.epoch)
            self._ledger.opened_otherwise(drawn.epoch)
        if drawn.block == 0 and drawn.samples is not None:
            self._opened(drawn.samples)

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
            self._ledger.looked_at(member.worker, looked.epoch, None)
        kept = self.leases.still_with(member.worker, _batches(looked.batches))
        for batch in self.leases.put_back(member.worker, looked.epoch, kept):
            self._ledger.looked_at(member.worker, batch.epoch, batch.index)

    def used(self, worker: int, done: messages.worker.StepFinished) -> int | None:
        """Note which batches went into that step, and which the script skipped. Return the samples in the step.

        Return None if samples are not counted.
        """
        if done.skipped:
            self.leases.skip(worker, _batches(done.skipped))
            self._untold[worker, done.step] = _batches(done.skipped)
        for epoch, index in done.skipped:
            self._ledger.batch_used(worker, done.step, epoch, index, "skipped")
        if done.batches is None:
            return None
        samples = self.leases.bind(worker, done.step, _batches(done.batches), _batches(done.again))
        for epoch, index in done.batches:
            self._ledger.batch_used(worker, done.step, epoch, index, "step")
        for epoch, index in done.again:
            self._ledger.batch_used(worker, done.step, epoch, index, "again")
        return samples

    def told(self, worker: int, step: int) -> None:
        """The machine is told of that step now: what was skipped before it is used up for good."""
        self._untold.pop((worker, step), None)

    def plain(self, in_replicas: Collection[tuple[int, int]]) -> dict[str, Any]:
        """The book of leases as it is with all that the machine was told. See `Leases.plain`."""
        return self.leases.plain(in_replicas, self._unskipped())

    def epoch(self, in_replicas: Collection[tuple[int, int]]) -> int:
        """The epoch that a run goes on in which has all that the machine was told. See `Leases.epoch`."""
        return self.leases.epoch(in_replicas, self._unskipped())

    def _unskipped(self) -> list[Batch]:
        return [batch for batches in self._untold.values() for batch in batches]

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
        self._give_up(member, f"it used batch {index} of epoch {epoch}, which it was not leased")
        return False


def _batches(pairs: list[tuple[int, int]]) -> tuple[Batch, ...]:
    return tuple(Batch(epoch, index) for epoch, index in pairs)
