"""Outbox: a process that is slow to read is told everything, in order; one that has stopped reading is known."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from paceline.fabric.channel import Channel, pair
from paceline.runtime import messages, outbox
from paceline.runtime.loop import Loop
from paceline.runtime.outbox import Outbox


class Ends:
    """An outbox, and the other end of its channel."""

    def __init__(self) -> None:
        ours, theirs = pair()
        self.loop = Loop()
        self.here = Channel(ours, messages.FromStore, "the store")
        self.there = Channel(theirs, messages.ToStore, "the coordinator")
        self.heard: list[int] = []
        self.overflows = 0
        self.loop.watch(self.here, lambda: self.heard.append(self.here.receive()[0].process))
        self.outbox = Outbox(self.here, self.loop, self.overflowed)

    def overflowed(self) -> None:
        self.overflows += 1

    def received(self, count: int) -> list[int]:
        """Whose states were asked for, in the messages that come."""
        workers = []
        for _ in range(count):
            self.loop.wait(0.0)
            assert self.there.ready(), f"{len(workers)} have come"
            order, descriptors = self.there.receive()
            workers.append(order.worker)
            for descriptor in descriptors:
                os.close(descriptor)
        self.loop.wait(0.0)
        assert not self.there.ready()
        return workers


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.outbox.forget()
    ends.here.close()
    ends.there.close()
    ends.loop.close()


def test_all_that_is_sent_to_a_process_that_is_slow_to_read_comes_in_order(ends: Ends) -> None:
    for number in range(1000):
        ends.outbox.send(messages.SendState(number))
    assert ends.received(1000) == list(range(1000))
    ends.outbox.send(messages.SendState(1000))
    assert ends.received(1) == [1000]


def test_descriptors_come_along_though_the_sender_has_closed_its_own_and_none_stays_open(ends: Ends) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for number in range(400):
        passed = os.memfd_create("passed")
        ends.outbox.send(messages.SendState(number), (passed,))
        os.close(passed)
    assert ends.received(400) == list(range(400))
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_the_other_end_says_is_heard_while_it_does_not_read(ends: Ends) -> None:
    for number in range(1000):
        ends.outbox.send(messages.SendState(number))
    ends.there.send(messages.StoreReady(7, ""))
    ends.loop.wait(0.0)
    assert ends.heard == [7]


def test_a_loop_does_not_wake_for_room_that_nobody_awaits(ends: Ends) -> None:
    for number in range(1000):
        ends.outbox.send(messages.SendState(number))
    ends.received(1000)
    calls = []
    ends.loop.after(0.01, lambda: calls.append("timer"))
    ends.loop.wait()
    assert calls == ["timer"]


def test_beyond_the_bound_the_other_end_has_stopped_reading_and_that_is_said(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST", 10)
    sent = 0
    while not ends.overflows:
        ends.outbox.send(messages.SendState(sent))
        sent += 1
    assert ends.received(sent - 1) == list(range(sent - 1)), "all but the one that was too many"


def test_nothing_is_kept_for_a_process_that_has_gone(ends: Ends) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for number in range(1000):
        passed = os.memfd_create("passed")
        ends.outbox.send(messages.SendState(number), (passed,) if number > 900 else ())
        os.close(passed)
    ends.there.close()
    ends.loop.unwatch(ends.here)
    ends.outbox.forget()
    ends.outbox.send(messages.SendState(0))
    assert not ends.overflows
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1
