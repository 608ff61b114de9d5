"""How versions come to workers, and their updates to the store: through shared memory, at a network's pace if asked."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.cluster.network import Direction, SharedLink
from paceline.cluster.scenario import Network
from paceline.core.facts import Fact, ParametersTaken, UpdateArrived, WorkerLeft
from paceline.core.leases import Leases
from paceline.core.orders import ApplyUpdate, Order, Release, StartPull, StartPush
from paceline.records.journal import Journal
from paceline.records.times import TransferTimes
from paceline.runtime import messages
from paceline.runtime.member import Member, Pushed
from paceline.runtime.offers import lack_of_memory, slots_for
from paceline.runtime.store_client import StoreClient


@dataclass(frozen=True, slots=True)
class _Flow:
    """A transfer under way."""

    member: Member
    direction: Direction
    number: int
    """The step that is pushed, or the version that is pulled."""
    then: Callable[[], None]


class Exchange:
    """Carries out orders of pushes and pulls, and keeps count of which worker needs which slot and push area.

    Nothing is copied here. A gradient lies where the store finds it, a version where the worker maps it. Without
    a network a transfer is over as it begins. With one it takes what a fluid model of the link says, and `next`
    tells its end: `at` is the model's time, to the last bit, however late the loop comes to it.
    `ReplicaExchange` has the same methods, for replicas.
    """

    def __init__(
        self,
        network: Network | None,
        steps_in_store: bool,
        areas: int,
        members: Mapping[int, Member],
        journal: Journal,
        send: Callable[[Member, messages.Message], None],
        happened: Callable[[Fact], None],
        now: Callable[[], float],
    ) -> None:
        """`now()` is seconds since the run's start. `happened` takes the facts that an order causes at once.

        If the store does not step the optimizer, no hyperparameters are sent to it.
        """
        self.areas = areas
        """Push areas of each worker."""
        self.slots = slots_for(len(members))
        """Push areas in all."""
        self.steps = 0
        """Gradients whose updates are applied."""
        self.present: float | None = None
        """Time of the event being handled: a fact, whose orders are carried out, or a message of the store."""
        self.lost: dict[int, None] = {}
        """As in `ReplicaExchange`."""
        self._members = members
        self._journal = journal
        self._send = send
        self._happened = happened
        self._now = now
        self._link = SharedLink.of(network)
        self._size = network.message if network is not None else None
        """Bytes of one transfer; None until the model's are known."""
        self._flows: dict[int, _Flow] = {}
        self._store: StoreClient | None = None
        self._leases = Leases("queue", [])
        self._steps_in_store = steps_in_store

    @property
    def samples(self) -> int:
        """Samples in the steps whose updates are applied."""
        return self._leases.settled

    deaths_are_told = False
    """As in `ReplicaExchange`."""
    undone: frozenset[tuple[int, int]] = frozenset()
    """As in `ReplicaExchange`: nothing is ordered of replicas."""

    def tell(self, fact: Fact) -> None:
        """As in `ReplicaExchange`: there are no replicas, but whose buffers count in a version is settled so, too."""
        if isinstance(fact, WorkerLeft) and fact.reason == "died":
            self.lost[fact.worker] = None

    def conclude(self) -> None:
        """As in `ReplicaExchange`."""

    @property
    def settled(self) -> bool:
        """As in `ReplicaExchange`: nothing is ordered of replicas."""
        return True

    def lack_of_memory(self, offer: messages.Offered, available: int) -> str:
        """Why this model does not fit into so many bytes; empty if it does."""
        return lack_of_memory(offer, len(self._members), available, self._steps_in_store)

    def connect(self, member: Member) -> list[socket.socket]:
        """Ends of sockets that this worker needs in addition to its channel: none."""
        return []

    def begin(self, store: StoreClient, leases: Leases, model_bytes: int) -> None:
        """Training begins, with this store, and with these leases of data."""
        self._store, self._leases = store, leases
        if self._size is None:
            self._size = model_bytes

    def reserve(self) -> int:
        """As in `ReplicaExchange`: a slot."""
        slot = self._stored().slots.free()
        assert slot is not None  # only the first version is there
        self._stored().slots.reserved.add(slot)
        return slot

    def unreserve(self, slot: int) -> None:
        """As in `ReplicaExchange`."""
        self._stored().slots.reserved.discard(slot)

    def adopt(self, slot: int, descriptors: list[int]) -> None:
        """The first version is in that slot from now on. The optimizer's state may come along."""
        self._stored().adopt(slot, descriptors)
        self.unreserve(slot)

    # --- orders -------------------------------------------------------------------------------------

    def carry_out(self, order: Order) -> None:
        """Carry out an order of pushes, pulls or versions."""
        match order:
            case Release():
                self._release(order)
            case StartPull():
                self._start_pull(order)
            case StartPush():
                self._start_push(order)
            case ApplyUpdate():
                self._apply(order)

    def _release(self, order: Release) -> None:
        """Let the worker compute, once it has that version and the store no longer needs what it will overwrite."""
        member = self._members[order.worker]
        member.step = order.step
        lacking = self._lacking(member, order.version)
        if order.parameters == "pull":
            self.let_go_of_slot(member)
            self._let_go_of_ahead(member)  # the step that it was pulled for did not come
            member.reading = order.version
            self._pull(member, order.version, lambda: self._compute(member, order, []))
            return
        if member.ahead == order.version:
            member.reading, member.ahead = member.ahead, None
        else:
            self._stored().slots.claim(order.version)
            member.reading = order.version
        self._compute(member, order, lacking if order.parameters == "eager" else [])

    def _lacking(self, member: Member, version: int) -> list[tuple[int, float]]:
        """What the worker has pushed and that version lacks: (push area, scale), in the order of the steps.

        What the version has is forgotten, as a worker is released on no older one. What it lacks is still in its area:
        the worker writes into none until it has computed the next step.
        """
        for step, one in list(member.pushed.items()):
            if one.version is not None and one.version <= version:
                del member.pushed[step]
        return [(one.area, one.scale) for one in member.pushed.values()]

    def _start_pull(self, order: StartPull) -> None:
        """Transfer a version to the worker that a later step is to begin with."""
        member = self._members[order.worker]
        if not member.trains:  # the machine is about to hear that the worker has left
            return
        self._let_go_of_ahead(member)
        member.ahead = order.version
        self._pull(member, order.version, lambda: None)

    def _start_push(self, order: StartPush) -> None:
        """Transfer the worker's update, which lies in its push area."""
        member = self._members[order.worker]
        member.scales[order.step] = order.scale
        if not member.trains:  # the machine is about to hear that the worker has left
            return
        member.pushed[order.step] = Pushed(member.areas[order.step], order.scale)
        if self._link is None:
            member.on_the_way.discard(order.step)
            self._happened(UpdateArrived(worker=member.worker, step=order.step, at=self._now()))
        else:
            self._start(member, "push", order.step, lambda: None)

    def _apply(self, order: ApplyUpdate) -> None:
        """Have the store make that version."""
        pushed = []
        self.steps += len(order.contributions)
        for worker, step, weight in order.contributions:
            self._leases.settle(worker, step)
            member = self._members[worker]
            pushed.append((member.areas[step], weight * member.scales[step]))
            if step in member.pushed:
                member.pushed[step].version = order.version
        lowest, step, _ = min(order.contributions)
        self._stored().apply(order, pushed, _scaled(self._members[lowest], step) if self._steps_in_store else None)

    def applied(self, order: ApplyUpdate) -> None:
        """The store has made the version: the updates' push areas are free."""
        for worker, step, _ in order.contributions:
            self.dropped(self._members[worker], step)

    def dropped(self, member: Member, step: int) -> None:
        """The step's update is no longer needed, or there will be none: its push area is free."""
        member.on_the_way.discard(step)
        member.areas.pop(step, None)
        member.scales.pop(step, None)
        member.scalars_of.pop(step, None)
        if step in member.pushed and member.pushed[step].version is None:  # no version will have it
            del member.pushed[step]
        if member.queued is not None:
            queued, member.queued = member.queued, None
            queued()

    # --- workers ------------------------------------------------------------------------------------

    def gradient_ready(self, member: Member, step: int) -> None:
        """The worker's step is computed: it no longer reads that version, and its update is about to come."""
        self.let_go_of_slot(member)
        if member.trains:
            member.on_the_way.add(step)
            member.scalars_of[step] = member.scalars

    def let_go_of_slot(self, member: Member) -> None:
        """The worker no longer reads that version."""
        if member.reading is not None and self._store is not None:
            self._store.unclaim(member.reading)
        member.reading = None

    def left(self, member: Member) -> None:
        """The worker takes no part any more: what was on the way to it or from it never ends.

        The slot that it shows stays claimed until its process ends, as its script may go on with the model.
        """
        for number, flow in list(self._flows.items()):
            if flow.member is member and self._link is not None and self._link.cancel(number, self._now()):
                del self._flows[number]
        member.queued = None
        self._let_go_of_ahead(member)

    def gone(self, member: Member) -> None:
        """The worker's process has ended."""
        self.let_go_of_slot(member)

    # --- the link -----------------------------------------------------------------------------------

    def next(self, until: float) -> Fact | None:
        """Return the fact of the earliest transfer that has ended by `until`: each once, in the order of their ends."""
        ended = self._link.finish(until) if self._link is not None else None
        if ended is None:
            return None
        flow = self._flows.pop(ended.number)
        times = TransferTimes(ended.began, ended.ended, self._now())
        flow.member.transfers.append((ended.direction, ended.began, ended.ended))
        self._journal.ledger.transferred(ended.worker, ended.direction, flow.number, ended.size, times)
        flow.then()
        if ended.direction == "push":
            flow.member.on_the_way.discard(flow.number)
            return UpdateArrived(worker=ended.worker, step=flow.number, at=ended.ended)
        return ParametersTaken(worker=ended.worker, version=flow.number, at=ended.ended)

    def due(self) -> float | None:
        """Seconds until the next transfer ends, if there is one."""
        end = self._link.next_end() if self._link is not None else None
        return None if end is None else max(0.0, end - self._now())

    def _let_go_of_ahead(self, member: Member) -> None:
        if member.ahead is not None:
            self._stored().unclaim(member.ahead)
        member.ahead = None

    def _pull(self, member: Member, version: int, then: Callable[[], None]) -> None:
        """Claim the version. Transfer it once it is whole, then go on."""

        def made(_: int) -> None:
            if not member.trains:
                return
            if self._link is None:
                then()
                self._happened(ParametersTaken(worker=member.worker, version=version, at=self._now()))
            else:
                self._start(member, "pull", version, then)

        if member.waits is None and member.step is not None and member.reading == version:
            member.wait(f"version {version} is being made")
        self._stored().when_made(version, made)

    def _start(self, member: Member, direction: Direction, number: int, then: Callable[[], None]) -> None:
        assert self._link is not None
        assert self._size is not None
        at = self._now() if self.present is None else self.present
        flow = self._link.begin(member.worker, direction, self._size, at)
        self._flows[flow] = _Flow(member, direction, number, then)

    def _compute(self, member: Member, order: Release, ahead: list[tuple[int, float]]) -> None:
        if not member.trains:
            return
        every = range(member.worker, len(self._members) * self.areas, len(self._members))
        area = next((one for one in every if one not in member.areas.values()), None)
        if area is None:
            member.wait("the store still needs its last updates")
            member.queued = lambda: self._compute(member, order, ahead)
            return
        member.areas[order.step] = area
        member.wait(None)
        member.released_at = self._now()
        slot = self._stored().slots.where[order.version]
        self._send(member, messages.Compute(order.step, order.version, slot, area, ahead))

    def _stored(self) -> StoreClient:
        assert self._store is not None  # nothing is ordered before the store is there
        return self._store


def _scaled(member: Member, step: int) -> list[dict[str, Any]]:
    """The worker's hyperparameters as of that step, with the learning rates and the momentum that hold now."""
    scales = {"lr": member.rate_scale, "momentum": member.momentum_scale}
    changed = {key: scale for key, scale in scales.items() if scale != 1.0}
    return [
        {**group, **{key: group[key] * scale for key, scale in changed.items() if key in group}}
        for group in member.scalars_of[step]
    ]
