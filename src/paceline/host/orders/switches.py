"""Switches from one part of a protocol to another: the optimizer's state moves, and all later orders wait for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.core.orders import Order, Release, StartPull, StartPush
from paceline.host.events import Impossible, Report, StatesGiven
from paceline.ipc import messages

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


class Switches:
    """Carries out a switch once all versions are made that were ordered before it.

    Where workers' optimizers step from then on, each gets the state of the store's. Where the store's steps, it gets
    the mean of theirs. A worker that dies before it has given its state is not in that mean.
    """

    def __init__(self, cluster: Cluster, report: Report, gives: Callable[[list[int]], list[int]]) -> None:
        """`gives(members)`: those whose states count. A replay knows who has lived to give one."""
        self.part: int | None = None
        """The number of the part that is to decide; None: no switch is under way."""
        self.held: list[Order] = []
        """Orders that wait for the switch."""
        self._when_done: list[Callable[[], object]] = []
        self._cluster = cluster
        self._report = report
        self._gives = gives
        self._versions_made = False
        """Whether all versions are made that were ordered before the switch."""
        self._awaited: dict[int, int | None] = {}
        """By worker that is to give its optimizer's state: the descriptor of that; None: it has not."""

    @property
    def busy_with(self) -> str | None:
        """What is under way, for a person to read."""
        return None if self.part is None else "moving the optimizer's state for the next part of the protocol"

    def when_done(self, call: Callable[[], object]) -> None:
        """Call once no switch is under way, before the orders go on that have waited for one."""
        if self.part is None:
            call()
        else:
            self._when_done.append(call)

    def begin(self, part: int, members: Sequence[int]) -> None:
        """Let that part decide. These workers take part in it."""
        cluster, after = self._cluster, self._cluster.here.choice.part(part).spec
        if cluster.spec.optimizer == after.optimizer == "store":  # nothing moves, so nothing waits
            self._decides(part)
            return
        self.part, self._versions_made = part, False
        if after.optimizer == "store":
            self._awaited = {one: None for one in self._gives(list(members)) if cluster.seats[one].here}
            for worker in self._awaited:
                cluster.send(worker, messages.worker.GiveState())
        cluster.commits.when_idle(self._have_made_versions)

    def given(self, worker: int, error: str | None, descriptors: Sequence[int]) -> None:
        """The worker gives its optimizer's state, or can't."""
        if worker not in self._awaited:
            return
        if error is not None or not descriptors:
            self._report(Impossible(error or f"worker {worker} has given nothing of its optimizer"))
            return
        self._awaited[worker] = os.dup(descriptors[0])
        self._go_on()

    def left(self, worker: int) -> None:
        """The worker takes no part any more: what it was to do is not for a process that comes in its place."""
        its_own = Release | StartPull | StartPush
        self.held = [one for one in self.held if not (isinstance(one, its_own) and one.worker == worker)]

    def gone(self, worker: int) -> None:
        """The worker's process has ended."""
        if self._awaited.get(worker, 0) is None:
            del self._awaited[worker]
            self._go_on()

    def came(self, error: str | None, descriptors: Sequence[int]) -> None:
        """The store's process has packed what the optimizer goes on with elsewhere, or can't."""
        if error is not None:
            self._report(Impossible(error))
        else:
            self._take_effect(descriptors[0])

    def _have_made_versions(self) -> None:
        self._versions_made = True
        self._go_on()

    def _go_on(self) -> None:
        cluster = self._cluster
        if self.part is None or None in self._awaited.values() or not self._versions_made:
            return
        part, store, shares = cluster.here.choice.part(self.part), cluster.store, cluster.shares
        if cluster.spec.optimizer == "store":
            shares.when_own_is_whole(lambda: store.send(messages.store.SendState(None, *shares.ask())))
            return
        given, self._awaited = self._awaited, {}
        for _, file in sorted(given.items()):
            assert file is not None
            store.send(messages.store.TakeState(), (file,))
            os.close(file)
        store.send(messages.store.Become(part.outer))
        if part.spec.optimizer == "store":
            self._report(StatesGiven(sorted(given)))
        if given and cluster.shards:
            store.send(messages.store.SendWhole())
        else:
            self._take_effect(None)

    def _take_effect(self, state: int | None) -> None:
        """Tell all, and let the orders go on that have waited. `state`: the file of what goes elsewhere, if it does."""
        cluster, (number, self.part) = self._cluster, (self.part, None)
        assert number is not None
        self._decides(number)
        for_workers = cluster.spec.optimizer != "store"
        if for_workers and state is not None:
            cluster.store.send(messages.store.Become(cluster.here.part.outer))
        cluster.here.tell_part(state if for_workers else None)
        cluster.others.switched(number, state)
        done, self._when_done = self._when_done, []
        for call in done:
            call()
        held, self.held = self.held, []
        for order in held:
            cluster.carry_out_now(order)

    def _decides(self, part: int) -> None:
        cluster = self._cluster
        cluster.part, cluster.here.part = part, cluster.here.choice.part(part)
        cluster.hyperparameters.steps_in_store = cluster.spec.optimizer == "store"
        cluster.commits.another_part(clips_norms=cluster.clips_norms)
