"""A host that is not the head: its workers compute on whole versions, and it makes and adds up what others need."""

from __future__ import annotations

import os
import signal
from typing import Any
from unittest.mock import Mock, call

import msgspec
import pytest

from paceline.core.items import Sum, Update, Version
from paceline.core.machine import Outer
from paceline.core.orders import Release, StartPush
from paceline.core.shards import Shard
from paceline.errors import PeerLost
from paceline.host import messages as host_messages
from paceline.host.events import Attached, WorkerEnded
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of, summand_of
from support.one_host import STORE, OneHost
from support.run_state import OFFER


@pytest.fixture
def early() -> OneHost:
    """A host with workers 2 and 3, to which what training begins with is on its way: requests 1 and 2."""
    host = OneHost((2, 3), 4)
    host.trains((2, 3))
    return host


@pytest.fixture
def host(early: OneHost) -> OneHost:
    """A host that trains, and was told of version 1."""
    begins(early)
    assert len(early.reports.of(host_messages.Begun)) == 1
    early.host.tell(host_messages.VersionMade(1))
    return early


def begins(host: OneHost) -> None:
    """What training begins with is there."""
    for request in (1, 2):
        host.comes(request)


def bytes_of(host: OneHost, version: int) -> bytes:
    return bytes(host.host.items.view(Version(version)).memory[: OFFER.cuts[-1]])


def test_a_version_comes_once_for_all_workers_of_the_host(host: OneHost) -> None:
    host.pulls(2)
    host.comes(3, 7)
    host.pulls(3)
    assert host.taken() == []
    host.comes(3)
    assert host.taken() == [(2, 1), (3, 1)]
    assert bytes_of(host, 1) == bytes([3]) * OFFER.cuts[-1]
    assert host.carrier.pending() == []


def test_a_version_is_fetched_while_it_is_being_made_and_computed_on_once_it_is_made(host: OneHost) -> None:
    """Its pieces come as they are made. That all are is for the head to say."""
    for worker in (2, 3):
        host.pulls(worker, 2)
    host.comes(3)
    assert host.taken() == []
    host.host.tell(host_messages.WorkerGone(3, False))
    host.host.tell(host_messages.VersionMade(2))
    assert host.taken() == [(2, 2)], "it comes too late for worker 3"


def test_a_version_that_nobody_waits_for_any_more_is_left_where_it_is(host: OneHost) -> None:
    for worker in (2, 3):
        host.pulls(worker)
    host.host.tell(host_messages.WorkerGone(2, True))
    assert len(host.carrier.pending()) == 1
    host.host.tell(host_messages.WorkerGone(3, True))
    assert host.carrier.pending() == []
    assert host.taken() == []


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_update_of_a_worker_that_leaves_stays_if_the_head_has_asked_for_it(host: OneHost, asked_for: bool) -> None:
    host.pulls(2)
    host.comes(3)
    host.finished(2, 1, 1)
    if asked_for:
        host.host.carry_out(StartPush(worker=2, step=1))
    host.host.tell(host_messages.WorkerGone(2, True))
    host.host.tell(host_messages.ForgetWorker(2))
    assert host.host.shelf.has(Update(2, 1)) == asked_for


def test_who_lacks_a_version_that_will_never_come_is_told(host: OneHost) -> None:
    host.pulls(2)
    host.refused(3, "it is not here any more")
    assert host.reports.told(host_messages.Lacks) == [(2, f"{Version(1)} can't come: it is not here any more")]
    assert host.taken() == []


def test_what_comes_along_for_several_workers_is_brought_once(host: OneHost) -> None:
    """Each of them gets all of it, and the head hears of each."""
    final = Attached("the final version", 7)
    for worker in (2, 3):
        host.host.tell(host_messages.TellWorker(worker, messages.worker.FinalRecorded(), final))
    files: list[bytes] = []
    host.workers.send.side_effect = lambda worker, message, given: files.append(os.pread(given[0], 9, 0))
    host.comes(3)
    assert files == [bytes([3]) * 7] * 2
    assert host.told(messages.worker.FinalRecorded) == [2, 3]
    assert host.reports.told(host_messages.AttachmentFetched) == [("the final version",)] * 2
    host.host.tell(host_messages.TellWorker(2, messages.worker.Evaluate(7), final))
    host.comes(4)
    assert files[2:] == [bytes([4]) * 7], "it may come again"


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_worker_is_ended_that_waits_for_what_the_head_has_for_it_and_that_can_t_come(
    host: OneHost, begins_anew: bool
) -> None:
    """Though it trains no more: its script waits in `finish`, or for a version to evaluate. Not so a later process."""
    host.host.tell(host_messages.WorkerGone(2, False))
    host.host.tell(host_messages.TellWorker(2, messages.worker.FinalRecorded(), Attached("attached 0", 7)))
    if begins_anew:
        host.host.tell(host_messages.StartWorker(2))
    host.refused(3)
    ended = [call.args for call in host.workers.give_up.call_args_list]
    assert ended == ([] if begins_anew else [(2, "what the head has for it can't come: why")])


MORE = 1 << 44
"""Bytes for which no machine has memory."""
FULL = "this host has no room for it: it is more than there is memory"


def test_a_worker_is_ended_if_its_host_has_no_room_for_what_the_head_has_for_it(host: OneHost) -> None:
    host.host.tell(host_messages.TellWorker(2, messages.worker.FinalRecorded(), Attached("attached 0", MORE)))
    host.workers.give_up.assert_called_once_with(2, f"what the head has for it can't come: {FULL}")
    assert host.reports.told(host_messages.AttachmentFetched) == [("attached 0",)]


@pytest.mark.parametrize("lacks", ["the version", "what is fixed", "what it goes on with", "what a worker has changed"])
def test_a_host_takes_no_part_that_has_no_room_for_what_training_begins_with_or_never_gets_it(lacks: str) -> None:
    """What waits for the beginning waits for ever then, so the host can't go on without these workers."""
    host, why = OneHost((2, 3), 4), FULL
    if lacks == "what it goes on with":
        host.host.tell(host_messages.Train({2: host_messages.GoesOn(1, None, Attached("kept", MORE))}, 0, 0.0))
    else:
        host.trains((2, 3))
    if lacks == "what a worker has changed":
        begins(host)
        host.host.tell(host_messages.Adopted(0, Attached("state", MORE), {}))
    elif lacks != "what it goes on with":
        why = "why"
        if lacks == "what is fixed":
            host.comes(1)
        host.refused(1 + (lacks == "what is fixed"))
        assert not host.reports.of(host_messages.Begun)
    assert host.reports.told(host_messages.Leaves) == [(f"what training begins with can't come: {why}",)]


def test_a_model_of_which_nothing_is_fixed_begins_with_its_parameters() -> None:
    host = OneHost((2, 3), 4, offer=msgspec.structs.replace(OFFER, fixed_bytes=0))
    host.trains((2, 3))
    host.comes(1)
    assert len(host.reports.of(host_messages.Begun)) == 1


def test_what_else_the_head_says_waits_for_training_s_beginning_in_order(early: OneHost) -> None:
    early.host.tell(host_messages.TellWorker(2, messages.worker.Pause()))
    early.host.tell(host_messages.WorkerGone(2, True))
    early.host.tell(host_messages.TellWorker(3, messages.worker.Pause()))
    early.workers.send.assert_not_called()
    begins(early)
    told = [(call.args[0], type(call.args[1])) for call in early.workers.send.call_args_list]
    pauses = [(2, messages.worker.Pause), (3, messages.worker.Pause)]
    assert told == [(2, messages.worker.Begin), (3, messages.worker.Begin), *pauses]


@pytest.mark.parametrize("once_more", [False, True])
def test_a_worker_that_is_ended_before_its_turn_to_begin_never_begins_unless_it_is_started_once_more(
    early: OneHost, once_more: bool
) -> None:
    early.host.tell(host_messages.StartWorker(2))
    early.host.tell(host_messages.EndWorker(2, None))
    assert early.reports.told(WorkerEnded) == [(2, signal.SIGKILL)]
    early.workers.end.assert_not_called()
    if once_more:
        early.host.tell(host_messages.StartWorker(2))
    begins(early)
    assert [call.args for call in early.workers.start.call_args_list] == [([2],)] * once_more


# --- one that makes a range of each version

HALVES = Shard("node-0", 0, 32), Shard("node-1", 32, 64)
IN_PIECES = msgspec.structs.replace(OFFER, slot_bytes=64, push_bytes=96, cuts=[0, 32, 64])
DROP = host_messages.Drop((0, 0, "update"))


def one_host(*shards: Shard, threads: int = 1, device: str = "") -> OneHost:
    """Host node-1 with worker 1, to which what training begins with is on its way."""
    offer = msgspec.structs.replace(IN_PIECES, device=device) if device else IN_PIECES
    maker = OneHost((1,), 2, threads=threads, offer=offer)
    maker.trains((1,), *shards)
    return maker


@pytest.fixture
def early_maker() -> OneHost:
    """The head makes the other half of each version."""
    return one_host(*HALVES)


@pytest.fixture
def maker(early_maker: OneHost) -> OneHost:
    """A host that trains. Two requests are over."""
    early_maker.store_is_ready()
    return early_maker


def makes(maker: OneHost, version: int) -> None:
    """This host is to make its range of the version, and has made it."""
    maker.host.tell(host_messages.MakeRange(version, [], None, look=True))
    maker.loop.hear(STORE, messages.store.Committed(version, 0, None))


def claimed(maker: OneHost) -> list[object]:
    """Who claims the first update of worker 0."""
    return [owner for owner, there, _ in maker.host.shelf.claims() if there == Update(0, 0)]


def test_a_version_is_readable_once_all_its_ranges_are_here(maker: OneHost) -> None:
    makes(maker, 1)
    maker.pulls(1)
    assert maker.taken() == []
    maker.host.tell(host_messages.VersionMade(1))
    assert maker.taken() == []
    maker.comes(3)
    assert maker.taken() == [(1, 1)]


def ordered(maker: OneHost) -> list[Any]:
    """What the process that makes ranges was told."""
    return list(maker.loop.lines[STORE].sent)


def test_a_range_is_made_from_the_version_before_of_the_updates_in_the_head_s_order(maker: OneHost) -> None:
    own, other = Update(1, 0), Update(0, 0)
    maker.host.carry_out(Release(worker=1, step=0, version=0, parameters="held"))
    maker.finished(1, 0)
    for update in (own, other):
        maker.host.tell(host_messages.Bring(fields_of(update), None))
    for request in (3, 4):
        maker.comes(request)
    assert [summand_of(event.item) for event in maker.reports.of(host_messages.Stored)] == [own, other]
    terms = [(fields_of(other), 0.25), (fields_of(own), 0.75)]
    maker.host.tell(host_messages.MakeRange(1, terms, None, look=True))
    order = ordered(maker)[-1]
    plan, shelf = maker.host.ranges._plan, maker.host.shelf
    assert order.pushed == [(plan.area(shelf.place(other)), 0.25), (plan.area(shelf.place(own)), 0.75)]
    assert (order.version, order.source, order.target) == (1, shelf.place(Version(0)), shelf.place(Version(1)))


def test_norms_that_are_exchanged_are_told_before_a_range_is_made_with_those_of_all(maker: OneHost) -> None:
    maker.host.tell(host_messages.MakeRange(1, [], None, look=True, exchanges=True))
    assert [type(one) for one in ordered(maker)][-1:] == [messages.store.TakeNorms]
    own, every = messages.store.Norms(1, [(0, 1.0)]), messages.store.Norms(1, [(0, 1.0), (1, 2.0)])
    maker.loop.hear(STORE, own)
    assert maker.reports.of(host_messages.RangeNorms) == [host_messages.RangeNorms(own)]
    maker.host.tell(host_messages.AllNorms(every))
    order = ordered(maker)[-1]
    assert (type(order), order.version, order.norms) == (messages.store.Commit, 1, every.norms)


def test_a_host_that_can_not_take_a_range_over_makes_no_versions_any_more(maker: OneHost) -> None:
    maker.host.tell(host_messages.TakeRange("node-0", 0, 32, [], [], Attached("share 1 of node-0", 8)))
    maker.refused(3)
    assert maker.reports.told(host_messages.ShardLost) == [("it was to take over the range of host node-0: why",)]


@pytest.mark.parametrize(("on_gpu", "threads"), [(False, 2), (True, 5)])
def test_a_range_is_made_on_the_cores_that_no_worker_of_this_host_keeps_busy(
    on_gpu: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has six cores, and a worker of four threads that computes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    maker = one_host(*HALVES, threads=4, device="NVIDIA H200" * on_gpu)
    maker.store_is_ready()
    maker.host.carry_out(Release(worker=1, step=0, version=0))
    maker.host.tell(host_messages.MakeRange(1, [], None, look=True))
    order = maker.loop.lines[STORE].sent[-1]
    assert isinstance(order, messages.store.Commit)
    assert order.threads == threads


def test_a_host_that_refuses_an_update_is_not_reached_until_the_head_has_it_dropped(maker: OneHost) -> None:
    """It was dropped there before, as a rule, and the head is about to say so. If not, one of the two hosts is lost."""
    reached = maker.carrier.reached = Mock()
    for step in (0, 1):
        maker.host.tell(host_messages.Bring((0, step, "update"), None))
        maker.refused(3 + 2 * step)
    assert not maker.carrier.reaches("node-0")
    assert not claimed(maker)
    assert not maker.reports.of(host_messages.Stored)
    maker.host.tell(DROP)
    assert reached.call_args_list == [call("node-0", False)] * 2
    maker.host.tell(host_messages.Drop((0, 1, "update")))
    assert reached.call_args_list[2:] == [call("node-0", True)]
    assert maker.carrier.reaches("node-0")


def test_a_worker_that_can_t_fork_the_process_that_makes_ranges_is_ended(early_maker: OneHost) -> None:
    early_maker.loop.hear(STORE, PeerLost("it has closed"))
    early_maker.workers.end.assert_called_once_with(1)
    assert early_maker.reports.told(host_messages.ShardLost) == [
        ("no process of its script is left there to start the parameter store",)
    ]


def test_the_process_that_makes_ranges_is_lost_once(maker: OneHost) -> None:
    maker.loop.ends[7]()
    assert len(maker.reports.of(host_messages.ShardLost)) == 1
    maker.host.tell(host_messages.MakeRange(1, [], None, look=True))
    assert not maker.host.shelf.has(Version(1))


def test_a_version_whose_maker_is_lost_is_still_to_come_for_those_who_ask(maker: OneHost) -> None:
    """Its place is free, whatever was made of it."""
    maker.host.tell(host_messages.MakeRange(1, [], None, look=True))
    maker.loop.hear(STORE, messages.store.Making(1, 32, 64))
    assert maker.host.items.look(Version(1), 32, 64) == "here"
    maker.loop.hear(STORE, messages.store.StoreFailed("no memory"))
    assert not maker.host.shelf.has(Version(1))
    assert maker.host.items.look(Version(1), 32, 64) == "coming"


# --- one without a range, that adds up its workers' updates

SUM = host_messages.SumUp(1, [(1, 0, 0.5), (2, 0, 0.5)], look=True)
ForkStore = messages.worker.ForkStore


@pytest.fixture
def early_adder() -> OneHost:
    """Host node-1 with workers 1 and 2. Its process is still to come."""
    adder = OneHost((1, 2), 3, "bsp", offer=IN_PIECES)
    adder.trains((1, 2), sums=True)
    return adder


@pytest.fixture
def adder(early_adder: OneHost) -> OneHost:
    """All of its workers have computed a step."""
    computed(early_adder)
    return early_adder


def computed(adder: OneHost) -> None:
    """The process is there, so is what training begins with, and all workers have computed a step."""
    adder.store_is_ready()
    for worker in adder.own:
        adder.host.carry_out(Release(worker=worker, step=0, version=0, parameters="held"))
        adder.finished(worker, 0)


def lost(adder: OneHost) -> list[str]:
    """Why the head was told that nothing is added up here any more."""
    return [event.why for event in adder.reports.of(host_messages.SumsLost)]


def begins_without(adder: OneHost, *why: str) -> None:
    """Training begins there once all is there, and the head was told so of sums."""
    adder.comes(1)
    adder.comes(2)
    assert len(adder.reports.of(host_messages.Begun)) == 1
    assert lost(adder) == [*why]


def test_the_process_is_forked_before_training_begins_and_makes_no_range(early_adder: OneHost) -> None:
    assert early_adder.told(ForkStore) == [1]
    (order,) = [call.args[1] for call in early_adder.workers.send.call_args_list]
    assert (order.begin, order.end, order.outer) == (0, 0, Outer())
    assert early_adder.carrier.pending() == []
    early_adder.store_is_ready()
    assert len(early_adder.reports.of(host_messages.Begun)) == 1
    assert not early_adder.host.tells, "no gradients are told early where they are added up"


def test_a_sum_is_served_as_it_is_made(adder: OneHost) -> None:
    adder.host.tell(SUM)
    assert adder.host.items.look(Sum(1), 0, 32) == "coming"
    adder.loop.hear(STORE, messages.store.Summing(1, 0, 32))
    assert [adder.host.items.look(Sum(1), 0, end) for end in (32, 64)] == ["here", "coming"]
    adder.loop.hear(STORE, messages.store.Summed(1, ("weight", 2)))
    assert adder.host.items.look(Sum(1), 0, 64) == "here"
    assert adder.reports.told(host_messages.SumNotFinite) == [("weight", 2)]
    adder.host.tell(host_messages.DropSum(1))
    assert not adder.host.shelf.has(Sum(1))
    assert adder.host.shelf.has(Update(1, 0))


NOBODY = "no process of its script is left there to start the process that adds up"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([PeerLost("it has closed")] * 2, NOBODY),
        ([messages.store.StoreFailed("no memory")], "the process that adds up failed: no memory"),
    ],
)
def test_without_the_process_training_begins_and_the_head_is_told(
    said: list[messages.Message | Exception], why: str, early_adder: OneHost
) -> None:
    for one in said:
        early_adder.loop.hear(STORE, one)
    begins_without(early_adder, why)
    early_adder.workers.end.assert_not_called()
    assert not early_adder.reports.of(host_messages.ShardLost)


def test_a_process_that_dies_leaves_updates_that_are_here_and_sums_that_the_head_calls_void(adder: OneHost) -> None:
    adder.host.tell(SUM)
    adder.loop.ends[7]()
    assert lost(adder) == ["the process that adds up died"]
    assert adder.host.items.look(Sum(1), 0, 32) == "coming"
    adder.host.tell(msgspec.structs.replace(SUM, number=2))
    for number in (1, 2):
        adder.host.tell(host_messages.DropSum(number))
        assert not adder.host.shelf.has(Sum(number))
    assert adder.host.items.look(Update(1, 0), 0, 64) == "here"
