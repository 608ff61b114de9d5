"""Replicas without processes: who is told what, and what is left when a member has died."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.facts import ParametersTaken, ReduceFailed, ReduceFinished, UpdateArrived
from paceline.core.items import Mean, Partial
from paceline.core.orders import Reduce, Release, StartPush, StepReplica
from paceline.host.events import GivenUp, GroupAveraged, Transferred
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.averaging import Averaging
from paceline.host.orders.reducers import Group, GroupShare
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.scenario.scenario import Network
from support.companies import Averagers, Company, averager, company
from support.run_state import Clockwork

Groups = tuple[Company, Averagers]


def replicas(company: Company) -> dict[int, int]:
    """By worker: the place of its replica."""
    table = company.host.replicas
    return {worker: company.host.shelf.place(table.replica(worker)) for worker in table.workers}


def free(company: Company) -> int | None:
    return company.host.shelf.free(company.host.plan.shared)


def three(stepped: bool, **given: Any) -> Groups:
    """Three workers, each of whose replicas has made a step, or none."""
    made = company(3, "ad-psgd", **given)
    for worker in range(3) if stepped else ():
        made.carry_out(StepReplica(worker=worker, step=0, version=1))
        made.stepped(worker, 0)
    made.told.clear()
    made.reports.events.clear()
    return made, Averagers(made)


@pytest.fixture
def directed() -> Groups:
    """As in a replay, which says itself which groups fail."""
    return three(stepped=True, deaths_are_told=True)


@pytest.fixture
def beginners() -> Groups:
    """Nobody has made a step."""
    return three(stepped=False)


def test_a_share_that_is_made_after_its_group_was_said_to_have_failed_is_awaited_and_counts_for_nothing(
    directed: Groups,
) -> None:
    """Whoever directs a run says so, and awaits nothing any more once the run stops."""
    company, averagers = directed
    before = replicas(company)
    company.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    company.host.tell(ReduceFailed(group=0, lost=(1,), at=0.0))
    target = averagers.average(0)
    assert free(company) != target, "two others still write into it"
    averagers.average(1)
    averagers.average(2)
    assert free(company) == target
    assert replicas(company) == before
    assert not company.host.progress.averaging


def test_an_average_comes_about_when_its_last_share_is_made_though_its_end_was_told_before(directed: Groups) -> None:
    company, averagers = directed
    before = replicas(company)
    company.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    company.host.tell(ReduceFinished(group=0, at=0.0))
    assert replicas(company) == before, "its place is not written to the end"
    targets = {averagers.average(worker) for worker in range(3)}
    company.host.tell(ReduceFinished(group=0, at=0.0))
    assert set(replicas(company).values()) == targets
    assert not company.host.progress.averaging


class Member:
    """Host a, with the shares of workers 0 and 1 in averages."""

    def __init__(self) -> None:
        behind = {"flags_bytes": 4, "buffers_bytes": 4, "buffers_at": (12, 16)}
        offer = Mock(cuts=[0, 8], averaged_at=[0, 8], push_bytes=16, **behind)
        plan, shelf, self.loop, self.report = MemoryPlan(3, slots=0, areas=4), Shelf(), Clockwork(), Mock()
        loop: Any = self.loop
        self.host = Averaging(shelf, plan, loop, Mock(), self.report, Mock(), Mock(offer=offer), name="a")
        for worker in (0, 1):
            shelf.put(Mean(1000 + worker), ("there", worker), plan.shared)
            self.host.connect(worker)

    def begins(self, *others: GroupShare) -> None:
        """Group 7 averages, whose members on this host are both of its workers."""
        self.host.begin(Group(7, 2, (GroupShare("a", (0, 1), (0, 1), None), *others)))

    def averaged(self, worker: int) -> None:
        self.loop.hear(averager(worker), messages.worker.ShareAveraged(7))


def test_a_host_gives_others_its_own_part_of_a_group_once_that_is_there_and_no_other() -> None:
    """Another host that asks for more is refused. It may say what it likes."""
    member = Member()
    host = member.host
    assert host.look(Partial(7, "a"), 0, 8) == "coming", "it has not heard of the group"
    member.begins(GroupShare("b", (2,), (2,), None))
    assert [host.look(Partial(7, name), 0, 8) for name in "abx"] == ["coming", "gone", "gone"]
    for worker in (0, 1):
        member.averaged(worker)
    assert host.look(Partial(7, "a"), 0, 8) == "here"
    assert host.look(Mean(7), 0, 8) == "coming"


def test_a_group_is_given_up_once_no_share_of_it_is_written_any_more() -> None:
    """Its places are free then."""
    member = Member()
    member.begins()
    member.host.drop(7)
    member.averaged(0)
    member.report.assert_not_called()
    member.averaged(1)
    member.report.assert_called_once_with(GivenUp(7))


# --- at a network's pace

NETWORK = Network(bandwidth=100.0, latency=0.125, message=100)
"""What moves takes a second, and its latencies."""


@pytest.mark.parametrize(("network", "takes"), [(None, 0.0), (NETWORK, 1.125)])
def test_pulls_and_pushes_end_at_the_model_s_time_however_late_the_run_comes_to_them(
    network: Network | None, takes: float
) -> None:
    one = company(1, network=network)
    one.carry_out(Release(worker=0, step=0, version=0))
    one.now = 5.0
    taken = one.host.next(5.0) or one.facts.pop()
    one.computed(0, 0)
    one.carry_out(StartPush(worker=0, step=0))
    one.now = 60.0
    arrived = one.host.next(60.0) or one.facts.pop()
    assert (taken, arrived) == (
        ParametersTaken(worker=0, version=0, at=takes),
        UpdateArrived(worker=0, step=0, at=5.0 + takes),
    )
    assert len(one.reports.of(Transferred)) == (0 if network is None else 2), "each is noted, where they are paced"


def test_nothing_comes_of_what_a_worker_that_has_gone_was_moving_and_the_link_is_the_others() -> None:
    two = company(2, network=NETWORK)
    for worker in range(2):
        two.carry_out(Release(worker=worker, step=0, version=0))
    two.now = 0.5
    two.leave(0)
    two.now = 60.0
    assert two.host.next(60.0) == ParametersTaken(worker=1, version=0, at=1.375)
    assert (two.host.next(60.0), two.host.due(), two.facts) == (None, None, [])


@pytest.fixture
def paced() -> Groups:
    """Averages of two take 0.25 s of latencies, and 100 bytes at 100 a second."""
    return three(stepped=True, network=NETWORK)


def test_an_average_whose_shares_are_made_sooner_ends_at_the_model_s_time_however_late_the_run_comes_to_it(
    paced: Groups,
) -> None:
    company, averagers = paced
    host, before = company.host, replicas(company)
    host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"), at=0.5)
    company.now = 0.75
    targets = {averagers.average(0), averagers.average(1)}
    assert (company.facts, host.next(1.7)) == ([], None)
    assert host.due() == pytest.approx(1.0)
    company.now = 2.0
    fact = host.next(2.0)
    assert fact == ReduceFinished(group=0, at=1.75)
    assert (host.next(2.0), host.due()) == (None, None)
    assert replicas(company) == before, "until the machine is told"
    host.tell(fact)
    assert {replicas(company)[0], replicas(company)[1]} == targets
    assert company.reports.told(GroupAveraged) == [((0, 1), 0.5, 1.75)]


def test_an_average_whose_shares_are_made_later_than_its_bytes_have_moved_ends_then(paced: Groups) -> None:
    company, averagers = paced
    company.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    averagers.average(0)
    company.now = 1.5
    assert (company.host.next(1.5), company.host.due()) == (None, None)
    company.now = 2.0
    averagers.average(1)
    assert company.facts == [ReduceFinished(group=0, at=2.0)]


def test_a_member_s_death_fails_its_group_when_the_average_would_have_ended(paced: Groups) -> None:
    """It had made its share, but its bytes were still on their way."""
    company, averagers = paced
    host, before = company.host, replicas(company)
    company.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    averagers.average(0)
    averagers.average(1)
    company.leave(1)
    assert company.facts == []
    company.now = 1.25
    assert host.next(1.25) is None
    assert company.facts == [ReduceFailed(group=0, lost=(1,), at=1.25)]
    assert (host.progress.averaging, replicas(company)) == (False, before)


# --- what scripts change before the first step


def test_what_is_adopted_is_every_replica_though_some_were_averaged_before(beginners: Groups) -> None:
    """One group has averaged, one has made its shares, one makes them, as the first worker comes with its changes."""
    company, averagers = beginners
    host = company.host
    company.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    averagers.average(0)
    averagers.average(1)
    host.tell(company.facts.pop())
    company.carry_out(Reduce(group=1, members=(0, 1), what="parameters"))
    averagers.average(0)
    company.carry_out(Reduce(group=2, members=(1, 2), what="parameters"))
    averagers.average(2)
    place = adopts(company, 0)
    company.crew.hear(0, messages.worker.AdoptionWritten())
    assert replicas(company) == dict.fromkeys(range(3), place)
    averagers.average(1)
    averagers.average(1)
    for fact in company.facts:
        host.tell(fact)
    assert company.facts == [ReduceFinished(group=group, at=0.0) for group in (1, 2)]
    assert replicas(company) == dict.fromkeys(range(3), place), "the averages are of what nobody begins with"
    assert {item for _, _, item in host.shelf.claims()} == {place}, "all other places are free"


def test_a_place_that_a_beginning_is_written_to_is_nobody_else_s_until_its_worker_has_gone(
    beginners: Groups,
) -> None:
    """Averages may be ordered meanwhile."""
    company, averagers = beginners
    place = adopts(company, 2)
    company.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    assert averagers.average(0) == averagers.average(1) != place
    company.leave(2)
    assert free(company) == place


def adopts(company: Company, worker: int) -> int:
    """The worker is told where to write what its script begins with. Return that place."""
    company.host.adopt(worker)
    _, told = company.told[-1]
    assert isinstance(told, messages.worker.AdoptInto)
    return told.slot
