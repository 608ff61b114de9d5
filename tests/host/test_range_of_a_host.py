"""A host that is not the head, and makes a range of each version: what it keeps, and what its workers may see."""

from __future__ import annotations

import os
from unittest.mock import Mock, call

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.facts import ParametersTaken
from paceline.core.items import Update, Version
from paceline.core.orders import Release
from paceline.core.shards import Shard
from paceline.errors import PeerLost
from paceline.host import messages as host_messages
from paceline.host.events import Attached
from paceline.host.host import Host
from paceline.host.memory_plan import plan
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from support.planes import plane_of
from support.reports import Reports
from support.run_state import OFFER, Clockwork

HEAD = Peer("node-0", 1)
STORE = "the store"
HALVES = Shard("node-0", 0, 32), Shard("node-1", 32, 64)
OTHER = Peer("node-2", 1)
BESIDE = Shard("node-1", 0, 32), Shard("node-2", 32, 64)


class OneHost:
    """Host node-1 with worker 1. The test stands in for the head with worker 0, and for the store process."""

    def __init__(self, *shards: Shard, threads: int = 1, offer: messages.worker.Offered = OFFER) -> None:
        choice = choose("asp", registry())
        places = plan(choice.spec, choice.unapplied, 2)
        self.workers, self.reports, self.loop = Mock(numbers=[1]), Reports(), Clockwork()
        self.carrier = TransferManager("node-1", lambda: 0.0)
        self.carrier.meet(*HEAD)
        loop: Mock = self.loop  # type: ignore[assignment]
        self.host = Host(
            places,
            choice.spec,
            self.workers,
            self.carrier,
            self.reports,
            loop,
            name="node-1",
            host_of={0: "node-0", 1: "node-1"}.__getitem__,
            head="node-0",
            threads=threads,
            now=lambda: 0.0,
        )
        self.carrier.begins(0, self.host.items)
        plane_of(self.carrier).connected(HEAD)
        self.host.tell(host_messages.BeginScripts())
        hear = self.workers.open.call_args.args[0]
        hear(1, msgspec.structs.replace(offer, slot_bytes=64, push_bytes=96, cuts=[0, 32, 64]), [])
        self.host.tell(host_messages.Train({1: None}, 0, 0.0, shards))

    def begins(self) -> None:
        """The store process is there, and so is what training begins with: requests 1 and 2."""
        self.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
        self.comes(1, 2)

    def comes(self, *requests: int) -> None:
        """All that was asked for comes."""
        for request in requests:
            there = plane_of(self.carrier).memory(HEAD, request)
            assert there is not None
            plane_of(self.carrier).came(HEAD, request, there.nbytes)

    def makes(self, version: int, *contributions: tuple[int, int, float]) -> None:
        """This host is to make its range of the version, and has made it."""
        self.host.tell(host_messages.MakeRange(version, list(contributions), None, look=True))
        self.loop.hear(STORE, messages.store.Committed(version, 0.0, 0, None))

    def claimed(self, item: Update | Version) -> list[object]:
        """Who claims the item."""
        return [owner for owner, there, _ in self.host.shelf.claims() if there == item]

    def taken(self) -> list[int]:
        """The versions that the worker has."""
        return [fact.version for fact in self.reports.of(ParametersTaken)]


@pytest.fixture
def host() -> OneHost:
    """A host that trains. The head makes the other half of each version. Two requests are over."""
    host = OneHost(*HALVES)
    host.begins()
    return host


def test_a_version_is_readable_once_all_its_ranges_are_here(host: OneHost) -> None:
    host.makes(1)
    host.host.carry_out(Release(worker=1, step=1, version=1))
    assert host.taken() == []
    host.host.tell(host_messages.VersionMade(1))
    assert host.taken() == []
    host.comes(3)
    assert host.taken() == [1]


def test_a_version_that_this_host_makes_alone_is_readable_at_once() -> None:
    host = OneHost(Shard("node-1", 0, 64))
    host.begins()
    host.makes(1)
    host.host.tell(host_messages.VersionMade(1))
    host.host.carry_out(Release(worker=1, step=1, version=1))
    assert host.taken() == [1]


@pytest.mark.parametrize("came", [0, 1, 2])
def test_an_update_that_is_dropped_is_not_kept_however_much_of_it_has_come(host: OneHost, came: int) -> None:
    host.host.tell(host_messages.Bring((0, 0, "update"), None))
    assert host.claimed(Update(0, 0))
    host.comes(*range(3, 3 + came))
    host.host.tell(host_messages.Drop((0, 0, "update")))
    assert not host.claimed(Update(0, 0))


@pytest.mark.parametrize(("on_gpu", "threads"), [(False, 2), (True, 5)])
def test_a_range_is_made_on_the_cores_that_no_worker_of_this_host_keeps_busy(
    on_gpu: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has six cores, and a worker of four threads that computes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    host = OneHost(*HALVES, threads=4, offer=msgspec.structs.replace(OFFER, device="NVIDIA H200" * on_gpu))
    host.begins()
    host.host.carry_out(Release(worker=1, step=0, version=0))
    host.host.tell(host_messages.MakeRange(1, [], None, look=True))
    order = host.loop.lines[STORE].sent[-1]
    assert isinstance(order, messages.store.Commit)
    assert order.threads == threads


def test_an_update_is_not_kept_that_was_dropped_before_training_began_here() -> None:
    host = OneHost(*HALVES)
    for order in host_messages.Bring((0, 0, "update"), None), host_messages.Drop((0, 0, "update")):
        host.host.tell(order)
    host.begins()
    assert not host.claimed(Update(0, 0))


def test_an_update_that_can_t_come_is_not_kept(host: OneHost) -> None:
    host.host.tell(host_messages.Bring((0, 0, "update"), None))
    plane_of(host.carrier).refused(HEAD, 3, "why")
    assert not host.claimed(Update(0, 0))
    assert not host.reports.of(host_messages.Stored)


def test_a_host_that_refuses_an_update_is_not_reached_until_the_head_has_it_dropped(host: OneHost) -> None:
    """It was dropped there before, as a rule, and the head is about to say so. If not, one of the two hosts is lost."""
    reached = host.carrier.reached = Mock()
    for step in (0, 1):
        host.host.tell(host_messages.Bring((0, step, "update"), None))
        plane_of(host.carrier).refused(HEAD, 3 + 2 * step, "why")
    assert not host.carrier.reaches("node-0")
    host.host.tell(host_messages.Drop((0, 0, "update")))
    assert reached.call_args_list == [call("node-0", False)] * 2
    host.host.tell(host_messages.Drop((0, 1, "update")))
    assert reached.call_args_list[2:] == [call("node-0", True)]
    assert host.carrier.reaches("node-0")


@pytest.mark.parametrize("said", [PeerLost("it has closed"), messages.store.StoreFailed("why")])
def test_what_was_ordered_is_done_though_no_process_makes_ranges(said: messages.Message | Exception) -> None:
    """The run fails, and its workers are told to end."""
    host = OneHost(*HALVES)
    host.host.tell(host_messages.TellWorker(1, messages.worker.Pause()))
    host.loop.hear(STORE, said)
    assert len(host.reports.of(host_messages.ShardLost)) == 1
    host.comes(1, 2)
    host.workers.send.assert_called_with(1, messages.worker.Pause(), ())


def test_a_worker_that_can_t_fork_the_process_that_makes_ranges_is_ended() -> None:
    host = OneHost(*HALVES)
    host.loop.hear(STORE, PeerLost("it has closed"))
    host.workers.end.assert_called_once_with(1)
    assert host.reports.told(host_messages.ShardLost) == [
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
    host = OneHost(*BESIDE)
    host.carrier.meet(*OTHER)
    plane_of(host.carrier).connected(OTHER)
    host.begins()
    host.makes(1)
    host.host.tell(host_messages.VersionMade(1))
    return host


def test_what_is_on_its_way_is_asked_of_the_hosts_that_make_versions_from_now_on() -> None:
    host = beside_another()
    host.host.carry_out(Release(worker=1, step=1, version=1))
    assert asked(host) == [("node-2", 32, 64)]
    host.host.tell(
        host_messages.Shards(
            (
                Shard("node-1", 0, 32),
                Shard("node-0", 32, 64),
            ),
            "node-2",
        )
    )
    assert asked(host) == [("node-0", 32, 64)]
    host.comes(4)
    assert host.taken() == [1]
    assert not host.reports.of(host_messages.Lacks)


def test_a_range_is_taken_over_from_the_host_that_leaves_and_is_served_then() -> None:
    host = beside_another()
    state = Attached("share 1 of node-2", 8)
    host.host.tell(host_messages.TakeRange("node-2", 32, 64, [1], [], state))
    assert asked(host) == [("node-2", 32, 64), ("node-2", 0, 8)]
    for request in (3, 4):
        there = plane_of(host.carrier).memory(OTHER, request)
        assert there is not None
        plane_of(host.carrier).came(OTHER, request, there.nbytes)
    assert len(host.reports.of(host_messages.RangeTaken)) == 1
    assert host.host.items.look(Version(1), 32, 64) == "here"
    host.host.tell(host_messages.Shards((Shard("node-1", 0, 64),), "node-2"))
    host.host.carry_out(Release(worker=1, step=1, version=1))
    assert host.taken() == [1]
    host.host.tell(host_messages.Bring((0, 0, "update"), None))
    assert asked(host) == [("node-0", 0, 64), ("node-0", 64, 64 + OFFER.flags_bytes)]


def test_what_waits_for_an_item_goes_on_if_no_other_host_has_any_of_it_any_more() -> None:
    host = beside_another()
    host.host.carry_out(Release(worker=1, step=1, version=1))
    host.host.tell(host_messages.Shards((Shard("node-1", 0, 64),), "node-2"))
    assert host.taken() == [1]
    assert host.carrier.pending() == []
