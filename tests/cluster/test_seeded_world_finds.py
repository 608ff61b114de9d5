"""Faults that are put back into the code of a run: few seeds of the world in virtual time find each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.coordinator.agent import _Agent
from paceline.coordinator.drain import Drain
from paceline.coordinator.host_registry import HostRegistry
from paceline.core.host_liveness import Fence, Hosts
from paceline.core.items import Mean, Partial, Sum, Update, Version
from paceline.core.orders import StartPush
from paceline.host import messages as host_messages
from paceline.host.cluster import Cluster
from paceline.host.host import Host
from paceline.host.item_table import ItemTable
from paceline.host.orders.averages import GroupAverages
from paceline.host.orders.averaging import Averaging
from paceline.host.orders.commit_queue import CommitQueue
from paceline.host.orders.pushes import Pushes
from paceline.host.orders.releases import Releases, step_of
from paceline.host.other_hosts import OtherHosts
from paceline.host.overlap import Computing, Early
from paceline.host.replicas.host_replicas import HostReplicas, _kept
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers
from paceline.host.reports.remote import RemoteReports
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.migration import Moves, Taking
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.shards.range_maker import RangeMaker
from paceline.host.shards.server import ShardServer
from paceline.host.shards.sum_table import SumTable
from paceline.host.training_start import TrainingStart
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.ipc.memory import Span
from paceline.net.control import HeadEnd
from paceline.net.numbered import Line
from paceline.transfer.manager import TransferManager
from support.seeded_network import Blocked, Killed, Slow
from support.suites import each
from support.world.faults import HEAD, Drained, History, StoreKilled, StoreStopped, WorkerKilled, drawn, grouped
from support.world.late import comes_late
from support.world.world import run

Patch = pytest.MonkeyPatch
MOST = 400
"""Seeds that are tried for each."""


def what_is_not_acknowledged_is_not_sent_again(patch: Patch) -> None:
    again = Line.again
    patch.setattr(Line, "again", lambda self, received: again(self, received) and b"")


def what_came_before_is_taken_again(patch: Patch) -> None:
    """Each end asks for its last message once more, and takes it."""
    take = Line.take

    def taken(self: Line, data: Any, now: float) -> Any:
        if data.number == self._received:
            self._received -= 1
        return take(self, data, now)

    patch.setattr(Line, "take", taken)
    patch.setattr(Line, "received", property(lambda self: max(0, self._received - 1)))


def an_incarnation_is_given_twice(patch: Patch) -> None:
    ends = Hosts._ends

    def ended(self: Hosts, one: Any, why: str) -> Any:
        orders = ends(self, one, why)
        one.incarnation -= 1
        return orders

    patch.setattr(Hosts, "_ends", ended)
    patch.setattr(HeadEnd, "end", lambda self, host, incarnation, why: [])


def a_host_that_was_given_up_is_not_told(patch: Patch) -> None:
    patch.setattr(HeadEnd, "end", lambda self, host, incarnation, why: [])
    a_host_that_is_cut_off_goes_on(patch)


def a_host_that_is_cut_off_goes_on(patch: Patch) -> None:
    patch.setattr(Fence, "tick", lambda self, now: False)
    patch.setattr(Fence, "due", lambda self: None)


def what_is_served_stays_claimed(patch: Patch) -> None:
    patch.setattr(ItemTable, "release", lambda self, item, owner: None)


def a_worker_that_has_gone_keeps_its_version(patch: Patch) -> None:
    patch.setattr(Releases, "gone", lambda self, worker: None)


def what_training_begins_with_stays_lent_to_a_lost_host(patch: Patch) -> None:
    patch.setattr(Versions, "begun", lambda self, host: None)


def an_update_stays_after_its_worker(patch: Patch) -> None:
    hear = Host._hear

    def heard(self: Host, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        if isinstance(message, messages.worker.StepFinished) and self.seats[worker].trains:
            self.pushes.ready(worker, message.step)
        hear(self, worker, message, descriptors)

    patch.setattr(Host, "_hear", heard)


def an_order_is_carried_out_twice(patch: Patch) -> None:
    delivered = _Agent.delivered

    def twice(self: _Agent, message: Any) -> None:
        delivered(self, message)
        if (
            isinstance(message, host_messages.CarryOut)
            and isinstance(message.order, StartPush)
            and message.order.step == 2
        ):
            message.fields["step"] = 1
            delivered(self, message)

    patch.setattr(_Agent, "delivered", twice)


def training_begins_before_all_hosts_are_there(patch: Patch) -> None:
    patch.setattr(HostRegistry, "_awaits", lambda self: False)


def a_version_is_served_before_it_is_made(patch: Patch) -> None:
    _what_is_laid_is_here(patch)
    carry_out, begin, hosts = CommitQueue.carry_out, OtherHosts.__init__, list[OtherHosts]()

    def begun(self: OtherHosts, *of: Any) -> None:
        begin(self, *of)
        hosts.append(self)

    def early(self: CommitQueue, order: Any) -> None:
        carry_out(self, order)
        if self._committing is not None:
            hosts[-1].made(self._committing.version)

    patch.setattr(OtherHosts, "__init__", begun)
    patch.setattr(CommitQueue, "carry_out", early)


def _what_is_laid_is_here(patch: Patch) -> None:
    look: Any = Versions.look
    patch.setattr(Versions, "look", lambda self, item, *of: "here" if self._shelf.has(item) else look(self, item, *of))


def an_older_version_is_served(patch: Patch) -> None:
    view = Versions.view

    def older(self: Versions, item: Any) -> Span:
        if isinstance(item, Version) and self._shelf.has(before := Version(item.version - 1)):
            return view(self, before)
        return view(self, item)

    patch.setattr(Versions, "view", older)


def half_a_version_counts_as_here(patch: Patch) -> None:
    patch.setattr(Versions, "away", lambda self, item: isinstance(item, Version) and not self._shelf.has(item))


def a_version_that_did_not_come_counts_as_here(patch: Patch) -> None:
    free = Versions.free
    patch.setattr(Versions, "free", lambda self, item, whole: free(self, item, True))


def an_update_counts_twice(patch: Patch) -> None:
    push = Cluster._push

    def twice(self: Cluster, order: StartPush) -> None:
        push(self, order)
        if order.step == 2:
            push(self, order)

    patch.setattr(Cluster, "_push", twice)


def an_update_is_applied_before_it_is_here(patch: Patch) -> None:
    def at_once(self: TransferManager, item: Any, owner: Any, arrived: Callable[[], object], lost: Any) -> None:
        if isinstance(item, Update):
            arrived()
        else:
            fetch(self, item, owner, arrived, lost)

    fetch = TransferManager.fetch
    patch.setattr(TransferManager, "fetch", at_once)


def the_workers_of_a_lost_host_are_not_told(patch: Patch) -> None:
    patch.setattr(OtherHosts, "lost", lambda self, name, why: self._cluster.versions.begun(name))


def a_worker_that_has_left_takes_a_version(patch: Patch) -> None:
    patch.setattr(OtherHosts, "left", _left_untold(OtherHosts.left))


def _left_untold(left: Callable[..., None]) -> Callable[..., None]:
    def untold(self: OtherHosts, worker: int, died: bool, unapplied: tuple[int, ...]) -> None:
        left(self, worker, died, unapplied)
        if worker in self.workers:
            self.worker(worker).left = False

    return untold


def a_worker_is_not_told_that_the_run_stops(patch: Patch) -> None:
    carry_out = _Agent.delivered

    def untold(self: _Agent, message: Any) -> None:
        if not (
            isinstance(message, host_messages.TellWorker) and isinstance(message.message, messages.worker.FinalRecorded)
        ):
            carry_out(self, message)

    patch.setattr(_Agent, "delivered", untold)


def a_version_is_let_go_while_its_worker_may_compute_on_it_again(patch: Patch) -> None:
    hear = Host._hear

    def heard(self: Host, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        if isinstance(message, messages.worker.StepFinished):
            self.shelf.release(step_of(worker))
        hear(self, worker, message, descriptors)

    patch.setattr(Host, "_hear", heard)


# where several hosts make versions


def a_range_is_let_go_though_workers_need_it(patch: Patch) -> None:
    made = OtherHosts.made

    def frees(self: OtherHosts, version: int) -> None:
        made(self, version)
        self._cluster.arrivals.freed(version - 1)

    patch.setattr(OtherHosts, "made", frees)


def a_version_counts_as_made_before_its_last_range(patch: Patch) -> None:
    begun = property(lambda self: self._committing is not None and any(self._ranges.values()))
    patch.setattr(CommitQueue, "whole", begun)
    patch.setattr(CommitQueue, "range_made", _any_range_made(CommitQueue.range_made))


def _any_range_made(range_made: Callable[..., bool]) -> Callable[..., bool]:
    """The rest of a version's ranges is heard without a word."""
    return lambda self, host, message: range_made(self, host, message) or message.version <= self.newest


def a_range_is_served_before_it_is_made(patch: Patch) -> None:
    _what_is_laid_is_here(patch)
    a_version_counts_as_made_before_its_last_range(patch)


def a_piece_is_served_before_it_is_made(patch: Patch) -> None:
    has = RangeMaker.has

    def begun(self: RangeMaker, version: int, begin: int, end: int) -> bool:
        return version == self._now or has(self, version, begin, end)

    patch.setattr(RangeMaker, "has", begun)


def a_version_that_came_early_is_taken_before_it_is_made(patch: Patch) -> None:
    patch.setattr(Versions, "when_made", lambda self, version, call: call())


def an_update_counts_as_here_before_all_ranges_are(patch: Patch) -> None:
    comes = Arrivals._comes

    def first(self: Arrivals, update: Update, host: str, at: float) -> Any:
        if update in self._coming:
            self._coming[update].lacking = {host}
        return comes(self, update, host, at)

    patch.setattr(Arrivals, "_comes", first)


def an_update_is_let_go_before_its_range_is_made(patch: Patch) -> None:
    came = ShardServer._came

    def let_go(self: ShardServer, item: Any, part: Any) -> None:
        came(self, item, part)
        self.comes_no_more(item, whole=False)

    patch.setattr(ShardServer, "_came", let_go)


def an_update_that_is_dropped_still_comes(patch: Patch) -> None:
    patch.setattr(ShardServer, "drop", lambda self, item: None)


def an_update_that_did_not_come_is_kept(patch: Patch) -> None:
    patch.setattr(ShardServer, "comes_no_more", lambda self, item, whole: None)


def an_update_is_served_before_it_is_told(patch: Patch) -> None:
    look = Computing.look

    def laid_is_here(self: Computing, *of: Any, laid: bool) -> Any:
        return "here" if laid else look(self, *of, laid=laid)

    patch.setattr(Computing, "look", laid_is_here)


def what_a_worker_has_withdrawn_still_counts(patch: Patch) -> None:
    patch.setattr(Early, "withdrawn", lambda self, worker, step: None)


def what_a_worker_has_withdrawn_still_counts_at_the_head(patch: Patch) -> None:
    drop = ShardServer.drop
    patch.setattr(ShardServer, "drop", lambda self, item: None if self.keeps_buffers else drop(self, item))


def a_hosts_own_range_counts_as_a_version(patch: Patch) -> None:
    away = Versions.away
    patch.setattr(Versions, "away", lambda self, item: not (_is_elsewhere(self) and self.maker) and away(self, item))


def the_heads_own_range_counts_as_a_version(patch: Patch) -> None:
    away = Versions.away
    patch.setattr(Versions, "away", lambda self, item: _is_elsewhere(self) and away(self, item))


def _is_elsewhere(versions: Versions) -> bool:
    return versions._name != versions._head


def a_version_is_recorded_without_the_others_ranges(patch: Patch) -> None:
    patch.setattr(Cluster, "brings", lambda self, version, then: then())


def a_lost_hosts_range_is_left_out(patch: Patch) -> None:
    elsewhere: Any = OtherHosts.elsewhere
    patch.setattr(OtherHosts, "shard_lost", lambda self, host, why: None)
    left = property(lambda self: [one for one in elsewhere.fget(self) if one.host in self._others])
    patch.setattr(OtherHosts, "elsewhere", left)


def a_run_goes_on_without_a_host_that_made_ranges(patch: Patch) -> None:
    patch.setattr(OtherHosts, "shard_lost", lambda self, host, why: None)


def training_begins_without_a_host_that_is_to_make_ranges(patch: Patch) -> None:
    lost = OtherHosts.shard_lost
    patch.setattr(OtherHosts, "why_not", lambda self, workers: "")
    patch.setattr(OtherHosts, "shard_lost", lambda self, *why: lost(self, *why) if _any_begun(self) else None)


def _any_begun(hosts: OtherHosts) -> bool:
    return any(one.begun for one in hosts._others.values())


def a_host_makes_ranges_from_what_its_own_worker_begins_with(patch: Patch) -> None:
    begin = TrainingStart.train

    def at_once(self: TrainingStart, order: host_messages.Train) -> None:
        begin(self, order)
        self.process_settled()

    patch.setattr(TrainingStart, "train", at_once)


def a_share_of_the_state_is_of_another_version(patch: Patch) -> None:
    """It is asked for only after the versions that were ordered meanwhile."""
    make = Arrivals.make
    late: list[Callable[[], None]] = []

    def made(self: Arrivals, *given: Any, **rest: Any) -> None:
        make(self, *given, **rest)
        for call in late:
            call()
        late.clear()

    def pack_states(self: Arrivals, number: int) -> None:
        late.append(lambda: sends(self, number))

    sends = Arrivals.pack_states
    patch.setattr(Arrivals, "make", made)
    patch.setattr(Arrivals, "pack_states", pack_states)


def a_sum_is_served_before_it_is_made(patch: Patch) -> None:
    look = HostReducer.look

    def looked(self: HostReducer, *asked: Any) -> str:
        return "here" if self._shelf.has(asked[0]) else look(self, *asked)

    patch.setattr(HostReducer, "look", looked)


def a_sum_that_was_not_ordered_yet_is_gone(patch: Patch) -> None:
    look = HostReducer.look

    def looked(self: HostReducer, *asked: Any) -> str:
        return look(self, *asked) if asked[0].number <= self._newest else "gone"

    patch.setattr(HostReducer, "look", looked)


def a_sum_is_let_go_before_the_version_is_made(patch: Patch) -> None:
    obey = Host._obey

    def summed(self: Host, order: host_messages.FromHead) -> None:
        obey(self, order)
        if isinstance(order, host_messages.OfSums):
            self.reducer.drop(Sum(order.number))

    patch.setattr(Host, "_obey", summed)


def a_sum_keeps_the_update_of_a_worker_that_has_left(patch: Patch) -> None:
    patch.setattr(AggregationScheduler, "_void", lambda self, total: None)


def updates_in_sums_come_without_their_buffers(patch: Patch) -> None:
    patch.setattr(Cluster, "buffers_of", lambda self, total: [])


def a_sum_weighs_as_one_of_its_updates(patch: Patch) -> None:
    applied = SumTable.applied

    def pushed(self: SumTable, pushed: Any) -> Any:
        terms, summed = applied(self, pushed)
        weights = dict(pushed)
        return [(item, weights.get(item, pushed[0][1])) for item, _ in terms], summed

    patch.setattr(SumTable, "applied", pushed)


def a_host_that_has_lost_the_process_that_adds_up_is_waited_for(patch: Patch) -> None:
    deliver = RemoteReports._deliver

    def deaf(self: RemoteReports, name: str, message: Any) -> None:
        if not isinstance(message, host_messages.SumsLost):
            deliver(self, name, message)

    patch.setattr(RemoteReports, "_deliver", deaf)


def a_host_trains_before_the_process_that_adds_up_is_there(patch: Patch) -> None:
    a_host_makes_ranges_from_what_its_own_worker_begins_with(patch)


def a_sum_waits_for_no_place(patch: Patch) -> None:
    patch.setattr(HostReducer, "has_room", property(lambda self: True))


def what_hosts_have_of_a_void_sum_is_kept(patch: Patch) -> None:
    patch.setattr(Arrivals, "void", lambda self, total: self._coming.pop(total, None))


def a_version_is_made_while_a_range_moves(patch: Patch) -> None:
    rests = Moves.rests
    patch.setattr(Moves, "rests", lambda self: rests(self) and False)


def a_range_moves_without_updates_that_have_arrived(patch: Patch) -> None:
    begin = Taking.begin

    def begun(self: Taking, *given: Any) -> None:
        self.arrived = ()
        begin(self, *given)

    patch.setattr(Taking, "begin", begun)


def a_range_moves_without_the_versions_that_are_needed(patch: Patch) -> None:
    patch.setattr(Moves, "_versions", lambda self: [])


def a_host_goes_while_its_state_is_on_its_way(patch: Patch) -> None:
    patch.setattr(Shares, "when_idle", lambda self, call: call())


def what_is_on_its_way_from_a_host_that_goes_is_not_asked_anew(patch: Patch) -> None:
    patch.setattr(TransferManager, "again", lambda self, which: None)


def a_worker_of_a_host_that_leaves_does_not_finish_its_step(patch: Patch) -> None:
    patch.setattr(Drain, "_in_step", lambda self, member, drain: False)


def a_partial_is_served_before_it_is_made(patch: Patch) -> None:
    look = Averaging.look

    def looked(self: Averaging, item: Any, *asked: int) -> Any:
        there = isinstance(item, Partial) and item.group in self._works
        return "here" if there else look(self, item, *asked)

    patch.setattr(Averaging, "look", looked)


def a_slice_is_served_before_it_is_made(patch: Patch) -> None:
    look = Averaging.look

    def looked(self: Averaging, item: Any, *asked: int) -> Any:
        return "here" if isinstance(item, Mean) and item.group in self._works else look(self, item, *asked)

    patch.setattr(Averaging, "look", looked)


def flags_do_not_come_with_a_later_slice(patch: Patch) -> None:
    ranges = Averaging.ranges

    def without(self: Averaging, item: Any) -> Any:
        found = ranges(self, item)
        if not isinstance(item, Partial):
            return found
        flags = self._end, self._end + self._memory.offer.flags_bytes
        return [one for one in found if one[1:] != flags]

    patch.setattr(Averaging, "ranges", without)


def a_slice_is_made_before_all_partials_are_here(patch: Patch) -> None:
    patch.setattr(Averaging, "_next", lambda self, work: work.slice[0])


def a_mean_takes_effect_before_all_hosts_have_it(patch: Patch) -> None:
    has_made = GroupAverages.has_made

    def first(self: GroupAverages, number: int, host: str) -> bool:
        if (average := self._averages.get(number)) is not None and not average.lost and host in average.awaited:
            average.awaited = {host}
        return has_made(self, number, host)

    patch.setattr(GroupAverages, "has_made", first)


def a_group_that_is_given_up_is_not_waited_for(patch: Patch) -> None:
    """Its places are free while shares are still written."""
    drop = Averaging.drop

    def dropped(self: Averaging, number: int) -> None:
        if (work := self._works.get(number)) is not None:
            work.awaited.clear()
        drop(self, number)

    patch.setattr(Averaging, "drop", dropped)


def a_copy_is_kept_though_nobody_needs_it(patch: Patch) -> None:
    patch.setattr(ReplicaTransfers, "_drop", lambda self, number: None)


def a_replica_is_not_kept_for_another_host(patch: Patch) -> None:
    keep = HostReplicas._keep

    def named(self: HostReplicas, item: Any, of: Any) -> None:
        keep(self, item, of)
        if of is None:
            self._shelf.release(_kept(item))

    patch.setattr(HostReplicas, "_keep", named)


def a_replica_is_stepped_in_place_though_it_is_needed(patch: Patch) -> None:
    """It is computed on, written to disk, or what another one shows."""
    others = Shelf.others

    def of_replicas(self: Shelf, item: Any, owners: Any) -> bool:
        claim = [owner for one in self.at(self.place(item)) for owner in self._owners[one]]
        return others(self, item, {*owners, *(owner for owner in claim if owner[0] != "replica")})

    patch.setattr(Shelf, "others", of_replicas)


def a_host_that_comes_again_is_told_of_groups_that_it_was_in(patch: Patch) -> None:
    lost = GroupAverages.host_lost

    def kept(self: GroupAverages, host: str) -> None:
        hosts = {number: average.hosts for number, average in self._averages.items()}
        lost(self, host)
        for number, average in self._averages.items():
            average.hosts = hosts[number]

    patch.setattr(GroupAverages, "host_lost", kept)


def a_replica_is_stepped_in_place_though_others_are_the_same(patch: Patch) -> None:
    """A joiner's copy, say, which another host fetches, or what all members of a group have."""
    others = Shelf.others

    def of_no_replica(self: Shelf, item: Any, owners: Any) -> bool:
        claim = [owner for one in self.at(self.place(item)) for owner in self._owners[one]]
        return others(self, item, {*owners, *(owner for owner in claim if owner[0] == "replica")})

    patch.setattr(Shelf, "others", of_no_replica)


def a_cut_is_recorded_before_replicas_are_here(patch: Patch) -> None:
    patch.setattr(ReplicaTransfers, "bring", lambda self, owner, replicas, then, lost: then())


def a_copy_begins_before_the_source_has_made_its_steps(patch: Patch) -> None:
    patch.setattr(ReplicaTable, "after", lambda self, workers, do, never=None: do())


def replicas_begin_without_buffers(patch: Patch) -> None:
    ranges = Versions.ranges

    def without(self: Versions, item: Any) -> Any:
        found = ranges(self, item)
        if isinstance(item, Version) and self._of_replicas:
            return [(host, begin, self._memory.offer.cuts[-1]) for host, begin, _ in found]
        return found

    patch.setattr(Versions, "ranges", without)


def a_host_leaves_while_its_replica_is_on_its_way(patch: Patch) -> None:
    def at_once(self: ReplicaTransfers) -> None:
        ready, self._goes = self._goes, []
        for _, then in ready:
            then()

    patch.setattr(ReplicaTransfers, "_let_hosts_go", at_once)


def a_member_that_has_begun_anew_counts_as_there(patch: Patch) -> None:
    def not_here(self: GroupAverages, average: Any) -> tuple[int, ...]:
        return tuple(worker for worker in average.order.members if not self._seats[worker].here)

    patch.setattr(GroupAverages, "_lost", not_here)


def a_gradient_goes_with_its_worker_that_is_about_to_be_averaged(patch: Patch) -> None:
    left = Pushes.left
    patch.setattr(Pushes, "left", lambda self, worker, unapplied=(): left(self, worker))


def what_comes_late_is_written_over_what_is_made_here(patch: Patch) -> None:
    comes_late(patch)
    patch.setattr(Shelf, "comes", lambda self, number, place: None)


OURS = [one for one in list(globals().values()) if callable(one) and getattr(one, "__module__", "") == __name__]
OURS = [one for one in OURS if not one.__name__.startswith("_")]


def _stopped_early(history: History) -> History:
    """The history without faults, and with a limit that it reaches while workers compute."""
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8, looks=0.3)
    return replace(history, script=script, faults=(), lost=(), max_steps=history.seed % 7 + 1)


def _with_idle_workers(history: History) -> History:
    """The history without faults, under a protocol whose workers compute ahead."""
    return replace(history, protocol="hsp:idle=always", faults=(), lost=())


def _in_ranges(history: History) -> History:
    """The history with a range of each version on every host."""
    return replace(history, script=replace(history.script, pieces=4), restart=0, shards_on="all")


def _stopped_early_in_ranges(history: History) -> History:
    return _in_ranges(_stopped_early(history))


def _stopped_before_all_have_begun(history: History) -> History:
    """What the head says to one host comes late, and what training begins with comes later still."""
    late = Slow(0.0, 1000.0, HEAD, "node-1", 0.5)
    return replace(_stopped_early_in_ranges(history), timeout=15.0, faults=(late,))


def _losing_a_host_at_the_start(history: History) -> History:
    """What training begins with is being made as that host is lost, or it is not yet, or not any more."""
    history = _in_ranges(history)
    lost = Killed(float(history.seed % 16), "node-1", False, None)
    return replace(history, script=replace(history.script, starts=8.0), on_loss="continue", faults=(lost,), end=20.0)


def _with_sums(history: History) -> History:
    """The history with several workers a host, whose updates go together."""
    return replace(_in_ranges(history), protocol="bsp", each=2 + history.seed % 2)


def _with_sums_for_the_head(history: History) -> History:
    """The history with several workers a host, and with the store on the head."""
    return replace(_with_sums(history), shards_on="head")


def _losing_the_process_that_adds_up(history: History) -> History:
    """Nothing else goes wrong."""
    lots = random.Random(history.seed)
    lost = StoreKilled(lots.uniform(0.0, 10.0), "node-1")
    return replace(_with_sums_for_the_head(history), commits=1.0, faults=(lost,), lost=(), end=10.0)


def _with_workers_that_die_and_come_again(history: History) -> History:
    """The process that adds up is slow meanwhile, and comes to what is void late."""
    lots = random.Random(history.seed)
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8)
    history = replace(_with_sums_for_the_head(history), script=script, hosts=2, on_loss="continue", restart=3)
    dies = (WorkerKilled(lots.uniform(0.0, 4.0), worker) for worker in range(history.each, history.workers))
    slow = StoreStopped(0.1, "node-1", 3.0)
    return replace(history, lost=(), end=10.0, faults=(slow, *dies))


def _losing_workers_of_sums(history: History) -> History:
    """The history in which workers die as sums are made: their hosts' others go on."""
    lots = random.Random(history.seed)
    history = replace(_with_sums(history), on_loss="continue", commits=1.0, end=30.0)
    lost = range(0, history.workers, history.each)
    return replace(history, faults=tuple(WorkerKilled(lots.uniform(0.0, 20.0), worker) for worker in lost))


def _with_sums_that_become_void(history: History) -> History:
    """The second worker of the head dies while steps are short. A sum comes as one of its first worker."""
    lots = random.Random(history.seed)
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8)
    history = replace(_with_sums(history), script=script, shards_on="node-1", on_loss="stop", lost=(), end=10.0)
    return replace(history, faults=(WorkerKilled(lots.uniform(0.0, 3.0), 1),))


def _with_hosts_that_leave(history: History) -> History:
    """One host after the other is asked to leave, and nothing else goes wrong."""
    script = replace(history.script, starts=0.01, computes=0.05, epochs=8, looks=0.3)
    leaves = (Drained(0.1 + 0.2 * number, name) for number, name in enumerate(history.names[1:]))
    faults = tuple(leaves)
    return replace(_in_ranges(history), script=replace(script, pieces=4), end=1.0, faults=faults, lost=())


def _in_groups(history: History) -> History:
    """The history in which replicas are averaged, by the same seed."""
    return grouped(history.seed)


def _in_groups_without_faults(history: History) -> History:
    script = replace(grouped(history.seed).script, pieces=4)
    return replace(grouped(history.seed), script=script, faults=(), lost=())


def _in_groups_with_hosts_that_come_again(history: History) -> History:
    """A host is cut off for longer than the others wait, and comes again. Shares of averages take longer than that."""
    history = _in_groups_without_faults(history)
    lots = random.Random(history.seed)
    script = replace(history.script, loads=False, starts=0.01, computes=0.2, epochs=1, batches=6)
    away = Blocked(at := lots.uniform(0.2, 4.0), at + 2.5, "node-1", HEAD)
    history = replace(history, script=script, commits=8.0, timeout=2.0, restart=3, on_loss="continue", max_steps=None)
    return replace(history, hosts=3, each=2, protocol="ad-psgd", faults=(away,), end=8.0)


def _in_groups_whose_members_die(history: History) -> History:
    """Shares take long, and each worker of the other hosts dies at some time."""
    history = _in_groups_without_faults(history)
    script = replace(history.script, loads=False, starts=0.01, computes=0.05, epochs=2, batches=20)
    lots = random.Random(history.seed)
    dies = tuple(WorkerKilled(lots.uniform(0.1, 4.0), worker) for worker in range(history.workers))
    history = replace(history, script=script, commits=0.5, restart=3, on_loss="continue", max_steps=None)
    return replace(history, faults=dies, end=5.0)


IN_GROUPS = (
    a_partial_is_served_before_it_is_made,
    a_slice_is_served_before_it_is_made,
    flags_do_not_come_with_a_later_slice,
    a_slice_is_made_before_all_partials_are_here,
    a_mean_takes_effect_before_all_hosts_have_it,
    a_copy_is_kept_though_nobody_needs_it,
    a_replica_is_not_kept_for_another_host,
    a_replica_is_stepped_in_place_though_it_is_needed,
    a_cut_is_recorded_before_replicas_are_here,
    a_copy_begins_before_the_source_has_made_its_steps,
    replicas_begin_without_buffers,
    a_host_leaves_while_its_replica_is_on_its_way,
    a_member_that_has_begun_anew_counts_as_there,
    a_gradient_goes_with_its_worker_that_is_about_to_be_averaged,
    a_replica_is_stepped_in_place_though_others_are_the_same,
)
"""Faults that histories of groups find."""

HISTORIES = {
    **dict.fromkeys(IN_GROUPS, _in_groups),
    a_host_that_comes_again_is_told_of_groups_that_it_was_in: _in_groups_with_hosts_that_come_again,
    a_group_that_is_given_up_is_not_waited_for: _in_groups_whose_members_die,
    a_sum_is_served_before_it_is_made: _with_sums,
    a_sum_that_was_not_ordered_yet_is_gone: _with_sums,
    a_sum_is_let_go_before_the_version_is_made: _with_sums,
    a_sum_keeps_the_update_of_a_worker_that_has_left: _losing_workers_of_sums,
    updates_in_sums_come_without_their_buffers: _with_sums,
    a_sum_weighs_as_one_of_its_updates: _with_sums,
    a_host_that_has_lost_the_process_that_adds_up_is_waited_for: _losing_the_process_that_adds_up,
    a_host_trains_before_the_process_that_adds_up_is_there: _with_sums_for_the_head,
    a_sum_waits_for_no_place: _with_workers_that_die_and_come_again,
    what_hosts_have_of_a_void_sum_is_kept: _with_sums_that_become_void,
    a_range_is_let_go_though_workers_need_it: _in_ranges,
    a_version_counts_as_made_before_its_last_range: _in_ranges,
    a_range_is_served_before_it_is_made: _in_ranges,
    a_piece_is_served_before_it_is_made: _in_ranges,
    a_version_that_came_early_is_taken_before_it_is_made: _in_ranges,
    an_update_counts_as_here_before_all_ranges_are: _in_ranges,
    an_update_is_let_go_before_its_range_is_made: _in_ranges,
    an_update_that_is_dropped_still_comes: _stopped_early_in_ranges,
    an_update_is_served_before_it_is_told: _in_ranges,
    what_a_worker_has_withdrawn_still_counts: _in_ranges,
    what_a_worker_has_withdrawn_still_counts_at_the_head: _in_ranges,
    an_update_that_did_not_come_is_kept: _stopped_before_all_have_begun,
    a_hosts_own_range_counts_as_a_version: _in_ranges,
    the_heads_own_range_counts_as_a_version: _in_ranges,
    a_version_is_recorded_without_the_others_ranges: _in_ranges,
    a_lost_hosts_range_is_left_out: _in_ranges,
    a_run_goes_on_without_a_host_that_made_ranges: _in_ranges,
    training_begins_without_a_host_that_is_to_make_ranges: _losing_a_host_at_the_start,
    a_host_makes_ranges_from_what_its_own_worker_begins_with: _in_ranges,
    a_share_of_the_state_is_of_another_version: _stopped_early_in_ranges,
    a_version_is_made_while_a_range_moves: _with_hosts_that_leave,
    a_range_moves_without_updates_that_have_arrived: _with_hosts_that_leave,
    a_range_moves_without_the_versions_that_are_needed: _with_hosts_that_leave,
    a_host_goes_while_its_state_is_on_its_way: _with_hosts_that_leave,
    what_is_on_its_way_from_a_host_that_goes_is_not_asked_anew: _with_hosts_that_leave,
    a_worker_of_a_host_that_leaves_does_not_finish_its_step: _with_hosts_that_leave,
    an_update_stays_after_its_worker: _stopped_early,
    a_version_that_did_not_come_counts_as_here: _stopped_early,
    a_worker_that_has_left_takes_a_version: _stopped_early,
    what_comes_late_is_written_over_what_is_made_here: _in_groups_whose_members_die,
    a_version_is_let_go_while_its_worker_may_compute_on_it_again: _with_idle_workers,
}
"""What is made of a seed's history for faults that few of them would find."""


FOUND_BEFORE = {
    what_comes_late_is_written_over_what_is_made_here: 20,
    what_is_not_acknowledged_is_not_sent_again: 17,
    an_update_stays_after_its_worker: 35,
    a_version_is_let_go_while_its_worker_may_compute_on_it_again: 14,
    a_range_is_let_go_though_workers_need_it: 28,
    training_begins_without_a_host_that_is_to_make_ranges: 14,
    a_sum_keeps_the_update_of_a_worker_that_has_left: 18,
    a_host_that_has_lost_the_process_that_adds_up_is_waited_for: 10,
    a_sum_waits_for_no_place: 7,
    a_host_goes_while_its_state_is_on_its_way: 33,
    what_is_on_its_way_from_a_host_that_goes_is_not_asked_anew: 90,
    a_host_leaves_while_its_replica_is_on_its_way: 87,
}
"""Seeds that found the faults which take long to find. They are tried first."""


def first_found(ours: Callable[[Patch], None]) -> tuple[int, str] | None:
    """A seed whose world is wrong, and how. So many are tried."""
    made = HISTORIES.get(ours, lambda history: history)
    before = FOUND_BEFORE.get(ours, 0)
    for seed in (before, *(seed for seed in range(MOST) if seed != before)):
        try:
            run(made(drawn(seed)))
        except (TypeError, AttributeError):  # the fault does not fit into the code any more
            raise
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("ours", each(OURS, default=OURS[::3]), ids=lambda ours: ours.__name__)
def test_the_world_finds(ours: Callable[[Patch], None], monkeypatch: Patch) -> None:
    ours(monkeypatch)
    assert first_found(ours) is not None
