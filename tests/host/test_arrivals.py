"""Versions that come to devices while they are being made: who is told of what, and who is not."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.host import version_streaming
from paceline.host.version_streaming import VersionStreaming
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages

VERSION, PLACE = 4, 2


class Case:
    """Workers 0 and 1 on devices, worker 2 in memory."""

    def __init__(self) -> None:
        self.seats = {worker: WorkerState(worker, trains=True, accelerator=worker < 2) for worker in range(3)}
        self.told: list[tuple[int, Any]] = []
        shelf = Mock(place=lambda item: {VERSION: PLACE}[item.version])
        self.arrivals = VersionStreaming(shelf, self.seats, lambda worker, message: self.told.append((worker, message)))

    def ranges(self, worker: int) -> list[list[tuple[int, int]]]:
        assert all(isinstance(m, messages.worker.Arrives) and m.slot == PLACE for _, m in self.told)
        return [list(message.ranges) for to, message in self.told if to == worker]


@pytest.fixture(autouse=True)
def _ten_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_streaming, "TOLD", 10)


def test_a_worker_on_a_device_is_told_of_what_is_made_some_at_a_time() -> None:
    case = Case()
    for worker in (0, 2):
        case.arrivals.waits(worker, VERSION)
    for piece in ((0, 6), (50, 56), (6, 12), (56, 60)):
        case.arrivals.made(VERSION, *piece)
    assert case.ranges(0) == [[(0, 6), (50, 56)], [(6, 12), (56, 60)]]
    assert case.ranges(1) == case.ranges(2) == []


def test_who_begins_to_wait_later_is_told_of_the_rest() -> None:
    case = Case()
    case.arrivals.made(VERSION, 0, 30)
    case.arrivals.waits(1, VERSION)
    case.arrivals.made(VERSION, 30, 50)
    assert case.ranges(1) == [[(30, 50)]]


def test_a_worker_that_comes_in_another_s_place_is_told_nothing_of_what_that_one_waited_for() -> None:
    case = Case()
    for worker in (0, 1):
        case.arrivals.waits(worker, VERSION)
    case.arrivals.gone(0)
    case.arrivals.made(VERSION, 0, 30)
    assert case.ranges(0) == []
    assert case.ranges(1) == [[(0, 30)]]


def test_nobody_is_told_of_a_version_that_is_whole_or_that_it_does_not_wait_for() -> None:
    case = Case()
    case.arrivals.waits(0, VERSION)
    case.arrivals.made(VERSION - 1, 0, 30)
    case.arrivals.made(VERSION, 0, 9)
    case.arrivals.whole(VERSION)
    case.arrivals.made(VERSION, 9, 30)
    assert case.told == []


def test_what_was_made_of_one_version_is_not_told_of_the_next() -> None:
    case = Case()
    case.arrivals.waits(0, VERSION - 1)
    case.arrivals.made(VERSION - 1, 0, 9)
    case.arrivals.whole(VERSION - 1)
    case.arrivals.waits(0, VERSION)
    case.arrivals.made(VERSION, 0, 9)
    assert case.told == []
    case.arrivals.made(VERSION, 9, 12)
    assert case.ranges(0) == [[(0, 9), (9, 12)]]


def test_a_worker_that_takes_no_part_any_more_is_told_nothing() -> None:
    case = Case()
    for worker in (0, 1):
        case.arrivals.waits(worker, VERSION)
    case.seats[0].trains = False
    case.arrivals.made(VERSION, 0, 30)
    assert case.ranges(0) == []
    assert case.ranges(1) == [[(0, 30)]]
