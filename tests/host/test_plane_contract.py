"""What a host says to its data plane and hears from it, whether the plane works in the loop or in a process.

What only a process does comes after that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paceline.core.items import Item, Version
from paceline.ipc.loop import Loop
from paceline.ipc.memory import OpenFile, Region, Span
from paceline.transfer import data_connection
from paceline.transfer.data_connection import PART, PeerExchange
from paceline.transfer.io_process import TOLD, Pong, _ToHost
from paceline.transfer.item_names import fields_of
from paceline.transfer.messages import (
    Asked,
    Brought,
    Came,
    Disconnected,
    DropWant,
    Lost,
    Named,
    Peer,
    Range,
    Refuse,
    Released,
    Send,
    Settled,
    Want,
)
from paceline.transfer.movers import BEATS, DIED, SILENT, InProcess, Mover, forked_mover
from support import carriers
from support.carriers import contents
from support.clusters import KEYS, PATIENCE

SIZE = 2 * PART + 321
ITEM, OTHER = Version(1), Version(2)


class Side(carriers.Side):
    """With memory for two items, which a process can have too."""

    def begins(self) -> None:
        """An incarnation of the host begins."""
        self.memory = Region.create(2 * SIZE)
        super().begins()

    def is_over(self) -> None:
        """This incarnation of the host is over."""
        self.plane.close()
        self.mover.close(self.memory.free)

    def span(self, place: int = 0) -> Span:
        return self.memory.span(place * SIZE, (place + 1) * SIZE)

    def want(self, number: int, item: Item = ITEM, *, parts: bool = False, place: int = 0) -> None:
        ranges = (Range(*self.peer, 0, SIZE),)
        self.plane.tell(Want(number, Named(0, fields_of(item)), ranges, parts), self.span(place))


class Two(carriers.Two):
    """They are connected. What `a` is asked for, a test has it send."""

    side = Side
    a: Side
    b: Side

    def __init__(self, makes: Callable[[Loop, list[str]], Mover] | None = None) -> None:
        super().__init__(makes=makes)
        self.connect()

    def is_asked(self, item: Item = ITEM) -> int:
        """Wait until `a` is asked for the item. Return by which number."""
        asked = lambda: [one.number for one in self.a.heard(Asked) if one.named.item == fields_of(item)]  # noqa: E731
        self.until(asked)
        return asked()[-1]


class Moved(Two):
    """A process moves the bytes of each."""

    def __init__(self, stack: ExitStack) -> None:
        forked = [stack.enter_context(forked_mover(KEYS, lambda: None)) for _ in range(2)]
        self.processes = {"b": forked[0].process, "a": forked[1].process}
        super().__init__(lambda loop, lines: InProcess(forked.pop(), loop, lines.append))

    def brings(self, number: int, item: Item = ITEM, place: int = 0) -> None:
        """Have `b` want the item, and `a` send what lies in that place of its memory."""
        self.b.want(number, item, place=place)
        self.a.plane.tell(Send(self.is_asked(item)), self.a.span(place))


@pytest.fixture
def moved() -> Iterator[Moved]:
    with ExitStack() as stack:
        moved = Moved(stack)
        stack.callback(moved.close)
        yield moved


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Moved:
    """Processes that take a while to send an item, so that something may happen meanwhile."""
    drained = PeerExchange.drained

    def later(self: PeerExchange) -> bool:
        time.sleep(0.003)
        return drained(self)

    monkeypatch.setattr(PeerExchange, "drained", later)
    monkeypatch.setattr(data_connection, "PART", 50_000)
    found: Moved = request.getfixturevalue("moved")
    return found


@pytest.fixture(params=["in the loop", "in a process"])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    if request.param == "in a process":
        yield request.getfixturevalue("moved")
        return
    two = Two()
    yield two
    two.close()


def test_what_is_wanted_is_asked_for_by_a_number_brought_and_released(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    assert two.a.heard(Asked) == [Asked(number, Named(0, fields_of(ITEM)), 0, SIZE)]
    two.a.span().memory[:] = contents(SIZE)
    two.a.plane.tell(Send(number), two.a.span())
    two.until(lambda: two.b.told and two.a.heard(Released))
    assert two.b.told == [Brought(5, two.b.peer, SIZE, True)]
    assert two.a.heard(Released) == [Released(number)]
    assert two.b.span().memory == contents(SIZE)


def test_bytes_are_told_of_in_order_and_before_all_are_there_if_the_want_says_so(two: Two) -> None:
    two.b.want(5, parts=True)
    two.a.plane.tell(Send(two.is_asked()), two.a.span())
    two.until(lambda: two.b.heard(Brought))
    *parts, last = two.b.told
    assert isinstance(last, Brought)
    came = [one for one in parts if isinstance(one, Came)]
    assert came == parts
    assert [one.begin for one in came] == [0, *(one.end for one in came[:-1])]
    assert came[-1].end == SIZE


def test_what_is_dropped_is_settled_and_released_and_nothing_else_is_told_of_it(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    two.b.plane.tell(DropWant(5))
    two.until(lambda: two.b.told and two.a.heard(Released))
    assert two.b.told == [Settled(5)]
    two.a.plane.tell(Send(number), two.a.span())
    two.a.plane.tell(Refuse(number, "late"))
    two.b.want(6, OTHER, place=1)
    two.a.plane.tell(Send(two.is_asked(OTHER)), two.a.span(1))
    two.until(lambda: two.b.heard(Brought))
    assert two.b.told[1:] == [Brought(6, two.b.peer, SIZE, True)]


def test_a_drop_is_settled_though_the_want_has_ended_meanwhile(two: Two) -> None:
    two.b.want(5)
    two.a.plane.tell(Refuse(two.is_asked(), "it was dropped"))
    two.until(lambda: two.b.heard(Lost))
    two.b.plane.tell(DropWant(5))
    two.until(lambda: two.b.heard(Settled))
    assert two.b.told == [Lost(5, "it was dropped", "a"), Settled(5)]
    assert not two.a.heard(Released), "who refuses knows it"


# --- in a process


def test_an_item_may_lie_in_a_file_of_its_own(moved: Moved) -> None:
    files = {}
    for side, data in ((moved.a, b"abc"), (moved.b, b"...")):
        descriptor = os.memfd_create("of the test")
        os.write(descriptor, data)
        files[side] = OpenFile(descriptor).span(writable=side is moved.b)
        os.close(descriptor)
    moved.b.plane.tell(Want(5, Named(0, fields_of(ITEM)), (Range(*moved.b.peer, 0, 3),), False), files[moved.b])
    moved.a.plane.tell(Send(moved.is_asked()), files[moved.a])
    moved.until(lambda: moved.b.heard(Brought))
    assert files[moved.b].memory == b"abc"


def test_nothing_is_written_to_a_place_once_the_drop_of_its_want_is_settled(slow: Moved) -> None:
    """The bytes go on coming while the host gives the place to another item."""
    slow.a.span().memory[:] = contents(SIZE)
    place = slow.b.span().memory
    for number in range(4):
        slow.brings(number, Version(10 + number))
        slow.until(lambda: any(place[:1000]))
        slow.b.plane.tell(DropWant(number))
        slow.until(lambda: len(slow.b.heard(Settled)) > number)  # noqa: B023 - it is called here
        place[:] = bytes(SIZE)
    slow.brings(4, OTHER, place=1)
    slow.until(lambda: slow.b.heard(Brought))
    assert not any(place)
    assert [one.number for one in slow.b.heard(Brought)] == [4]


def test_the_loop_goes_on_while_the_process_is_late_to_drop_what_is_settled_once_it_has(slow: Moved) -> None:
    slow.a.span().memory[:] = contents(SIZE)
    slow.brings(5)
    slow.until(lambda: any(slow.b.span().memory[:1000]))
    os.kill(slow.processes["b"], signal.SIGSTOP)
    slow.b.plane.tell(DropWant(5))
    for _ in range(10):
        slow.loop.wait(0.01)
    assert not slow.b.told
    os.kill(slow.processes["b"], signal.SIGCONT)
    slow.until(lambda: slow.b.told)
    assert slow.b.told == [Settled(5)]


@pytest.mark.parametrize(("how", "why"), [(signal.SIGKILL, DIED), (signal.SIGSTOP, SILENT)])
def test_the_end_of_a_process_that_dies_or_stops_is_told_once_and_to_who_comes_later(
    how: signal.Signals, why: str, moved: Moved
) -> None:
    """Connections of one that is stopped still look good."""
    ends: list[str] = []
    moved.b.mover.at_end(ends.append)
    os.kill(moved.processes["b"], how)
    moved.b.mover._pause = 0.02  # type: ignore[attr-defined]
    moved.b.mover._beat()  # type: ignore[attr-defined]
    moved.b.want(5)
    moved.until(lambda: ends)
    assert ends == [why]
    later: list[str] = []
    moved.b.mover.at_end(later.append)
    assert later == [why]


def test_a_process_that_answers_is_asked_on(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[Callable[[], None]] = []
    answers: list[Any] = []
    hear, ends = InProcess._hear, list[str]()

    def heard(self: InProcess, message: Any) -> None:
        hear(self, message)
        if isinstance(message, Pong):
            answers.append(message)

    monkeypatch.setattr(InProcess, "_hear", heard)
    monkeypatch.setattr(moved.loop, "after", lambda seconds, call: questions.append(call))
    moved.b.mover.at_end(ends.append)
    moved.b.mover._beat()  # type: ignore[attr-defined]
    for asked in range(2 * BEATS):
        moved.until(lambda asked=asked: len(answers) > asked)
        questions.pop(0)()
    assert not ends


def test_the_process_serves_the_next_incarnation_of_its_host_and_forgets_the_one_before(moved: Moved) -> None:
    def mapped() -> int:
        return Path(f"/proc/{moved.processes['b']}/maps").read_text().count("memfd:paceline")

    at_first = mapped()
    moved.brings(5)
    moved.until(lambda: moved.b.heard(Brought))
    assert mapped() > at_first
    moved.b.is_over()
    moved.until(lambda: mapped() == at_first and moved.a.heard(Disconnected))
    moved.a.told.clear()
    moved.b.begins()
    moved.connect()
    moved.brings(5)
    moved.until(lambda: moved.b.heard(Brought))


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL])
def test_the_memory_of_a_host_that_is_over_is_free_once_its_process_reads_it_no_more(
    how: signal.Signals, moved: Moved
) -> None:
    """Its bytes may still go out meanwhile, and would be zeros."""
    freed: list[str] = []
    os.kill(moved.processes["a"], signal.SIGSTOP)
    moved.a.mover.close(lambda: freed.append("first"))
    moved.loop.wait(0.05)
    assert not freed
    os.kill(moved.processes["a"], how)
    moved.until(lambda: freed)
    moved.a.mover.close(lambda: freed.append("second"))
    moved.until(lambda: len(freed) == 2)
    assert freed == ["first", "second"]


def test_the_process_has_a_name_and_ends_with_its_host() -> None:
    with forked_mover(KEYS, lambda: None) as forked:
        deadline = time.monotonic() + PATIENCE
        while Path(f"/proc/{forked.process}/comm").read_text() != "paceline-data\n":
            assert time.monotonic() < deadline
        watch = os.pidfd_open(forked.process)
    with pytest.raises(ChildProcessError):  # it was collected
        os.waitid(os.P_PIDFD, watch, os.WEXITED)
    os.close(watch)


def test_the_host_hears_of_an_item_s_first_bytes_at_once_and_of_small_ones_after_them_with_the_last() -> None:
    said: list[Any] = []
    to_host = _ToHost(said.append)
    for again in range(2):  # numbers are not used again, but a host may be told of many
        said.clear()
        to_host.hear(Came(again, 0, 10))
        assert said == [Came(again, 0, 10)]  # its fetch begins with these
        for begin in (10, 20):
            to_host.hear(Came(again, begin, begin + 10))
        assert len(said) == 1
        whole = Brought(again, Peer("b", 1), 30, True)
        to_host.hear(whole)
        assert said[1:] == [Came(again, 10, 30), whole]
    to_host.hear(Came(7, 0, TOLD))
    to_host.hear(Came(7, TOLD, 2 * TOLD))
    assert said[-2:] == [Came(7, 0, TOLD), Came(7, TOLD, 2 * TOLD)]
