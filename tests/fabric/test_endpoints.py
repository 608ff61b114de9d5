"""Channels: messages arrive whole and in order, descriptors come along and none is left open, and a lost peer shows."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc import send_queue
from paceline.ipc.channel import ATTACHED, INLINE, MOST_DESCRIPTORS, PACKET, Channel, pair
from paceline.ipc.endpoint import LENGTH, MOST_BYTES, Coding, Frames, framed
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue


class Number(msgspec.Struct, tag=True, array_like=True):
    value: int


class Text(msgspec.Struct, tag=True, array_like=True):
    descriptors: ClassVar[int] = 2

    value: str


class Nested(msgspec.Struct, tag=True, array_like=True):
    descriptors: ClassVar[int] = 1

    value: Any


Kinds = Number | Text | Nested


class Ends:
    """Two ends of a channel, and a loop that watches the first."""

    def __init__(self) -> None:
        ours, theirs = pair()
        self.here, self.there = Channel(ours, Kinds, "there"), Channel(theirs, Kinds, "here")
        self.loop = Loop()

    def put(self, packet: bytes, descriptors: list[int]) -> None:
        """Let this come to `there`, whatever it is."""
        socket.send_fds(self.here.end, [packet], descriptors)

    def queue(self, overflowed: Callable[[], object] = lambda: None) -> SendQueue:
        """What sends from `here`."""
        self.loop.watch(self.here, lambda: None)
        return SendQueue(self.here, self.loop, overflowed)

    def close(self) -> None:
        self.loop.close()
        self.here.close()
        self.there.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    """They leave no descriptor."""
    before = open_descriptors()
    ends = Ends()
    yield ends
    ends.close()
    assert open_descriptors() == before


@pytest.fixture
def passed(ends: Ends) -> Iterator[int]:
    """A file to be passed on."""
    passed = os.memfd_create("passed")
    os.write(passed, b"passed")
    yield passed
    os.close(passed)


def open_descriptors() -> set[str]:
    gc.collect()  # what earlier tests have left
    return set(os.listdir("/proc/self/fd"))


def received(end: Channel, count: int) -> list[Any]:
    """So many messages, each of which is there. What came along with them is closed."""
    found = []
    for _ in range(count):
        assert end.ready(), f"{len(found)} have come"
        message, descriptors = end.receive()
        found.append(message)
        for descriptor in descriptors:
            os.close(descriptor)
    return found


def fill(end: Channel) -> int:
    """Send numbers from 0 on until there is no room. Return how many were sent."""
    sent = 0
    while end.try_to_send(Number(sent)):
        sent += 1
        assert sent < 100_000, "there is always room"
    return sent


def forked(child: Callable[[Channel], object]) -> tuple[Channel, int]:
    """A process that does this with its end, and ends. Return the other end, and its number."""
    ours, theirs = pair()
    process = os.fork()
    if not process:
        try:
            ours.close()
            child(Channel(theirs, Kinds, "the parent"))
        finally:
            os._exit(0)
    theirs.close()
    return Channel(ours, Kinds, "the child"), process


def test_messages_of_any_length_arrive_whole_in_their_order_and_both_directions_are_apart(ends: Ends) -> None:
    lengths = [0, PACKET - 10, PACKET - 1, PACKET, 1, PACKET + 1, 20_000_000]
    assert ends.there.try_to_send(Number(1))
    assert not ends.there.ready()
    for length in lengths:
        assert ends.here.try_to_send(Text("x" * length))
        assert ends.here.try_to_send(Number(length))
    for length in lengths:
        assert received(ends.there, 2) == [Text("x" * length), Number(length)]
    assert not ends.there.ready()
    assert received(ends.here, 1) == [Number(1)]
    assert not ends.here.ready(0.001)


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_descriptors_come_along_in_order_and_the_senders_stay_its_own(ends: Ends, passed: int, length: int) -> None:
    other = os.memfd_create("other")
    assert ends.here.try_to_send(Number(0))
    assert ends.here.try_to_send(Text("x" * length), (passed, other))
    os.write(other, b"other")
    os.close(other)
    assert ends.there.receive() == (Number(0), [])
    message, came = ends.there.receive()
    assert message == Text("x" * length)
    assert [os.pread(file, 100, 0) for file in came] == [b"passed", b"other"]
    for file in came:
        os.close(file)


def test_a_message_with_more_descriptors_than_its_type_has_is_unreadable(ends: Ends, passed: int) -> None:
    assert ends.here.try_to_send(Number(1), (passed,))
    assert ends.here.try_to_send(Text("x"), (passed,) * 3)
    ends.put(INLINE + Coding(Kinds).encode(Text("x")), [passed] * 4 * MOST_DESCRIPTORS)
    assert ends.here.try_to_send(Number(2), ())
    with pytest.raises(MessageUnreadable, match="Number came with 1 descriptors, and may have 0"):
        ends.there.receive()
    with pytest.raises(MessageUnreadable, match="Text came with 3 descriptors, and may have 2"):
        ends.there.receive()
    with pytest.raises(MessageUnreadable):
        ends.there.receive()
    assert received(ends.there, 1) == [Number(2)]


def test_what_a_peer_said_before_it_went_is_heard_and_then_it_is_lost_to_sender_and_receiver(ends: Ends) -> None:
    assert ends.there.try_to_send(Number(1))
    assert ends.there.try_to_send(Text("x" * 1_000_000))
    ends.there.close()
    assert received(ends.here, 2) == [Number(1), Text("x" * 1_000_000)]
    assert ends.here.ready()  # its end is something
    for _ in range(2):
        with pytest.raises(PeerLost, match="there has gone"):
            ends.here.receive()
    for message in (Number(1), Text("x" * 1_000_000)):
        with pytest.raises(PeerLost, match="there has gone"):
            ends.here.try_to_send(message)


def test_a_peer_that_goes_with_unread_messages_is_lost_and_what_came_along_is_closed(ends: Ends, passed: int) -> None:
    assert ends.here.try_to_send(Text("x"), (passed,))  # the kernel then tells of a reset rather than of an end
    ends.there.close()
    ends.there.close()  # which does no harm
    with pytest.raises(PeerLost):
        ends.here.receive()


BAD = {
    "nothing": INLINE,
    "rubbish": INLINE + b"rubbish",
    "of another type": INLINE + msgspec.msgpack.encode(["Number", "seven"]),
    "of no kind": INLINE + msgspec.msgpack.encode(["Unknown", 7]),
    "no text": INLINE + b"\x92\xa4Text\xa1\xff",
    "cut off": INLINE + b"\x92\xa4Text\xdb\xff\xff\xff\xffx",
    "too deep": INLINE + b"\x92\xa6Nested" + b"\x91" * 50_000 + b"\x90",
    "an extension": INLINE + b"\x92\xa6Nested\xd4\x05\x00",
    "of no known form": b"?",
    "longer than a packet": INLINE + b"\0" * 2 * PACKET,
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_message_is_told_as_such_and_what_follows_is_read(ends: Ends, passed: int, bad: str) -> None:
    ends.put(BAD[bad], [passed])
    assert ends.here.try_to_send(Number(1))
    with pytest.raises(MessageUnreadable):
        ends.there.receive()
    assert received(ends.there, 1) == [Number(1)]


@pytest.mark.parametrize("attached", ["nothing", "a pipe", "a folder", "a file that is too long"])
def test_a_long_message_comes_in_a_file_of_bounded_length_or_is_unreadable(ends: Ends, attached: str) -> None:
    read, write = os.pipe()  # both ends are open: reading would wait for ever
    folder, long = os.open("/", os.O_RDONLY), os.memfd_create("long")
    os.truncate(long, MOST_BYTES + 1)  # takes no memory
    files = {"nothing": [], "a pipe": [read], "a folder": [folder], "a file that is too long": [long, long]}
    ends.put(ATTACHED, files[attached])
    assert ends.here.try_to_send(Number(1))
    with pytest.raises(MessageUnreadable, match="bytes, and may have" if "long" in attached else "."):
        ends.there.receive()
    assert received(ends.there, 1) == [Number(1)]
    for descriptor in (read, write, folder, long):
        os.close(descriptor)


def test_sending_to_an_end_that_does_not_read_says_so_and_tears_nothing(ends: Ends) -> None:
    sent = fill(ends.here)
    assert sent > 10, "a worker that is busy for a moment must not be taken for lost"
    assert not ends.here.try_to_send(Text("x" * 1_000_000))
    assert received(ends.there, sent) == [Number(value) for value in range(sent)]
    assert not ends.there.ready()
    assert ends.here.try_to_send(Number(-1))
    assert received(ends.there, 1) == [Number(-1)]


def test_an_executed_program_inherits_no_end(ends: Ends) -> None:
    assert not os.get_inheritable(ends.here.fileno())
    assert not os.get_inheritable(ends.there.fileno())


def test_the_death_of_the_peers_process_is_the_end_of_the_channel() -> None:
    def says_who_it_is(end: Channel) -> None:
        end.send(Number(os.getpid()))
        signal.pause()

    channel, child = forked(says_who_it_is)
    assert channel.receive() == (Number(child), [])
    assert not channel.ready()
    os.kill(child, signal.SIGKILL)
    assert channel.ready(30.0)
    with pytest.raises(PeerLost, match="the child has gone"):
        channel.receive()
    os.waitpid(child, 0)
    channel.close()


# --- with a queue of what there is no room for yet


def test_a_queue_sends_all_in_order_however_slow_the_other_end_reads(ends: Ends, passed: int) -> None:
    queue = ends.queue()
    sent: list[Any] = [Text(f"{number:01000}") for number in range(1000)]  # there is room for some two hundred
    for number, message in enumerate(sent):
        assert queue.send(message, (passed,) if number % 100 == 99 else ())
    came: list[Any] = []
    while len(came) < 1000:
        came += received(ends.there, 1)
        ends.loop.wait(0.0)
    assert came == sent
    assert not ends.there.ready()


def test_a_queue_keeps_so_many_messages_and_then_says_that_the_other_end_does_not_read(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_queue, "MOST", 10)
    overflows: list[int] = []
    queue = ends.queue(lambda: overflows.append(1))
    room = fill(ends.here)
    for number in range(12):
        assert len(overflows) == max(0, number - 10)
        queue.send(Number(room + number))  # type: ignore[arg-type]
    came: list[Any] = []
    while len(came) < room + 10:
        came += received(ends.there, 1)
        ends.loop.wait(0.0)
    assert came == [Number(value) for value in range(room + 10)], "all but those that were too many"


def test_a_queue_keeps_nothing_for_a_peer_that_has_gone(ends: Ends, passed: int) -> None:
    queue = ends.queue()
    fill(ends.here)
    before = open_descriptors()
    assert queue.send(Text("x"), (passed,))  # type: ignore[arg-type]
    assert len(open_descriptors()) == len(before) + 1
    ends.there.close()
    ends.loop.wait(0.0)
    assert len(open_descriptors()) <= len(before)
    assert not queue.send(Number(0))  # type: ignore[arg-type]


# --- a stream cut into frames


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
