"""A host that is not the head, and makes a range of each version: what it keeps, and what its workers may see."""

from __future__ import annotations

import os
from unittest.mock import Mock, call

import msgspec
import pytest

from paceline.core.items import Update, Version
from paceline.core.orders import Release
from paceline.core.shards import Shard
from paceline.errors import PeerLost
from paceline.host import messages as host_messages
from paceline.host.events import Attached
from paceline.ipc import messages
from paceline.transfer.messages import Peer
from support.one_host import STORE, OneHost
from support.planes import plane_of
from support.run_state import OFFER

HALVES = Shard("node-0", 0, 32), Shard("node-1", 32, 64)
OTHER = Peer("node-2", 1)
BESIDE = Shard("node-1", 0, 32), Shard("node-2", 32, 64)
IN_PIECES = msgspec.structs.replace(OFFER, slot_bytes=64, push_bytes=96, cuts=[0, 32, 64])
BRING, DROP = host_messages.Bring((0, 0, "update"), None), host_messages.Drop((0, 0, "update"))


def one_host(*shards: Shard, threads: int = 1, device: str = "") -> OneHost:
    """Host node-1 with worker 1, to which what training begins with is on its way."""
    offer = msgspec.structs.replace(IN_PIECES, device=device) if device else IN_PIECES
    host = OneHost((1,), 2, threads=threads, offer=offer)
    host.trains((1,), *shards)
    return host


@pytest.fixture
def early() -> OneHost:
    """The head makes the other half of each version."""
    return one_host(*HALVES)


@pytest.fixture
def host(early: OneHost) -> OneHost:
    """A host that trains. Two requests are over."""
    early.store_is_ready()
    return early


def makes(host: OneHost, version: int) -> None:
    """This host is to make its range of the version, and has made it."""
    host.host.tell(host_messages.MakeRange(version, [], None, look=True))
    host.loop.hear(STORE, messages.store.Committed(version, 0.0, 0, None))


def claimed(host: OneHost) -> list[object]:
    """Who claims the first update of worker 0."""
    return [owner for owner, there, _ in host.host.shelf.claims() if there == Update(0, 0)]


def test_a_version_is_readable_once_all_its_ranges_are_here(host: OneHost) -> None:
    makes(host, 1)
    host.pulls(1)
    assert host.taken() == []
    host.host.tell(host_messages.VersionMade(1))
    assert host.taken() == []
    host.comes(3)
    assert host.taken() == [(1, 1)]


def test_a_version_that_this_host_makes_alone_is_readable_at_once() -> None:
    host = one_host(Shard("node-1", 0, 64))
    host.store_is_ready()
    makes(host, 1)
    host.host.tell(host_messages.VersionMade(1))
    host.pulls(1)
    assert host.taken() == [(1, 1)]


@pytest.mark.parametrize(("on_gpu", "threads"), [(False, 2), (True, 5)])
def test_a_range_is_made_on_the_cores_that_no_worker_of_this_host_keeps_busy(
    on_gpu: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has six cores, and a worker of four threads that computes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    host = one_host(*HALVES, threads=4, device="NVIDIA H200" * on_gpu)
    host.store_is_ready()
    host.host.carry_out(Release(worker=1, step=0, version=0))
    host.host.tell(host_messages.MakeRange(1, [], None, look=True))
    order = host.loop.lines[STORE].sent[-1]
    assert isinstance(order, messages.store.Commit)
    assert order.threads == threads


def test_an_update_is_not_kept_that_was_dropped_before_training_began_here(early: OneHost) -> None:
    for order in BRING, DROP:
        early.host.tell(order)
    early.store_is_ready()
    assert not claimed(early)


def test_a_host_that_refuses_an_update_is_not_reached_until_the_head_has_it_dropped(host: OneHost) -> None:
    """It was dropped there before, as a rule, and the head is about to say so. If not, one of the two hosts is lost."""
    reached = host.carrier.reached = Mock()
    for step in (0, 1):
        host.host.tell(host_messages.Bring((0, step, "update"), None))
        host.refused(3 + 2 * step)
    assert not host.carrier.reaches("node-0")
    assert not claimed(host)
    assert not host.reports.of(host_messages.Stored)
    host.host.tell(DROP)
    assert reached.call_args_list == [call("node-0", False)] * 2
    host.host.tell(host_messages.Drop((0, 1, "update")))
    assert reached.call_args_list[2:] == [call("node-0", True)]
    assert host.carrier.reaches("node-0")


@pytest.mark.parametrize("said", [PeerLost("it has closed"), messages.store.StoreFailed("why")])
def test_what_was_ordered_is_done_though_no_process_makes_ranges(
    said: messages.Message | Exception, early: OneHost
) -> None:
    """The run fails, and its workers are told to end."""
    early.host.tell(host_messages.TellWorker(1, messages.worker.Pause()))
    early.loop.hear(STORE, said)
    assert len(early.reports.of(host_messages.ShardLost)) == 1
    for request in (1, 2):
        early.comes(request)
    early.workers.send.assert_called_with(1, messages.worker.Pause(), ())


def test_a_worker_that_can_t_fork_the_process_that_makes_ranges_is_ended(early: OneHost) -> None:
    early.loop.hear(STORE, PeerLost("it has closed"))
    early.workers.end.assert_called_once_with(1)
    assert early.reports.told(host_messages.ShardLost) == [
        ("no process of its script is left there to start the parameter store",)
    ]


def test_the_process_that_makes_ranges_is_lost_once(host: OneHost) -> None:
    host.loop.ends[7]()
    assert len(host.reports.of(host_messages.ShardLost)) == 1
    host.host.tell(host_messages.MakeRange(1, [], None, look=True))
    assert not host.host.shelf.has(Version(1))


def test_a_version_whose_maker_is_lost_is_still_to_come_for_those_who_ask(host: OneHost) -> None:
    """Its place is free, whatever was made of it."""
    host.host.tell(host_messages.MakeRange(1, [], None, look=True))
    host.loop.hear(STORE, messages.store.Making(1, 32, 64))
    assert host.host.items.look(Version(1), 32, 64) == "here"
    host.loop.hear(STORE, messages.store.StoreFailed("no memory"))
    assert not host.host.shelf.has(Version(1))
    assert host.host.items.look(Version(1), 32, 64) == "coming"


def asked(host: OneHost) -> list[tuple[str, int, int]]:
    """What is asked of other hosts, and has not come."""
    coming = [one for record in plane_of(host.carrier)._fetches._records.values() for one in record.coming]
    return [(one.peer.host, one.have, one.end) for one in coming if one.have < one.end]


def beside_another() -> OneHost:
    """One of two hosts that make ranges, both besides the head, at version 1."""
    host = one_host(*BESIDE)
    host.carrier.meet(*OTHER)
    plane_of(host.carrier).connected(OTHER)
    host.store_is_ready()
    makes(host, 1)
    host.host.tell(host_messages.VersionMade(1))
    return host


def test_a_range_is_taken_over_from_the_host_that_leaves_and_is_served_then() -> None:
    host = beside_another()
    state = Attached("share 1 of node-2", 8)
    host.host.tell(host_messages.TakeRange("node-2", 32, 64, [1], [], state))
    assert asked(host) == [("node-2", 32, 64), ("node-2", 0, 8)]
    for request in (3, 4):
        host.comes(request, peer=OTHER)
    assert len(host.reports.of(host_messages.RangeTaken)) == 1
    assert host.host.items.look(Version(1), 32, 64) == "here"
    host.host.tell(host_messages.Shards((Shard("node-1", 0, 64),), "node-2"))
    host.pulls(1)
    assert host.taken() == [(1, 1)]
    host.host.tell(BRING)
    assert asked(host) == [("node-0", 0, 64), ("node-0", 64, 64 + OFFER.flags_bytes)]


def test_what_waits_for_an_item_goes_on_if_no_other_host_has_any_of_it_any_more() -> None:
    host = beside_another()
    host.pulls(1)
    host.host.tell(host_messages.Shards((Shard("node-1", 0, 64),), "node-2"))
    assert host.taken() == [(1, 1)]
    assert host.carrier.pending() == []
