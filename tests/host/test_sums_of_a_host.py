"""A host without a shard that adds up its workers' updates: what the head's store gets of them is one sum."""

from __future__ import annotations

import msgspec
import pytest

from paceline.core.items import Sum, Update
from paceline.core.orders import Release
from paceline.core.shards import Shard
from paceline.errors import PeerLost
from paceline.host import messages as host_messages
from paceline.host.events import WorkerSaid
from paceline.ipc import messages
from paceline.transfer.item_names import summand_of
from support.one_host import STORE, OneHost
from support.run_state import OFFER

SUM = host_messages.SumUp(1, [(1, 0, 0.5), (2, 0, 0.5)], look=True)
ForkStore = messages.worker.ForkStore


def adds_up(
    own: tuple[int, ...] = (1, 2),
    of: int = 3,
    *shards: Shard,
    prepared: tuple[int, ...] | None = None,
    begins: tuple[int, ...] | None = None,
) -> OneHost:
    """Host node-1 with workers 1 and 2, if not others, of which all begin."""
    offer = msgspec.structs.replace(OFFER, slot_bytes=64, push_bytes=96, cuts=[0, 32, 64])
    host = OneHost(own, of, "bsp", prepared=prepared, offer=offer)
    host.trains(own if begins is None else begins, *shards, sums=True)
    return host


@pytest.fixture
def early() -> OneHost:
    """A host whose process is still to come."""
    return adds_up()


@pytest.fixture
def host(early: OneHost) -> OneHost:
    """All of its workers have computed a step."""
    computed(early)
    return early


def computed(host: OneHost) -> None:
    """The process is there, so is what training begins with, and all workers have computed a step."""
    host.store_is_ready()
    for worker in host.own:
        host.host.carry_out(Release(worker=worker, step=0, version=0, parameters="held"))
        host.finished(worker, 0)


def lost(host: OneHost) -> list[str]:
    """Why the head was told that nothing is added up here any more."""
    return [event.why for event in host.reports.of(host_messages.SumsLost)]


def begins_without(host: OneHost, *why: str) -> None:
    """Training begins there once all is there, and the head was told so of sums."""
    host.comes(1)
    host.comes(2)
    assert len(host.reports.of(host_messages.Begun)) == 1
    assert lost(host) == [*why]


def test_the_process_is_forked_before_training_begins_and_makes_no_range(early: OneHost) -> None:
    assert early.told(ForkStore) == [1]
    (order,) = [call.args[1] for call in early.workers.send.call_args_list]
    assert (order.begin, order.end, order.steps) == (0, 0, False)
    assert early.carrier.pending() == []
    early.store_is_ready()
    assert len(early.reports.of(host_messages.Begun)) == 1
    assert not early.host.tells, "no gradients are told early where they are added up"


def test_where_none_trains_so_far_a_worker_that_waits_in_prepare_forks_it() -> None:
    assert adds_up(prepared=(2,), begins=()).told(ForkStore) == [2]


def test_a_sum_is_served_as_it_is_made(host: OneHost) -> None:
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


@pytest.mark.parametrize("before", [True, False])
def test_there_is_a_place_for_every_sum_though_void_ones_are_still_being_made(before: bool) -> None:
    """Worker 4 has died as its update was being added up. The sum of the head's host comes before that, or after it."""
    own = (2, 3, 4)
    host = adds_up(own, 5, Shard("node-0", 0, 32), Shard("node-1", 32, 64))
    computed(host)

    def ordered(number: int, *workers: int) -> None:
        host.host.tell(host_messages.SumUp(number, [(worker, 0, 1 / len(workers)) for worker in workers], look=True))
        host.host.tell(host_messages.Bring((number, "sum"), "node-1"))

    def void(number: int) -> None:
        host.host.tell(host_messages.DropSum(number))
        host.host.tell(host_messages.Drop((number, "sum")))

    def of_the_heads() -> None:
        host.host.tell(host_messages.Bring((2, "sum"), "node-0"))
        host.comes(3)
        host.comes(4)

    ordered(1, *own)
    if before:
        of_the_heads()
    void(1)
    ordered(3, 2, 3)
    if not before:
        of_the_heads()
    stored = [summand_of(event.item).number for event in host.reports.of(host_messages.Stored)]
    assert stored == ([1, 2, 3] if before else [1, 3, 2])


def test_the_next_worker_forks_the_process_where_the_lowest_dies_before_it_has(early: OneHost) -> None:
    early.gone(1, 9)
    early.loop.hear(STORE, PeerLost("it has closed"))
    assert early.told(ForkStore) == [1, 2]
    early.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
    begins_without(early)


NOBODY = "no process of its script is left there to start the process that adds up"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([PeerLost("it has closed")] * 2, NOBODY),
        ([messages.store.StoreFailed("no memory")], "the process that adds up failed: no memory"),
    ],
)
def test_without_the_process_training_begins_and_the_head_is_told(
    said: list[messages.Message | Exception], why: str, early: OneHost
) -> None:
    for one in said:
        early.loop.hear(STORE, one)
    begins_without(early, why)
    early.workers.end.assert_not_called()
    assert not early.reports.of(host_messages.ShardLost)


def test_a_worker_that_can_t_fork_the_process_goes_on_and_the_run_does(early: OneHost) -> None:
    early.reports.events.clear()
    early.says(2, messages.worker.StoreNotForked("another one's"))
    early.says(1, messages.worker.StoreNotForked("no process"))
    begins_without(early, "the process that adds up can't be started: no process")
    assert early.reports.of(WorkerSaid) == [WorkerSaid(2, messages.worker.StoreNotForked("another one's"))]


def test_where_no_worker_is_left_to_fork_the_process_the_host_begins_without() -> None:
    host = adds_up(prepared=(), begins=())
    assert host.told(ForkStore) == []
    assert lost(host) == [NOBODY]


def test_a_process_that_dies_leaves_updates_that_are_here_and_sums_that_the_head_calls_void(host: OneHost) -> None:
    host.host.tell(SUM)
    host.loop.ends[7]()
    assert lost(host) == ["the process that adds up died"]
    assert host.host.items.look(Sum(1), 0, 32) == "coming"
    host.host.tell(msgspec.structs.replace(SUM, number=2))
    for number in (1, 2):
        host.host.tell(host_messages.DropSum(number))
        assert not host.host.shelf.has(Sum(number))
    assert host.host.items.look(Update(1, 0), 0, 64) == "here"
