"""Control between hosts over real sockets on loopback. `tests/fabric/test_control.py` has what the pure ends do."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.ipc.loop import Alarm, Loop
from paceline.net import control, tcp
from paceline.net.control import HostEnd
from paceline.net.link import AT_ONCE, PURPOSE, HeadLink, HostLink
from support.clusters import EACH_KEYS, PATIENCE, Cluster, Order, Told, sockets
from support.lobby import opened
from support.processes import descriptors


@pytest.fixture(params=EACH_KEYS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(EACH_KEYS[request.param]())
    yield cluster
    cluster.close()


def cut(link: HeadLink | HostLink) -> None:
    """The connections break, as far as both ends can tell."""
    for end in sockets(link):
        end.shutdown(socket.SHUT_RDWR)


# --- messages


def test_what_is_sent_before_the_loop_waits_is_written_together_but_not_kept_until_many_are_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    writes, write = list[int](), tcp.Stream.write

    def counted(self: tcp.Stream, data: bytes | memoryview) -> None:
        writes.append(len(data))
        write(self, data)

    monkeypatch.setattr(tcp.Stream, "write", counted)
    for value in range(AT_ONCE // 2):
        host.send(Told(value))
    assert not writes
    for value in range(AT_ONCE // 2, 3 * AT_ONCE + 1):
        host.send(Told(value))
    assert len(writes) == 3
    cluster.until(lambda: len(cluster.head.values) == 3 * AT_ONCE + 1)
    assert cluster.head.values == list(range(3 * AT_ONCE + 1))
    assert writes[0] > AT_ONCE
    assert len(writes) < 10, "and what acknowledges"


def test_what_is_sent_as_the_link_closes_is_written(cluster: Cluster) -> None:
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    host.send(Told(1))
    host.close()
    cluster.until(lambda: cluster.head.values == [1])


# --- connections that break


@pytest.mark.parametrize("side", ["head", "host"])
def test_a_connection_that_breaks_loses_and_doubles_nothing(cluster: Cluster, side: str) -> None:
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    for breaks in range(3):
        for value in range(500):
            host.send(Told(500 * breaks + value))
            cluster.head.link.send("b", 1, Order(500 * breaks + value))
            if value == 250:
                cut(host if side == "host" else cluster.head.link)
        cluster.until(lambda: at_host.connections == breaks + 2)  # noqa: B023 - it is called here
    cluster.until(lambda: len(cluster.head.values) >= 1500 and len(at_host.values) >= 1500)
    assert cluster.head.values == at_host.values == list(range(1500))
    assert at_host.incarnation == 1
    assert len(at_host.losses) == 3
    assert [event[0] for event in cluster.head.events] == ["connected", *["disconnected", "connected"] * 3]


def test_a_connection_that_breaks_while_bytes_wait_for_it_is_lost_for_its_own_reason() -> None:
    loop = Loop()
    listener = socket.create_server(tcp.LOOPBACK)
    end = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    told: list[str] = []
    stream = tcp.Stream(end, loop, timeout=9.0, most=1 << 30, heard=lambda: stream.receive(100), lost=told.append)
    stream.write(bytes(50_000_000))
    assert stream.waits
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    other.close()
    while not told:
        loop.wait(PATIENCE)
    assert told == ["Connection reset by peer"]
    listener.close()
    loop.close()


# --- strangers, and hosts that misbehave


def mute(cluster: Cluster) -> Any:
    """A host that is let in, and reads nothing."""
    before = len(cluster.head.events)
    host = HostEnd("mute", b"mute", Order)
    host.tick(0.0)
    (hello,) = host.connected(1, 0.0)
    assert isinstance(hello, control.Write)
    end = opened(cluster, PURPOSE, hello.data, buffer=4096)
    cluster.until(lambda: cluster.head.events[before:] == [("connected", "mute", cluster.head.incarnations)])
    return end


def test_a_host_that_does_not_read_holds_nobody_up_and_is_ended(cluster: Cluster) -> None:
    deaf = mute(cluster)
    incarnation = cluster.head.incarnations
    _, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    for value in range(70):
        cluster.head.link.send("mute", incarnation, Order(value, b"x" * 1_000_000))
        cluster.head.link.send("b", at_host.incarnation, Order(value))
    cluster.until(lambda: len(at_host.values) == 70)
    (ended,) = [event for event in cluster.head.events if event[0] == "ended"]
    assert ended[1] == "mute"
    assert "host mute does not take what it is sent" in ended[3]
    assert len(sockets(cluster.head.link)) == 1
    deaf.close()


# --- sockets


def test_control_messages_go_before_the_bytes_of_items_where_the_link_s_queue_has_bands(cluster: Cluster) -> None:
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    for end in (*sockets(host), *sockets(cluster.head.link)):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == tcp.URGENT > 0


def test_connections_send_at_once_and_notice_a_lost_peer_within_the_timeout(cluster: Cluster) -> None:
    host, at_host = cluster.host(timeout=10.0)
    cluster.until(lambda: at_host.incarnation)
    (end,) = sockets(host)
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    assert sockets(cluster.head.link)[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


def test_nothing_listens_beyond_loopback_by_default(cluster: Cluster) -> None:
    assert cluster.door.address[0] == "127.0.0.1"


def test_closing_sends_what_there_is_room_for_and_leaves_no_socket(cluster: Cluster) -> None:
    before = descriptors()
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    host.send(Told(0))  # which the head does not read any more
    for value in range(100):
        cluster.head.link.send("b", 1, Order(value))
    cluster.close_head()
    cluster.close_head()
    cluster.until(lambda: at_host.losses)
    assert at_host.values == list(range(100))
    host.close()
    assert descriptors() == before - 1  # the listener's


def test_a_link_may_be_closed_where_a_message_is_delivered(cluster: Cluster) -> None:
    def last(host: str, incarnation: int, message: Any) -> None:
        cluster.head.link.send(host, incarnation, Order(7))
        cluster.close_head()

    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    cluster.head.answers = last
    host.send(Told(1))
    host.send(Told(2))
    cluster.until(lambda: at_host.losses)
    assert cluster.head.values == [1], "nothing is told after it was closed"
    assert at_host.values == [7]


# --- alarms


def test_an_alarm_rings_by_the_earliest_time_and_takes_few_timers() -> None:
    loop = Loop()
    rings: list[float] = []
    alarm = Alarm(loop, lambda: rings.append(loop.now()))
    began = loop.now()
    for _ in range(1000):
        alarm.set(began + 1000.0)
        alarm.set(began + 0.01)
        alarm.set(None)
    assert len(loop._timers) == 2
    while not rings:
        loop.wait()
    assert rings[0] >= began + 0.01
    alarm.set(began + 900.0)
    assert len(loop._timers) == 2
    loop.close()


def test_a_host_that_speaks_on_hears_the_heads_last_words(cluster: Cluster) -> None:
    host, at_host = cluster.host()
    cluster.until(lambda: at_host.incarnation)
    for value in range(3):
        host.send(Told(value))
    cluster.head.link.send("b", 1, Order(7))
    cluster.head.link.close()
    for value in range(3):
        host.send(Told(value))
    cluster.until(lambda: at_host.values)
    assert at_host.values == [7]
