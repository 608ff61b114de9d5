"""What one machine makes of what the other says while their link is measured, also of what it should not say."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import BinaryIO

import msgspec
import pytest

from paceline.errors import PeerLost
from paceline.host.machine import machine
from paceline.ipc.endpoint import LENGTH, framed
from paceline.ipc.loop import Loop
from paceline.net.numbered import Frame, written
from paceline.runs import talk
from paceline.runs.link import Side
from paceline.runs.talk import UNHEARD, Block, DialBack, Echo, Echoed, Enough, Greeting, Sent, Talk

MUCH = 1_000_000
GREETING = Greeting(Side("beta", machine(), 1e9))


class Pair:
    """A talk, and the other machine's end of its connection."""

    def __init__(self) -> None:
        self._loop = Loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.other = socket.create_connection(listener.getsockname())
            end, _ = listener.accept()
        self.talk = Talk(end, self._loop, "beta")

    def say(self, data: bytes) -> None:
        self.other.sendall(data)

    def hear_all(self) -> None:
        """Hear frames until that fails."""
        while True:
            self.talk.hear(Frame)

    def close(self) -> None:
        self.talk.close()
        self.other.close()
        self._loop.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_what_was_said_before_the_other_machine_left_is_still_heard(pair: Pair) -> None:
    pair.say(written(GREETING) + written(Echoed(1.5)))
    pair.other.close()
    assert pair.talk.hear(Greeting) == GREETING
    assert pair.talk.hear(Echoed) == Echoed(1.5)
    with pytest.raises(PeerLost, match="the link with beta could not be measured to the end: the other end has closed"):
        pair.talk.hear(Echoed)


def test_a_frame_that_is_not_the_one_to_come_is_named(pair: Pair) -> None:
    pair.say(written(Enough()))
    with pytest.raises(PeerLost, match="it said Enough at the wrong time"):
        pair.talk.hear(Greeting)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (LENGTH.pack(1 << 40), "1,099,511,627,776 bytes"),
        (LENGTH.pack(0), "0 bytes"),
        (framed(b"\xff\xff"), "invalid|unexpected|Expected"),
        (written(Block(1 << 30)), "a block has 1,073,741,824 bytes, and may have 1,048,576"),
        (written(Block(0)), "a block has 0 bytes"),
        (written(DialBack(70_000)), "Expected `int` <"),
        (written(Enough()) * (UNHEARD + 1), "it says more than it was asked: Enough"),
    ],
)
def test_what_nobody_should_say_ends_it(said: bytes, why: str, pair: Pair) -> None:
    pair.say(said)
    with pytest.raises(PeerLost, match=why):
        pair.hear_all()


def test_a_machine_that_says_nothing_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "SILENCE", 0.05)
    with pytest.raises(PeerLost, match="silent for 0 s"):
        pair.talk.hear(Greeting)


def test_a_machine_that_never_comes_to_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "LONGEST", 0.1)
    pair = Pair()
    until = time.monotonic() + 60

    def chat() -> None:
        while time.monotonic() < until:
            pair.say(written(Echo(b"")))
            pair.talk.hear(Echo)

    with pytest.raises(PeerLost, match="not over after 0 s"):
        chat()
    pair.close()


def test_the_bytes_of_a_block_are_no_frames(pair: Pair) -> None:
    block = written(Enough()) * 10
    pair.say(written(Block(len(block))) + block + written(Sent(0.5)))
    assert pair.talk.hear(Sent) == Sent(0.5)


def test_no_block_is_longer_than_all_before_it(pair: Pair) -> None:
    """So what is still to arrive when it is enough takes a slow link no longer than it was measured for."""
    blocks: list[int] = []

    def take() -> None:
        file = pair.other.makefile("rb")
        while isinstance(frame := read(file), Block):
            blocks.append(frame.length)
            file.read(frame.length)
            if sum(blocks) - frame.length < MUCH <= sum(blocks):
                pair.say(written(Enough()))
        pair.say(written(Echoed(0.0)))

    def read(file: BinaryIO) -> Block | Sent:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        return msgspec.msgpack.decode(file.read(length), type=Block | Sent)

    taking = Thread(target=take)
    taking.start()
    pair.talk.send()
    pair.talk.hear(Echoed)
    taking.join()
    assert sum(blocks) >= MUCH
    assert all(length <= max(talk.FIRST, sum(blocks[:number])) for number, length in enumerate(blocks))


@pytest.mark.parametrize("seed", range(100))
def test_no_bytes_do_more_than_end_it(seed: int) -> None:
    draw = random.Random(seed)
    frames = [GREETING, Echo(bytes(200)), Echoed(1.0), Enough(), Sent(0.1), DialBack(80)]
    said = bytearray()
    for frame in draw.sample(frames, 4):
        said += written(frame)
        said += written(Block(50)) + draw.randbytes(50)
    for _ in range(draw.randint(1, 5)):
        at = draw.randrange(len(said))
        if draw.random() < 0.7:
            said[at] = draw.randrange(256)
        else:
            del said[at : at + draw.randint(1, 9)]
    pair = Pair()
    pair.say(bytes(said))
    pair.other.close()
    with pytest.raises(PeerLost) as lost:
        pair.hear_all()
    assert str(lost.value).isprintable()
    pair.close()
