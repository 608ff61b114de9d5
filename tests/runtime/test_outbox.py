"""Outbox: a process that is slow to read is told everything; one that has stopped reading is ended.

`tests/fabric/test_endpoints.py` has what holds for an outbox on every kind of endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue
from support.launch import Launch
from support.scripts import training


class Ends:
    """An outbox, and the other end of its channel."""

    def __init__(self) -> None:
        ours, theirs = pair()
        self.loop = Loop()
        self.here = Channel(ours, messages.store.FromStore, "the store")
        self.there = Channel(theirs, messages.store.ToStore, "the coordinator")
        self.heard: list[int] = []
        self.overflows = 0
        self.loop.watch(self.here, lambda: self.heard.append(self.here.receive()[0].process))
        self.outbox = SendQueue(self.here, self.loop, self.overflowed)

    def overflowed(self) -> None:
        self.overflows += 1

    def received(self, count: int) -> list[int]:
        """Whose states were asked for, in the messages that come."""
        workers = []
        for _ in range(count):
            self.loop.wait(0.0)
            assert self.there.ready(), f"{len(workers)} have come"
            workers.append(self.there.receive()[0].worker)
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


def test_what_the_other_end_says_is_heard_while_it_does_not_read(ends: Ends) -> None:
    for number in range(1000):
        ends.outbox.send(messages.store.SendState(number))
    ends.there.send(messages.store.StoreReady(7, ""))
    ends.loop.wait(0.0)
    assert ends.heard == [7]


def test_a_loop_does_not_wake_for_room_that_nobody_awaits(ends: Ends) -> None:
    for number in range(1000):
        ends.outbox.send(messages.store.SendState(number))
    assert ends.received(1000) == list(range(1000))
    calls = []
    ends.loop.after(0.01, lambda: calls.append("timer"))
    ends.loop.wait()
    assert calls == ["timer"]


def test_a_worker_that_has_stopped_reading_is_ended_and_the_others_go_on(launch: Launch) -> None:
    """Its socket holds some two hundred orders."""
    script = training(
        """
        if step == 2 and me == 1:
            from paceline.ipc import messages
            for _ in range(12_000):
                optimizer.paceline_session.link._channel.send(messages.worker.SnapshotWanted(hold=False))
            signal.pause()
        """
    )
    run = launch.run(script, "-n", "2", "-p", "asp", "--shards", "static").completed()
    assert "worker 1 is ended: it has stopped reading" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died"]
