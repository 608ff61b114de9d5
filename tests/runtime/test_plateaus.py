"""One worker's metrics step a prepared ReduceLROnPlateau in all workers, whoever leaves or joins."""

from __future__ import annotations

import math
import random
from typing import Literal

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.coordinator.plateaus import Plateaus
from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.ipc import messages
from paceline.training.optim.schedules import Plateau


def began(*workers: int) -> Fact:
    members = tuple((worker, "", 0) for worker in workers)
    return TrainingBegan(members=members, version=0, at=0.0, work=None, seed=0, done=0, memory=None)


def pushed(worker: int) -> Fact:
    return GradientReady(worker=worker, step=1, version=0, samples=1, weight=None, at=0.0)


def left(worker: int, how: Literal["finished", "died"] = "finished") -> Fact:
    return WorkerLeft(worker=worker, reason=how, at=0.0)


def joined(worker: int) -> Fact:
    return WorkerJoined(worker=worker, host="", step=1, at=0.0)


def book(*workers: int, schedulers: int = 1) -> Plateaus:
    plateaus = Plateaus()
    plateaus.number = schedulers
    plateaus.tell(began(*workers))
    return plateaus


def told(plateaus: Plateaus, worker: int) -> list[float]:
    news = plateaus.news(worker)
    return [] if news is None else [metric for _, _, metric in news.metrics]


@pytest.mark.parametrize(("how", "metrics"), [("finished", [3.0, 4.0]), ("died", [3.0])])
def test_what_no_push_came_after_counts_of_a_worker_that_finishes_and_not_of_one_that_dies(
    how: Literal["finished", "died"], metrics: list[float]
) -> None:
    plateaus = book(0, 1)
    plateaus.news(0)
    plateaus.heard(0, 0, 3.0)
    plateaus.tell(pushed(0))
    plateaus.heard(0, 0, 4.0)
    plateaus.tell(left(0, how))
    assert told(plateaus, 1) == metrics
    plateaus.heard(1, 0, 5.0)
    plateaus.tell(left(1))
    assert plateaus.plain(plateaus.shared) == [(0, metric.hex()) for metric in [*metrics, 5.0]]


def test_a_resumed_run_goes_on_with_what_a_packed_state_has_and_with_what_was_shared() -> None:
    plateaus = book(0, 1, schedulers=2)
    plateaus.news(0)
    for scheduler, metric in ((0, 1.0), (1, math.inf), (0, math.nan)):
        plateaus.heard(0, scheduler, metric)
    plateaus.tell(pushed(0))
    shared = plateaus.shared
    plateaus.heard(0, 1, -1.5)
    plateaus.packed(0)
    plateaus.heard(0, 1, 7.0)  # after it has packed
    kept = plateaus.plain(shared)
    assert kept == [(0, (1.0).hex()), (1, "inf"), (0, "nan"), (1, (-1.5).hex())]

    again = book(0, 1, schedulers=2)
    again.resumed(kept, shared)
    assert len(told(again, 1)) == 3
    news = again.news(0)
    assert news is not None
    assert [(scheduler, number) for scheduler, number, _ in news.metrics] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    again.heard(0, 1, 8.0)
    again.tell(pushed(0))
    assert told(again, 1) == [-1.5, 8.0]


def test_what_the_deciding_worker_s_script_does_before_it_packs_for_the_last_snapshot_is_kept() -> None:
    plateaus = book(0, 1)
    plateaus.news(0)
    shared = plateaus.shared
    for worker in (0, 1):
        plateaus.tell(WorkerLeft(worker=worker, reason="stopped", at=0.0))
    plateaus.heard(0, 0, 1.0)
    plateaus.packed(0)
    assert plateaus.plain(shared) == [(0, (1.0).hex())]


class Script:
    """One worker's script, which calls two schedulers by metrics of its own."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.flag = False
        self.said: list[tuple[int, float]] = []
        self.made: list[list[float]] = [[], []]
        self.schedules = [self.scheduled(made) for made in self.made]

    def scheduled(self, made: list[float]) -> Plateau:
        scheduler = ReduceLROnPlateau(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))
        step = scheduler.step
        scheduler.step = lambda metrics, epoch=None: (made.append(metrics), step(metrics))  # type: ignore[method-assign]
        schedule = Plateau(scheduler)
        schedule._run = self
        return schedule

    def decides(self) -> bool:
        return self.flag

    def decided(self, scheduler: Plateau, metric: float) -> None:
        self.said.append((self.schedules.index(scheduler), metric))

    def progress(self) -> None: ...

    def remark_once(self, key: str, line: str) -> None: ...

    def hears(self, news: messages.worker.PlateauMetrics | None) -> None:
        if news is not None:
            self.flag = news.decides
            for scheduler, number, metric in news.metrics:
                self.schedules[scheduler].told(number, metric)

    def take(self, other: Script) -> None:
        """Begin with what that worker's script has handed over."""
        for mine, theirs, own, its in zip(self.schedules, other.schedules, self.made, other.made, strict=True):
            mine.load_state_dict(theirs.state_dict())
            own[:] = its


@pytest.mark.parametrize("seed", range(40))
def test_all_workers_make_the_same_steps_whoever_is_slow_dies_finishes_or_joins(seed: int) -> None:
    drawn = random.Random(seed)
    plateaus = book(*range(4), schedulers=2)
    scripts = {worker: Script(worker) for worker in range(4)}
    finished: list[Script] = []

    def goes_on(script: Script) -> None:
        script.hears(plateaus.news(script.worker))

    def hear(script: Script) -> None:
        for scheduler, metric in script.said:
            plateaus.heard(script.worker, scheduler, metric)
        script.said.clear()

    for script in scripts.values():
        goes_on(script)
    for number in range(300):
        worker = drawn.choice([*range(4), 1, 2, 3, 3, 3])
        if worker not in scripts:
            if drawn.random() < 0.2 and all(one.worker != worker for one in finished):
                scripts[worker] = script = Script(worker)
                plateaus.tell(joined(worker))
                if drawn.random() < 0.7 and len(scripts) > 1:
                    script.take(next(one for one in scripts.values() if one is not script))
                else:
                    for schedule in script.schedules:
                        schedule.begins_late = True
                goes_on(script)
            continue
        script = scripts[worker]
        for _ in range(drawn.choice((0, 0, 0, 1, 2))):
            drawn.choice(script.schedules).called(worker + number / 1000)
        if drawn.random() < 0.5:
            hear(script)
        if drawn.random() < 0.03 and len(scripts) > 1:
            plateaus.tell(left(worker, "died"))
            del scripts[worker]
            continue
        hear(script)
        if number > 200 and drawn.random() < 0.02 and len(scripts) > 1:
            plateaus.tell(left(worker))
            finished.append(scripts.pop(worker))
            continue
        plateaus.tell(pushed(worker))
        goes_on(script)
    for worker in sorted(scripts):
        plateaus.tell(left(worker))
    finished += scripts.values()
    for script in finished:
        goes_on(script)
    assert all(script.made == finished[0].made for script in finished)
    assert all(finished[0].made)
