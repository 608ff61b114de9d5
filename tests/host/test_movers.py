"""Bytes between hosts that a process of its own moves, over real sockets on loopback, and what its host is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core.items import Item, Update, Version
from paceline.host.claims import Owner
from paceline.ipc.loop import Loop
from paceline.ipc.memory import OpenFile, Region, Span
from paceline.net import tcp
from paceline.net.handshake import Handshake, Keys, dials
from paceline.net.listener import HostListener
from paceline.net.numbered import written
from paceline.records.times import FetchTimes
from paceline.transfer import data_connection
from paceline.transfer.data_connection import PART, PURPOSE, Fetch, PeerExchange
from paceline.transfer.fetch_table import Where
from paceline.transfer.io_process import Pong
from paceline.transfer.manager import TransferManager
from paceline.transfer.movers import BEATS, DIED, SILENT, ForkedMover, InProcess, forked_mover
from support.carriers import contents, hello
from support.clusters import EACH_KEYS, KEYS, PATIENCE
from support.lobby import has_ended

LARGE = 3 * PART + 12_345
PLACES = 8


class Side:
    """One host, whose items are in a region, but for those that are in files of their own."""

    def __init__(self, other: str, mover: InProcess, loop: Loop) -> None:
        self.other, self.mover = other, mover
        self.region = Region.create(PLACES * LARGE)
        self.files: dict[Item, Span] = {}
        self.places: dict[Item, int] = {}
        self.sizes: dict[Item, int] = {}
        self.held: dict[Owner, Item] = {}
        self.done: list[Item] = []
        self.lost: list[str] = []
        self.coming: dict[int, Item] = {}
        """By number: items to whose places something may still be written."""
        self.carrier = TransferManager("here", loop.now, mover.plane)
        self.carrier.begins(0, self)
        self.peer = self.carrier.meet(other, 1)

    @property
    def connected(self) -> bool:
        return self.carrier.reaches(self.other)

    def has(self, item: Item, data: bytes | bytearray) -> None:
        self.sizes[item] = len(data)
        self.view(item).memory[:] = data
        self.carrier.made(item)

    def fetch(self, item: Item, size: int) -> None:
        self.sizes[item] = size
        self.carrier.fetch(item, ("step", item), lambda: self.done.append(item), self.lost.append)

    def cancel(self, item: Item) -> None:
        self.carrier.cancel(("step", item))

    def bytes_of(self, item: Item) -> bytes:
        return bytes(self.view(item).memory)

    # --- its items

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        return [(self.other, 0, self.sizes[item])]

    def lay(self, item: Item, number: int) -> Span:
        self.coming[number] = item
        return self.view(item)

    def settled(self, number: int) -> None:
        del self.coming[number]

    def free(self, item: Item, whole: bool) -> None:
        pass

    def fetched(self, fetch: FetchTimes) -> None:
        pass

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "here" if item in self.sizes else "coming"

    def claim(self, item: Item, owner: Owner) -> None:
        self.held[owner] = item

    def release(self, item: Item, owner: Owner) -> None:
        assert self.held.pop(owner) == item

    def view(self, item: Item) -> Span:
        if item in self.files:
            return self.files[item]
        start = self.places.setdefault(item, len(self.places)) * LARGE
        return self.region.span(start, start + self.sizes[item])


class Two:
    """The head `a`, which listens, and host `b`, which dials it. A process moves the bytes of each."""

    def __init__(self, keys: Keys, a: ForkedMover, b: ForkedMover) -> None:
        self.keys = keys
        self.processes = {"a": a.process, "b": b.process}
        self.loop = Loop()
        self.lines: list[str] = []
        self.ends: list[str] = []
        self.movers = [InProcess(one, self.loop, self.lines.append) for one in (a, b)]
        for mover in self.movers:
            mover.at_end(self.ends.append)
        self.a, self.b = Side("b", self.movers[0], self.loop), Side("a", self.movers[1], self.loop)
        self.door = HostListener(tcp.listen(), self.loop, keys, self.lines.append)
        self.a.mover.listen(self.door, hello("a", 1), 15.0)
        self.a.mover.expect(self.a.peer)

    def connect(self) -> None:
        self.b.mover.dial(self.b.peer, self.door.address, hello("b", 1), 15.0)
        self.until(lambda: self.a.connected and self.b.connected)

    def until(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, "it never came to that"
            self.loop.wait(0.02)

    def raw(self, said: bytes) -> Any:
        """Somebody who opens a connection and says this."""
        came: list[Any] = []
        Handshake(
            dials(self.loop.dial(self.door.address), self.keys, PURPOSE),
            self.loop,
            opened=came.append,
            failed=lambda why, final: came.append(why),
        )
        self.until(lambda: came)
        came[0].end.send(said)
        return came[0].end

    def close(self) -> None:
        self.door.close()
        for side in (self.a, self.b):
            side.carrier.close()
            side.mover.close(side.region.free)
            assert not side.held
        self.loop.close()


@pytest.fixture(params=EACH_KEYS)
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    keys = EACH_KEYS[request.param]()
    with forked_mover(keys, lambda: None) as a, forked_mover(keys, lambda: None) as b:
        two = Two(keys, a, b)
        yield two
        two.close()


@pytest.fixture
def plain() -> Iterator[Two]:
    with forked_mover(KEYS, lambda: None) as a, forked_mover(KEYS, lambda: None) as b:
        two = Two(KEYS, a, b)
        yield two
        two.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """Processes that take a while to send an item, so that something may happen meanwhile."""
    drained = PeerExchange.drained

    def later(self: PeerExchange) -> bool:
        time.sleep(0.003)
        return drained(self)

    monkeypatch.setattr(PeerExchange, "drained", later)
    monkeypatch.setattr(data_connection, "PART", 50_000)
    with forked_mover(KEYS, lambda: None) as a, forked_mover(KEYS, lambda: None) as b:
        two = Two(KEYS, a, b)
        yield two
        two.close()


def test_items_go_both_ways_into_the_memory_that_is_there_for_them(two: Two) -> None:
    two.connect()
    for number in range(3):
        two.a.has(Version(number), contents(LARGE, number))
        two.b.has(Update(number, 9), contents(1000, 100 + number))
        two.b.fetch(Version(number), LARGE)
        two.a.fetch(Update(number, 9), 1000)
    two.until(lambda: len(two.a.done) == len(two.b.done) == 3)
    for number in range(3):
        assert two.b.bytes_of(Version(number)) == contents(LARGE, number)
        assert two.a.bytes_of(Update(number, 9)) == contents(1000, 100 + number)
    two.until(lambda: not two.a.held and not two.b.held)
    assert not two.lines


def test_an_item_may_lie_in_a_file_of_its_own(plain: Two) -> None:
    plain.connect()
    plain.a.sizes[Version(1)] = 3
    plain.b.sizes[Version(1)] = 3
    for side, data in ((plain.a, b"abc"), (plain.b, b"...")):
        descriptor = os.memfd_create("of the test")
        os.write(descriptor, data)
        side.files[Version(1)] = OpenFile(descriptor).span(writable=side is plain.b)
        os.close(descriptor)
    plain.b.fetch(Version(1), 3)
    plain.until(lambda: plain.b.done)
    assert plain.b.bytes_of(Version(1)) == b"abc"


def test_nothing_is_written_to_a_place_once_its_fetch_is_cancelled(slow: Two) -> None:
    """The bytes go on coming while the host gives the place to another item."""
    slow.connect()
    for number in range(4):
        item = Version(number)
        slow.a.places[item], slow.b.places[item] = 0, number % 2
        slow.a.has(item, contents(LARGE))
        slow.b.fetch(item, LARGE)
        place = slow.b.view(item).memory
        slow.until(lambda: any(place[:1000]))  # noqa: B023 - it is called here
        slow.b.cancel(item)
        slow.until(lambda: item not in slow.b.coming.values())  # noqa: B023
        place[:] = bytes(LARGE)
        again = Version(100 + number)
        slow.a.places[again], slow.b.places[again] = 0, 2
        slow.a.has(again, contents(LARGE))
        slow.b.fetch(again, LARGE)
        slow.until(lambda: again in slow.b.done)  # noqa: B023
        assert not any(place)
    assert set(slow.b.done).isdisjoint(Version(number) for number in range(4))


def test_the_loop_goes_on_while_the_process_is_late_to_cancel_and_the_place_is_kept_until_it_has(slow: Two) -> None:
    slow.connect()
    slow.a.has(Version(1), contents(LARGE))
    slow.b.fetch(Version(1), LARGE)
    place = slow.b.view(Version(1)).memory
    slow.until(lambda: any(place[:1000]))
    os.kill(slow.processes["b"], signal.SIGSTOP)
    with in_time(1.0):
        slow.b.cancel(Version(1))
    for _ in range(10):
        slow.loop.wait(0.01)
    assert list(slow.b.coming.values()) == [Version(1)]
    os.kill(slow.processes["b"], signal.SIGCONT)
    slow.until(lambda: not slow.b.coming)
    assert slow.b.done == []


def test_what_is_under_way_goes_on_after_a_reconnect(two: Two) -> None:
    two.connect()
    two.a.has(Version(1), contents(LARGE))
    two.b.fetch(Version(1), LARGE)
    two.b.fetch(Version(2), 10)
    two.until(lambda: two.a.held)
    two.raw(written(hello("b", 1))).close()  # it takes the place of the other connection, and breaks
    two.until(lambda: Version(1) in two.b.done)
    two.a.has(Version(2), contents(10))
    two.until(lambda: Version(2) in two.b.done)
    assert two.b.bytes_of(Version(1)) == contents(LARGE)
    assert two.b.done == [Version(1), Version(2)]
    assert not two.lines


def test_the_end_of_a_host_loses_what_is_under_way_and_leaves_its_place_alone(slow: Two) -> None:
    slow.connect()
    slow.a.has(Version(1), contents(LARGE))
    slow.b.fetch(Version(1), LARGE)
    place = slow.b.view(Version(1)).memory
    slow.until(lambda: any(place[:1000]))
    slow.b.carrier.ended("a", "silent for 15.0 s")
    assert slow.b.lost == ["silent for 15.0 s"]
    assert not slow.b.connected
    slow.until(lambda: not slow.b.coming)
    place[:] = bytes(LARGE)
    slow.until(lambda: not slow.a.connected)
    assert not any(place)
    slow.until(lambda: not slow.a.held)


def test_a_host_that_says_what_it_may_not_is_closed_with_one_line(plain: Two) -> None:
    asks = 2 * written(Fetch(1, 0, 1, (1, "version"), 0, 10))
    for said in (b"\0\0\0\5rubbish", asks):
        plain.lines.clear()
        end = plain.raw(written(hello("b", 1)) + said)
        plain.until(lambda: has_ended(end) and plain.lines)  # noqa: B023 - it is called here
        (line,) = plain.lines
        assert line.startswith("data connection to host b closed: ")
        end.close()
        plain.until(lambda: not plain.a.connected)


def test_a_host_that_does_not_read_is_sent_no_more_than_its_connection_takes(plain: Two) -> None:
    """The process keeps one part of an item at a time for it, and others are served meanwhile."""
    plain.connect()
    plain.a.has(Version(1), contents(LARGE))
    deaf = plain.a.carrier.meet("deaf", 9)
    plain.a.mover.expect(deaf)
    asks = b"".join(written(Fetch(number, 0, 1, (1, "version"), 0, LARGE)) for number in range(1000))
    end = plain.raw(written(hello("deaf", 9)) + asks)
    plain.until(lambda: len(plain.a.held) == 1000)
    before = resident(plain.processes["a"])
    plain.b.fetch(Version(1), LARGE)
    plain.until(lambda: plain.b.done)
    assert resident(plain.processes["a"]) < before + 8 * PART
    plain.a.carrier.ended("deaf", "it does not read")
    plain.until(lambda: not plain.a.held)
    end.close()


def resident(process: int) -> int:
    """Bytes of memory that the process alone has."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_Dirty"))


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the midst of what takes longer, as a loop that waits for ever tells of nothing."""

    def raises(number: int, frame: object) -> None:
        raise TimeoutError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_death_of_the_process_is_told_once_in_one_line_and_to_who_comes_later(plain: Two) -> None:
    plain.connect()
    plain.b.fetch(Version(1), 10)
    os.kill(plain.processes["b"], signal.SIGKILL)
    plain.b.cancel(Version(1))
    plain.until(lambda: plain.ends)
    assert plain.ends == [DIED]
    later: list[str] = []
    plain.b.mover.at_end(later.append)
    assert later == [DIED]


def test_a_process_that_stops_amid_a_run_is_ended_as_its_connections_still_look_good(plain: Two) -> None:
    plain.connect()
    os.kill(plain.processes["b"], signal.SIGSTOP)
    plain.b.mover.dial(plain.b.carrier.meet("c", 1), plain.door.address, hello("b", 1), 0.1)
    plain.b.fetch(Version(1), 10)
    plain.until(lambda: plain.ends)
    assert plain.ends == [SILENT]
    later: list[str] = []
    plain.b.mover.at_end(later.append)
    assert later == [SILENT]


def test_a_process_that_answers_is_asked_on(plain: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[Callable[[], None]] = []
    answers: list[Any] = []
    hear, after = InProcess._hear, plain.loop.after

    def heard(self: InProcess, message: Any) -> None:
        hear(self, message)
        if isinstance(message, Pong):
            answers.append(message)

    def later(seconds: float, call: Callable[[], None]) -> None:
        if seconds == 15.0 / 5:
            questions.append(call)
        else:
            after(seconds, call)

    monkeypatch.setattr(InProcess, "_hear", heard)
    monkeypatch.setattr(plain.loop, "after", later)
    plain.connect()
    for asked in range(2 * BEATS):
        plain.until(lambda asked=asked: len(answers) > asked)
        questions.pop(0)()
    assert not plain.ends


def test_the_process_serves_the_next_incarnation_of_its_host_and_forgets_the_one_before(plain: Two) -> None:
    def mapped() -> int:
        return Path(f"/proc/{plain.processes['b']}/maps").read_text().count("memfd:paceline")

    at_first = mapped()
    plain.connect()
    plain.a.has(Version(1), contents(1000))
    plain.b.fetch(Version(1), 1000)
    plain.until(lambda: plain.b.done)
    assert mapped() > at_first
    before = plain.b
    before.carrier.close()
    before.mover.close(before.region.free)
    plain.until(lambda: mapped() == at_first)
    plain.b = Side("a", before.mover, plain.loop)
    plain.until(lambda: not plain.a.connected)
    plain.connect()
    plain.b.fetch(Version(1), 1000)
    plain.until(lambda: plain.b.done)
    assert plain.b.bytes_of(Version(1)) == contents(1000)


@pytest.mark.parametrize("dies", [False, True])
def test_the_memory_of_a_host_that_is_over_is_free_once_its_process_reads_it_no_more(plain: Two, dies: bool) -> None:
    """Its bytes may still go out meanwhile, and would be zeros."""
    plain.connect()
    freed: list[str] = []
    process, mover = plain.processes["a"], plain.a.mover
    plain.a.carrier.close()
    os.kill(process, signal.SIGSTOP)
    mover.close(lambda: freed.append("first"))
    plain.loop.wait(0.05)
    assert not freed
    os.kill(process, signal.SIGKILL if dies else signal.SIGCONT)
    plain.until(lambda: freed)
    mover.close(lambda: freed.append("second"))
    plain.until(lambda: len(freed) == 2)
    assert freed == ["first", "second"]


def test_the_process_has_a_name_and_ends_with_its_host() -> None:
    with forked_mover(KEYS, lambda: None) as forked:
        deadline = time.monotonic() + PATIENCE
        while name_of(forked.process) != "paceline-data":
            assert time.monotonic() < deadline
        watch = os.pidfd_open(forked.process)
    with pytest.raises(ChildProcessError):  # it was collected
        os.waitid(os.P_PIDFD, watch, os.WEXITED)
    os.close(watch)


def name_of(process: int) -> str:
    with open(f"/proc/{process}/comm") as file:
        return file.read().strip()
