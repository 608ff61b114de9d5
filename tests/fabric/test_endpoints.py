"""Endpoints: messages arrive whole and in order, descriptors come along, and a lost peer shows. Every kind is alike."""

from __future__ import annotations

import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc import send_queue
from paceline.ipc.channel import ATTACHED, INLINE, MOST_DESCRIPTORS, PACKET, Channel, pair
from paceline.ipc.endpoint import LENGTH, MOST_BYTES, Coding, Endpoint, Frames, framed
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue, Watching
from support import direct
from support.direct import Direct


class Number(msgspec.Struct, tag=True, array_like=True):
    value: int


class Text(msgspec.Struct, tag=True, array_like=True):
    descriptors: ClassVar[int] = 2

    value: str


class Nested(msgspec.Struct, tag=True, array_like=True):
    descriptors: ClassVar[int] = 1

    value: Any


Kinds = Number | Text | Nested


class Ends(ABC):
    """Two ends of a channel, what is done to the bytes between them, and a loop that watches the first."""

    here: Endpoint
    there: Endpoint
    loop: Watching

    @abstractmethod
    def put(self, body: bytes, descriptors: list[int]) -> None:
        """Let this body come to `there` as a message, whatever it is."""

    @abstractmethod
    def put_too_long(self, descriptors: list[int]) -> None:
        """Let a message come to `there` that says to be longer than any may be."""

    @abstractmethod
    def cut(self, body: bytes, descriptors: list[int]) -> None:
        """Let half of this message come to `there`, and then the end of `here`."""

    @abstractmethod
    def watch(self, call: Callable[[], object]) -> None:
        """Watch `here`."""

    @abstractmethod
    def turn(self) -> None:
        """Let the loop see to what there is."""

    @abstractmethod
    def close(self) -> None:
        """Close all there is."""


class UnixEnds(Ends):
    here: Channel
    there: Channel
    loop: Loop

    def __init__(self) -> None:
        ours, theirs = pair()
        self.here, self.there = Channel(ours, Kinds, "there"), Channel(theirs, Kinds, "here")
        self.loop = Loop()

    def put(self, body: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self.here.end, [INLINE + body], descriptors)

    def put_too_long(self, descriptors: list[int]) -> None:
        long = os.memfd_create("long")
        os.truncate(long, MOST_BYTES + 1)  # takes no memory
        socket.send_fds(self.here.end, [ATTACHED], [long, *descriptors])
        os.close(long)

    def cut(self, body: bytes, descriptors: list[int]) -> None:
        self.put(body[: len(body) // 2], descriptors)
        self.here.close()

    def watch(self, call: Callable[[], object]) -> None:
        self.loop.watch(self.here, call)

    def turn(self) -> None:
        self.loop.wait(0.0)

    def close(self) -> None:
        self.loop.close()
        self.here.close()
        self.there.close()


class Turns:
    """Stands in for the loop where there is nothing to select."""

    def __init__(self) -> None:
        self.sources: dict[Any, tuple[Callable[[], object], Callable[[], object] | None]] = {}

    def watches(self, source: Any) -> bool:
        return source in self.sources

    def await_room(self, source: Any, call: Callable[[], object] | None) -> None:
        self.sources[source] = self.sources[source][0], call


class DirectEnds(Ends):
    loop: Turns

    def __init__(self) -> None:
        ours, theirs = direct.pair()
        self.way = ours[0]
        self.here, self.there = Direct(ours, Kinds, "there"), Direct(theirs, Kinds, "here")
        self.loop = Turns()

    def put(self, body: bytes, descriptors: list[int]) -> None:
        self.way.unread += framed(body)
        self.way.passed.append([os.dup(descriptor) for descriptor in descriptors])

    def put_too_long(self, descriptors: list[int]) -> None:
        self.way.unread += LENGTH.pack(MOST_BYTES + 1)
        self.way.passed.append([os.dup(descriptor) for descriptor in descriptors])

    def cut(self, body: bytes, descriptors: list[int]) -> None:
        self.put(body, descriptors)
        del self.way.unread[-len(body) // 2 :]
        self.here.close()

    def watch(self, call: Callable[[], object]) -> None:
        self.loop.sources[self.here] = call, None

    def turn(self) -> None:
        for source, (read, write) in list(self.loop.sources.items()):
            if source.ready():
                read()
            if write is not None:
                write()

    def close(self) -> None:
        self.here.close()
        self.there.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def received(end: Endpoint, count: int) -> list[Any]:
    """So many messages, each of which is there. What came along with them is closed."""
    found = []
    for _ in range(count):
        assert end.ready(), f"{len(found)} have come"
        message, descriptors = end.receive()
        found.append(message)
        for descriptor in descriptors:
            os.close(descriptor)
    return found


def fill(end: Endpoint) -> int:
    """Send numbers from 0 on until there is no room. Return how many were sent."""
    sent = 0
    while end.try_to_send(Number(sent)):
        sent += 1
        assert sent < 100_000, "there is always room"
    return sent


class EndpointContract(ABC):
    """What holds for every endpoint."""

    @pytest.fixture
    def ends(self) -> Iterator[Ends]:
        ends = self.make()
        yield ends
        ends.close()

    @abstractmethod
    def make(self) -> Ends: ...

    def test_messages_arrive_in_the_order_in_which_they_were_sent(self, ends: Ends) -> None:
        sent = [Number(value) if value % 3 else Text(str(value)) for value in range(100)]
        for message in sent:
            assert ends.here.try_to_send(message)
        assert received(ends.there, 100) == sent
        assert not ends.there.ready()

    def test_both_directions_are_apart(self, ends: Ends) -> None:
        assert ends.here.try_to_send(Number(1))
        assert ends.there.try_to_send(Number(2))
        assert ends.here.receive() == (Number(2), [])
        assert ends.there.receive() == (Number(1), [])

    @pytest.mark.parametrize("length", [PACKET - 10, PACKET - 1, PACKET, PACKET + 1, 1_000_000, 20_000_000])
    def test_a_message_of_any_length_arrives_whole_and_leaves_no_descriptor(self, ends: Ends, length: int) -> None:
        before = open_descriptors()
        for message in (Number(1), Text("x" * length)):
            assert ends.here.try_to_send(message)
        assert received(ends.there, 2) == [Number(1), Text("x" * length)]
        assert ends.here.try_to_send(Number(2))
        assert received(ends.there, 1) == [Number(2)]
        assert open_descriptors() == before

    @pytest.mark.parametrize("length", [1, 1_000_000])
    def test_descriptors_come_along_in_order_and_the_senders_stay_its_own(self, ends: Ends, length: int) -> None:
        files = [os.memfd_create(str(number)) for number in range(2)]
        for number, file in enumerate(files):
            os.write(file, f"file {number}".encode())
        assert ends.here.try_to_send(Number(0))
        assert ends.here.try_to_send(Text("x" * length), tuple(files))
        for file in files:
            os.close(file)
        assert ends.there.receive() == (Number(0), [])
        message, passed = ends.there.receive()
        assert message == Text("x" * length)
        assert [os.pread(file, 100, 0) for file in passed] == [b"file 0", b"file 1"]
        for file in passed:
            os.close(file)

    def test_a_message_with_more_descriptors_than_its_type_has_is_unreadable_and_they_are_closed(
        self, ends: Ends
    ) -> None:
        before = open_descriptors()
        passed = os.memfd_create("passed")
        assert ends.here.try_to_send(Number(1), (passed,))
        assert ends.here.try_to_send(Text("x"), (passed,) * 3)
        assert ends.here.try_to_send(Number(2))
        os.close(passed)
        with pytest.raises(MessageUnreadable, match="Number came with 1 descriptors, and may have 0"):
            ends.there.receive()
        with pytest.raises(MessageUnreadable, match="Text came with 3 descriptors, and may have 2"):
            ends.there.receive()
        assert received(ends.there, 1) == [Number(2)]
        assert open_descriptors() == before

    def test_descriptors_of_messages_that_nobody_received_are_closed_with_the_ends(self, ends: Ends) -> None:
        before = open_descriptors()
        other = self.make()
        passed = os.memfd_create("passed")
        assert other.here.try_to_send(Text("x"), (passed,))
        os.close(passed)
        other.close()
        assert open_descriptors() == before

    def test_a_closed_peer_is_lost_to_sender_and_receiver_and_the_error_names_it(self, ends: Ends) -> None:
        ends.there.close()
        assert ends.here.ready()  # its end is something
        for _ in range(2):
            with pytest.raises(PeerLost, match="there has gone"):
                ends.here.receive()
        for message in (Number(1), Text("x" * 1_000_000)):
            with pytest.raises(PeerLost, match="there has gone"):
                ends.here.try_to_send(message)

    def test_what_a_peer_said_before_it_went_is_still_heard(self, ends: Ends) -> None:
        assert ends.there.try_to_send(Number(1))
        assert ends.there.try_to_send(Text("x" * 1_000_000))
        ends.there.close()
        assert received(ends.here, 2) == [Number(1), Text("x" * 1_000_000)]
        with pytest.raises(PeerLost):
            ends.here.receive()

    def test_a_peer_that_goes_with_unread_messages_is_lost_all_the_same(self, ends: Ends) -> None:
        assert ends.here.try_to_send(Number(1))  # the kernel then tells of a reset rather than of an end
        ends.there.close()
        with pytest.raises(PeerLost):
            ends.here.receive()

    def test_half_a_message_and_then_the_end_is_no_message_and_leaves_no_descriptor(self, ends: Ends) -> None:
        passed = os.memfd_create("passed")
        before = open_descriptors()
        ends.cut(Coding(Kinds).encode(Text("x" * 100)), [passed])
        with pytest.raises((PeerLost, MessageUnreadable)):
            ends.there.receive()
        with pytest.raises(PeerLost):
            ends.there.receive()
        assert open_descriptors() <= before
        os.close(passed)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"rubbish",
            msgspec.msgpack.encode(["Number", "seven"]),
            msgspec.msgpack.encode(["Unknown", 7]),
            b"\x92\xa4Text\xa1\xff",
            b"\x92\xa4Text\xdb\xff\xff\xff\xffx",
            b"\x92\xa6Nested" + b"\x91" * 50_000 + b"\x90",
            b"\x92\xa6Nested\xd4\x05\x00",
        ],
        ids=["nothing", "rubbish", "of another type", "of no kind", "no text", "cut off", "too deep", "an extension"],
    )
    def test_what_is_no_message_is_told_as_such_and_what_follows_is_read(self, ends: Ends, body: bytes) -> None:
        before = open_descriptors()
        passed = os.memfd_create("passed")
        ends.put(body, [passed])
        os.close(passed)
        assert ends.here.try_to_send(Number(1))
        with pytest.raises(MessageUnreadable):
            ends.there.receive()
        assert received(ends.there, 1) == [Number(1)]
        assert open_descriptors() == before

    def test_a_message_that_says_to_be_too_long_is_not_read(self, ends: Ends) -> None:
        before = open_descriptors()
        passed = os.memfd_create("passed")
        assert ends.here.try_to_send(Number(1))
        ends.put_too_long([passed])
        os.close(passed)
        assert received(ends.there, 1) == [Number(1)]
        with pytest.raises(MessageUnreadable, match="bytes, and may have"):
            ends.there.receive()
        assert open_descriptors() == before

    def test_sending_to_an_end_that_does_not_read_says_so_and_tears_nothing(self, ends: Ends) -> None:
        sent = fill(ends.here)
        assert sent > 10, "a worker that is busy for a moment must not be taken for lost"
        assert not ends.here.try_to_send(Text("x" * 1_000_000))
        assert received(ends.there, sent) == [Number(value) for value in range(sent)]
        assert not ends.there.ready()
        assert ends.here.try_to_send(Number(-1))
        assert received(ends.there, 1) == [Number(-1)]

    def test_ready_says_whether_something_can_be_received(self, ends: Ends) -> None:
        assert not ends.here.ready()
        assert ends.there.try_to_send(Number(1))
        assert ends.here.ready()
        assert ends.here.ready(None)
        ends.here.receive()
        assert not ends.here.ready(0.001)
        ends.there.close()
        assert ends.here.ready()

    def test_closing_twice_does_no_harm(self, ends: Ends) -> None:
        ends.here.close()
        ends.here.close()
        with pytest.raises(PeerLost):
            ends.there.receive()

    # --- with an outbox

    def test_an_outbox_sends_all_in_order_however_slow_the_other_end_reads(self, ends: Ends) -> None:
        box = self.outbox(ends)
        before = open_descriptors()
        sent = [Text(f"{number:01000}") for number in range(1000)]  # there is room for some two hundred
        for number, message in enumerate(sent):
            passed = os.memfd_create("passed")
            assert box.send(message, (passed,) if number % 100 == 99 else ())  # type: ignore[arg-type]
            os.close(passed)
        came: list[Any] = []
        while len(came) < 1000:
            came += received(ends.there, 1)
            ends.turn()
        assert came == sent
        assert open_descriptors() == before
        assert not ends.there.ready()

    def test_an_outbox_keeps_so_many_messages_and_then_says_that_the_other_end_does_not_read(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(send_queue, "MOST", 10)
        overflows: list[int] = []
        box = self.outbox(ends, lambda: overflows.append(1))
        room = fill(ends.here)
        for number in range(12):
            assert len(overflows) == max(0, number - 10)
            box.send(Number(room + number))  # type: ignore[arg-type]
        came: list[Any] = []
        while len(came) < room + 10:
            came += received(ends.there, 1)
            ends.turn()
        assert came == [Number(value) for value in range(room + 10)], "all but those that were too many"

    def test_an_outbox_keeps_nothing_for_a_peer_that_has_gone(self, ends: Ends) -> None:
        box = self.outbox(ends)
        fill(ends.here)
        before = open_descriptors()
        passed = os.memfd_create("passed")
        assert box.send(Text("x"), (passed,))  # type: ignore[arg-type]
        os.close(passed)
        assert len(open_descriptors()) == len(before) + 1
        ends.there.close()
        ends.turn()
        assert len(open_descriptors()) <= len(before)
        assert not box.send(Number(0))  # type: ignore[arg-type]

    def outbox(self, ends: Ends, overflowed: Callable[[], object] = lambda: None) -> SendQueue:
        """An outbox of `here`, which is watched."""
        ends.watch(lambda: None)
        return SendQueue(ends.here, ends.loop, overflowed)


class TestDirect(EndpointContract):
    def make(self) -> Ends:
        return DirectEnds()

    def test_it_refuses_to_wait_for_what_cannot_come(self, ends: Ends) -> None:
        with pytest.raises(BlockingIOError, match="there has said nothing"):
            ends.here.receive()

    def test_messages_come_in_parts_and_are_whole_when_they_are_ready(self, ends: Ends) -> None:
        assert isinstance(ends, DirectEnds)
        body = Coding(Kinds).encode(Text("x" * 10_000))
        ends.put(body, [])
        rest = bytes(ends.way.unread[-1:])
        del ends.way.unread[-1:]
        assert not ends.there.ready()
        ends.way.unread += rest
        assert received(ends.there, 1) == [Text("x" * 10_000)]


class TestUnix(EndpointContract):
    def make(self) -> Ends:
        return UnixEnds()

    def test_the_death_of_the_peers_process_is_the_end_of_the_channel(self) -> None:
        ours, theirs = pair()
        child = os.fork()
        if not child:
            try:
                ours.close()
                channel = Channel(theirs, Kinds, "the parent")
                channel.send(Number(os.getpid()))
                signal.pause()
            finally:
                os._exit(1)
        theirs.close()
        channel = Channel(ours, Kinds, "the child")
        assert channel.receive() == (Number(child), [])
        assert not channel.ready()
        os.kill(child, signal.SIGKILL)
        assert channel.ready(30.0)
        with pytest.raises(PeerLost, match="the child has gone"):
            channel.receive()
        os.waitpid(child, 0)
        channel.close()

    def test_a_sender_that_may_wait_goes_on_when_there_is_room(self) -> None:
        ours, theirs = pair()
        child = os.fork()
        if not child:
            try:
                ours.close()
                channel = Channel(theirs, Kinds, "the parent")
                for number in range(2000):
                    channel.send(Number(number))
            finally:
                os._exit(0)
        theirs.close()
        channel = Channel(ours, Kinds, "the child")
        assert [channel.receive()[0].value for _ in range(2000)] == list(range(2000))
        os.waitpid(child, 0)
        channel.close()

    def test_an_executed_program_inherits_no_end(self) -> None:
        ours, theirs = pair()
        assert not os.get_inheritable(ours.fileno())
        assert not os.get_inheritable(theirs.fileno())
        ours.close()
        theirs.close()

    @pytest.mark.parametrize(
        ("packet", "attached"),
        [
            (ATTACHED, "nothing"),
            (ATTACHED, "a pipe"),
            (ATTACHED, "a folder"),
            (b"?", "a pipe"),
            (INLINE + b"\0" * 2 * PACKET, "nothing"),
        ],
    )
    def test_a_packet_of_no_known_form_is_unreadable_and_what_follows_is_read(
        self, ends: Ends, packet: bytes, attached: str
    ) -> None:
        assert isinstance(ends, UnixEnds)
        before = open_descriptors()
        read, write = os.pipe()  # both ends are open: reading would wait for ever
        folder = os.open("/", os.O_RDONLY)
        passed = {"nothing": [], "a pipe": [read], "a folder": [folder]}[attached]
        socket.send_fds(ends.here.end, [packet], passed)
        assert ends.here.try_to_send(Number(1))
        with pytest.raises(MessageUnreadable):
            ends.there.receive()
        assert received(ends.there, 1) == [Number(1)]
        for descriptor in (read, write, folder):
            os.close(descriptor)
        assert open_descriptors() == before

    def test_no_more_descriptors_come_than_any_message_may_have(self, ends: Ends) -> None:
        assert isinstance(ends, UnixEnds)
        before = open_descriptors()
        passed = os.memfd_create("passed")
        ends.put(Coding(Kinds).encode(Text("x")), [passed] * 4 * MOST_DESCRIPTORS)
        os.close(passed)
        with pytest.raises(MessageUnreadable):
            ends.there.receive()
        assert open_descriptors() == before


def test_frames_are_cut_alike_however_the_stream_is_divided() -> None:
    bodies = [b"", b"one", b"x" * 1000, b"two"]
    stream = b"".join(map(framed, bodies))
    for size in (1, 2, 7, 8, 9, 500, len(stream)):
        frames = Frames()
        came = [body for at in range(0, len(stream), size) for body in frames.receive(stream[at : at + size])]
        assert came == bodies


def test_after_a_frame_that_is_too_long_a_stream_is_never_read_again() -> None:
    frames = Frames()
    came = frames.receive(framed(b"one") + LENGTH.pack(MOST_BYTES + 1) + framed(b"two"))
    assert next(came) == b"one"
    for _ in range(2):
        with pytest.raises(MessageUnreadable):
            next(came)
        came = frames.receive(framed(b"three"))


def test_an_end_that_need_not_wait_gets_what_is_there_and_then_nothing() -> None:
    ours, theirs = pair()
    here, there = Channel(ours, Kinds, "here"), Channel(theirs, Kinds, "there")
    assert there.receive_now() is None
    with open(os.devnull) as file:
        here.send(Text("with a file"), (file.fileno(),))
    here.send(Number(2))
    said, descriptors = there.receive_now() or (None, [])
    assert (said, len(descriptors)) == (Text("with a file"), 1)
    os.close(descriptors[0])
    assert there.receive_now() == (Number(2), [])
    assert there.receive_now() is None
    here.close()
    with pytest.raises(PeerLost):
        there.receive_now()
    there.close()
