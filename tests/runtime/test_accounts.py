"""Where a step's time went: what the worker says of it, and what only the coordinator knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.coordinator.clock import RunClock
from paceline.coordinator.member import Member
from paceline.coordinator.step_timing import StepTiming
from paceline.ipc import messages
from paceline.records.times import StepTimes


class Books:
    """Stands in for the journal and its ledger: keeps what is written down."""

    def __init__(self) -> None:
        self.ledger = self
        self.times: list[tuple[int, int, StepTimes]] = []
        self.values: list[tuple[int, int, float, str, float]] = []
        self.rates: list[tuple[int, int, list[float], int | None]] = []
        self.commits: list[tuple[int, float]] = []

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        self.times.append((worker, step, times))

    def logged(self, *row: Any) -> None:
        self.values.append(row)

    def pushed(self, *row: Any) -> None:
        self.rates.append(row)

    def committed(self, *row: Any) -> None:
        self.commits.append(row)


class Watch:
    """A clock that a test sets. Training began at 100."""

    def __init__(self) -> None:
        self.time = 100.0
        self.clock = RunClock(lambda: self.time)


def step(number: int, waited: float = 0.0, pulled: float = 0.0, began: float = 0.0) -> messages.worker.StepFinished:
    """It began half a second after that, computed for one, pushed for a quarter, did other things for an eighth.

    `waited` and `pulled` are of the time before it.
    """
    return messages.worker.StepFinished(number, 0, None, [], None, 100.5 + began, 1.0, 0.25, 0.125, waited, pulled)


def accounts(measures: bool = True) -> tuple[StepTiming, Books, Watch]:
    books, watch = Books(), Watch()
    journal: Any = books
    return StepTiming(journal, watch.clock, measures), books, watch


def test_a_step_s_times_are_complete_when_the_next_one_says_how_long_the_worker_had_waited() -> None:
    found, books, watch = accounts()
    one = Member(worker=3)
    watch.time = 102.0
    found.step_finished(one, step(0))
    assert books.times == []
    one.released_at, one.ordered_at, watch.time = 4.0, 4.0, 106.0
    found.step_finished(one, step(1, waited=2.0, pulled=0.5, began=4.0))
    assert books.times == [(3, 0, StepTimes(0.5, 1.0, 0.25, 2.0, 0.5, 0.125))]


def test_what_a_worker_waited_for_its_transfers_is_no_wait_for_others() -> None:
    found, books, watch = accounts()
    one = Member(worker=0)
    watch.time = 102.0
    found.step_finished(one, step(0))
    one.transfers = [("push", 1.0, 3.0), ("pull", 3.0, 3.5)]  # the first second beside the computation
    one.released_at, one.ordered_at, watch.time = 4.0, 4.0, 106.0
    found.step_finished(one, step(1, waited=2.0, began=4.0))
    assert books.times == [(0, 0, StepTimes(0.5, 1.0, 1.25, 0.5, 0.5, 0.125))]
    assert one.transfers == [], "each counts once"


@pytest.mark.parametrize(("waited", "push", "wait", "pull"), [(1.5, 1.25, 0.0, 0.5), (1.25, 1.25, 0.0, 0.25)])
def test_no_transfer_between_hosts_takes_longer_than_its_worker_has_waited(
    waited: float, push: float, wait: float, pull: float
) -> None:
    """The head hears of them late: by its clock they may still be under way as the worker goes on."""
    found, books, watch = accounts()
    one = Member(worker=0)
    watch.time = 102.0
    found.step_finished(one, step(0))
    one.transfers = [("push", 2.0, 3.0), ("pull", 3.0, 3.5)]
    one.released_at, one.ordered_at, watch.time = 4.0, 4.0, 106.0
    found.step_finished(one, step(1, waited=waited, began=4.0))
    assert books.times == [(0, 0, StepTimes(0.5, 1.0, push, wait, pull, 0.125))]


@pytest.mark.parametrize(("released", "wait"), [(1.0, 5.0), (4.0, 2.0)])
def test_a_worker_that_leaves_had_waited_until_then_or_until_its_last_release(released: float, wait: float) -> None:
    found, books, watch = accounts()
    one = Member(worker=0)
    watch.time = 102.0
    found.step_finished(one, step(0))
    one.released_at, watch.time = released, 107.0
    found.left(one)
    found.left(one)
    assert books.times == [(0, 0, StepTimes(0.5, 1.0, 0.25, wait, 0.0, 0.125))]


def test_where_a_director_knows_the_times_none_are_written_down() -> None:
    found, books, _ = accounts(measures=False)
    one = Member(worker=0)
    found.step_finished(one, step(0))
    found.left(one)
    found.committed(1, 2.0)
    assert (books.times, books.commits) == ([], [])


def test_what_scripts_log_is_kept_by_name_and_written_down_with_its_moment() -> None:
    found, books, watch = accounts()
    watch.time = 101.5
    one = Member(worker=1)
    found.logs(one, 7, {"loss": 2.0, "accuracy": 0.5})
    found.logs(one, 8, {"loss": 1.0})
    assert one.logged == {"loss": 1.0, "accuracy": 0.5}
    assert books.values[-1] == (1, 8, 1.5, "loss", 1.0)


def test_a_group_of_parameters_without_a_learning_rate_counts_as_zero() -> None:
    found, books, _ = accounts()
    found.pushed(0, 4, [{"lr": 0.5}, {"rate": 1.0}], 32)
    assert books.rates == [(0, 4, [0.5, 0.0], 32)]


def test_the_run_s_time_counts_from_the_moment_at_which_training_began() -> None:
    watch = Watch()
    watch.time = 103.0
    assert watch.clock.at() == 3.0
    watch.clock.begin()
    watch.time = 104.5
    assert (watch.clock.at(), watch.clock.of(103.25)) == (1.5, 0.25)


def test_copies_to_and_from_a_device_are_written_with_their_own_step_and_add_to_no_other_time() -> None:
    found, books, watch = accounts()
    one = Member(worker=3)
    watch.time = 102.0
    copied = msgspec.structs.replace(step(0), to_device=0.75, from_device=0.5)
    found.step_finished(one, copied)
    one.released_at, one.ordered_at, watch.time = 4.0, 4.0, 106.0
    found.step_finished(one, step(1, waited=2.0, pulled=0.5, began=4.0))
    watch.time = 107.0
    found.left(one)
    assert books.times[0] == (3, 0, StepTimes(0.5, 1.0, 0.25, 2.0, 0.5, 0.125, to_device=0.75, from_device=0.5))
    _, _, without = books.times[1]
    assert (without.to_device, without.from_device) == (None, None)


def test_no_time_that_a_worker_tells_is_longer_than_there_was_by_the_run_s_clock() -> None:
    found, books, watch = accounts()
    one = Member(worker=0, ordered_at=1.0)
    watch.time = 103.0
    found.step_finished(one, messages.worker.StepFinished(0, 0, None, [], None, 1e9, 1e9, 0.0, 1e9, 1e9, 1e9))
    one.released_at, watch.time = 4.0, 105.0
    found.left(one)
    ((_, _, times),) = books.times
    assert (times.began, times.compute) == (1.0, 2.0)
    assert min(times.push, times.wait, times.pull, times.other) >= 0
    assert times.push > 0
    assert times.compute + times.push + times.wait + times.pull + times.other <= 5.0 - 1.0 + 1e-6


def test_a_step_whose_worker_has_another_clock_ended_as_it_was_told() -> None:
    """Each machine's clock begins with the machine."""
    found, books, watch = accounts()
    one = Member(worker=0, ordered_at=1.0, released_at=4.0)
    watch.time = 103.0
    found.step_finished(one, step(0, began=-12345.0))
    watch.time = 105.0
    found.left(one)
    assert books.times == [(0, 0, StepTimes(2.0, 1.0, 0.25, 1.0, 0.0, 0.125))]
