"""Frames that are broken in transit, or by somebody who has the token: they end their own connection at most.

Whoever speaks here has opened a connection, and says what hosts say, with bytes that are changed, lost, doubled or
added. Another connection goes on beside it. What comes before a connection is opened is in `test_door.py`. What the
side that has dialled makes of broken frames is in `tests/fabric/test_control_walk.py` and `test_bulk.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from paceline.core.items import Version
from paceline.ipc.endpoint import LENGTH
from paceline.net import control, link
from paceline.net.control import Hello
from paceline.net.handshake import Keys, dial
from paceline.net.listener import HostListener
from paceline.net.numbered import Acknowledged, Beat, Data, Frame, written
from paceline.transfer import data_connection
from paceline.transfer.data_connection import BytesFrame, Cancel, Fetch, Never
from support.carriers import Two, contents, hello
from support.clusters import EACH_KEYS, Cluster, Told
from support.planes import meet
from support.seeds import each_seed

MOST_MORE = 48 << 20
"""Bytes that the process may have more at the end than at the beginning: several times what one connection may take."""
PATIENCE = 30.0

BODY = msgspec.msgpack.encode(Told(1))
TO_HEAD: list[Frame] = [Data(1, 0, BODY), Data(2, 0, BODY), Acknowledged(0), Beat(1, 0)]
BULK: list[Frame] = [
    Fetch(1, 0, 1, ("version", 1), 0, 10),
    Fetch(2, 0, 9, (1, "version"), 0, 10),
    Fetch(3, 0, 1, (1, "version"), 0, 10),
    Cancel(3),
    Never(1, "why"),
    BytesFrame(1, 10),
]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes, and something is wrong with them."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice((1, 1, 4, 30)))
        match rng.randrange(7):
            case 0 | 1 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 2:
                made[at:end] = rng.randbytes(end - at)
            case 3:
                del made[at:end]
            case 4:
                made[at:at] = made[at:end]
            case 5:
                made[at:at] = rng.randbytes(rng.choice((1, 8, 5000)))
            case 6:
                made[: LENGTH.size] = LENGTH.pack(
                    rng.choice((0, 1, 100, 4096, 1 << 20, 1 << 24, 1 << 40, (1 << 64) - 1))
                )
    return bytes(made)


def sequence(rng: random.Random, first: Hello, others: list[Frame]) -> bytes:
    """What one side may say over a connection, with mistakes from some frame on."""
    said = [written(first)]
    for frame in rng.choices(others, k=rng.randrange(6)):
        said.append(written(frame) + (rng.randbytes(frame.length) if isinstance(frame, BytesFrame) else b""))
    good = rng.randrange(len(said))
    return b"".join([*said[:good], *(mutated(rng, one) for one in said[good:])])


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Fuzz:
    """Somebody who dials a port of ours, and says something, again and again."""

    loop: Any
    purpose: str

    def __init__(self, door: HostListener, keys: Keys) -> None:
        self.door, self.keys = door, keys

    def alive(self) -> None:
        """What goes on beside it does go on."""
        raise NotImplementedError

    def first(self) -> Hello:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < deadline, "it never came to that"
            self.loop.wait(0.02)

    def say(self, data: bytes, rng: random.Random) -> None:
        """Say it over a connection of its own, in parts, and leave, in order or not."""
        came: list[Any] = []
        to = self.door.address, self.keys, self.purpose, self.loop
        dial(*to, opened=came.append, failed=lambda why, final: came.append(None))
        self.until(lambda: came)
        (end,) = came
        end.setblocking(True)
        at = rng.randrange(len(data) + 1)
        with contextlib.suppress(OSError):  # it was closed
            end.settimeout(1.0)
            for part in (data[:at], data[at:]):
                if part:
                    end.send(part)
                self.loop.wait(0.0)
            if rng.random() < 0.5:
                end.shutdown(socket.SHUT_WR)
                self.loop.wait(0.0)
        end.close()
        self.loop.wait(0.0)


class AtTheHead(Fuzz):
    """A host's control connection, to the head."""

    others = TO_HEAD
    purpose = link.PURPOSE

    def __init__(self, keys: Keys) -> None:
        self.cluster = Cluster(keys)
        super().__init__(self.cluster.door, keys)
        self.loop = self.cluster.loop
        self.good, self.at_good = self.cluster.host("good")
        self.until(lambda: self.at_good.incarnation)
        admit = self.cluster.head.came

        def came(connection: int, host: str) -> None:
            if host == "fuzz":
                admit(connection, host)
            else:  # as the membership does
                self.cluster.head.link.refuse(connection, "it is no host of this run")

        self.cluster.head.came = came  # type: ignore[method-assign]
        self.told = 0

    def first(self) -> Hello:
        return Hello("fuzz", os.urandom(8), 0, 0)

    def alive(self) -> None:
        self.told += 1
        value = 1_000_000 + self.told
        self.good.send(Told(value))
        self.until(lambda: value in self.cluster.head.values)
        self.cluster.head.values.clear()
        self.cluster.head.events.clear()
        assert self.at_good.connections == 1

    def close(self) -> None:
        self.until(lambda: len(self.cluster.head.link._streams) == 1)
        self.cluster.close()


class AtThePort(Fuzz):
    """Another host's data connection, to the host that was dialled."""

    others = BULK
    purpose = data_connection.PURPOSE

    def __init__(self, keys: Keys) -> None:
        self.two = Two(keys=keys)
        super().__init__(self.two.door, keys)
        self.loop = self.two.loop
        self.two.connect()
        self.two.a.has[Version(1)] = contents(10)
        self.two.port.expect(meet(self.two.a.carrier, "fuzz", 1))
        self.number = 1
        self.two.a.hosts = {Version(n): [("fuzz", 0, 10)] for n in range(100, 103)}
        for item in self.two.a.hosts:
            self.two.a.fetch(item, 10)  # which it is asked for over every connection, and may answer

    def first(self) -> Hello:
        return hello("fuzz", 1)

    def alive(self) -> None:
        got = self.two.b.fetch(Version(1), 10)
        self.until(lambda: got.done)
        assert got.memory == contents(10)

    def close(self) -> None:
        self.until(lambda: not self.two.a.held)
        self.two.close()


TARGETS: list[Callable[[Any], Any]] = [AtTheHead, AtThePort]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (control, data_connection):
        monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.0005)
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0005)


def break_frames(target: Callable[[Any], Any], keys: str, seed: int, count: int) -> None:
    rng = random.Random(f"{target.__name__} {keys} {seed}")
    fuzz = target(EACH_KEYS[keys]())
    files, before = len(os.listdir("/proc/self/fd")), 0
    for number in range(count):
        fuzz.say(sequence(rng, fuzz.first(), fuzz.others), rng)
        if number % 25 == 24:
            fuzz.alive()
            before = before or resident()
    fuzz.alive()
    assert len(os.listdir("/proc/self/fd")) <= files + 40
    assert resident() < before + MOST_MORE
    fuzz.close()


@pytest.mark.parametrize("keys", EACH_KEYS)
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_frames_end_their_own_connection_at_most(target: Callable[[Any], Any], keys: str) -> None:
    break_frames(target, keys, 0, 50)


@pytest.mark.long
@pytest.mark.parametrize("keys", EACH_KEYS)
@pytest.mark.parametrize("target", TARGETS)
@each_seed(range(1, 6))
def test_ten_thousand_mutated_sequences_end_their_own_connections_at_most(
    target: Callable[[Any], Any], keys: str, seed: int
) -> None:
    break_frames(target, keys, seed, 250)
