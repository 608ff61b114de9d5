"""For whom workers waited in `paceline.agree`: the one that came last, by what each of them did meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from paceline.core.facts import GradientReady, StepDeclined, TrainingBegan, WorkerResumed
from paceline.core.orders import Hold, Release
from paceline.records.agree_waits import AgreeWaits
from paceline.records.waits import Waits


def paused(worker: int, at: float) -> tuple[object, tuple[object, ...]]:
    return StepDeclined(worker=worker, step=1, at=at, paused=True), ()


def resumed(worker: int, at: float) -> tuple[object, tuple[object, ...]]:
    return WorkerResumed(worker=worker, at=at), ()


def told_to_wait(worker: int, at: float) -> tuple[object, tuple[object, ...]]:
    return GradientReady(worker=worker, step=0, version=1, samples=1, at=at), (Hold(worker=worker, why=("round", 1)),)


def released(worker: int, at: float) -> tuple[object, tuple[object, ...]]:
    go = Release(worker=worker, step=1, version=1, why=("round", 1))
    return GradientReady(worker=2, step=0, version=1, samples=1, at=at), (go,)


def began(*workers: int) -> tuple[object, tuple[object, ...]]:
    return TrainingBegan(members=tuple((one, "here", 0) for one in workers), version=1, seed=0, at=0.0), ()


STORIES = {
    "two pause until the third comes": (
        [0, 1, 2],
        [began(0, 1, 2), paused(0, 1.0), paused(1, 2.0), resumed(0, 5.0), resumed(1, 5.0)],
        {2: 7.0},
    ),
    "one paused as the run was stopped, and is the last once it is resumed": (
        [0, 1, 2],
        [
            began(0, 1, 2),
            paused(1, 0.5),
            began(0, 1, 2),
            paused(0, 1.0),
            paused(2, 1.5),
            resumed(0, 5.0),
            resumed(2, 5.0),
        ],
        {1: 7.5},
    ),
    "one gets the answer later, as it was away": (
        [0, 1, 2],
        [began(1, 2), paused(1, 1.0), resumed(1, 5.0)],
        {2: 4.0},
    ),
    "one of them was told to wait": (
        [0, 1, 2],
        [
            began(0, 1, 2),
            told_to_wait(1, 1.0),
            paused(0, 1.0),
            released(1, 4.9),
            paused(2, 4.9),
            resumed(0, 5.0),
            resumed(2, 5.0),
        ],
        {2: 4.0, 1: 0.1},
    ),
    "one of them still waits for its step": (
        [0, 1, 2],
        [began(0, 1, 2), told_to_wait(1, 1.0), paused(0, 1.0), resumed(0, 5.0)],
        {2: 4.0},
    ),
    "the other one has died": ([0], [began(0), paused(0, 1.0), resumed(0, 5.0)], {}),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_pause_is_put_to_the_worker_that_came_last(story: str) -> None:
    members, facts, expected = STORIES[story]
    last = len(facts) - sum(isinstance(fact, WorkerResumed) for fact, _ in facts)
    with closing(sqlite3.connect(":memory:")) as ledger:
        ledger.execute("CREATE TABLE agreed (fact INTEGER, worker INTEGER, epoch INTEGER, nth INTEGER)")
        ledger.executemany("INSERT INTO agreed VALUES (?, ?, 1, 0)", [(last, worker) for worker in members])
        waits, present = Waits(), [worker for worker, _, _ in facts[0][0].members]
        agreeing = AgreeWaits(ledger, waits)
        for number, (fact, orders) in enumerate(facts, 1):
            agreeing.record(number, fact, waits.record(fact, orders), present)
    assert {worker: pytest.approx(seconds) for worker, seconds in agreeing.culprits.items()} == expected
