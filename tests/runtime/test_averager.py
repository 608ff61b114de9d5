"""The thread that makes a worker's shares of averages, without a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from paceline.host.averaging_thread import start_averager
from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from support.launch import Launch
from support.scripts import training


class Groups:
    """Calls `then` for each average."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def share(self, *_: Any, **keys: Any) -> None:
        self.then()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_averager_computes_with_one_thread_and_later_threads_of_the_script_with_theirs(threads: None) -> None:
    seen: list[int] = []

    def compute() -> None:
        torch.ones(100_000).add_(1)
        seen.append(torch.get_num_threads())

    ours, theirs = pair()
    coordinator = Channel(ours, messages.worker.FromAverager, "the averager")
    groups: Any = Groups(compute)
    start_averager(Channel(theirs, messages.worker.ToAverager, "the coordinator"), groups, 0)
    coordinator.send(messages.worker.AverageShare(0, [0], [0], 1, None, of=1, begin=0, end=64))
    answer, _ = coordinator.receive()
    assert answer.number == 0
    later = threading.Thread(target=compute)
    later.start()
    later.join()
    assert seen == [1, 3]
    assert torch.get_num_threads() == 3
    coordinator.close()


def test_an_exception_in_the_averager_fails_its_worker_and_shows_it(launch: Launch) -> None:
    """Its group would wait for its share for ever."""
    script = training(
        before="""
        from paceline.training.averages import AreaAverages

        def share(self, *arguments, **more):
            raise MemoryError("no memory for a share of the average")

        if me == 1:
            AreaAverages.share = share
        """,
        epochs=1,
    )
    run = launch.run(script, "-n", "3", "-p", "ad-psgd", "--on-loss", "continue").completed()
    assert "worker 1 died (exit code 1)" in run.err
    assert "MemoryError: no memory for a share of the average" in run.err
    assert run.summary["per_worker"][1]["left"]["reason"] == "died"
    assert run.summary["samples"] == 64
