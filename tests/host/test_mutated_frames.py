"""Frames that are broken in transit, or by somebody who has the token: they end their own connection at most.

Whoever speaks here has opened a connection, and says what hosts say, with bytes that are changed, lost, doubled or
added. Another connection goes on beside it. What comes before a connection is opened is in `test_door.py`. What the
side that has dialled makes of broken frames is in `tests/fabric/test_control.py` and `test_bulk.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable

import msgspec
import pytest

from paceline.core.items import Version
from paceline.ipc.endpoint import LENGTH
from paceline.net import control, link
from paceline.net.control import Hello
from paceline.net.numbered import Acknowledged, Beat, Data, Frame, written
from paceline.transfer import data_connection
from paceline.transfer.data_connection import BytesFrame, Cancel, Fetch, Never
from support.carriers import Two, contents, hello
from support.clusters import EACH_KEYS, Cluster, Told
from support.lobby import opened
from support.processes import descriptors

MOST_MORE = 48 << 20
"""Bytes that the process may have more at the end than at the beginning: several times what one connection may take."""

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


def speaks(at: Cluster | Two, purpose: str, data: bytes, rng: random.Random) -> None:
    """Say it over a connection of its own, in parts, and leave, in order or not."""
    end, cut = opened(at, purpose), rng.randrange(len(data) + 1)
    end.setblocking(True)
    with contextlib.suppress(OSError):  # it was closed
        end.settimeout(1.0)
        for part in (data[:cut], data[cut:]):
            if part:
                end.send(part)
            at.loop.wait(0.0)
        if rng.random() < 0.5:
            end.shutdown(socket.SHUT_WR)
            at.loop.wait(0.0)
    end.close()
    at.loop.wait(0.0)


def break_frames(count: int, say: Callable[[], None], alive: Callable[[], None]) -> None:
    """Have so much said, while what goes on beside it does go on, and nothing is kept of what was said."""
    files, before = descriptors(), 0
    for number in range(count):
        say()
        if number % 25 == 24:
            alive()
            before = before or resident()
    assert descriptors() <= files + 40
    assert resident() < before + MOST_MORE


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (control, data_connection):
        monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.0005)
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0005)


each_count = pytest.mark.parametrize(("seed", "count"), [(0, 50), pytest.param(1, 2500, marks=pytest.mark.long)])
each_keys = pytest.mark.parametrize("keys", EACH_KEYS)


@each_keys
@each_count
def test_mutated_frames_of_control_end_their_own_connection_at_most(keys: str, seed: int, count: int) -> None:
    cluster, rng = Cluster(EACH_KEYS[keys]()), random.Random(f"control {keys} {seed}")
    good, at_good = cluster.host("good")
    cluster.until(lambda: at_good.incarnation)
    admit = cluster.head.came

    def came(connection: int, host: str) -> None:
        if host == "fuzz":
            admit(connection, host)
        else:  # as the membership does
            cluster.head.link.refuse(connection, "it is no host of this run")

    def alive() -> None:
        good.send(Told(1_000_000))
        cluster.until(lambda: 1_000_000 in cluster.head.values)
        cluster.head.values.clear()
        cluster.head.events.clear()
        assert at_good.connections == 1

    def say() -> None:
        speaks(cluster, link.PURPOSE, sequence(rng, Hello("fuzz", os.urandom(8), 0, 0), TO_HEAD), rng)

    cluster.head.came = came  # type: ignore[method-assign]
    break_frames(count, say, alive)
    cluster.until(lambda: len(cluster.head.link._streams) == 1)
    cluster.close()


@each_keys
@each_count
def test_mutated_frames_of_data_end_their_own_connection_at_most(keys: str, seed: int, count: int) -> None:
    two, rng = Two(keys=EACH_KEYS[keys]()), random.Random(f"data {keys} {seed}")
    two.connect()
    two.a.has[Version(1)] = contents(10)
    fuzz = two.a.meets("fuzz", 1)
    for number in range(100, 103):
        two.a.fetch(Version(number), 10, fuzz)  # which it is asked for over every connection, and may answer

    def alive() -> None:
        got = two.b.fetch(Version(1), 10)
        two.until(lambda: got.done)
        assert got.memory == contents(10)

    def say() -> None:
        speaks(two, data_connection.PURPOSE, sequence(rng, hello("fuzz", 1), BULK), rng)

    break_frames(count, say, alive)
    two.until(lambda: not two.a.held)
    two.close()
