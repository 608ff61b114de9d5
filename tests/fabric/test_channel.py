"""Channel: messages arrive whole and in order, descriptors come along, and a lost peer shows."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import msgspec
import pytest

from paceline.errors import MessageUnreadable, PeerLost
from paceline.fabric.channel import ATTACHED, INLINE, PACKET, Channel, pair


class Number(msgspec.Struct, tag=True, array_like=True):
    value: int


class Text(msgspec.Struct, tag=True, array_like=True):
    value: str


Kinds = Number | Text


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = pair()
    here, there = Channel(ours, Kinds, "there"), Channel(theirs, Kinds, "here")
    yield here, there
    here.close()
    there.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_messages_arrive_in_the_order_in_which_they_were_sent(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    sent = [Number(value) if value % 3 else Text(str(value)) for value in range(100)]
    for message in sent:
        here.send(message)
    assert [there.receive()[0] for _ in sent] == sent


def test_both_directions_are_apart(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.send(Number(1))
    there.send(Number(2))
    assert here.receive() == (Number(2), [])
    assert there.receive() == (Number(1), [])


@pytest.mark.parametrize("length", [PACKET - 10, PACKET - 1, PACKET, PACKET + 1, 1_000_000, 20_000_000])
def test_a_message_of_any_length_arrives_whole_and_leaves_no_descriptor(
    ends: tuple[Channel, Channel], length: int
) -> None:
    here, there = ends
    before = open_descriptors()
    here.send(Number(1))
    here.send(Text("x" * length))
    here.send(Number(2))
    assert [there.receive() for _ in range(3)] == [(Number(1), []), (Text("x" * length), []), (Number(2), [])]
    assert open_descriptors() == before


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_descriptors_come_along_in_order(ends: tuple[Channel, Channel], length: int) -> None:
    here, there = ends
    files = [os.memfd_create(str(number)) for number in range(2)]
    for number, file in enumerate(files):
        os.write(file, f"file {number}".encode())
    here.send(Text("x" * length), tuple(files))
    message, passed = there.receive()
    assert message == Text("x" * length)
    assert [os.pread(file, 100, 0) for file in passed] == [b"file 0", b"file 1"]
    for file in (*files, *passed):
        os.close(file)


def test_a_closed_peer_is_lost_to_sender_and_receiver_and_the_error_names_it(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    there.close()
    with pytest.raises(PeerLost, match="there has gone"):
        here.receive()
    with pytest.raises(PeerLost, match="there has gone"):
        here.send(Number(1))
    with pytest.raises(PeerLost, match="there has gone"):
        here.send(Text("x" * 1_000_000))


def test_what_a_peer_said_before_it_went_is_still_heard(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    there.send(Number(1))
    there.send(Text("x" * 1_000_000))
    there.close()
    assert [here.receive()[0] for _ in range(2)] == [Number(1), Text("x" * 1_000_000)]
    with pytest.raises(PeerLost):
        here.receive()


def test_a_peer_that_goes_with_unread_messages_is_lost_all_the_same(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    here.send(Number(1))  # the kernel then tells of a reset rather than of an end
    there.close()
    with pytest.raises(PeerLost):
        here.receive()


def test_the_death_of_the_peers_process_is_the_end_of_the_channel() -> None:
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


def test_sending_without_waiting_to_one_that_does_not_read_raises_rather_than_hangs(
    ends: tuple[Channel, Channel],
) -> None:
    here, there = ends
    sent = 0

    def send_on() -> None:
        nonlocal sent
        for sent in range(1_000_000):
            here.send(Number(sent), block=False)

    with pytest.raises(PeerLost, match="there does not read"):
        send_on()
    assert sent > 10, "a worker that is busy for a moment must not be taken for lost"
    assert [there.receive()[0] for _ in range(sent)] == [Number(value) for value in range(sent)]  # nothing torn
    here.send(Number(-1), block=False)  # and it reads again


def test_ready_says_whether_something_can_be_received(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    assert not here.ready()
    there.send(Number(1))
    assert here.ready()
    assert here.ready(None)
    here.receive()
    assert not here.ready(0.01)
    there.close()
    assert here.ready()  # its end is something


def test_closing_twice_is_no_harm(ends: tuple[Channel, Channel]) -> None:
    here, _ = ends
    here.close()
    here.close()


def test_an_executed_program_inherits_no_end() -> None:
    ours, theirs = pair()
    assert not os.get_inheritable(ours.fileno())
    assert not os.get_inheritable(theirs.fileno())
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "packet",
    [
        INLINE,
        INLINE + b"rubbish",
        INLINE + msgspec.msgpack.encode(["Number", "seven"]),
        INLINE + msgspec.msgpack.encode(["Unknown", 7]),
        INLINE + b"\x92\xa4Text\xa1\xff",
        ATTACHED,
        b"?",
        INLINE + b"\0" * 2 * PACKET,
    ],
    ids=["nothing", "rubbish", "of another type", "of no kind", "no text", "without its file", "no form", "too long"],
)
def test_what_is_no_message_is_told_as_such_and_what_follows_is_read(
    ends: tuple[Channel, Channel], packet: bytes
) -> None:
    here, there = ends
    before = open_descriptors()
    passed = os.memfd_create("passed")
    if packet is not ATTACHED:
        socket.send_fds(here.end, [packet], [passed])
    else:
        here.end.send(packet)
    os.close(passed)
    here.send(Number(1))
    with pytest.raises(MessageUnreadable):
        there.receive()
    assert there.receive() == (Number(1), [])
    assert open_descriptors() == before
