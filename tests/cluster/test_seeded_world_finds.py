"""Faults that are put back into the code of a run: few seeds of the world in virtual time find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from paceline.coordinator.agent import _Agent
from paceline.coordinator.drain import Drain
from paceline.coordinator.host_registry import HostRegistry
from paceline.core.host_liveness import Fence
from paceline.core.items import Partial, Update, Version
from paceline.core.orders import StartPush
from paceline.host import messages as host_messages
from paceline.host.cluster import Cluster
from paceline.host.item_table import ItemTable
from paceline.host.orders.averages import GroupAverages
from paceline.host.orders.averaging import Averaging
from paceline.host.orders.commit_queue import CommitQueue
from paceline.host.orders.expected_round import ExpectedRound
from paceline.host.orders.pushes import Pushes
from paceline.host.orders.reducers import GroupShare, Ring
from paceline.host.orders.releases import Releases
from paceline.host.other_hosts import OtherHosts
from paceline.host.overlap import Computing, Early
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers
from paceline.host.shards.early_versions import EarlyVersions
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.migration import Moves
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.shards.range_maker import RangeMaker
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Span
from paceline.net.numbered import Line
from paceline.transfer.byte_ranges import ByteRanges
from paceline.transfer.manager import TransferManager
from support.world.faults import Drained, History, beginning, drawn, grouped
from support.world.world import run

Patch = pytest.MonkeyPatch
MOST = 400
"""Seeds that are tried for each."""


# Histories in which a fault is sought


def as_drawn(history: History) -> History:
    return history


def stopped_early(history: History) -> History:
    """Without faults, and with a limit that is reached while workers compute."""
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8, looks=0.3)
    return replace(history, script=script, faults=(), lost=(), max_steps=history.seed % 7 + 1)


def in_ranges(history: History) -> History:
    """With a range of each version on every host."""
    return replace(history, script=replace(history.script, pieces=4), restart=0, shards_on="all")


def with_sums(history: History) -> History:
    """With several workers a host, whose updates go together."""
    return replace(in_ranges(history), protocol="bsp", each=2 + history.seed % 2)


def with_hosts_that_leave(history: History) -> History:
    """One host after the other is asked to leave, and nothing else goes wrong."""
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8, looks=0.3, pieces=4)
    leave = tuple(Drained(0.1 + 0.2 * number, name) for number, name in enumerate(history.names[1:]))
    return replace(in_ranges(history), script=script, end=1.0, faults=leave, lost=())


def in_groups(history: History) -> History:
    """Where replicas are averaged, by the same seed."""
    return grouped(history.seed)


def all_reduces(history: History) -> History:
    """The same where gradients are averaged."""
    return replace(grouped(history.seed), protocol="all-reduce")


def begins(history: History) -> History:
    """Where versions are begun before they are ordered, by the same seed."""
    return beginning(history.seed)


# Faults of one function


def nothing(self: Any, *given: Any, **named: Any) -> None:
    pass


Plain = tuple[Callable[[History], History], type, str, Any]
"""What is made of a seed's history, and what in the code is something else."""

PLAIN: dict[str, Plain] = {
    "what is not acknowledged is not sent again": (
        as_drawn,
        Line,
        "again",
        lambda self, received, again=Line.again: again(self, received) and b"",
    ),
    "what is served stays claimed": (as_drawn, ItemTable, "release", nothing),
    "a worker that has gone keeps its version": (as_drawn, Releases, "gone", nothing),
    "what training begins with stays lent to a lost host": (as_drawn, Versions, "begun", nothing),
    "training begins before all hosts are there": (as_drawn, HostRegistry, "_awaits", lambda self: False),
    "half a version counts as here": (
        as_drawn,
        Versions,
        "away",
        lambda self, item: isinstance(item, Version) and not self._shelf.has(item),
    ),
    "a version that did not come counts as here": (
        stopped_early,
        Versions,
        "free",
        lambda self, item, whole, free=Versions.free: free(self, item, True),
    ),
    "the workers of a lost host are not told": (
        as_drawn,
        OtherHosts,
        "lost",
        lambda self, name, why: self._cluster.versions.begun(name),
    ),
    "a version that came early is taken before it is made": (
        in_ranges,
        Versions,
        "when_made",
        lambda self, version, call: call(),
    ),
    "what a worker has withdrawn still counts": (in_ranges, Early, "withdrawn", nothing),
    "a version is recorded without the others' ranges": (
        in_ranges,
        Cluster,
        "brings",
        lambda self, version, then: then(),
    ),
    "a run goes on without a host that made ranges": (in_ranges, OtherHosts, "shard_lost", nothing),
    "updates in sums come without their buffers": (with_sums, Cluster, "buffers_of", lambda self, total: []),
    "a sum is served before it is made": (
        with_sums,
        HostReducer,
        "look",
        lambda self, item, *at, look=HostReducer.look: "here" if self._shelf.has(item) else look(self, item, *at),
    ),
    "a version is made while a range moves": (
        with_hosts_that_leave,
        Moves,
        "rests",
        lambda self, rests=Moves.rests: rests(self) and False,
    ),
    "a range moves without the versions that are needed": (with_hosts_that_leave, Moves, "_versions", lambda self: []),
    "a host goes while its state is on its way": (
        with_hosts_that_leave,
        Shares,
        "when_idle",
        lambda self, call: call(),
    ),
    "a worker of a host that leaves does not finish its step": (
        with_hosts_that_leave,
        Drain,
        "_in_step",
        lambda self, member, drain: False,
    ),
    "a slice is made before all partials are here": (in_groups, Ring, "_summed_all", lambda self, within: True),
    "a copy is kept though nobody needs it": (in_groups, ReplicaTransfers, "_drop", nothing),
    "a cut is recorded before replicas are here": (
        in_groups,
        ReplicaTransfers,
        "bring",
        lambda self, owner, replicas, then, lost: then(),
    ),
    "a copy begins before the source has made its steps": (
        in_groups,
        ReplicaTable,
        "after",
        lambda self, workers, do, never=None: do(),
    ),
    "a member that has begun anew counts as there": (
        in_groups,
        GroupAverages,
        "_lost",
        lambda self, average: tuple(one for one in average.order.members if not self._seats[one].here),
    ),
    "a gradient goes with its worker that is about to be averaged": (
        in_groups,
        Pushes,
        "left",
        lambda self, worker, unapplied=(), left=Pushes.left: left(self, worker),
    ),
}


# Faults of more


def what_came_before_is_taken_again(patch: Patch) -> None:
    """Each end asks for its last message once more, and takes it."""
    take = Line.take

    def taken(self: Line, data: Any, now: float) -> Any:
        if data.number == self._received:
            self._received -= 1
        return take(self, data, now)

    patch.setattr(Line, "take", taken)
    patch.setattr(Line, "received", property(lambda self: max(0, self._received - 1)))


def a_host_that_is_cut_off_goes_on(patch: Patch) -> None:
    patch.setattr(Fence, "tick", lambda self, now: False)
    patch.setattr(Fence, "due", lambda self: None)


def an_order_is_carried_out_twice(patch: Patch) -> None:
    delivered = _Agent.delivered

    def twice(self: _Agent, message: Any) -> None:
        delivered(self, message)
        pushes = isinstance(message, host_messages.CarryOut) and isinstance(message.order, StartPush)
        if pushes and message.order.step == 2:
            message.fields["step"] = 1
            delivered(self, message)

    patch.setattr(_Agent, "delivered", twice)


def an_older_version_is_served(patch: Patch) -> None:
    view = Versions.view

    def older(self: Versions, item: Any) -> Span:
        if isinstance(item, Version) and self._shelf.has(before := Version(item.version - 1)):
            return view(self, before)
        return view(self, item)

    patch.setattr(Versions, "view", older)


def an_update_counts_twice(patch: Patch) -> None:
    push = Cluster._push

    def twice(self: Cluster, order: StartPush) -> None:
        push(self, order)
        if order.step == 2:
            push(self, order)

    patch.setattr(Cluster, "_push", twice)


def an_update_is_applied_before_it_is_here(patch: Patch) -> None:
    fetch = TransferManager.fetch

    def at_once(self: TransferManager, item: Any, owner: Any, arrived: Callable[[], object], lost: Any) -> None:
        if isinstance(item, Update):
            arrived()
        else:
            fetch(self, item, owner, arrived, lost)

    patch.setattr(TransferManager, "fetch", at_once)


def a_version_counts_as_made_before_its_last_range(patch: Patch) -> None:
    range_made = CommitQueue.range_made
    begun = property(lambda self: self._committing is not None and any(self._ranges.values()))
    patch.setattr(CommitQueue, "whole", begun)
    patch.setattr(
        CommitQueue,
        "range_made",  # the rest of a version's ranges is heard without a word
        lambda self, host, message: range_made(self, host, message) or message.version <= self.newest,
    )


def a_piece_is_served_before_it_is_made(patch: Patch) -> None:
    has = RangeMaker.has

    def begun(self: RangeMaker, version: int, begin: int, end: int) -> bool:
        return version == self._now or has(self, version, begin, end)

    patch.setattr(RangeMaker, "has", begun)


def a_partial_is_served_before_it_is_made(patch: Patch) -> None:
    look = Averaging.look

    def looked(self: Averaging, item: Any, *asked: int) -> Any:
        there = isinstance(item, Partial) and item.number in self._works
        return "here" if there else look(self, item, *asked)

    patch.setattr(Averaging, "look", looked)


def a_mean_takes_effect_before_all_hosts_have_it(patch: Patch) -> None:
    has_made = GroupAverages.has_made

    def first(self: GroupAverages, number: int, host: str) -> bool:
        work = self._works.get(number)
        if work is not None and work.average is not None and not work.average.lost and host in work.awaited:
            work.awaited = {host}
        return has_made(self, number, host)

    patch.setattr(GroupAverages, "has_made", first)


def what_a_worker_has_withdrawn_is_averaged(patch: Patch) -> None:
    patch.setattr(ExpectedRound, "withdrawn", lambda self, worker, step: None)


def an_average_that_is_made_anew_has_the_number_of_the_one_that_was_dropped(patch: Patch) -> None:
    """So a host that has not heard of that may take its bytes for the new one's."""
    tell = GroupAverages._tell

    def same(self: GroupAverages, parts: Any, average: Any) -> Any:
        if average is not None and self._works:
            self._numbers = count(min(self._works))
        return tell(self, parts, average)

    patch.setattr(GroupAverages, "_tell", same)


def bytes_are_summed_before_they_are_told(patch: Patch) -> None:
    patch.setattr(GroupShare, "covers", lambda self, begin, end: True)


def bytes_are_served_before_they_are_told(patch: Patch) -> None:
    patch.setattr(Computing, "there", lambda self, update: _EVERYTHING)


_EVERYTHING = ByteRanges()
_EVERYTHING.add(0, 1 << 40)


def what_a_worker_has_withdrawn_is_in_a_version_that_was_begun(patch: Patch) -> None:
    patch.setattr(EarlyVersions, "dropped", nothing)


def a_piece_is_made_early_before_all_gradients_have_it(patch: Patch) -> None:
    patch.setattr(EarlyVersions, "_is_there", lambda self, begun, piece: all(map(self._shelf.has, dict(begun.terms))))


def a_version_that_was_begun_is_served_before_it_is_made(patch: Patch) -> None:
    look = EarlyVersions.look

    def looked(self: EarlyVersions, item: Any, *asked: int) -> Any:
        begun = self._round.begun
        return (
            "here" if begun is not None and begun.item == item and begun.place is not None else look(self, item, *asked)
        )

    patch.setattr(EarlyVersions, "look", looked)


def a_replica_is_stepped_in_place_though_it_is_needed(patch: Patch) -> None:
    """It is computed on, written to disk, or what another one shows."""
    others = Shelf.others

    def of_replicas(self: Shelf, item: Any, owners: Any) -> bool:
        claim = [owner for one in self.at(self.place(item)) for owner in self._owners[one]]
        return others(self, item, {*owners, *(owner for owner in claim if owner[0] != "replica")})

    patch.setattr(Shelf, "others", of_replicas)


FAULTS: dict[Callable[[Patch], None], Callable[[History], History]] = {
    what_came_before_is_taken_again: as_drawn,
    a_host_that_is_cut_off_goes_on: as_drawn,
    an_order_is_carried_out_twice: as_drawn,
    an_older_version_is_served: as_drawn,
    an_update_counts_twice: as_drawn,
    an_update_is_applied_before_it_is_here: as_drawn,
    a_version_counts_as_made_before_its_last_range: in_ranges,
    a_piece_is_served_before_it_is_made: in_ranges,
    a_partial_is_served_before_it_is_made: in_groups,
    a_mean_takes_effect_before_all_hosts_have_it: in_groups,
    a_replica_is_stepped_in_place_though_it_is_needed: in_groups,
    what_a_worker_has_withdrawn_is_averaged: all_reduces,
    an_average_that_is_made_anew_has_the_number_of_the_one_that_was_dropped: all_reduces,
    bytes_are_summed_before_they_are_told: all_reduces,
    bytes_are_served_before_they_are_told: all_reduces,
    what_a_worker_has_withdrawn_is_in_a_version_that_was_begun: begins,
    a_piece_is_made_early_before_all_gradients_have_it: begins,
    a_version_that_was_begun_is_served_before_it_is_made: begins,
}

FOUND_BEFORE = {
    "what is not acknowledged is not sent again": 17,
    "a host goes while its state is on its way": 33,
}
"""Seeds that found the faults which take long to find. They are tried first."""


def found(name: str, made: Callable[[History], History]) -> bool:
    """Whether the world is wrong under one of so many seeds."""
    before = FOUND_BEFORE.get(name, 0)
    for seed in (before, *(seed for seed in range(MOST) if seed != before)):
        try:
            run(made(drawn(seed)))
        except (TypeError, AttributeError):  # the fault does not fit into the code any more
            raise
        except Exception:
            return True
    return False


@pytest.mark.parametrize("name", PLAIN)
def test_the_world_finds(name: str, monkeypatch: Patch) -> None:
    made, owner, attribute, instead = PLAIN[name]
    monkeypatch.setattr(owner, attribute, instead)
    assert found(name, made)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_world_finds_besides(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    assert found(fault.__name__, FAULTS[fault])
