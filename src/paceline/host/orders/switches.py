"""Switches from one part of a protocol to another: state moves, and all later orders wait for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from paceline.core.items import Replica, Version
from paceline.core.orders import Order, Release, StartPull, StartPush
from paceline.host.claims import Owner
from paceline.host.contract import SwitchVersion
from paceline.host.events import Impossible, Report, StatesGiven, SwitchMade
from paceline.ipc import messages

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster

CUT: Owner = ("cut for a switch",)
"""Who needs the replicas that the next part's first version is made of."""
MADE: Owner = ("version of a switch",)
"""Who needs that version until the next part begins with it."""


class Switches:
    """Carries out a switch once all is made that was ordered before it.

    Where workers' optimizers step from then on, each gets the state of the store's. Where the store's steps, it gets
    the mean of theirs, and so does each worker if replicas are to stay equal. Replicas begin as a version that the
    switch makes. After replicas their mean is that version. A worker that dies before it has given its state, or its
    replica has made its steps, is in no mean.
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
        self._members: Sequence[int] = ()
        """The workers that take part in the next part."""
        self._makes: SwitchVersion | None = None
        """The version that the switch makes, if it makes one."""
        self._cut: dict[int, Replica] = {}
        """By worker: the replicas that are in that version."""
        self._lacks: set[Literal["made", "states", "version", "state"]] = set()
        """What the switch waits for: that all is made that was ordered before it, workers' states, the version that it
        makes, and the state that goes elsewhere."""
        self._awaited: dict[int, int | None] = {}
        """By worker that is to give its optimizer's state: the descriptor of that, or None."""
        self._instead: list[int] = []
        """Where all workers have one state: those to ask if the one that gives it dies."""

    @property
    def busy_with(self) -> str | None:
        """What is under way, for a person to read."""
        return None if self.part is None else "switching to the next part of the protocol"

    def when_done(self, call: Callable[[], object]) -> None:
        """Call once no switch is under way, before the orders go on that have waited for one."""
        if self.part is None:
            call()
        else:
            self._when_done.append(call)

    def begin(self, part: int, members: Sequence[int], makes: SwitchVersion | None = None) -> None:
        """Let that part decide. These workers take part in it."""
        cluster, before, after = self._cluster, self._cluster.spec, self._cluster.here.choice.part(part).spec
        if makes is None and before.optimizer == after.optimizer == "store":  # nothing moves, so nothing waits
            self._decides(part)
            return
        equal = after.state == "replicas" and after.pushes == "gradient"
        self.part, self._members, self._makes, self._lacks = part, members, makes, {"made"}
        if makes is not None:
            self._lacks.add("version")
        if after.optimizer != "store" and (before.optimizer == "store" or equal):
            self._lacks.add("state")
        if before.optimizer != "store" and (after.optimizer == "store" or equal):
            self._lacks.add("states")
            there = [one for one in self._gives(list(members)) if cluster.seats[one].here]
            one_state = before.state == "replicas" and before.pushes == "gradient"
            if one_state:  # of a worker that has stepped, and has not just joined
                self._instead = [one for one in there if makes is not None and one in makes.workers] or there[:1]
            self._ask(self._instead[:1] if one_state else there)
        if before.state == "replicas":
            assert makes is not None
            self._cut_through(list(makes.workers))
        else:
            cluster.commits.when_idle(self._have_made)

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
        self._members = [one for one in self._members if one != worker]

    def gone(self, worker: int) -> None:
        """The worker's process has ended."""
        self._instead = [one for one in self._instead if one != worker]
        if self._awaited.get(worker, 0) is None:
            del self._awaited[worker]
            if not self._awaited:
                self._ask(self._instead[:1])
            self._go_on()

    def made(self, version: int, distance: float | None) -> bool:
        """The store's process has made that version. Return whether it was to."""
        if "version" not in self._lacks or self._makes is None or self._makes.version != version:
            return False
        self._lacks.discard("version")
        self._cluster.transfers.let_go(CUT)
        workers = list(self._cut) or list(self._makes.workers)
        self._report(SwitchMade(version, workers, self._members, distance))
        self._go_on()
        return True

    def came(self, error: str | None, descriptors: Sequence[int]) -> None:
        """The store's process has packed what the optimizer goes on with elsewhere, or can't."""
        if error is not None:
            self._report(Impossible(error))
        else:
            self._lacks.discard("state")
            assert not self._lacks  # the store's process answers in order
            self._take_effect(descriptors[0])

    def _cut_through(self, workers: Sequence[int]) -> None:
        """Keep these workers' replicas as they are now, and bring them here once all steps are made.

        If one will never be made, its worker's is not among them.
        """
        cluster = self._cluster
        if not workers:
            self._report(Impossible("every worker whose replica the next part could begin with has died"))
            return
        self._cut = {worker: cluster.replicas.replica(worker) for worker in workers}
        cluster.transfers.keep(CUT, *self._cut.values())

        def made() -> None:
            cluster.transfers.bring(CUT, self._cut, self._have_made, lambda lost: without([lost]))

        def without(lost: Iterable[int]) -> None:
            cluster.transfers.let_go(CUT)
            left = [worker for worker in workers if worker not in set(lost)]
            if len(left) == len(workers):
                cluster.transfers.keep(CUT, *self._cut.values())
                made()
            else:
                self._cut_through(left)

        cluster.replicas.after(cluster.replicas.workers, made, without)

    def _ask(self, workers: Sequence[int]) -> None:
        """Have these workers give their optimizers' states."""
        for worker in workers:
            self._awaited[worker] = None
            self._cluster.send(worker, messages.worker.GiveState())

    def _have_made(self) -> None:
        """All is made that was ordered before. The store's process may make the version while workers give states."""
        self._lacks.discard("made")
        if self._makes is not None:
            self._make(self._makes)
        if "states" not in self._lacks:
            self._move([])
        self._go_on()

    def _go_on(self) -> None:
        if self.part is None or "made" in self._lacks:
            return
        if "states" in self._lacks and None not in self._awaited.values():
            self._lacks.discard("states")
            self._move(self._taken())
        if not self._lacks:
            self._take_effect(None)

    def _taken(self) -> list[int]:
        """Pass on to the store's process what workers have given. Return whose states these are."""
        given, self._awaited = sorted(self._awaited.items()), {}
        for _, file in given:
            assert file is not None
            self._cluster.store.send(messages.store.TakeState(), (file,))
            os.close(file)
        workers = [worker for worker, _ in given]
        self._report(StatesGiven(workers))
        return workers

    def _move(self, given: Sequence[int]) -> None:
        """The store's process has all states that it gets, of these workers. Have it make versions, or pass one on."""
        cluster, part = self._cluster, self._cluster.here.choice.part(self.part or 0)
        passes_on = "state" in self._lacks
        if cluster.spec.optimizer != "store" and not (passes_on and given):
            cluster.store.send(messages.store.Become(part.outer(cluster.plan.capacity)))
        if passes_on:  # `came` follows
            shares, store = cluster.shares, cluster.store
            shares.when_own_is_whole(lambda: store.send(messages.store.SendState(None, *shares.ask())))
        elif given and cluster.shards:
            self._lacks.add("state")
            cluster.store.send(messages.store.SendWhole())

    def _make(self, makes: SwitchVersion) -> None:
        """Have the store's process make the version that the next part begins with: `made` follows."""
        cluster, of_store = self._cluster, self._cluster.spec.state == "store"
        items = [Version(cluster.newest)] if of_store else list(self._cut.values())
        sources = [cluster.plan.area(cluster.shelf.place(item)) for item in items]
        workers = list(makes.workers if of_store else self._cut)
        target = cluster.shelf.put(Version(makes.version), MADE, cluster.plan.shared)
        assert target is not None  # `memory_plan.BESIDE_READERS` counts this one
        order = messages.store.MakeBeginning(
            makes.version, sources, workers, of_store, cluster.plan.area(target), makes.file, makes.buffers, makes.known
        )
        cluster.store.write(order, *items, Version(makes.version))

    def _take_effect(self, state: int | None) -> None:
        """Tell all, and let the orders go on that have waited. `state`: the file of what goes elsewhere, if it does."""
        cluster, (number, self.part) = self._cluster, (self.part, None)
        assert number is not None
        if cluster.owns_replicas:
            cluster.replicas_end()
        self._decides(number)
        for_workers = cluster.spec.optimizer != "store"
        if for_workers and state is not None:
            cluster.store.send(messages.store.Become(cluster.here.part.outer(cluster.plan.capacity)))
        makes, self._makes, self._cut = self._makes, None, {}
        replicas: Mapping[int, int] = {}
        if makes is not None:
            cluster.commits.goes_on_from(makes.version, stored=not cluster.owns_replicas)
            if cluster.owns_replicas:
                members = [worker for worker in self._members if cluster.seats[worker].trains]
                replicas = cluster.replicas_begin(members, Version(makes.version))
        cluster.here.tell_part(state if for_workers else None)
        cluster.others.switched(number, state, None if makes is None else makes.version, replicas)
        cluster.put_replicas(replicas)
        cluster.joins.switched()
        cluster.shelf.release(MADE)
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
