"""What holds wherever messages go, within a process, to a worker, or to another host: one class of tests for all.

The ends themselves differ. A channel to a process has descriptors, says whether there is room, and ends with its socket
(`tests/fabric/test_endpoints.py`). A link to a host numbers its messages, and goes on over the next connection
(`tests/fabric/test_control.py`, `test_control_link.py`). So each kind is driven here as runs drive it, one way.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc import channel, send_queue
from paceline.ipc.channel import INLINE, Channel
from paceline.ipc.endpoint import Endpoint, framed
from paceline.ipc.send_queue import SendQueue
from paceline.net import numbered
from paceline.net.control import (
    Close,
    Delivered,
    Event,
    HeadEnd,
    HostCame,
    HostConnected,
    HostDisconnected,
    HostEnd,
    IncarnationEnded,
)
from paceline.net.handshake import Keys
from paceline.net.link import HeadLink, HostLink
from paceline.net.tcp import Stream
from support import direct
from support.clusters import KEYS, PATIENCE, Cluster, Order, Told, sockets, tls_keys
from support.control_nodes import HEAD, EndNode
from support.direct import Direct
from support.seeded_network import NOISE, Blocked, Network

RUBBISH = b"\xc1\xc1\xc1"
"""What no message is."""
MOST = 100
"""Messages that wait at most, in these tests."""


class Way(ABC):
    """Someone who sends, and someone who receives."""

    def __init__(self) -> None:
        self.came: list[tuple[int, bytes]] = []
        """What the receiver was told, in order."""
        self.ends: list[str] = []
        """Each time that the receiver was told of the end."""
        self.lines: list[str] = []
        """What is shown of what can't be read."""
        self.given_up = 0
        """How often the sender was told that the receiver takes nothing."""

    def heard(self, message: Order | Told) -> None:
        """A message has come to the receiver."""
        assert not self.ends, "it comes after the end"
        self.came.append((message.value, message.more))

    @abstractmethod
    def send(self, value: int, load: bytes = b"") -> None:
        """Send a message. Nothing is waited for."""

    @abstractmethod
    def hostile(self) -> None:
        """Let bytes come to the receiver that no sender of ours writes."""

    @abstractmethod
    def deafen(self) -> None:
        """The receiver takes nothing from now on."""

    @abstractmethod
    def end(self) -> None:
        """The sender ends what the two have."""

    @abstractmethod
    def until(self, there: Callable[[], object]) -> None:
        """Let all go on until that is so."""

    @abstractmethod
    def settle(self) -> None:
        """Let come what is still to come."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing."""


class Channels(Way):
    """A channel to a process, with an outbox. Its two ends are read in turns, as in a loop."""

    def __init__(self, here: Endpoint, there: Endpoint, put: Callable[[bytes], object]) -> None:
        super().__init__()
        self.here, self.there = here, there
        self.put = put
        self.deaf = False
        self.room: Callable[[], object] | None = None
        self.box = SendQueue(here, self, self.overflowed)

    def watches(self, source: Any) -> bool:
        return True

    def await_room(self, source: Any, call: Callable[[], object] | None) -> None:
        self.room = call

    def overflowed(self) -> None:
        self.given_up += 1

    def send(self, value: int, load: bytes = b"") -> None:
        self.box.send(Told(value, load))  # type: ignore[arg-type]

    def hostile(self) -> None:
        self.put(RUBBISH)

    def deafen(self) -> None:
        self.deaf = True

    def end(self) -> None:
        self.box.forget()
        self.here.close()

    def turn(self) -> None:
        if self.room is not None:
            self.room()
        while not self.deaf and not self.ends and self.there.ready():
            try:
                self.heard(self.there.receive()[0])
            except PeerLost as error:
                self.ends.append(str(error))
            except MessageUnreadable as error:
                self.lines.append(str(error))

    def until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < deadline, "it never came to that"
            self.turn()

    def settle(self) -> None:
        self.turn()

    def close(self) -> None:
        self.here.close()
        self.there.close()


class DirectChannels(Channels):
    def __init__(self) -> None:
        ours, theirs = direct.pair()

        def put(body: bytes) -> None:
            ours[0].unread += framed(body)
            ours[0].passed.append([])

        super().__init__(Direct(ours, Told, "there"), Direct(theirs, Told, "here"), put)


class UnixChannels(Channels):
    def __init__(self) -> None:
        ours, theirs = channel.pair()
        super().__init__(
            Channel(ours, Told, "there"), Channel(theirs, Told, "here"), lambda body: ours.send(INLINE + body)
        )


class Links(Way):
    """A head and a host, over TCP. The two ends are in one loop."""

    sender: HeadLink | HostLink
    receiver: HeadLink | HostLink

    def __init__(self, keys: Keys = KEYS) -> None:
        super().__init__()
        self.cluster = Cluster(keys)
        self.link, self.at_host = self.cluster.host()
        self.cluster.until(lambda: self.at_host.incarnation)

    def hostile(self) -> None:
        for end in sockets(self.sender):
            end.send(framed(RUBBISH))

    def deafen(self) -> None:
        for stream in self.receiver._streams.values():
            assert isinstance(stream, Stream)
            stream._heard = lambda: None

    def until(self, there: Callable[[], object]) -> None:
        self.cluster.until(there)

    def settle(self) -> None:
        for _ in range(10):
            self.cluster.loop.wait(0.01)

    def close(self) -> None:
        self.cluster.close()


class LinkToHost(Links):
    def __init__(self, keys: Keys = KEYS) -> None:
        super().__init__(keys)
        self.sender, self.receiver = self.cluster.head.link, self.link
        self.at_host.answers = self.heard
        self.at_host.ended = self.ends.append  # type: ignore[method-assign]
        self.at_host.lines = self.lines

    def send(self, value: int, load: bytes = b"") -> None:
        self.cluster.head.link.send("b", 1, Order(value, load))
        self.given_up = sum(event[0] == "ended" for event in self.cluster.head.events)

    def end(self) -> None:
        self.cluster.head.link.end("b", 1, "the test ends it")


class LinkToHead(Links):
    """The head hears that the connection has gone. Whether the host is lost is for the membership to say."""

    def __init__(self, keys: Keys = KEYS) -> None:
        super().__init__(keys)
        self.sender, self.receiver = self.link, self.cluster.head.link
        self.cluster.head.answers = lambda host, incarnation, message: self.heard(message)
        self.cluster.head.lines = self.lines
        self.ended = False

    def send(self, value: int, load: bytes = b"") -> None:
        self.link.send(Told(value, load))
        self.given_up = len(self.at_host.ends)

    def end(self) -> None:
        self.cluster.head.disconnected = (  # type: ignore[method-assign]
            lambda host, incarnation, why: self.ends.append(why)
        )
        self.link.end("the test ends it")


class HeadThere(EndNode):
    """The head, at a node of the seeded network."""

    end: HeadEnd

    def __init__(self, network: Network, way: Nodes) -> None:
        super().__init__(network, HEAD)
        self.way = way
        self.end = HeadEnd(HEAD, b"head", Told)

    def happened(self, event: Event) -> None:
        match event:
            case HostCame(connection=connection):
                self.carry_out(self.end.admit(connection, 1, self.network.now))
            case HostConnected():
                self.way.connections.append(max(self.network._nodes[HEAD].ends))
            case IncarnationEnded():
                self.way.given_up += 1


class HostThere(EndNode):
    """A host, at another node."""

    end: HostEnd

    def __init__(self, network: Network, way: Nodes) -> None:
        super().__init__(network, "b")
        self.way = way
        self.end = HostEnd("b", b"1", Order, timeout=15.0)

    def received(self, connection: int, data: bytes, now: float) -> None:
        outcome = self.end.received(connection, data, now)
        self.way.lines += [one.why for one in outcome if isinstance(one, Close) and one.why]
        self.carry_out(outcome)

    def happened(self, event: Event) -> None:
        match event:
            case Delivered(message=message):
                self.way.heard(message)
            case IncarnationEnded(why=why):
                self.way.ends.append(why)
            case HostDisconnected():
                pass  # it dials again


class Nodes(Way):
    """The pure ends, over the network in virtual time."""

    DEAF = 100.0
    """From when on the host hears nothing, if a test waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[int] = []
        self.network = Network(1, [Blocked(self.DEAF, 1e9, HEAD, "b")])
        self.head = HeadThere(self.network, self)
        self.network.add(HEAD, lambda: self.head)
        self.network.add("b", lambda: HostThere(self.network, self))
        self.until(lambda: self.connections)

    def send(self, value: int, load: bytes = b"") -> None:
        self.head.carry_out(self.head.end.send("b", 1, Order(value, load), self.network.now))

    def hostile(self) -> None:
        self.network.write(HEAD, self.connections[-1], NOISE)

    def deafen(self) -> None:
        self.network.run(lambda: False, most=self.DEAF)

    def end(self) -> None:
        self.head.carry_out(self.head.end.end("b", 1, "the test ends it"))

    def until(self, there: Callable[[], object]) -> None:
        assert self.network.run(lambda: bool(there()), most=self.network.now + PATIENCE), "it never came to that"

    def settle(self) -> None:
        self.network.run(lambda: False, most=self.network.now + PATIENCE)

    def close(self) -> None:
        """Nothing of it is real."""


KINDS: dict[str, Callable[[], Way]] = {
    "within a process": DirectChannels,
    "to a process": UnixChannels,
    "to a host": LinkToHost,
    "to the head": LinkToHead,
    "to a host, with TLS": lambda: LinkToHost(tls_keys()),
    "to the head, with TLS": lambda: LinkToHead(tls_keys()),
    "over the seeded network": Nodes,
}


@pytest.fixture(params=KINDS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    way = KINDS[request.param]()
    yield way
    way.close()


def test_messages_come_whole_once_and_in_order(way: Way) -> None:
    sent = [(value, bytes([value % 256]) * (100_000 if value % 50 == 0 else value)) for value in range(300)]
    for value, load in sent:
        way.send(value, load)
    way.until(lambda: len(way.came) >= len(sent))
    way.settle()
    assert way.came == sent
    assert (way.ends, way.lines) == ([], [])


def test_the_end_is_told_once_after_all_that_was_sent_before_and_nothing_comes_after_it(way: Way) -> None:
    for value in range(20):
        way.send(value)
    way.end()
    way.until(lambda: way.ends)
    way.settle()
    assert [value for value, _ in way.came] == list(range(20))
    assert len(way.ends) == 1


def test_what_can_not_be_read_becomes_one_line_and_no_message_is_lost_for_it(way: Way) -> None:
    way.send(0)
    way.until(lambda: way.came)
    way.hostile()
    way.until(lambda: way.lines)
    way.send(1)
    way.until(lambda: len(way.came) > 1)
    way.settle()
    assert [value for value, _ in way.came] == [0, 1]
    assert way.ends == []
    (line,) = way.lines
    assert line.isprintable()


def test_for_a_receiver_that_takes_nothing_so_many_messages_are_kept_and_then_the_sender_is_told(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_queue, "MOST", MOST)
    monkeypatch.setattr(numbered, "MOST_MESSAGES", MOST)
    way.deafen()
    sent = 0
    while not way.given_up:
        way.send(sent, bytes(1000))
        sent += 1
        assert sent < 1000, "there is no bound"
    assert sent > MOST, "a receiver that is busy for a moment is not given up"
    assert way.came == []
