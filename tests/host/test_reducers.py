"""What every reducer keeps to, whatever comes first: hosts that make the mean of a group, all in one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import msgspec
import pytest
import torch
from torch import nn

from paceline.codecs import codec_of
from paceline.core.items import Item, Mean, Partial, Update
from paceline.host.memory_plan import REPLICAS, MemoryPlan
from paceline.host.orders.reducers import Gather, Group, GroupShare, Reducer, Ring, Summation, needed
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import Offered
from paceline.store.chunks import chunks_at
from paceline.training.averages import AreaAverages
from paceline.training.encoding import Encoding
from paceline.training.layout import Layout, Places
from paceline.transfer.byte_ranges import ByteRanges
from support.run_state import OFFER

HOSTS = {"a": (0, 3), "b": (1,), "c": (2, 4, 5)}
WORKERS = 6
PLAN = MemoryPlan(WORKERS, slots=0, areas=REPLICAS + 1)
CODECS = ("int8", "powersgd")
WAYS = ("ring", "early", "replicas", "alone", "alone, in parts", *CODECS)
WEIGHTS = [0.1, 0.2, 0.3, 0.05, 0.15, 0.2]


def layout_of(codec: str | None) -> Layout:
    """A model of four pieces, so that each host makes a slice, with a buffer."""
    model = nn.Sequential(*(nn.Linear(20, 30) for _ in range(4)), nn.BatchNorm1d(30))
    groups = [{"params": layer.parameters()} for layer in model]
    layout = Layout.of(model, torch.optim.SGD(groups, lr=1.0))  # type: ignore[arg-type]
    return layout if (made := codec_of(codec)) is None else layout.encoded(Encoding.of(made, layout))


def offer_of(layout: Layout) -> Offered:
    cuts, encoding = chunks_at(layout), layout.encoding
    return msgspec.structs.replace(
        OFFER,
        push_bytes=layout.push_bytes,
        flags_bytes=len(layout.moving),
        buffers_bytes=layout.buffers_bytes,
        cuts=cuts,
        encoded_cuts=[] if encoding is None else encoding.cuts(cuts, layout.encoded_offset),
    )


@dataclass
class Host:
    """A host with its memory. What is in no item's place yet is rubbish."""

    layout: Layout
    own: dict[int, bytes]
    """By worker here: what it gives."""
    shelf: Shelf = field(default_factory=Shelf)
    there: dict[int, ByteRanges] = field(default_factory=dict)
    """By worker here that still computes what it gives: which bytes of that there are."""
    untold: list[tuple[int, int, int]] = field(default_factory=list)
    """The rest of it: by worker, the first byte, and the one after the last."""
    ordered: Summation | None = None

    def __post_init__(self) -> None:
        size = PLAN.places * self.layout.push_bytes + 2 * self.layout.fixed_bytes
        self.places = Places(self.layout, Region.create(size), 0, WORKERS, REPLICAS + 1)
        self.places.region.memory[:size] = b"\xee" * size
        self.averages = AreaAverages(self.places)
        for worker, given in self.own.items():
            self.shelf.put(Update(worker, 0), ("own", worker), PLAN.of(worker))
            self.write(self.place(worker), 0, given)
        target = self.shelf.put(Mean(7), ("mean",), PLAN.shared)
        assert target is not None
        self.target = target

    def computes(self, cuts: list[int]) -> None:
        """Its workers still compute all that they give, but for which gradients there are."""
        flags = cuts[-1], cuts[-1] + len(self.layout.moving)
        ends = [*cuts, *flags[1:], self.layout.push_bytes]
        for worker, given in self.own.items():
            self.there[worker] = ByteRanges()
            self.write(self.place(worker), 0, b"\xee" * len(given))
            self.untold += [(worker, begin, end) for begin, end in pairwise(ends)]

    def tell(self, lots: random.Random) -> None:
        """A worker has more of what it gives."""
        worker, begin, end = self.untold.pop(lots.randrange(len(self.untold)))
        self.write(self.place(worker), begin, self.own[worker][begin:end])
        self.there[worker].add(begin, end)

    def place(self, worker: int) -> int:
        return PLAN.of(worker)[0]

    def read(self, place: int, begin: int, end: int) -> bytes:
        start = self.places.push_start(place)
        return bytes(self.places.region.memory[start + begin : start + end])

    def write(self, place: int, begin: int, given: bytes) -> None:
        start = self.places.push_start(place) + begin
        self.places.region.memory[start : start + len(given)] = given

    def begin(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.missing = {item: self.ranges(item) for item in reducer.fetches()}

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        if isinstance(item, Update):
            (host,) = [name for name, workers in HOSTS.items() if item.worker in workers]
            return [(host, 0, self.layout.push_bytes)]
        assert isinstance(item, Partial | Mean)
        return self.reducer.ranges(item)

    def order(self) -> bool:
        self.ordered = self.ordered or self.reducer.next()
        return self.ordered is not None

    def make(self, lots: random.Random) -> None:
        """Make what is ordered, its shares in any order."""
        one, self.ordered = self.ordered, None
        assert one is not None
        within, parts = (one.begin, one.end), len(self.own)
        for part in lots.sample(range(parts), parts):
            what = one.sources, one.target, one.weights, part, parts
            self.averages.share(*what, of=one.of, within=within, flags=one.flags)
        self.reducer.made(one)


def fetch(host: Host, item: Item, hosts: dict[str, Host], lots: random.Random) -> None:
    """Bring some of that item, if the host that has it gives it."""
    one = lots.choice(host.missing[item])
    source, begin, end = one
    there = hosts[source]
    if isinstance(item, Update):
        place, came = there.place(item.worker), host.place(item.worker)
    else:
        assert isinstance(item, Partial | Mean)
        if there.reducer.look(item, begin, end) != "here":
            return
        place, came = there.reducer.place(item), host.reducer.place(item)
    host.write(came, begin, there.read(place, begin, end))
    host.missing[item].remove(one)
    host.reducer.came(item, begin, end)
    if not host.missing[item]:
        del host.missing[item]
        host.reducer.here(item)


def given_by(worker: int, layout: Layout) -> bytes:
    """What a worker gives: gradients, of which some are missing, or a replica."""
    places = Places.new(layout, 0, 1)
    area, encoding = places.push_area(0), layout.encoding
    generator = torch.Generator().manual_seed(worker)
    area.present.fill_(1)
    area.present[worker] = 0
    for number, gradient in enumerate(area.gradients):
        gradient.copy_(torch.randn(gradient.shape, generator=generator))
        for part in () if encoding is None else encoding.parts:
            if part.number == number and encoding is not None and area.present[number]:
                memory = places.region.memory
                encoding.encode(part, part.entry.over(memory), memory, layout.encoded_offset)
        if encoding is not None:
            gradient.fill_(torch.nan)  # it is read by nobody
    for buffer in area.buffers.values():
        buffer.fill_(worker)
    return bytes(places.region.memory[: layout.push_bytes])


def members_of(way: str, host: Host) -> Group:
    """The group as that host is told of it."""
    members = dict(HOSTS)
    brought = [Update(worker, 0) for workers in HOSTS.values() for worker in workers if worker not in host.own]
    if way in (*CODECS, "alone"):
        members = {"a": tuple(range(WORKERS))}
    for update in brought if way in CODECS else ():
        host.shelf.put(update, needed(update), PLAN.of(update.worker))
    parts = [
        GroupShare(
            name,
            workers,
            tuple(map(host.place, workers)),
            None if way == "replicas" else tuple(WEIGHTS[worker] for worker in workers),
            tuple(host.there[worker] for worker in workers) if way == "early" and workers[0] in host.own else None,
        )
        for name, workers in members.items()
    ]
    return Group(7, host.target, tuple(parts), tuple(brought) if way in CODECS else ())


def averaged(way: str, lots: random.Random) -> list[bytes]:
    """By host: the mean that it comes to in that way, with flags and buffers."""
    layout = layout_of(way if way in CODECS else None)
    given, offer = {worker: given_by(worker, layout) for worker in range(WORKERS)}, offer_of(layout)
    spread = {"": tuple(given)} if way.startswith("alone") else HOSTS
    hosts = {name: Host(layout, {worker: given[worker] for worker in own}) for name, own in spread.items()}
    for name, host in hosts.items():
        if way == "early":
            host.computes(offer.averaged_at)
        group = members_of(way, host)
        one_part = len(group.parts) == 1
        host.begin(Gather(group, offer) if one_part else Ring(group, offer, host.shelf, PLAN, name or None))
    while not all(host.reducer.complete for host in hosts.values()):
        does: list[Callable[[], object]] = [partial(host.make, lots) for host in hosts.values() if host.order()]
        does += [partial(host.tell, lots) for host in hosts.values() if host.untold]
        does += [partial(fetch, host, item, hosts, lots) for host in hosts.values() for item in host.missing]
        lots.choice(does)()
    for host in hosts.values():
        while host.untold:  # what lies behind the buffers is nobody's
            host.tell(lots)
    for host in hosts.values():
        assert not host.order(), "nothing is left to do"
        begin = layout.flags_offset if way in CODECS else 0  # what is encoded is decoded in front of that
        for worker, before in host.own.items():
            assert host.read(host.place(worker), begin, layout.push_bytes) == before[begin:], "no source changes"
        for item in host.reducer.needs:
            host.shelf.release(needed(item))
        assert {item for _, item, _ in host.shelf.claims()} == {Mean(7), *(Update(worker, 0) for worker in host.own)}
    return [host.read(host.target, 0, offer.buffers_at[1]) for host in hosts.values()]


@pytest.mark.parametrize("way", WAYS)
def test_all_hosts_come_to_the_same_bytes_whatever_comes_first(way: str) -> None:
    assert len({mean for seed in range(5) for mean in averaged(way, random.Random(seed))}) == 1


def test_an_average_that_begins_while_its_members_compute_comes_to_the_same_bytes() -> None:
    assert averaged("early", random.Random(0)) == averaged("ring", random.Random(0))


def test_one_host_that_makes_the_parts_of_all_comes_to_their_bytes() -> None:
    """As a replay does."""
    assert averaged("ring", random.Random(0))[0] == averaged("alone, in parts", random.Random(0))[0]


@pytest.mark.parametrize("way", WAYS)
def test_what_all_hosts_come_to_is_the_mean_of_what_members_give(way: str) -> None:
    """Of what is encoded, of what that decodes to."""
    layout, mean = layout_of(way if way in CODECS else None), memoryview(bytearray(averaged(way, random.Random(0))[0]))
    memory = [memoryview(bytearray(given_by(worker, layout))) for worker in range(WORKERS)]
    for one in memory if layout.encoding is not None else ():
        layout.encoding.decode(one, layout.encoded_offset, one, 0, one[layout.flags_offset :])  # type: ignore[union-attr]
    for number, entry in enumerate(layout.moving):
        expected = torch.zeros(entry.shape)
        for worker, weight in enumerate(WEIGHTS):
            if way == "replicas":
                expected += entry.over(memory[worker]) / WORKERS
            elif worker != number:  # that one has no gradient of it
                expected += weight * entry.over(memory[worker])
        assert torch.allclose(entry.over(mean), expected, atol=1e-6), entry.name
