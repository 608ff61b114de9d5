"""Replicas in areas, without processes: who is told what, and what is left when a member has died."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.group_links import GroupLinks
from paceline.cluster.scenario import Network, Scenario
from paceline.core.facts import Fact, ReduceFailed, ReduceFinished
from paceline.core.leases import Leases
from paceline.core.orders import Reduce, StepReplica
from paceline.fabric.channel import Channel, pair
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.runtime import messages
from paceline.runtime.loop import Loop
from paceline.runtime.member import Member
from paceline.runtime.outbox import Outbox
from paceline.runtime.replica_exchange import ReplicaExchange
from paceline.runtime.store_client import StoreClient


@dataclass
class Company:
    """Three workers, each of whose replicas has made a step, or none; `averagers` are their ends of the channels."""

    exchange: ReplicaExchange
    members: dict[int, Member]
    loop: Loop
    facts: list[Fact]
    at: list[float]
    """The present second."""
    averagers: dict[int, Channel] = field(default_factory=dict)
    evicted: list[tuple[int, list[int]]] = field(default_factory=list)
    """By whom, and what is kept for whom."""

    def average(self, worker: int) -> int:
        """It makes the share that it was told to make. Returns the area that the average is made in."""
        averager = self.averagers[worker]
        assert averager.ready()
        order, _ = averager.receive()
        if isinstance(order, messages.Evict):
            self.evicted.append((worker, order.members))
            order, _ = averager.receive()
        assert isinstance(order, messages.Average)
        averager.send(messages.Averaged(order.group, 0.0))
        self.loop.wait(0.0)
        return order.target


def unused(*_: Any) -> Any:
    raise AssertionError("the store says nothing here")


@contextmanager
def company_of_three(stepped: bool, network: Network | None = None) -> Iterator[Company]:
    ends = [pair() for _ in range(4)]
    channels = [Channel(ours, messages.FromWorker, "a worker") for ours, _ in ends[:3]]
    members = {
        worker: Member(
            worker=worker, process=0, watch=0, channel=channel, log=Path("log"), printed=None, stage="training"
        )
        for worker, channel in enumerate(channels)
    }
    loop, facts, at = Loop(), list[Fact](), [0.0]
    to_store = Channel(ends[3][0], messages.FromStore, "the store")
    exchange = ReplicaExchange(
        members,
        loop,
        Journal(NoLedger()),
        lambda *_: None,
        facts.append,
        lambda: at[0],
        unused,
        GroupLinks.of(Scenario(network=network), 3),
        None if network is None else network.message,
    )
    company = Company(exchange, members, loop, facts, at)
    leases = Leases("queue", list(members))
    leases.open(0, [4, 4, 4], "digest")
    store = StoreClient(
        to_store,
        Outbox(to_store, loop, unused),
        0,
        idle_cores=unused,
        timed=unused,
        applied=unused,
        made=unused,
        checked=unused,
        written=unused,
        not_finite=unused,
    )
    exchange.begin(store, leases, 0)
    for worker, member in members.items():
        (theirs,) = exchange.connect(member)
        company.averagers[worker] = Channel(theirs, messages.ToAverager, "the coordinator")
        if not stepped:
            continue
        batch = leases.take(worker, 0, "digest")
        assert batch is not None
        leases.bind(worker, 0, (batch,))
        exchange.carry_out(StepReplica(worker=worker, step=0, version=1))
        exchange.stepped(member, 0)
    yield company
    for member in members.values():
        if member.here:
            exchange.gone(member)
        company.averagers[member.worker].close()
    for end in (end for both in ends for end in both):
        end.close()
    loop.close()


@pytest.fixture
def company() -> Iterator[Company]:
    with company_of_three(stepped=True) as company:
        yield company


@pytest.fixture
def beginners() -> Iterator[Company]:
    """Nobody has made a step."""
    with company_of_three(stepped=False) as company:
        yield company


def test_a_group_whose_member_has_just_died_fails_and_its_other_members_keep_their_replicas(company: Company) -> None:
    """Its death shows when it is to be sent its share, before the end of its process is heard of."""
    exchange, lost = company.exchange, company.members[1]
    before = dict(exchange.replicas)
    assert len(set(before.values())) == 3
    company.averagers[1].close()
    exchange.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    targets = {company.average(0), company.average(2)}
    assert exchange.averaging
    assert company.facts == []
    lost.stage = "gone"
    exchange.gone(lost)
    assert company.facts == [ReduceFailed(group=0, lost=(1,), at=0.0)]
    assert not exchange.averaging
    assert exchange.replicas == before
    assert targets == {exchange.free()}, "nobody needs the area that the average was made in"

    exchange.carry_out(Reduce(group=1, members=(0, 2), what="parameters"))
    targets = {company.average(0), company.average(2)}
    assert company.facts[1:] == [ReduceFinished(group=1, at=0.0)]
    assert exchange.replicas == before, "until the machine is told"
    exchange.tell(company.facts[1])
    assert {exchange.replicas[0], exchange.replicas[2]} == targets
    assert company.evicted == [(0, [0, 1, 2]), (2, [0, 1, 2])], "what was kept for them may be broken"


def test_a_share_that_is_made_after_its_group_was_said_to_have_failed_is_awaited_and_counts_for_nothing(
    company: Company,
) -> None:
    """Whoever directs a run says so, and awaits nothing any more once the run stops."""
    exchange = company.exchange
    exchange.deaths_are_told = True
    before = dict(exchange.replicas)
    exchange.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    exchange.tell(ReduceFailed(group=0, lost=(1,), at=0.0))
    target = company.average(0)
    assert exchange.free() != target, "two others still write into it"
    company.average(1)
    company.average(2)
    assert exchange.free() == target
    assert exchange.replicas == before
    assert not exchange.averaging


def test_an_average_comes_about_when_its_last_share_is_made_though_its_end_was_told_before(company: Company) -> None:
    exchange = company.exchange
    exchange.deaths_are_told = True
    before = dict(exchange.replicas)
    exchange.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    exchange.tell(ReduceFinished(group=0, at=0.0))
    assert exchange.replicas == before, "its area is not written to the end"
    targets = {company.average(worker) for worker in range(3)}
    exchange.conclude()
    assert set(exchange.replicas.values()) == targets
    assert not exchange.averaging


# --- averages at a network's pace


@pytest.fixture
def paced() -> Iterator[Company]:
    """An average of two takes 0.25 s of latencies, and 100 bytes at 100 a second."""
    with company_of_three(stepped=True, network=Network(bandwidth=100.0, latency=0.125, message=100)) as company:
        yield company


def test_an_average_whose_shares_are_made_sooner_ends_at_the_model_s_time_however_late_the_run_comes_to_it(
    paced: Company,
) -> None:
    exchange = paced.exchange
    before = dict(exchange.replicas)
    exchange.present = 0.5
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    exchange.present = None
    paced.at[0] = 0.75
    targets = {paced.average(0), paced.average(1)}
    assert (paced.facts, exchange.next(1.7)) == ([], None)
    assert exchange.due() == pytest.approx(1.0)
    paced.at[0] = 2.0
    fact = exchange.next(2.0)
    assert fact == ReduceFinished(group=0, at=1.75)
    assert (exchange.next(2.0), exchange.due()) == (None, None)
    assert exchange.replicas == before, "until the machine is told"
    exchange.tell(fact)
    assert {exchange.replicas[0], exchange.replicas[1]} == targets
    assert paced.members[0].transfers == [("pull", 0.5, 1.75)]


def test_an_average_whose_shares_are_made_later_than_its_bytes_have_moved_ends_then(paced: Company) -> None:
    exchange = paced.exchange
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    paced.average(0)
    paced.at[0] = 1.5
    assert (exchange.next(1.5), exchange.due()) == (None, None)
    paced.at[0] = 2.0
    paced.average(1)
    assert paced.facts == [ReduceFinished(group=0, at=2.0)]


def test_an_average_begins_once_its_members_steps_are_made(paced: Company) -> None:
    exchange = paced.exchange
    exchange._ordered[0] += 1
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    assert exchange.due() is None
    paced.at[0] = 0.5
    exchange._stepping[0, 1] = []
    exchange.stepped(paced.members[0], 1)
    assert exchange.due() == pytest.approx(1.0)


def test_a_member_s_death_fails_its_group_when_the_average_would_have_ended(paced: Company) -> None:
    """It had made its share, but its bytes were still on their way."""
    exchange, lost = paced.exchange, paced.members[1]
    before = dict(exchange.replicas)
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    paced.average(0)
    paced.average(1)
    lost.stage = "gone"
    exchange.gone(lost)
    assert paced.facts == []
    paced.at[0] = 1.25
    assert exchange.next(1.25) is None
    assert paced.facts == [ReduceFailed(group=0, lost=(1,), at=1.25)]
    assert (exchange.averaging, exchange.replicas) == (False, before)


# --- what scripts change before the first step


def test_what_is_adopted_is_every_replica_though_some_were_averaged_before(beginners: Company) -> None:
    """One group has averaged, one has made its shares, one makes them, as the first worker comes with its changes."""
    exchange = beginners.exchange
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    beginners.average(0)
    beginners.average(1)
    exchange.tell(beginners.facts.pop())
    exchange.carry_out(Reduce(group=1, members=(0, 1), what="parameters"))
    beginners.average(0)
    exchange.carry_out(Reduce(group=2, members=(1, 2), what="parameters"))
    beginners.average(2)
    area = exchange.reserve()
    exchange.adopt(area, [])
    assert exchange.replicas == dict.fromkeys(range(3), area)
    beginners.average(1)
    beginners.average(1)
    for fact in beginners.facts:
        exchange.tell(fact)
    assert beginners.facts == [ReduceFinished(group=group, at=0.0) for group in (1, 2)]
    assert exchange.replicas == dict.fromkeys(range(3), area), "the averages are of what nobody begins with"
    assert {area, *(exchange.reserve() for _ in range(area))} == set(range(area + 1)), "all others are free"


def test_a_reserved_area_is_nobody_else_s_until_it_is_given_up(beginners: Company) -> None:
    """Averages may be ordered meanwhile."""
    exchange = beginners.exchange
    area = exchange.reserve()
    exchange.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    assert beginners.average(0) == beginners.average(1) != area
    exchange.unreserve(area)
    assert exchange.free() == area


def test_what_an_averager_is_told_while_it_does_not_read_reaches_it_when_it_does(company: Company) -> None:
    """Its socket holds some two hundred messages."""
    exchange, averager, told = company.exchange, company.averagers[0], 1000
    for _ in range(told):
        exchange._tell((0,), messages.Evict([0, 1]))
    heard = 0
    while heard < told:
        company.loop.wait(0.0)
        assert averager.ready(), f"{told - heard} are lost"
        order, _ = averager.receive()
        assert order == messages.Evict([0, 1])
        heard += 1
    company.loop.wait(0.0)
    assert not averager.ready()
