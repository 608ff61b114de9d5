"""The offline search for when to switch: train, look at the accuracy, halve the interval.

For a job that recurs, Sync-Switch looks for the smallest fraction of the work that its first protocol (BSP) must do
for the accuracy to be good enough. `next_trial` is the whole search as a pure function: it derives the next trial from
the finished ones. So an interrupted search needs only their list to go on.

Source: Li et al., Sync-Switch, ICDCS 2021 (a binary search over the switch point, for recurring jobs). The
structure and the usual values (tolerance 0.01, 5 settings, 5 runs each) are the paper's as we remember it,
not checked against it. 3 runs are the default here. By our computation from the authors' released data, it takes
3 runs to find about the same point again.

Our deviations: a setting that is better than the goal is good enough, too (one-sided). Once a run of a setting has
diverged, the setting has failed, and its other runs are not made. If a run with switch_at=1 diverges while the goal is
measured, there is no goal, and the search ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from paceline.errors import RunFailed

BSP = 1.0
"""All of the work under the first protocol: never tried as a setting, and always acceptable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look for. Trials have the seeds `seed`, `seed` + 1, …, the same ones for every setting."""

    runs: int = 3
    """Runs of each setting; 1 or more."""
    settings: int = 5
    """Switch points to try; 1 or more. The smallest that can be reached is 1 / 2**settings."""
    tolerance: float = 0.01
    """How much worse than the goal is good enough, in the metric's unit; 0 or more."""
    goal: float | None = None
    """The metric to reach; None: the mean of `runs` runs with switch_at=1, which are made first."""
    lower_is_better: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """A run to make."""

    switch_at: float
    """The fraction of the work before the switch, 0 to 1."""
    seed: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that was made."""

    switch_at: float
    seed: int
    value: float | None
    """The metric at its end; None if it diverged."""
    seconds: float
    """How long it trained."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A switch point with the runs that were made of it."""

    switch_at: float
    runs: tuple[Finished, ...]

    @property
    def diverged(self) -> int:
        """How many of its runs did."""
        return sum(run.value is None for run in self.runs)

    @property
    def mean(self) -> float | None:
        """The metric's mean; None if a run diverged, as its metric is no number."""
        values = self._values()
        return fmean(values) if len(values) == len(self.runs) else None

    @property
    def spread(self) -> float | None:
        """The metric's sample standard deviation; None if a run diverged, or if there is only one."""
        values = self._values()
        return stdev(values) if len(values) == len(self.runs) > 1 else None

    @property
    def seconds(self) -> float:
        """The mean time of a run."""
        return fmean(run.seconds for run in self.runs)

    def _values(self) -> list[float]:
        return [run.value for run in self.runs if run.value is not None]


@dataclass(frozen=True, slots=True)
class Result:
    """What the search has found."""

    switch_at: float
    """The smallest switch point that was good enough, or 1 if none was."""
    goal: float
    settings: tuple[Setting, ...]
    """In the order in which they were tried; first of all switch_at=1, if the goal was measured."""
    bsp_seconds: float | None
    """The mean time of a run with switch_at=1; None if none was made, because the goal was given."""

    @property
    def runs(self) -> int:
        """How many runs were made."""
        return sum(len(setting.runs) for setting in self.settings)

    @property
    def seconds(self) -> float:
        """The time of all runs together, of the diverged ones too."""
        return sum(run.seconds for setting in self.settings for run in setting.runs)

    @property
    def cost(self) -> float | None:
        """What the search cost, in runs with switch_at=1; None if the length of such a run is not known."""
        return self.seconds / self.bsp_seconds if self.bsp_seconds else None

    @property
    def break_even(self) -> float | None:
        """After how many recurrences of the job the search has paid for itself, compared to runs with switch_at=1.

        This is the cost divided by what the chosen point saves each time. None if the cost is unknown, or nothing is
        saved.
        """
        if self.cost is None or self.bsp_seconds is None or self.switch_at == BSP:
            return None
        (chosen,) = (setting for setting in self.settings if setting.switch_at == self.switch_at)
        saved = 1.0 - chosen.seconds / self.bsp_seconds
        return self.cost / saved if saved > 0.0 else None

    def passed(self, setting: Setting) -> bool:
        """Whether the setting was good enough. The chosen setting is the smallest that was."""
        return setting.switch_at >= self.switch_at


def next_trial(search: Search, finished: Sequence[Finished]) -> Trial | Result:
    """Return the run to make after the finished ones, which are in their order, or the result if no more is needed.

    A search makes `runs` × `settings` runs at most, and `runs` more to measure the goal. Raises RunFailed if the goal
    cannot be measured, because a run with switch_at=1 diverged.
    """

    def runs_at(switch_at: float) -> Setting:
        return Setting(switch_at, tuple(run for run in finished if run.switch_at == switch_at))

    def another(setting: Setting) -> Trial | None:
        made = len(setting.runs)
        done = setting.diverged or made == search.runs
        return None if done else Trial(setting.switch_at, search.seed + made)

    tried: list[Setting] = []
    goal, bsp_seconds = search.goal, None
    if goal is None:
        bsp = runs_at(BSP)
        if (trial := another(bsp)) is not None:
            return trial
        goal, bsp_seconds = bsp.mean, bsp.seconds
        if goal is None:
            raise RunFailed(
                "a run with switch_at=1 diverged, so the goal cannot be measured; "
                "give the goal, or a learning rate that is small enough"
            )
        tried.append(bsp)
    low, high = 0.0, BSP  # as far as is known, high is good enough and low is not
    for _ in range(search.settings):
        setting = runs_at((low + high) / 2)
        if (trial := another(setting)) is not None:
            return trial
        tried.append(setting)
        if _good_enough(search, goal, setting.mean):
            high = setting.switch_at
        else:
            low = setting.switch_at
    return Result(high, goal, tuple(tried), bsp_seconds)


def _good_enough(search: Search, goal: float, mean: float | None) -> bool:
    if mean is None:
        return False
    return mean <= goal + search.tolerance if search.lower_is_better else mean >= goal - search.tolerance
