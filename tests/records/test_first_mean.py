"""Of how many samples a check takes the first mean to be, in histories made by hand: 8 samples a step, due at 24."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.core.facts import GradientReady, TrainingBegan, WorkerLeft
from paceline.records.check.first_mean import FirstMean


def told(history: Sequence[str], *, several_hosts: bool = False) -> FirstMean:
    """`gradient 1`, `step 1`, `undone 1`, `died 1`, `finished 1`: what happens to worker 1, in order."""
    first, samples = FirstMean(several_hosts=several_hosts), 0
    for number, line in enumerate(history):
        what, worker = line.split()[0], int(line.split()[1])
        match what:
            case "gradient":
                first.fact(GradientReady(worker=worker, step=number, version=0, samples=8, at=float(number)))
            case "step" | "undone":
                samples += 8
                first.stepped(worker, samples, makes=what == "step", due=samples == 24)
            case "began":
                first.fact(TrainingBegan(members=((worker, "node-0", 0),), version=0, at=float(number), seed=0))
            case reason:
                first.fact(WorkerLeft(worker=worker, reason=reason, at=float(number)))
    return first


def may_be(history: Sequence[str], *, several_hosts: bool = False, last: int = 1000) -> list[int]:
    """How many samples the first mean may have after that."""
    first = told(history, several_hosts=several_hosts)
    return [samples for samples in range(8, 1001, 8) if first.may_be(samples, last)]


DUE = ["step 0", "step 1", "step 2"]


def test_the_first_mean_is_of_the_samples_at_which_it_was_due() -> None:
    first = told([*DUE, "gradient 0", "step 0"])
    assert (first.due, may_be([*DUE, "gradient 0", "step 0"])) == (24, [24])


def test_if_a_worker_may_have_died_in_its_step_the_mean_after_its_death_may_be_the_first() -> None:
    """The others' steps are made, so the mean that was due is given up by then, if it is."""
    others = ["gradient 0", "gradient 2"]
    assert may_be([*DUE, *others, "died 1", "step 0", "step 2"]) == [24, 32]


def test_a_step_before_the_machine_knows_of_the_death_records_no_mean() -> None:
    """That one would need the replica, too. It waits for the step of worker 0, so the next one may come too early."""
    later = ["gradient 2", "gradient 0", "step 0", "died 1", "step 2", "gradient 0", "step 0"]
    assert may_be([*DUE, *later]) == [24, 40, 48]


def test_as_long_as_another_step_is_under_way_the_mean_may_not_be_given_up_yet() -> None:
    later = ["gradient 0", "died 1", "step 0", "gradient 0", "step 0", "gradient 2", "step 2", "gradient 0", "step 0"]
    assert may_be([*DUE, *later]) == [24, 32, 40, 48]


def test_the_next_mean_may_be_one_that_can_t_be_made_either() -> None:
    later = ["gradient 0", "gradient 2", "died 1", "step 0", "died 0", "step 2", "step 2"]
    assert may_be([*DUE, *later]) == [24, 32, 40]


def test_if_no_step_follows_the_last_mean_may_be_the_first() -> None:
    assert may_be([*DUE, "gradient 0", "gradient 2", "died 1", "finished 0"], last=16) == [16, 24]


@pytest.mark.parametrize(
    "history",
    [
        ["step 0", "step 2", "undone 1", "died 1", "gradient 0", "step 0"],
        [*DUE, "gradient 1", "died 1", "gradient 0", "step 0"],
        ["step 1", "died 1", "step 0", "step 2", "gradient 0", "step 0"],
    ],
    ids=["no step was made", "the step was made", "the machine knew"],
)
def test_a_death_outside_such_a_step_excuses_nothing(history: list[str]) -> None:
    assert may_be(history) == [24]


def test_what_a_segment_no_longer_knows_to_be_due_may_come_at_any_time() -> None:
    assert told([*DUE, "died 1", "began 0", "step 0"]).may_be(504, 1000)
    assert not told([*DUE, "began 0", "step 0"]).may_be(504, 1000)


@pytest.mark.parametrize(
    "history",
    [[*DUE, "gradient 1", "died 1"], ["finished 3", *DUE], ["step 1", "died 1", "step 0", "step 2"]],
    ids=["died", "finished before", "died before"],
)
def test_on_several_hosts_a_replica_may_be_lost_until_it_is_brought_to_the_head(history: list[str]) -> None:
    assert told(history, several_hosts=True).may_be(504, 1000)
    assert not told(history).may_be(504, 1000)


def test_on_several_hosts_the_end_of_a_run_excuses_nothing() -> None:
    computed = [f"gradient {worker}" for worker in range(3)]
    history = [*DUE, *computed, "finished 0", "finished 1", "finished 2"]
    assert may_be(history, several_hosts=True) == [24]
