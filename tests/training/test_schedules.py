"""Prepared schedulers follow the run: their curve of rates over all workers' batches is that of one process."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.errors import ConfigError
from paceline.training.optim.schedules import (
    BY_HAND,
    EXPLICIT,
    Plateau,
    Schedule,
    of_several,
    schedule_of,
    uncounted,
    unprepared,
    with_schedules,
)

BATCHES = 60
Make = Callable[[torch.optim.Optimizer], LRScheduler]
PLANS: dict[str, Make] = {
    "onecycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=BATCHES),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, BATCHES),
    "step": lambda optimizer: StepLR(optimizer, 7, 0.5),
    "warm-up": lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10)),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, BATCHES - 5)], [5]
    ),
    "chained": lambda optimizer: ChainedScheduler([LinearLR(optimizer, 0.1, total_iters=5), StepLR(optimizer, 7, 0.5)]),
}


def optimizer_of() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn
    return optimizer


@dataclass
class Worker:
    """One worker's scheduler, in a run whose progress the test says."""

    make: Make
    run: int = 0
    own: int = 0
    looping: bool = True
    absorbs: bool = False
    streams: bool = False
    steps: int = 0
    deciding: bool | None = True
    decisions: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = optimizer_of()
        self.scheduler = self.make(self.optimizer)
        self.schedule = schedule_of(self.scheduler)
        self.schedule.follow(self)

    def progress(self) -> tuple[int, int] | None:
        return (self.run, self.own) if self.looping else None

    def remark_once(self, key: str, line: str) -> None:
        self.said.append(line)

    def decides(self) -> bool | None:
        return self.deciding

    def decided(self, scheduler: Plateau, metric: float) -> None:
        self.decisions.append(metric)

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def curve(make: Make, steps: int) -> list[float]:
    """The rates of one process, before each of so many steps and after the last."""
    optimizer = optimizer_of()
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        scheduler.step()
    return [*rates, float(optimizer.param_groups[0]["lr"])]


@pytest.mark.parametrize("accumulated", [1, 4])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("plan", PLANS)
def test_each_rate_is_that_of_one_process_after_as_many_batches(plan: str, workers: int, accumulated: int) -> None:
    """Worker 0 is four times as slow as the others, and the last one leaves half way."""
    make, drawn = PLANS[plan], random.Random(workers)
    alone = curve(make, BATCHES // accumulated)
    company = [Worker(make) for _ in range(workers)]
    used = 0
    while used < BATCHES:
        those = company[:-1] if workers > 1 and used > BATCHES // 2 else company
        worker = drawn.choices(those, [1, *[4] * (len(those) - 1)])[0]
        used += accumulated
        worker.run, worker.own = used, worker.own + accumulated
        worker.scheduler.step()
        assert worker.rate == pytest.approx(alone[used // accumulated], rel=1e-9)
    assert worker.rate == pytest.approx(alone[-1], rel=1e-9)


def test_alone_a_call_is_a_step_whatever_comes_between_two_calls() -> None:
    worker, plain = Worker(PLANS["step"]), curve(PLANS["step"], 9)
    for number, batches in enumerate((1, 1, 9, 4, 4, 2, 1, 9, 4)):
        worker.run = worker.own = worker.own + batches
        worker.scheduler.step()
        assert worker.rate == plain[number + 1]


@pytest.mark.parametrize("windows", [(4, 1, 4, 2, 4, 1, 4), (1, 4, 2, 4, 4, 4), (5, 4, 1, 4, 1, 4, 4), (4, 2, 4, 2)])
def test_a_short_window_at_an_epoch_s_end_does_not_speed_a_plan_up(windows: tuple[int, ...]) -> None:
    """Each of four workers has few batches of an epoch, and steps with the rest of them after its last one."""
    worker = Worker(PLANS["step"])
    for number, window in enumerate(windows):
        worker.own += window
        worker.run = 4 * worker.own
        worker.scheduler.step()
        if number:
            assert worker.scheduler.last_epoch <= max(-(-worker.run // 4), number + 1)
    assert worker.scheduler.last_epoch == -(-worker.run // 4)


CADENCES = {
    "it begins after half of the run": (range(51, 56), 5),
    "it pauses for a while": ([*range(1, 11), *range(61, 71)], 20),
    "it is called twice for each batch": ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6], 12),
    "it accumulates more batches later": ([*range(1, 9), *range(12, 32, 4)], 13),
    "it accumulates fewer batches later": ([*range(4, 24, 4), *range(21, 31)], 15),
}
"""By what a script does: the batches that a worker has used at its calls, and how many calls these are."""


@pytest.mark.parametrize("cadence", CADENCES)
def test_a_scheduler_makes_as_many_steps_as_all_workers_make_calls(cadence: str) -> None:
    """All four workers call it alike."""
    worker = Worker(PLANS["step"])
    at, calls = CADENCES[cadence]
    for own in at:
        worker.own, worker.run = own, 4 * own
        worker.scheduler.step()
    assert worker.scheduler.last_epoch == 4 * calls


def test_a_scheduler_that_the_script_has_ceased_to_step_stays_where_it_is() -> None:
    worker = Worker(PLANS["step"])
    for own in range(1, 11):
        worker.own, worker.run = own, 4 * own
        worker.scheduler.step()
    worker.schedule.come_to(400, 100)
    assert worker.scheduler.last_epoch == 40


def test_a_pause_stays_one_in_a_run_that_goes_on() -> None:
    before, after = Worker(PLANS["step"]), Worker(PLANS["step"])
    for own in range(51, 61):
        before.own, before.run = own, 4 * own
        before.scheduler.step()
    after.schedule.load_state_dict(before.schedule.state_dict())
    for own in range(1, 6):
        after.own, after.run = own, 240 + 4 * own
        after.scheduler.step()
    assert after.scheduler.last_epoch == 60


def called(worker: Worker, batches: int, steps: int, calls: int) -> list[str]:
    """Step the scheduler after so many batches and steps each time, so often. Return what was said."""
    for _ in range(calls):
        worker.own, worker.run, worker.steps = worker.own + batches, worker.run + 4 * batches, worker.steps + steps
        worker.scheduler.step()
    return worker.said


def test_one_line_says_how_calls_count_that_come_once_in_several_steps() -> None:
    said = called(Worker(PLANS["step"]), 15, 15, 9)
    assert said == [of_several("StepLR", 15)]
    assert called(Worker(PLANS["step"]), 4, 1, 9) == [], "it accumulates gradients"


def test_one_line_says_that_a_stream_s_batches_are_not_counted() -> None:
    stream = Worker(PLANS["step"], looping=False, streams=True)
    assert set(called(stream, 1, 1, 9)) == {uncounted("StepLR")}
    assert stream.scheduler.last_epoch == 9
    assert called(Worker(PLANS["step"], looping=False, streams=True), 9, 9, 5) == [], "it steps once an epoch"


def test_as_the_run_ends_a_plan_comes_to_its_end_in_each_worker() -> None:
    """Others were computing as this worker made its last call."""
    worker = Worker(PLANS["cosine"])
    for own in (1, 2, 3):
        worker.run, worker.own = 4 * own, own
        worker.scheduler.step()
    worker.schedule.come_to(20, 3)
    assert worker.rate == pytest.approx(curve(PLANS["cosine"], 20)[-1])
    by_epoch = Worker(PLANS["step"], looping=False)
    by_epoch.scheduler.step()
    by_epoch.schedule.come_to(20, 3)
    assert by_epoch.scheduler.last_epoch == 1, "it is stepped between loops"


def test_copies_and_pickles_of_a_prepared_scheduler_are_of_the_script_s_own_class() -> None:
    prepared = Worker(PLANS["step"]).scheduler
    prepared.step()
    for made in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert type(made) is StepLR
        made.step()
        assert made.last_epoch == 2
        assert prepared.last_epoch == 1


def test_a_call_between_loops_is_one_step_however_far_the_run_is() -> None:
    worker = Worker(PLANS["step"], run=500, own=10, looping=False)
    for _ in range(7):
        worker.scheduler.step()
    assert worker.rate == 0.05


def test_a_plan_is_never_run_past() -> None:
    worker = Worker(PLANS["onecycle"], run=3 * BATCHES, own=2)
    worker.scheduler.step()
    worker.scheduler.step()
    assert worker.scheduler.last_epoch == BATCHES


def test_a_step_with_a_number_goes_to_the_scheduler_as_it_is_and_one_line_says_so() -> None:
    worker = Worker(PLANS["cosine"], run=9, own=3)
    with pytest.warns(UserWarning, match="epoch"):
        worker.scheduler.step(30)
    assert worker.scheduler.last_epoch == 30
    assert worker.said == [EXPLICIT]


def test_a_run_that_goes_on_takes_a_schedule_up_where_it_was() -> None:
    before, after = Worker(PLANS["cosine"]), Worker(PLANS["cosine"])
    for own in range(1, 6):
        before.run, before.own = 4 * own, own
        before.scheduler.step()
    after.schedule.load_state_dict(before.schedule.state_dict())
    after.optimizer.param_groups[0]["lr"] = before.rate  # `Kept` sees to it
    after.run, after.own = 24, 1
    after.scheduler.step()
    assert after.rate == pytest.approx(curve(PLANS["cosine"], 24)[-1])


def test_a_prepared_scheduler_stays_the_same_object_of_its_class_and_its_state_is_as_ever() -> None:
    worker = Worker(PLANS["step"])
    assert isinstance(worker.scheduler, StepLR)
    assert type(worker.scheduler).__name__ == "StepLR"
    assert worker.scheduler.state_dict().keys() == PLANS["step"](optimizer_of()).state_dict().keys()


def test_snapshots_keep_each_scheduler_once_under_the_script_s_name_or_one_that_is_free() -> None:
    first, second = (Schedule(ExponentialLR(optimizer_of(), 0.9)) for _ in range(2))
    other = object()
    kept = with_schedules({"mine": first.scheduler, "scheduler1": other}, [first, second])
    assert kept == {"mine": first, "scheduler1": other, "scheduler2": second}


def test_a_scheduler_that_was_not_prepared_is_named_with_the_line_to_write() -> None:
    optimizer = optimizer_of()
    assert unprepared(optimizer) == BY_HAND
    left = OneCycleLR(optimizer, 0.1, total_steps=5)
    line = unprepared(optimizer)
    assert line is not None
    assert line.startswith("steps OneCycleLR in its loop")
    assert "paceline.prepare(model, optimizer, loader, scheduler)" in line
    Schedule(left).follow(Worker(PLANS["step"]))
    assert unprepared(optimizer) is None


# --- ReduceLROnPlateau


def on_plateau(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=2, min_lr=0.001)


METRICS = [3.0, 2.0, 2.5, 2.5, 2.5, 9.0, float("nan"), 1.0, 1.5, 1.5, float("inf"), 4.0, 4.0]


def plain(metrics: Sequence[float]) -> dict[str, Any]:
    """The state of torch's own after these."""
    scheduler: Any = on_plateau(optimizer_of())
    for metric in metrics:
        scheduler.step(metric)
    state: dict[str, Any] = scheduler.state_dict()
    return state


def stepped(worker: Worker, metrics: Sequence[float]) -> None:
    scheduler: Any = worker.scheduler
    for metric in metrics:
        scheduler.step(metric)


def told(worker: Worker, metrics: Sequence[float], first: int = 0) -> None:
    assert isinstance(worker.schedule, Plateau)
    for number, metric in enumerate(metrics, first):
        worker.schedule.told(number, metric)


def test_a_worker_that_decides_steps_at_once_as_torch_does_and_the_others_make_its_steps() -> None:
    decider, other = Worker(on_plateau), Worker(on_plateau, deciding=False)
    stepped(decider, METRICS)
    assert decider.scheduler.state_dict() == plain(METRICS)
    stepped(other, [0.1, 0.2, 0.3])
    assert other.scheduler.state_dict() == plain([])
    told(other, decider.decisions)
    assert other.scheduler.state_dict() == plain(METRICS)
    assert other.decisions == []


def test_a_call_counts_once_though_another_worker_decided_before() -> None:
    worker = Worker(on_plateau, deciding=False)
    told(worker, [5.0, 4.0, 3.0])
    stepped(worker, [50.0])
    worker.deciding = True
    stepped(worker, [40.0, 30.0, 2.0])
    assert worker.decisions == [2.0]
    assert worker.scheduler.state_dict() == plain([5.0, 4.0, 3.0, 2.0])


def test_a_worker_that_begins_late_with_nothing_of_the_others_decides_from_its_first_call_on() -> None:
    worker = Worker(on_plateau)
    assert isinstance(worker.schedule, Plateau)
    worker.schedule.begins_late = True
    told(worker, [5.0, 4.0])
    stepped(worker, [3.0, 2.0])
    assert worker.decisions == [3.0, 2.0]


def test_calls_that_will_be_discarded_do_nothing() -> None:
    worker = Worker(on_plateau, deciding=None)
    stepped(worker, METRICS)
    worker.deciding = True
    stepped(worker, METRICS)
    assert worker.decisions == METRICS
    worker.schedule.come_to(100, 10)
    assert worker.scheduler.state_dict() == plain(METRICS)


def test_a_state_that_is_loaded_is_brought_up_to_what_the_worker_was_told() -> None:
    before, after = Worker(on_plateau), Worker(on_plateau, deciding=False)
    stepped(before, METRICS[:5])
    told(after, METRICS[:8])
    after.schedule.load_state_dict(before.schedule.state_dict())
    after.optimizer.param_groups[0]["lr"] = before.rate  # `Kept` sees to it
    assert isinstance(after.schedule, Plateau)
    after.schedule.catch_up()
    told(after, METRICS, 0)
    assert after.scheduler.state_dict() == plain(METRICS)


def test_a_metric_may_be_a_tensor_and_what_is_no_number_is_an_error() -> None:
    worker = Worker(on_plateau)
    scheduler: Any = worker.scheduler
    scheduler.step(torch.tensor(0.1))
    scheduler.step(metrics=torch.tensor(0.2, dtype=torch.float64))
    assert worker.decisions == [torch.tensor(0.1).item(), 0.2]
    with pytest.raises(TypeError):
        scheduler.step({})
    with pytest.raises(TypeError):
        scheduler.step()


# --- what `prepare` takes


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], LRScheduler]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2)
    return model, optimizer, loader, StepLR(optimizer, 2)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 1, 3), (1, 0)])
def test_prepare_takes_its_objects_in_any_order_and_returns_them_in_that(order: Sequence[int]) -> None:
    given = [parts_[number] for parts_ in [parts()] for number in order]
    assert list(paceline.prepare(*given)) == given


def of_another() -> tuple[Any, ...]:
    model, optimizer, loader, _ = parts()
    return model, optimizer, loader, parts()[3]


def of_two_minds() -> tuple[Any, ...]:
    model, optimizer, loader, step = parts()
    return model, optimizer, loader, step, OneCycleLR(optimizer, 0.1, total_steps=5)


def outer_and_inner() -> tuple[Any, ...]:
    model, optimizer, loader, step = parts()
    return model, optimizer, loader, step, SequentialLR(optimizer, [step, ExponentialLR(optimizer, 0.9)], [2])


def two_loaders() -> tuple[Any, ...]:
    return (*parts(), parts()[2])


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (of_another, "prepare() got a StepLR of another optimizer"),
        (of_two_minds, "prepare() got a OneCycleLR, which sets the learning rate whatever the StepLR beside it"),
        (outer_and_inner, "prepare() got a StepLR that is a part of another scheduler"),
        (two_loaders, "prepare() got a DataLoader besides a model, an optimizer and a loader"),
    ],
)
def test_what_can_t_follow_the_run_is_refused_in_one_line(make: Callable[[], tuple[Any, ...]], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        paceline.prepare(*make())
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
