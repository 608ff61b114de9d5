"""Where a step's time went: what the worker says of it, and what only the coordinator knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from paceline.coordinator.clock import RunClock
from paceline.coordinator.member import Member
from paceline.coordinator.step_timing import StepTiming
from paceline.ipc import messages
from paceline.records.times import StepTimes


class Accounts:
    """What is written down of one worker's steps, by a clock that a test sets. Training began at 100."""

    def __init__(self, measures: bool = True, **member: Any) -> None:
        self.times: list[tuple[int, int, StepTimes]] = []
        self.written: list[tuple[Any, ...]] = []
        self.time = 100.0
        self.clock = RunClock(lambda: self.time)
        self.time = 102.0
        journal: Any = SimpleNamespace(
            step_times=lambda *row: self.times.append(row),
            logged=lambda *row: self.written.append(row),
            pushed=lambda *row: self.written.append(row),
            committed=lambda *row: self.written.append(row),
        )
        journal.ledger = journal
        self.timing = StepTiming(journal, self.clock, measures)
        self.one = Member(worker=3, **member)

    def two_steps(self, waited: float, pulled: float = 0.0, *transfers: Any, **of_first: float) -> StepTimes:
        """The worker makes two steps, of which the second says how long it had waited. Return the first one's times."""
        self.timing.step_finished(self.one, msgspec.structs.replace(step(0), **of_first))
        assert self.times == []
        self.one.transfers = list(transfers)
        self.one.released_at, self.one.ordered_at, self.time = 4.0, 4.0, 106.0
        self.timing.step_finished(self.one, step(1, waited=waited, pulled=pulled, began=4.0))
        ((worker, number, times),) = self.times
        assert (worker, number) == (3, 0)
        return times


def step(number: int, waited: float = 0.0, pulled: float = 0.0, began: float = 0.0) -> messages.worker.StepFinished:
    """It began half a second after that, computed for one, pushed for a quarter, did other things for an eighth.

    `waited` and `pulled` are of the time before it.
    """
    return messages.worker.StepFinished(number, 0, None, [], None, 100.5 + began, 1.0, 0.25, 0.125, waited, pulled)


def test_a_step_s_times_are_complete_when_the_next_one_says_how_long_the_worker_had_waited() -> None:
    assert Accounts().two_steps(2.0, 0.5) == StepTimes(0.5, 1.0, 0.25, 2.0, 0.5, 0.125)


@pytest.mark.parametrize(
    ("waited", "began", "push", "wait", "pull"),
    [(2.0, 1.0, 1.25, 0.5, 0.5), (1.5, 2.0, 1.25, 0.0, 0.5), (1.25, 2.0, 1.25, 0.0, 0.25)],
    ids=["the first second beside the computation", "all of the wait", "more than the wait"],
)
def test_what_a_worker_waited_for_its_transfers_is_no_wait_for_others_and_no_longer_than_that(
    waited: float, began: float, push: float, wait: float, pull: float
) -> None:
    """The head hears of transfers between hosts late: by its clock they may be under way as the worker goes on."""
    found = Accounts()
    times = found.two_steps(waited, 0.0, ("push", began, 3.0), ("pull", 3.0, 3.5))
    assert times == StepTimes(0.5, 1.0, push, wait, pull, 0.125)
    assert found.one.transfers == [], "each counts once"


@pytest.mark.parametrize(("released", "wait"), [(1.0, 5.0), (4.0, 2.0)])
def test_a_worker_that_leaves_had_waited_until_then_or_until_its_last_release(released: float, wait: float) -> None:
    found = Accounts()
    found.timing.step_finished(found.one, step(0))
    found.one.released_at, found.time = released, 107.0
    found.timing.left(found.one)
    found.timing.left(found.one)
    assert found.times == [(3, 0, StepTimes(0.5, 1.0, 0.25, wait, 0.0, 0.125))]


def test_where_a_director_knows_the_times_none_are_written_down() -> None:
    found = Accounts(measures=False)
    found.timing.step_finished(found.one, step(0))
    found.timing.left(found.one)
    found.timing.committed(1, 2.0)
    assert (found.times, found.written) == ([], [])


def test_what_scripts_log_is_kept_by_name_and_written_down_with_its_moment() -> None:
    found = Accounts()
    found.timing.logs(found.one, 7, {"loss": 2.0, "accuracy": 0.5})
    found.timing.logs(found.one, 8, {"loss": 1.0})
    assert found.one.logged == {"loss": 1.0, "accuracy": 0.5}
    assert found.written[-1] == (3, 8, 2.0, "loss", 1.0)


def test_a_group_of_parameters_without_a_learning_rate_counts_as_zero() -> None:
    found = Accounts()
    found.timing.pushed(0, 4, [{"lr": 0.5}, {"rate": 1.0}], 32)
    assert found.written == [(0, 4, [0.5, 0.0], 32)]


def test_the_run_s_time_counts_from_the_moment_at_which_training_began() -> None:
    found = Accounts()
    assert found.clock.at() == 2.0
    found.clock.begin()
    found.time = 104.5
    assert (found.clock.at(), found.clock.of(103.25)) == (2.5, 1.25)


def test_copies_to_and_from_a_device_are_written_with_their_own_step_and_add_to_no_other_time() -> None:
    found = Accounts()
    times = found.two_steps(2.0, 0.5, to_device=0.75, from_device=0.5)
    assert times == StepTimes(0.5, 1.0, 0.25, 2.0, 0.5, 0.125, to_device=0.75, from_device=0.5)
    found.time = 107.0
    found.timing.left(found.one)
    _, _, without = found.times[1]
    assert (without.to_device, without.from_device) == (None, None)


def test_no_time_that_a_worker_tells_is_longer_than_there_was_by_the_run_s_clock() -> None:
    found = Accounts(ordered_at=1.0)
    found.time = 103.0
    said = messages.worker.StepFinished(0, 0, None, [], None, 1e9, 1e9, 0.0, 1e9, 1e9, 1e9)
    found.timing.step_finished(found.one, said)
    found.one.released_at, found.time = 4.0, 105.0
    found.timing.left(found.one)
    ((_, _, times),) = found.times
    assert (times.began, times.compute) == (1.0, 2.0)
    assert min(times.push, times.wait, times.pull, times.other) >= 0
    assert times.push > 0
    assert times.compute + times.push + times.wait + times.pull + times.other <= 5.0 - 1.0 + 1e-6


def test_a_step_whose_worker_has_another_clock_ended_as_it_was_told() -> None:
    """Each machine's clock begins with the machine."""
    found = Accounts(ordered_at=1.0, released_at=4.0)
    found.time = 103.0
    found.timing.step_finished(found.one, step(0, began=-12345.0))
    found.time = 105.0
    found.timing.left(found.one)
    assert found.times == [(3, 0, StepTimes(2.0, 1.0, 0.25, 1.0, 0.0, 0.125))]
