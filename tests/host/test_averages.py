"""Replicas without processes: who is told what, and what is left when a member has died."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from paceline.cluster.scenario import Network
from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, TrainingBegan
from paceline.core.items import Replica, Version
from paceline.core.leases import Leases
from paceline.core.orders import Reduce, Release, StepReplica
from paceline.fabric.unix import Channel
from paceline.host import messages
from paceline.protocols import registry
from support.companies import Company, company
from support.seeds import each_seed


class Averagers:
    """The workers' ends of the channels to their averaging threads."""

    def __init__(self, company: Company) -> None:
        self.channels: dict[int, Channel] = {}
        self.evicted: list[tuple[int, list[int]]] = []
        """By whom, and what is kept for whom."""
        self._company = company
        for worker, member in company.members.items():
            theirs = company.host.averages.connect(member)
            self.channels[worker] = Channel(theirs, messages.ToAverager, "the coordinator")

    def average(self, worker: int) -> int:
        """It makes the share that it was told to make. Return the place that the average is made in."""
        channel = self.channels[worker]
        assert channel.ready()
        order, _ = channel.receive()
        if isinstance(order, messages.Evict):
            self.evicted.append((worker, order.members))
            order, _ = channel.receive()
        assert isinstance(order, messages.Average)
        channel.send(messages.Averaged(order.group, 0.0))
        self._company.loop.wait(0.0)
        return order.target


def replicas(company: Company) -> dict[int, int]:
    """By worker: the place of its replica."""
    steps = company.host.steps
    return {worker: company.host.shelf.place(steps.replica(worker)) for worker in steps.workers}


def free(company: Company) -> int | None:
    return company.host.shelf.free(company.host.plan.shared)


@contextmanager
def three(
    stepped: bool, network: Network | None = None, now: Callable[[], float] = lambda: 0.0
) -> Iterator[tuple[Company, Averagers]]:
    """Three workers, each of whose replicas has made a step, or none."""
    leases = Leases("queue", [0, 1, 2])
    leases.open(0, [4, 4, 4], "digest")
    made = company(3, "ad-psgd", leases=leases, network=network, now=now)
    averagers = Averagers(made)
    for worker in made.members if stepped else ():
        batch = leases.take(worker, 0, "digest")
        assert batch is not None
        leases.bind(worker, 0, (batch,))
        made.host.carry_out(StepReplica(worker=worker, step=0, version=1))
        made.host.steps.stepped(worker, 0)
    made.told.clear()
    yield made, averagers
    for member in made.members.values():
        if member.here:
            made.host.gone(member.worker)
        averagers.channels[member.worker].close()
    made.loop.close()


@pytest.fixture
def stepped() -> Iterator[tuple[Company, Averagers]]:
    with three(stepped=True) as both:
        yield both


@pytest.fixture
def beginners() -> Iterator[tuple[Company, Averagers]]:
    """Nobody has made a step."""
    with three(stepped=False) as both:
        yield both


def test_a_replica_is_stepped_in_place_unless_anybody_else_needs_it(beginners: tuple[Company, Averagers]) -> None:
    """All begin with one place: the last to step is alone there."""
    company, _ = beginners
    for worker in (0, 1, 2):
        company.host.carry_out(Release(worker=worker, step=0, version=0, parameters="own"))
        company.host.carry_out(StepReplica(worker=worker, step=0, version=1))
    steps = [said for _, said in company.told if isinstance(said, messages.Step)]
    assert [(said.source, said.target) for said in steps] == [(0, 1), (0, 2), (0, 3)]
    for worker in (0, 1, 2):
        company.host.steps.stepped(worker, 0)
        company.host.carry_out(Release(worker=worker, step=1, version=1, parameters="own"))
        company.host.carry_out(StepReplica(worker=worker, step=1, version=2))
    steps = [said for _, said in company.told if isinstance(said, messages.Step)][3:]
    assert [(said.source, said.target) for said in steps] == [(1, 1), (2, 2), (3, 3)]


def test_a_replica_that_is_kept_for_a_mean_is_not_stepped_in_place(stepped: tuple[Company, Averagers]) -> None:
    company, _ = stepped
    before = replicas(company)
    cuts = list[tuple[list[Replica], list[int], int]]()

    def kept(*cut: tuple[list[Replica], list[int], int]) -> None:
        cuts.append(cut)  # type: ignore[arg-type]
        company.host.shelf.claim(("reader",), *cut[0])  # type: ignore[misc]

    company.host.copies.cut([0, 1], 7, kept)  # type: ignore[arg-type]
    assert [places for _, places, _ in cuts] == [[before[0], before[1]]]
    company.host.carry_out(StepReplica(worker=0, step=1, version=2))
    assert replicas(company)[0] != before[0]
    company.host.carry_out(StepReplica(worker=2, step=1, version=2))
    assert replicas(company)[2] == before[2]


def test_a_group_whose_member_has_just_died_fails_and_its_other_members_keep_their_replicas(
    stepped: tuple[Company, Averagers],
) -> None:
    """Its death shows when it is to be sent its share, before the end of its process is heard of."""
    company, averagers = stepped
    lost, before = company.members[1], replicas(company)
    assert len(set(before.values())) == 3
    averagers.channels[1].close()
    company.host.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    targets = {averagers.average(0), averagers.average(2)}
    assert company.host.averages.averaging
    assert company.facts == []
    lost.stage = "gone"
    company.host.gone(1)
    assert company.facts == [ReduceFailed(group=0, lost=(1,), at=0.0)]
    assert not company.host.averages.averaging
    assert replicas(company) == before
    assert targets == {free(company)}, "nobody needs the place that the average was made in"

    company.host.carry_out(Reduce(group=1, members=(0, 2), what="parameters"))
    targets = {averagers.average(0), averagers.average(2)}
    assert company.facts[1:] == [ReduceFinished(group=1, at=0.0)]
    assert replicas(company) == before, "until the machine is told"
    company.host.tell(company.facts[1])
    assert {replicas(company)[0], replicas(company)[2]} == targets
    assert averagers.evicted == [(0, [0, 1, 2]), (2, [0, 1, 2])], "what was kept for them may be broken"


def test_a_share_that_is_made_after_its_group_was_said_to_have_failed_is_awaited_and_counts_for_nothing(
    stepped: tuple[Company, Averagers],
) -> None:
    """Whoever directs a run says so, and awaits nothing any more once the run stops."""
    company, averagers = stepped
    company.host.averages.deaths_are_told = True
    before = replicas(company)
    company.host.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    company.host.tell(ReduceFailed(group=0, lost=(1,), at=0.0))
    target = averagers.average(0)
    assert free(company) != target, "two others still write into it"
    averagers.average(1)
    averagers.average(2)
    assert free(company) == target
    assert replicas(company) == before
    assert not company.host.averages.averaging


def test_an_average_comes_about_when_its_last_share_is_made_though_its_end_was_told_before(
    stepped: tuple[Company, Averagers],
) -> None:
    company, averagers = stepped
    company.host.averages.deaths_are_told = True
    before = replicas(company)
    company.host.carry_out(Reduce(group=0, members=(0, 1, 2), what="parameters"))
    company.host.tell(ReduceFinished(group=0, at=0.0))
    assert replicas(company) == before, "its place is not written to the end"
    targets = {averagers.average(worker) for worker in range(3)}
    company.host.averages.conclude()
    assert set(replicas(company).values()) == targets
    assert not company.host.averages.averaging


def test_a_share_that_is_said_to_be_made_before_it_was_asked_for_counts_for_nothing(
    stepped: tuple[Company, Averagers],
) -> None:
    company, averagers = stepped
    company.host.carry_out(StepReplica(worker=0, step=1, version=2))
    company.host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    averagers.channels[1].send(messages.Averaged(0, 0.0))
    company.loop.wait(0.0)
    assert company.facts == [], "a member has a step to make first"
    company.host.steps.stepped(0, 1)
    averagers.average(0)
    assert company.facts == []
    averagers.average(1)
    assert company.facts == [ReduceFinished(group=0, at=0.0)]


# --- averages at a network's pace


class Paced:
    """A company whose averages of two take 0.25 s of latencies, and 100 bytes at 100 a second."""

    def __init__(self) -> None:
        self.at = 0.0
        network = Network(bandwidth=100.0, latency=0.125, message=100)
        self.entered = three(stepped=True, network=network, now=lambda: self.at)
        self.company, self.averagers = self.entered.__enter__()
        self.host = self.company.host


@pytest.fixture
def paced() -> Iterator[Paced]:
    paced = Paced()
    yield paced
    paced.entered.__exit__(None, None, None)


def test_an_average_whose_shares_are_made_sooner_ends_at_the_model_s_time_however_late_the_run_comes_to_it(
    paced: Paced,
) -> None:
    host, before = paced.host, replicas(paced.company)
    host.present = 0.5
    host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    host.present = None
    paced.at = 0.75
    targets = {paced.averagers.average(0), paced.averagers.average(1)}
    assert (paced.company.facts, host.next(1.7)) == ([], None)
    assert host.due() == pytest.approx(1.0)
    paced.at = 2.0
    fact = host.next(2.0)
    assert fact == ReduceFinished(group=0, at=1.75)
    assert (host.next(2.0), host.due()) == (None, None)
    assert replicas(paced.company) == before, "until the machine is told"
    host.tell(fact)
    assert {replicas(paced.company)[0], replicas(paced.company)[1]} == targets
    assert paced.company.members[0].transfers == [("pull", 0.5, 1.75)]


def test_an_average_whose_shares_are_made_later_than_its_bytes_have_moved_ends_then(paced: Paced) -> None:
    paced.host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    paced.averagers.average(0)
    paced.at = 1.5
    assert (paced.host.next(1.5), paced.host.due()) == (None, None)
    paced.at = 2.0
    paced.averagers.average(1)
    assert paced.company.facts == [ReduceFinished(group=0, at=2.0)]


def test_an_average_begins_once_its_members_steps_are_made(paced: Paced) -> None:
    paced.host.carry_out(StepReplica(worker=0, step=1, version=2))
    paced.host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    assert paced.host.due() is None
    paced.at = 0.5
    paced.host.steps.stepped(0, 1)
    assert paced.host.due() == pytest.approx(1.0)


def test_a_member_s_death_fails_its_group_when_the_average_would_have_ended(paced: Paced) -> None:
    """It had made its share, but its bytes were still on their way."""
    host, before = paced.host, replicas(paced.company)
    host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    paced.averagers.average(0)
    paced.averagers.average(1)
    paced.company.members[1].stage = "gone"
    host.gone(1)
    assert paced.company.facts == []
    paced.at = 1.25
    assert host.next(1.25) is None
    assert paced.company.facts == [ReduceFailed(group=0, lost=(1,), at=1.25)]
    assert (host.averages.averaging, replicas(paced.company)) == (False, before)


# --- what scripts change before the first step


def test_what_is_adopted_is_every_replica_though_some_were_averaged_before(
    beginners: tuple[Company, Averagers],
) -> None:
    """One group has averaged, one has made its shares, one makes them, as the first worker comes with its changes."""
    company, averagers = beginners
    host = company.host
    host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    averagers.average(0)
    averagers.average(1)
    host.tell(company.facts.pop())
    host.carry_out(Reduce(group=1, members=(0, 1), what="parameters"))
    averagers.average(0)
    host.carry_out(Reduce(group=2, members=(1, 2), what="parameters"))
    averagers.average(2)
    place = host.reserve(0)
    host.adopt(0, [])
    assert replicas(company) == dict.fromkeys(range(3), place)
    averagers.average(1)
    averagers.average(1)
    for fact in company.facts:
        host.tell(fact)
    assert company.facts == [ReduceFinished(group=group, at=0.0) for group in (1, 2)]
    assert replicas(company) == dict.fromkeys(range(3), place), "the averages are of what nobody begins with"
    assert {item for _, _, item in host.shelf.claims()} == {place}, "all other places are free"


def test_a_reserved_place_is_nobody_else_s_until_it_is_given_up(beginners: tuple[Company, Averagers]) -> None:
    """Averages may be ordered meanwhile."""
    company, averagers = beginners
    place = company.host.reserve(2)
    company.host.carry_out(Reduce(group=0, members=(0, 1), what="parameters"))
    assert averagers.average(0) == averagers.average(1) != place
    company.host.unreserve(2)
    assert free(company) == place


def test_what_an_averager_is_told_while_it_does_not_read_reaches_it_when_it_does(
    stepped: tuple[Company, Averagers],
) -> None:
    """Its socket holds some two hundred messages."""
    company, averagers = stepped
    averager, told = averagers.channels[0], 1000
    for _ in range(told):
        company.host.averages._tell((0,), messages.Evict([0, 1]))
    heard = 0
    while heard < told:
        company.loop.wait(0.0)
        assert averager.ready(), f"{told - heard} are lost"
        order, _ = averager.receive()
        assert order == messages.Evict([0, 1])
        heard += 1
    company.loop.wait(0.0)
    assert not averager.ready()


# --- the bound on places


@pytest.mark.parametrize("protocol", ["ad-psgd", "ripples", "all-reduce"])
@each_seed(range(8))
def test_replicas_always_find_a_place_and_none_is_written_that_anybody_reads(protocol: str, seed: int) -> None:
    """Machines of the protocols, over a host whose workers and averagers come at random; one mean is recorded."""
    chance, workers, machine = random.Random(f"{protocol}/{seed}"), 4, choose(protocol, registry()).machine()
    made = company(workers, protocol, leases=Leases("queue", list(range(workers))))
    averagers, host, shelf = Averagers(made), made.host, made.host.shelf
    queue: dict[int, list[messages.Compute | messages.Step]] = {worker: [] for worker in range(workers)}
    cuts = recorded = 0

    def tell(fact: Fact) -> None:
        host.tell(fact)
        for order in machine.handle(fact):
            if isinstance(order, Release | Reduce | StepReplica):
                host.carry_out(order)
        for worker, said in made.told:
            assert isinstance(said, messages.Compute | messages.Step)
            queue[worker].append(said)
        made.told.clear()

    def keep(replicas: list[Replica], places: list[int], target: int) -> None:
        nonlocal cuts
        cuts += 1
        shelf.claim(("reader",), *replicas, Version(10_000 + recorded))

    members = tuple((worker, "here", 0) for worker in range(workers))
    tell(TrainingBegan(members=members, version=0, at=0.0, seed=seed))
    for _ in range(2500):
        worker = chance.randrange(workers)
        match chance.choice(["works", "averages", "told", "cut", "cut done"]):
            case "works" if queue[worker]:
                done = queue[worker].pop(0)
                if isinstance(done, messages.Step):
                    readers = {owner for owner, _, place in shelf.claims() if place == done.target}
                    assert ("reader",) not in readers, "what a mean is made of is written"
                    host.steps.stepped(worker, done.step)
                else:
                    host.computed(made.members[worker], done.step)
                    ready = GradientReady(worker=worker, step=done.step, version=done.version, samples=None, at=0.0)
                    made.facts.append(ready)
            case "averages" if averagers.channels[worker].ready():
                averagers.average(worker)
            case "told" if made.facts:
                tell(made.facts.pop(0))
            case "cut" if recorded == cuts and not shelf.claimed(("reader",)):
                recorded += 1
                host.copies.cut(range(workers), 10_000 + recorded, keep)
            case "cut done" if shelf.claimed(("reader",)):
                shelf.release(("reader",))
    assert host.steps.steps > 20
    assert cuts > 2
    for worker in range(workers):
        host.gone(worker)
        averagers.channels[worker].close()
    made.loop.close()
