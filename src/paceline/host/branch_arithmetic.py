"""The arithmetic process of a host that is not the head: it adds up updates, and makes a range of each version.

A host with one worker has nothing to add up, and one without a shard makes no range. With neither it has no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.contract import SUMS
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.server import ShardServer
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region
from paceline.transfer.manager import TransferManager


class BranchArithmetic:
    """What was ordered of sums and versions is done in the order of the orders."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        workers: Workers,
        carrier: TransferManager,
        report: Callable[[host_messages.SaidOfSums], object],
        loop: Loop,
    ) -> None:
        self.ranges: ShardServer | None = None
        """What orders versions of it. None: it makes none."""
        self.process = StoreProcess(
            shelf, loop, ready=lambda _: self._begins(), not_forked=self._not_forked, hear=self._hear, lost=self._lost
        )
        self.summer = HostReducer(shelf, plan, self.process, there=carrier.made, not_finite=self._not_finite)
        self._workers = workers
        self._report = report
        self._forker: int | None = None
        """The worker that was asked last to fork the process."""
        self._fork: Callable[[], None] = lambda: None
        """Asks the next worker."""
        self._ready: Callable[[], None] = lambda: None

    def fork(
        self,
        forkers: Callable[[], Iterable[int]],
        region: Region,
        order: messages.worker.ForkStore,
        ready: Callable[[], None],
    ) -> None:
        """Have the lowest worker fork the process. If it dies before it has, the next one does.

        `forkers()` are those that have come to `prepare` and are there. `ready` is called once the process is there, or
        can't be.
        """
        asked: set[int] = set()

        def fork() -> None:
            there = sorted(set(forkers()) - asked)
            if not there:
                self.process.lose(f"no process of its script is left there to start {self.process.name}")
                return
            self._forker = there[0]
            asked.add(there[0])
            end = self.process.open()
            self._workers.send(there[0], order, (region.descriptor, end.fileno()))
            end.close()

        self._ready, self._fork = ready, fork
        fork()

    def sum_up(self, order: host_messages.SumUp) -> None:
        """Add these updates up."""
        terms = [(Update(worker, step), weight) for worker, step, weight in order.terms]
        self.summer.sum_up(Sum(order.number), terms, look=order.look)

    def could_not(self, worker: int, why: str) -> bool:
        """The worker could not fork the process. Return whether the run can go on without: nothing but sums is lost."""
        if worker != self._forker or self.ranges is not None:
            return False
        self.process.lose(f"{SUMS} can't be started: {why}")
        return True

    def close(self) -> None:
        """Tell the process to end, and see that it does."""
        self.process.close()

    # --- what it says -------------------------------------------------------------------------------

    def _hear(self, message: messages.Message, descriptors: list[int]) -> bool:
        if isinstance(message, messages.store.Summing | messages.store.Summed):
            return self.summer.heard(message)
        return self.ranges is not None and self.ranges.hear(message, descriptors)

    def _not_finite(self, parameter: str, worker: int | None) -> None:
        if worker is not None:
            self._report(host_messages.SumNotFinite(parameter, worker))

    def _not_forked(self) -> None:
        assert self._forker is not None
        if self.ranges is not None:  # most likely it has died. A worker that can't fork goes on if only sums are lost
            self._workers.end(self._forker)
        self._fork()

    def _lost(self, why: str) -> None:
        self.summer.lost()
        if self.ranges is None:
            self._report(host_messages.SumsLost(why))
        else:
            self.ranges.lost(why)  # the run fails, and its workers are ended in their turn
        self._begins()

    def _begins(self) -> None:
        """Let the host begin, if it has not."""
        ready, self._ready = self._ready, lambda: None
        ready()
