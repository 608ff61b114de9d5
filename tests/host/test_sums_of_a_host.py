"""A host without a shard that adds up its workers' updates: what the head's store gets of them is one sum."""

from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.items import Sum, Update
from paceline.core.orders import Release
from paceline.core.shards import Shard
from paceline.errors import PeerLost
from paceline.host import messages as host_messages
from paceline.host.events import WorkerSaid
from paceline.host.host import Host
from paceline.host.memory_plan import plan
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.transfer.item_names import summand_of
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from support.planes import plane_of
from support.reports import Reports
from support.run_state import OFFER, Clockwork

HEAD = Peer("node-0", 1)
STORE = "the store"
SUM = host_messages.SumUp(1, [(1, 0, 0.5), (2, 0, 0.5)], look=True)


class OneHost:
    """Host node-1 with workers 1 and 2, if not others. The test stands in for the head with the rest of `of` workers,
    and for the process."""

    def __init__(
        self,
        prepared: tuple[int, ...] = (1, 2),
        begins: tuple[int, ...] = (1, 2),
        own: tuple[int, ...] = (1, 2),
        of: int = 3,
        shards: tuple[Shard, ...] = (),
    ) -> None:
        choice = choose("bsp", registry())
        places = plan(choice.spec, choice.unapplied, of)
        self.own = own
        self.workers, self.reports, self.loop = Mock(numbers=[*own]), Reports(), Clockwork()
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
            host_of=lambda worker: "node-1" if worker in own else "node-0",
            head="node-0",
            threads=1,
            now=lambda: 0.0,
        )
        self.carrier.begins(0, self.host.items)
        plane_of(self.carrier).connected(HEAD)
        self.host.tell(host_messages.BeginScripts())
        hear, self._gone = self.workers.open.call_args.args
        self.says = lambda worker, message: hear(worker, message, [])
        for worker in own:
            self.says(worker, msgspec.structs.replace(OFFER, slot_bytes=64, push_bytes=96, cuts=[0, 32, 64]))
        for worker in {*own} - {*prepared}:
            self._gone(worker, 9)
        self.host.tell(host_messages.Train(dict.fromkeys(begins), 0, 0.0, shards, sums=True))

    def forks(self) -> list[int]:
        """Workers that were told to fork the process."""
        calls = [call.args[:2] for call in self.workers.send.call_args_list]
        return [worker for worker, message in calls if isinstance(message, messages.worker.ForkStore)]

    def comes(self, *requests: int) -> None:
        """All that was asked for comes."""
        for request in requests:
            there = plane_of(self.carrier).memory(HEAD, request)
            assert there is not None
            plane_of(self.carrier).came(HEAD, request, there.nbytes)

    def trains(self) -> None:
        """The process is there, so is what training begins with, and all workers have computed a step."""
        self.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
        self.comes(1, 2)
        for worker in self.own:
            self.host.carry_out(Release(worker=worker, step=0, version=0, parameters="held"))
            self.says(worker, messages.worker.StepFinished(0, 0, None, [], None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))

    def lost(self) -> list[str]:
        """Why the head was told that nothing is added up here any more."""
        return [event.why for event in self.reports.of(host_messages.SumsLost)]


def test_the_process_is_forked_before_training_begins_and_makes_no_range() -> None:
    host = OneHost()
    assert host.forks() == [1]
    (order,) = [call.args[1] for call in host.workers.send.call_args_list]
    assert (order.begin, order.end, order.steps) == (0, 0, False)
    assert host.carrier.pending() == []
    host.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
    host.comes(1, 2)
    assert len(host.reports.of(host_messages.Begun)) == 1


def test_where_none_trains_so_far_a_worker_that_waits_in_prepare_forks_it() -> None:
    assert OneHost(prepared=(2,), begins=()).forks() == [2]


def test_a_sum_is_served_as_it_is_made() -> None:
    host = OneHost()
    host.trains()
    host.host.tell(SUM)
    assert host.host.items.look(Sum(1), 0, 32) == "coming"
    host.loop.hear(STORE, messages.store.Summing(1, 0, 32))
    assert [host.host.items.look(Sum(1), 0, end) for end in (32, 64)] == ["here", "coming"]
    host.loop.hear(STORE, messages.store.Summed(1, ("weight", 2)))
    assert host.host.items.look(Sum(1), 0, 64) == "here"
    assert host.reports.told(host_messages.SumNotFinite) == [("weight", 2)]
    host.host.tell(host_messages.DropSum(1))
    assert not host.host.shelf.has(Sum(1))
    assert host.host.shelf.has(Update(1, 0))


@pytest.mark.parametrize("early", [True, False])
def test_there_is_a_place_for_every_sum_though_void_ones_are_still_being_made(early: bool) -> None:
    """Worker 4 has died as its update was being added up. The sum of the head's host comes before that, or after it."""
    own, shards = (2, 3, 4), (Shard("node-0", 0, 32), Shard("node-1", 32, 64))
    host = OneHost(own, own, own, of=5, shards=shards)
    host.trains()

    def ordered(number: int, *workers: int) -> None:
        host.host.tell(host_messages.SumUp(number, [(worker, 0, 1 / len(workers)) for worker in workers], look=True))
        host.host.tell(host_messages.Bring((number, "sum"), "node-1"))

    def void(number: int) -> None:
        host.host.tell(host_messages.DropSum(number))
        host.host.tell(host_messages.Drop((number, "sum")))

    def of_the_heads() -> None:
        host.host.tell(host_messages.Bring((2, "sum"), "node-0"))
        host.comes(3, 4)

    ordered(1, *own)
    if early:
        of_the_heads()
    void(1)
    ordered(3, 2, 3)
    if not early:
        of_the_heads()
    stored = [summand_of(event.item).number for event in host.reports.of(host_messages.Stored)]
    assert stored == ([1, 2, 3] if early else [1, 3, 2])


def test_no_gradients_are_told_early_where_they_are_added_up() -> None:
    assert not OneHost().host.tells


def test_the_next_worker_forks_the_process_where_the_lowest_dies_before_it_has() -> None:
    host = OneHost()
    host._gone(1, 9)
    host.loop.hear(STORE, PeerLost("it has closed"))
    assert host.forks() == [1, 2]
    assert host.lost() == []
    host.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
    host.comes(1, 2)
    assert len(host.reports.of(host_messages.Begun)) == 1


NOBODY = "no process of its script is left there to start the process that adds up"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([PeerLost("it has closed")] * 2, NOBODY),
        ([messages.store.StoreFailed("no memory")], "the process that adds up failed: no memory"),
    ],
)
def test_without_the_process_training_begins_and_the_head_is_told(
    said: list[messages.Message | Exception], why: str
) -> None:
    host = OneHost()
    for one in said:
        host.loop.hear(STORE, one)
    host.comes(1, 2)
    assert len(host.reports.of(host_messages.Begun)) == 1
    assert host.lost() == [why]
    host.workers.end.assert_not_called()
    assert not host.reports.of(host_messages.ShardLost)


def test_a_worker_that_can_t_fork_the_process_goes_on_and_the_run_does() -> None:
    host = OneHost()
    host.reports.events.clear()
    host.says(2, messages.worker.StoreNotForked("another one's"))
    assert host.reports.of(WorkerSaid) == [WorkerSaid(2, messages.worker.StoreNotForked("another one's"))]
    host.says(1, messages.worker.StoreNotForked("no process"))
    host.comes(1, 2)
    assert len(host.reports.of(host_messages.Begun)) == 1
    assert host.lost() == ["the process that adds up can't be started: no process"]
    assert len(host.reports.of(WorkerSaid)) == 1


def test_where_no_worker_is_left_to_fork_the_process_the_host_begins_without() -> None:
    host = OneHost(prepared=(), begins=())
    assert host.forks() == []
    assert host.lost() == [NOBODY]


def test_a_process_that_dies_leaves_updates_that_are_here_and_sums_that_the_head_calls_void() -> None:
    host = OneHost()
    host.trains()
    host.host.tell(SUM)
    host.loop.ends[7]()
    assert host.lost() == ["the process that adds up died"]
    assert host.host.items.look(Sum(1), 0, 32) == "coming"
    host.host.tell(msgspec.structs.replace(SUM, number=2))
    for number in (1, 2):
        host.host.tell(host_messages.DropSum(number))
        assert not host.host.shelf.has(Sum(number))
    assert host.host.items.look(Update(1, 0), 0, 64) == "here"
