"""What emulated hosts exchange takes what their links say. Time is virtual here, so the moments are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from paceline.core.items import Blob, EarlyVersion, Item, Mean, Partial, Replica, Sum, Update, Version
from paceline.ipc.endpoint import LENGTH
from paceline.ipc.memory import Span
from paceline.scenario.scenario import HostTable, Network, Scenario
from paceline.transfer.data_connection import BulkNews, BytesFrame, Cancel, Fetch
from paceline.transfer.emulated_link import LATE, TICK, EmulatedLink
from paceline.transfer.item_names import fields_of
from paceline.transfer.messages import Named, Peer
from support.run_state import Clockwork

M = 10_000
"""Bytes of a model."""
B = 100_000.0
"""Bytes a second of most links: a model takes a tenth of a second."""


def tables(*bandwidths: float | None, latency: float = 0.0, message: int | None = None) -> Scenario:
    """Hosts `a`, `b` and so on, with links of these bandwidths."""
    hosts = tuple(
        HostTable(name=name, workers=range(n, n + 1), bandwidth=bandwidth, latency=latency)
        for n, (name, bandwidth) in enumerate(zip("abcd", bandwidths, strict=False))
    )
    network = None if message is None else Network(message=message)
    return Scenario(nodes=len(hosts), workers=len(hosts), host_tables=hosts, network=network)


class Clock(Clockwork):
    """A loop whose time goes on by what is due."""

    def until(self, at: float) -> None:
        self.pass_time(at - self.time)


class Connection:
    """A connection that takes all at once: which bytes have left when, by request."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.stream, self.sent = clock, self, 0
        self.left: dict[int, list[tuple[float, int]]] = {}
        self.request = 0
        self.stuck = False
        self.drained: Callable[[], bool] = lambda: False

    def write(self, data: bytes | memoryview) -> None:
        if isinstance(data, memoryview):
            self.left.setdefault(self.request, []).append((self.clock.now(), data.nbytes))
            return
        frame = msgspec.msgpack.decode(data[LENGTH.size :], type=Fetch | BytesFrame | Cancel)
        if isinstance(frame, BytesFrame):
            self.request = frame.number

    def pump(self) -> None:
        if not self.stuck:
            self.clock.after(0.0, self.drain)

    def drain(self) -> None:
        if not self.stuck and self.drained():
            self.pump()


class Other(BulkNews):
    """What is exchanged with another host: when bytes leave, and when they are told to have come."""

    def __init__(self, clock: Clock, link: EmulatedLink, host: str) -> None:
        self.told: dict[int, list[tuple[float, int]]] = {}
        self.places: dict[int, memoryview] = {}
        self.clock = clock
        self.exchange = link.exchange(Peer(host, 1), self)
        self.connection: Any = Connection(clock)
        self.connection.drained = self.exchange.drained
        self.exchange.attach(self.connection, 1)

    def asks(self, request: int, item: Item) -> None:
        """The other host asks for the item, which is sent at once."""
        self.exchange.frame(Fetch(request, 0, 1, fields_of(item), 0, M))
        self.exchange.send(request, Span(memoryview(bytearray(M))))

    def ended(self, request: int = 1) -> float:
        """When the last byte of the request has left."""
        left = self.connection.left[request]
        assert sum(size for _, size in left) == M
        return float(left[-1][0])

    def is_asked(self, request: int, item: Item) -> None:
        """The other host is asked for the item."""
        self.places[request] = memoryview(bytearray(M))
        self.exchange.ask(request, Named(0, item), 0, M)

    def brings(self, request: int, size: int) -> None:
        """So many bytes of what was asked for come."""
        self.exchange.came(request, size)

    def memory(self, peer: Peer, request: int) -> Span | None:
        return Span(self.places[request])

    def came(self, peer: Peer, request: int, count: int) -> None:
        self.places[request] = self.places[request][count:]
        self.told.setdefault(request, []).append((self.clock.now(), count))


def others(scenario: Scenario, *hosts: str) -> tuple[Clock, EmulatedLink, list[Other]]:
    """What host `a` exchanges with these."""
    clock: Any = Clock()
    link = EmulatedLink.of(scenario, "a", clock)
    assert link is not None
    return clock, link, [Other(clock, link, host) for host in hosts]


def test_without_bandwidth_and_latency_there_is_no_link() -> None:
    clock: Any = Clock()
    assert EmulatedLink.of(tables(None, None), "a", clock) is None


@pytest.mark.parametrize("bandwidths", [(B, B), (B, None), (None, B), (3 * B, B)])
def test_a_model_takes_both_latencies_and_its_bytes_over_the_narrower_link(
    bandwidths: tuple[float | None, ...],
) -> None:
    clock, _, (b,) = others(tables(*bandwidths, latency=0.03), "b")
    b.asks(1, Update(0, 1))
    clock.until(1.0)
    assert b.ended() == pytest.approx(0.06 + M / B)


@pytest.mark.parametrize(
    "item", [Version(3), EarlyVersion(3, "terms"), Update(0, 1), Sum(2), Replica(1, 4), Mean(5), Partial(5, "b")]
)
def test_whatever_is_as_large_as_a_model_takes_a_model_s_time_each_way(item: Item) -> None:
    clock, _, (b,) = others(tables(B, B), "b")
    b.asks(1, item)
    b.is_asked(2, item)
    b.brings(2, M)
    clock.until(1.0)
    assert b.ended() == pytest.approx(M / B)
    assert b.told[2][-1][0] == pytest.approx(M / B)


def test_what_a_slow_host_can_t_take_goes_to_the_others() -> None:
    clock, _, (b, c) = others(tables(B, B / 10, B), "b", "c")
    b.asks(1, Version(3))
    c.asks(1, Version(3))
    clock.until(2.0)
    assert c.ended() == pytest.approx(M / (0.9 * B), rel=0.05)
    assert b.ended() == pytest.approx(M / (0.1 * B), rel=0.05)


def test_a_loop_that_is_late_makes_up_for_it_and_not_for_what_a_host_did_not_read() -> None:
    clock, _, (b,) = others(tables(B, B), "b")
    b.asks(1, Version(3))
    clock.until(0.01)
    b.connection.stuck = True
    clock.until(0.01 + LATE)
    b.connection.stuck = False
    b.connection.drain()
    clock.until(1.0)
    assert b.ended() == pytest.approx(M / B)
    b.asks(2, Version(4))
    clock.until(1.01)
    b.connection.stuck = True
    clock.until(3.0)
    b.connection.stuck = False
    b.connection.drain()
    clock.until(4.0)
    assert b.ended(2) == pytest.approx(3.0 - LATE + M / B - 0.01 - TICK)


def test_what_is_small_takes_no_time() -> None:
    clock, _, (b,) = others(tables(B, B, latency=1.0), "b")
    b.asks(1, Blob("kept"))
    clock.until(0.001)
    assert b.ended() == 0.0


def test_a_model_counts_as_many_bytes_as_the_scenario_says() -> None:
    clock, link, (b,) = others(tables(B, B, message=5 * M), "b")
    link.carries(M)
    b.asks(1, Update(0, 1))
    clock.until(9.0)
    assert b.ended() == pytest.approx(5 * M / B)


def test_a_request_that_is_stopped_leaves_the_link_to_the_next_one() -> None:
    clock, _, (b,) = others(tables(B, B), "b")
    b.asks(1, Version(3))
    b.asks(2, Version(4))
    clock.until(0.05)
    b.exchange.stop(1)
    clock.until(1.0)
    assert sum(size for _, size in b.connection.left[1]) < 0.6 * M
    assert b.ended(2) == pytest.approx(0.15, abs=2 * TICK)


# what comes


def test_bytes_of_hosts_that_send_at_the_same_time_come_one_after_the_other() -> None:
    clock, _, (b, c) = others(tables(B, None, None), "b", "c")
    for host in (b, c):
        host.is_asked(1, Update(0, 1))
    for part in range(1, 11):  # each sends as fast as if it were alone
        clock.until(part * 0.01)
        b.brings(1, M // 10)
        c.brings(1, M // 10)
    clock.until(1.0)
    ends = [host.told[1][-1][0] for host in (b, c)]
    assert ends == [pytest.approx(0.19, abs=0.001), pytest.approx(0.2, abs=0.001)]
    assert not b.places[1]


@pytest.mark.parametrize("how", ["cancelled", "disconnected"])
def test_nothing_is_told_of_bytes_that_were_held_back_and_count_no_more(how: str) -> None:
    clock, _, (b,) = others(tables(B, None), "b")
    b.is_asked(1, Version(3))
    b.brings(1, M // 2)
    if how == "cancelled":
        b.exchange.cancel(1)
    else:
        b.exchange.detach(b.connection)
    clock.until(1.0)
    assert not b.told
