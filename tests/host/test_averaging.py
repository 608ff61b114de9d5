"""AreaAverages of groups on one host and on several, in many orders of events, with deaths at every moment.

Shares are computed, on real memory of each host. What hosts fetch from each other comes whenever a seed says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.core import shards
from paceline.core.items import Item, Mean, Partial
from paceline.host.claims import Owner
from paceline.host.events import Averaged, GivenUp
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders import averaging
from paceline.host.orders.averaging import Averaging, Group, GroupShare
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.store import chunks as parts_module
from paceline.store.chunks import chunks_at
from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places
from support.run_state import Clockwork
from support.seeds import each_seed

SHAPES = [(33, 7), (7,), (1,), (50, 41), (0, 3), (97,)]
HOSTS: list[dict[str, tuple[int, ...]]] = [
    {"a": (0, 1, 2)},
    {"a": (0,), "b": (1,)},
    {"a": (0, 1), "b": (2, 3)},
    {"b": (2,), "a": (0, 1), "c": (3, 4)},
]
"""By host, in the order of sums: the members of the group."""
WORKERS, AREAS, TARGET = 5, 10, 5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])
        self.register_buffer("running", torch.zeros(12))
        self.register_buffer("count", torch.tensor(0))


@pytest.fixture(autouse=True, params=[256, 1 << 20], ids=["many slices", "one slice"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "CHUNK", request.param)
    monkeypatch.setattr(averaging, "STEP", 2000)
    monkeypatch.setattr(shards, "PIECE", 1)


@pytest.fixture(params=HOSTS, ids=lambda hosts: " + ".join(str(len(there)) for there in hosts.values()))
def hosts(request: pytest.FixtureRequest) -> Mapping[str, tuple[int, ...]]:
    found: Mapping[str, tuple[int, ...]] = request.param
    return found


def layout() -> Layout:
    model = Model()
    return Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0))


def fill(places: Places, worker: int, weighs: bool) -> None:
    """What a worker has: replicas have all parameters, and not each gradient is there."""
    area, drawn = places.push_area(worker), torch.Generator().manual_seed(worker)
    for number, view in enumerate(area.gradients):
        view.copy_(torch.randn(view.shape, generator=drawn))
        area.present[number] = not weighs or (number + worker) % 3 > 0
    area.buffers["running"].copy_(torch.randn(12, generator=drawn))
    area.buffers["count"].fill_(worker)


def parts_of(hosts: Mapping[str, tuple[int, ...]], weighs: bool) -> tuple[GroupShare, ...]:
    """Each worker's own place is that of its number."""
    return tuple(
        GroupShare(host, there, there, tuple(0.1 * (1 + worker) for worker in there) if weighs else None)
        for host, there in hosts.items()
    )


class Host:
    """One host: its memory, its part of averages, and the threads of its workers."""

    def __init__(self, name: str, workers: tuple[int, ...], net: Net | None, weighs: bool) -> None:
        self.name = name
        self.places = Places(layout(), Places.new(layout(), 0, WORKERS * AREAS).region, 0, WORKERS, AREAS)
        self.shelf, self.loop = Shelf(), Clockwork()
        self.alive = dict.fromkeys(workers)
        self.told: list[Averaged | GivenUp] = []
        own = self.places.layout
        cuts, flags = chunks_at(own), len(own.moving)
        offer = SimpleNamespace(cuts=cuts, averaged_at=cuts, push_bytes=own.push_bytes, flags_bytes=flags)
        self.plan = MemoryPlan(WORKERS, slots=0, areas=AREAS)
        self.carrier = None if net is None else Wire(net, self)
        memory = SimpleNamespace(offer=offer)
        arguments: Any = (self.shelf, self.plan, self.loop, self.carrier, self.report, lambda *_: None, memory)
        self.averaging = Averaging(*arguments, name=name)
        for worker in range(TARGET + 1):  # where members' replicas lie, and the mean
            self.shelf.put(Mean(1000 + worker), ("there", worker), self.plan.shared)
        for worker in workers:
            fill(self.places, worker, weighs)
            self.averaging.connect(worker)

    def report(self, event: Averaged | GivenUp) -> None:
        assert isinstance(event, Averaged) or not self.shares(), "a share is still written"
        self.told.append(event)

    def shares(self) -> list[Callable[[], None]]:
        """What its workers' threads have still to do, each as it does it."""
        found = []
        for worker in self.alive:
            line = self.loop.lines[f"worker {worker}'s averager"]
            if line.sent:
                found.append(lambda worker=worker, line=line: self.compute(worker, line))  # type: ignore[misc]
        return found

    def compute(self, worker: int, line: Any) -> None:
        order = line.sent.pop(0)
        place = order.members.index(worker)
        AreaAverages(self.places).share(
            order.sources,
            order.target,
            order.weights,
            place,
            len(order.members),
            of=order.of,
            within=(order.begin, order.end),
        )
        line.coming.append((messages.worker.ShareAveraged(order.group), []))
        self.loop.watched[line]()

    def dies(self, worker: int) -> None:
        del self.alive[worker]
        self.averaging.gone(worker)

    def memory(self, item: Item) -> memoryview:
        assert isinstance(item, Partial | Mean)
        start = self.places.push_start(self.averaging.place(item))
        return self.places.region.memory[start : start + self.places.layout.push_bytes]

    def mean(self) -> list[Tensor]:
        area = self.places.push_area(TARGET)
        values = [*area.gradients, area.present, *area.buffers.values()]
        return [value.clone() for value in values]

    @property
    def scratch(self) -> set[Any]:
        """Who claims what, besides what was there."""
        return {owner for owner, _, _ in self.shelf.claims() if owner[0] != "there"}


class Net:
    """What is fetched between hosts, a range at a time."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.asked: dict[tuple[str, Owner], tuple[Item, list[tuple[str, int, int]], Any, Any]] = {}

    def deliveries(self) -> list[Callable[[], None]]:
        """What may come next: ranges that are where they were asked for."""
        found = []
        for (to, owner), (item, ranges, *_) in self.asked.items():
            for one in ranges:
                if self.hosts[one[0]].averaging.look(item, one[1], one[2]) == "here":  # type: ignore[arg-type]
                    found.append(lambda to=to, owner=owner, one=one: self.deliver(to, owner, one))  # type: ignore[misc]
        return found

    def deliver(self, to: str, owner: Owner, one: tuple[str, int, int]) -> None:
        item, ranges, arrived, more = self.asked[to, owner]
        source, begin, end = one
        self.hosts[to].memory(item)[begin:end] = self.hosts[source].memory(item)[begin:end]
        ranges.remove(one)
        if not ranges:
            del self.asked[to, owner]
        if more is not None:
            more(begin, end)
        if not ranges:
            arrived()


class Wire:
    """Stands in for a carrier."""

    def __init__(self, net: Net, host: Host) -> None:
        self.net, self.host = net, host

    def fetch(self, item: Any, owner: Owner, arrived: Callable[[], object], lost: Any, more: Any = None) -> None:
        self.net.asked[self.host.name, owner] = item, list(self.host.averaging.ranges(item)), arrived, more

    def cancel(self, owner: Owner) -> None:
        self.net.asked.pop((self.host.name, owner), None)

    def made(self, item: Item) -> None:
        pass


class Company:
    """The hosts of a group."""

    def __init__(self, hosts: Mapping[str, tuple[int, ...]], weighs: bool, seed: int) -> None:
        self.net, self.chance = Net(), random.Random(seed)
        for name, workers in hosts.items():
            self.net.hosts[name] = Host(name, workers, self.net, weighs)
        self.group = Group(7, TARGET, parts_of(hosts, weighs))
        self.late = [*self.net.hosts.values()]
        """Hosts that have not heard of the group."""

    def steps(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = [lambda host=host: self.begin(host) for host in self.late]  # type: ignore[misc]
        for host in self.net.hosts.values():
            found += host.shares()
        return found + self.net.deliveries()

    def begin(self, host: Host) -> None:
        self.late.remove(host)
        host.averaging.begin(self.group)

    def run(self, most: int = 10_000) -> int:
        """Do what may come next, in an order that the seed says. Return how many steps that took."""
        made = 0
        while made < most and (steps := self.steps()):
            self.chance.choice(steps)()
            made += 1
        return made


def on_one_host(hosts: Mapping[str, tuple[int, ...]], weighs: bool) -> list[Tensor]:
    """What a replay on one host comes to, where all parts are made in one memory."""
    one = Host("", tuple(worker for there in hosts.values() for worker in there), None, weighs)
    one.averaging.begin(Group(7, TARGET, parts_of(hosts, weighs)))
    while shares := one.shares():
        shares[0]()
    assert one.told == [Averaged(7)]
    return one.mean()


@pytest.mark.parametrize("weighs", [False, True], ids=["replicas", "gradients"])
@each_seed(range(6))
def test_every_host_has_the_mean_to_the_bits_of_a_replay_on_one(
    hosts: Mapping[str, tuple[int, ...]], weighs: bool, seed: int
) -> None:
    company = Company(hosts, weighs, seed)
    company.run()
    expected = on_one_host(hosts, weighs)
    for host in company.net.hosts.values():
        assert host.told == [Averaged(7)]
        assert all(torch.equal(one, other) for one, other in zip(host.mean(), expected, strict=True))
        host.averaging.end(7)
        assert not host.scratch
    assert not company.net.asked


@pytest.mark.parametrize("weighs", [False, True], ids=["replicas", "gradients"])
def test_the_mean_is_that_of_all_members_whichever_hosts_they_are_on(
    hosts: Mapping[str, tuple[int, ...]], weighs: bool
) -> None:
    members = sorted(worker for there in hosts.values() for worker in there)
    together, apart = on_one_host({"a": tuple(members)}, weighs), on_one_host(hosts, weighs)
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(together, apart, strict=True))


@each_seed(range(2))
def test_a_death_at_any_moment_ends_in_a_mean_everywhere_or_in_nothing_written_any_more(
    hosts: Mapping[str, tuple[int, ...]], seed: int
) -> None:
    """What members have stays as it is, and no host keeps anything for a group that has ended."""
    whole = Company(hosts, False, seed)
    length = whole.run()
    for moment in range(length + 1):
        company = Company(hosts, False, seed)
        company.run(most=moment)
        host = company.chance.choice([*company.net.hosts.values()])
        host.dies(company.chance.choice([*host.alive]))
        company.run(most=company.chance.randrange(4))
        for one in [*company.late]:  # the head tells all hosts to begin before it tells any to give up
            company.begin(one)
        for one in company.net.hosts.values():
            one.averaging.drop(7)
        company.run()
        for one in company.net.hosts.values():
            assert len(one.told) == 1, (moment, one.name, one.told)
            one.averaging.end(7)
            assert not one.scratch
            there = Host(one.name, hosts[one.name], None, False)
            for worker in hosts[one.name]:
                pairs = zip(
                    one.places.push_area(worker).gradients, there.places.push_area(worker).gradients, strict=True
                )
                assert all(torch.equal(before, after) for before, after in pairs)
        assert not company.net.asked


def test_a_host_serves_its_part_of_a_group_that_it_has_not_heard_of_once_it_has() -> None:
    company = Company({"a": (0, 1), "b": (2,)}, False, 0)
    a, b = company.net.hosts.values()
    assert a.averaging.look(Partial(7, "a"), 0, 100) == "coming"
    company.begin(b)
    assert b.averaging.look(Partial(7, "b"), 0, 100) == "here"
    company.begin(a)
    assert a.averaging.look(Partial(7, "a"), 0, 100) == "coming"
    while shares := a.shares():
        shares[0]()
    assert a.averaging.look(Partial(7, "a"), 0, 100) == "here"
    assert a.averaging.look(Mean(7), 0, 100) == "coming"


@pytest.mark.parametrize("hosts", [{"a": (0, 1), "b": (2,)}, {"a": (0, 1, 2)}])
def test_a_host_has_no_part_of_a_group_but_its_own(hosts: dict[str, tuple[int, ...]]) -> None:
    """Another host that asks for one is refused. It may say what it likes."""
    company = Company(hosts, False, 0)
    a = company.net.hosts["a"]
    company.begin(a)
    for host in [*"bx", *(() if len(hosts) > 1 else "a")]:
        assert a.averaging.look(Partial(7, host), 0, 100) == "gone"
