"""The search for the switch point, on jobs whose accuracy and time are functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from paceline.errors import RunFailed
from paceline.runs.search import Finished, Result, Search, Setting, Trial, next_trial

Job = Callable[[Trial], float | None]
"""The metric at the end of a run; None if it diverges."""

ASP = 0.152
"""Setup 1's time under ASP, in units of its time under BSP."""


def seconds(trial: Trial) -> float:
    """The page's time model, with a BSP run as the unit."""
    return trial.switch_at + (1.0 - trial.switch_at) * ASP


def made(trial: Trial, job: Job) -> Finished:
    return Finished(trial.switch_at, trial.seed, job(trial), seconds(trial))


def searched(search: Search, job: Job, finished: tuple[Finished, ...] = ()) -> tuple[Result, list[Finished]]:
    """The search, from these trials on to its end: the result, and all trials in order."""
    trials = list(finished)
    while isinstance(wanted := next_trial(search, trials), Trial):
        trials.append(made(wanted, job))
        assert len(trials) < 1000, "it does not end"
    return wanted, trials


def step(knee: float) -> Job:
    """As accurate as BSP from the knee on, and no use below it."""
    return lambda trial: 0.9 if trial.switch_at >= knee else 0.5


KNEES = [0.0, 0.01, 0.03125, 0.04, 0.0625, 0.1, 0.3, 0.5, 0.51, 0.96875, 0.97, 1.0]


@pytest.mark.parametrize("knee", KNEES)
@pytest.mark.parametrize("settings", [1, 2, 5, 8])
def test_the_smallest_point_of_the_grid_at_or_above_the_knee_is_chosen(knee: float, settings: int) -> None:
    grid = [number / 2**settings for number in range(1, 2**settings + 1)]
    result, _ = searched(Search(settings=settings), step(knee))
    assert result.switch_at == min(point for point in grid if point >= knee)


@pytest.mark.parametrize("goal", [None, 0.9])
@pytest.mark.parametrize("runs", [1, 3])
def test_every_setting_has_the_same_seeds_and_the_goal_too_if_it_is_measured(goal: float | None, runs: int) -> None:
    result, trials = searched(Search(runs=runs, settings=4, goal=goal, seed=7), step(0.2))
    assert len(trials) == result.runs == runs * 4 + (runs if goal is None else 0)
    assert [setting.switch_at for setting in result.settings].count(1.0) == (goal is None)
    assert [run for setting in result.settings for run in setting.runs] == trials
    assert {tuple(run.seed for run in setting.runs) for setting in result.settings} == {tuple(range(7, 7 + runs))}
    middles = [setting.switch_at for setting in result.settings if setting.switch_at < 1]
    assert middles == [0.5, 0.25, 0.125, 0.1875], "the middle of what is left"


def test_a_measured_goal_is_the_mean_of_the_runs_without_a_switch() -> None:
    result, _ = searched(Search(runs=3), lambda trial: [0.8, 0.9, 0.95][trial.seed] - 0.1 * (trial.switch_at < 1))
    assert result.goal == pytest.approx(fmean([0.8, 0.9, 0.95]))
    assert result.bsp_seconds == 1.0
    assert result.switch_at == 1.0


@pytest.mark.parametrize(
    ("value", "lower_is_better", "passes"),
    [
        (0.75, False, True),
        (0.749, False, False),
        (5.0, False, True),  # better than the goal is never refused
        (1.25, True, True),
        (1.251, True, False),
        (0.1, True, True),
    ],
)
def test_good_enough_is_at_most_the_tolerance_worse(value: float, lower_is_better: bool, passes: bool) -> None:
    search = Search(runs=1, settings=1, goal=1.0, tolerance=0.25, lower_is_better=lower_is_better)
    result, _ = searched(search, lambda _: value)
    assert result.switch_at == (0.5 if passes else 1.0)


def test_the_mean_of_a_settings_runs_is_what_counts() -> None:
    low_and_high: Job = lambda trial: [0.0, 2.0][trial.seed]  # noqa: E731
    assert searched(Search(runs=2, settings=1, goal=1.0), low_and_high)[0].switch_at == 0.5
    assert searched(Search(runs=2, settings=1, goal=1.1), low_and_high)[0].switch_at == 1.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_diverged_run_is_its_settings_failure_and_the_last_of_its_runs(seed: int) -> None:
    """However good the others are; it costs what it took."""
    diverges: Job = lambda trial: None if (trial.switch_at, trial.seed) == (0.5, seed) else 9.0  # noqa: E731
    result, _ = searched(Search(goal=0.9), diverges)
    (half,) = (setting for setting in result.settings if setting.switch_at == 0.5)
    assert result.switch_at > 0.5
    assert len(half.runs) == seed + 1
    assert (half.diverged, half.mean, half.spread) == (1, None, None)
    assert not result.passed(half)
    assert result.seconds == pytest.approx(sum(run.seconds for setting in result.settings for run in setting.runs))


def test_a_goal_that_cannot_be_measured_ends_the_search() -> None:
    with pytest.raises(RunFailed, match=r"switch_at=1 diverged, so the goal cannot be measured; give the goal"):
        next_trial(Search(), [Finished(1.0, 0, 0.9, 1.0), Finished(1.0, 1, None, 1.0)])


def wavy(trial: Trial) -> float | None:
    """Anything but monotone, with noise, and diverging here and there."""
    noise = math.sin(1000 * trial.switch_at + 7 * trial.seed)
    return None if noise < -0.97 and trial.switch_at < 1 else 0.9 + 0.1 * noise


JOBS: dict[str, Job] = {
    "wavy": wavy,
    "knee": step(0.3),
    "diverges": lambda trial: 0.9 if trial.switch_at > 0.7 else None,
}


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_upper_end_never_rises_and_is_always_one_or_a_point_that_passed(job: Job, tolerance: float) -> None:
    for seed in range(20):
        search = Search(settings=6, tolerance=tolerance, seed=seed)
        result, trials = searched(search, job)
        ends = []
        for settings in range(1, 7):  # a shorter search is this one's beginning
            shorter, made = searched(replace(search, settings=settings), job)
            assert made == trials[: len(made)]
            ends.append(shorter.switch_at)
        assert ends == sorted(ends, reverse=True)
        good = {s.switch_at for s in result.settings if s.mean is not None and s.mean >= result.goal - tolerance}
        assert set(ends) <= good | {1.0}
        assert {setting.switch_at for setting in result.settings if result.passed(setting)} - {1.0} == good - {1.0}


@pytest.mark.parametrize("goal", [None, 0.9])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_search_broken_off_anywhere_goes_on_to_the_same_result(job: Job, goal: float | None) -> None:
    search = Search(goal=goal, seed=3)
    result, trials = searched(search, job)
    for length in range(len(trials) + 1):
        assert searched(search, job, tuple(trials[:length])) == (result, trials)


@pytest.mark.parametrize(("goal", "cost", "break_even"), [(None, 2.6, 3.2), (0.919, 1.6, 2.0)])
def test_cost_and_break_even_are_those_of_the_authors(goal: float | None, cost: float, break_even: float) -> None:
    """As computed from their data: R=1, M=5, 6.25 %. A BSP run's time is known even if the search makes none."""
    result, _ = searched(Search(runs=1, goal=goal), lambda trial: 0.919 if trial.switch_at >= 0.06 else 0.9)
    assert result.switch_at == 0.0625
    result = replace(result, bsp_seconds=1.0)
    assert result.cost == pytest.approx(cost, abs=0.05)
    assert result.break_even == pytest.approx(break_even, abs=0.05)


def test_a_search_that_saves_nothing_never_pays() -> None:
    nothing_found, _ = searched(Search(), step(1.0))
    assert nothing_found.switch_at == 1.0
    assert nothing_found.cost is not None
    assert nothing_found.break_even is None
    found, _ = searched(Search(), step(0.1))
    as_slow = replace(found, bsp_seconds=min(setting.seconds for setting in found.settings))
    assert as_slow.break_even is None


def test_mean_spread_and_seconds_are_of_the_settings_runs() -> None:
    values = [0.5, 0.75, 0.875]
    setting = Setting(0.5, tuple(Finished(0.5, seed, value, seed + 1.0) for seed, value in enumerate(values)))
    assert (setting.mean, setting.spread, setting.seconds) == (fmean(values), stdev(values), 2.0)
    assert Setting(0.5, setting.runs[:1]).spread is None
