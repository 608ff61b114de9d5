"""Says in sentences what a comparison shows: which protocol was faster, by how much, and what it was worth.

A difference counts only where the two 95 % intervals do not overlap. Fewer runs than an interval needs decide nothing,
and the sentences say how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.phrases import count, listed
from paceline.records.comparison import LEAST, MeanOfRuns, mean
from paceline.records.harm import advice
from paceline.records.summary import Target, metric_text

BASELINE = "bsp"
"""Every other protocol is compared with this one, or with the first if it is missing."""
EQUAL = 0.005
"""Two times whose ratio is as close to 1 as this are called the same."""
SIGNS = {">=": "≥", "<=": "≤", ">": ">", "<": "<"}
LOWER = ("loss", "err", "perplexity", "ppl", "mse", "mae", "nll")
"""Parts of the names of metrics that are better if lower."""

Runs = Mapping[str, Mapping[Hashable, Mapping[str, Any]]]
"""By protocol, and by seed: what `comparison.plain_run` says of a run. Runs that share a seed have other keys."""


def verdict(runs: Runs, target: Target | None, metric: str | None, *, stops: bool = False) -> list[str]:
    """Return a sentence for each protocol beside the baseline, and what went wrong; empty for fewer protocols than two.

    `stops`: whether runs stop at the target, so that their last metric says nothing.
    """
    if len(runs) < 2:
        return []
    baseline = BASELINE if BASELINE in runs else next(iter(runs))
    others = [name for name in runs if name != baseline]
    lines = [_Pair(baseline, name, runs, target, None if stops else metric).sentence() for name in others]
    return [*lines, *_went_wrong(runs, baseline, target, metric)]


def better(metric: str, target: Target | None) -> int:
    """Return 1 if higher values of this metric are better, -1 if lower ones are, and 0 if that is unknown."""
    if target is not None and target.metric == metric:
        return 1 if target.sign[0] == ">" else -1
    name = metric.lower()
    higher, lower = "acc" in name, any(part in name for part in LOWER)
    return higher - lower  # `accumulated_loss` has parts of both


def target_text(target: Target) -> str:
    """Write out a target, as in `accuracy ≥ 0.9`."""
    return f"{target.metric} {SIGNS[target.sign]} {target.text.removeprefix(target.metric + target.sign)}"


@dataclass(frozen=True, slots=True)
class _Words:
    """How one protocol's pace is put beside the baseline's. The places are the ratio's and the baseline's."""

    faster: str
    same: str
    slower: str


_SAMPLES = _Words(
    "was {} × as fast as {} per sample", "was as fast as {} per sample", "took {} × the time of {} per sample"
)
_WHOLE = _Words("ended {} × as soon as {}", "ended as soon as {}", "took {} × as long as {}")


def _to_reach(goal: str) -> _Words:
    goal = goal.replace("{", "{{").replace("}", "}}")  # a metric may be called anything
    return _Words(
        f"reached {goal} {{}} × as fast as {{}}",
        f"reached {goal} as fast as {{}}",
        f"took {{}} × as long as {{}} to reach {goal}",
    )


class _Pair:
    """A protocol beside the baseline."""

    def __init__(self, baseline: str, name: str, runs: Runs, target: Target | None, metric: str | None) -> None:
        self._baseline, self._name = baseline, name
        self._ours, self._theirs = runs[name], runs[baseline]
        self._target, self._metric = target, metric

    def sentence(self) -> str:
        """Compare times, and then the last values of the metric."""
        return f"{'; '.join(filter(None, [self._pace(), self._final()]))}."

    def _pace(self) -> str:
        if self._target is not None:
            reached = [_known(of, lambda run: run["seconds_to_target"]) for of in (self._ours, self._theirs)]
            return self._to_target(target_text(self._target), *reached)
        for value, words, unit in ((_sample_seconds, _SAMPLES, _duration), (_whole_seconds, _WHOLE, _seconds)):
            ours, theirs = _known(self._ours, value), _known(self._theirs, value)
            if len(ours) == len(self._ours) and len(theirs) == len(self._theirs):
                return self._faster(ours, theirs, words, unit)
        return f"{self._name} and {self._baseline} can't be compared in time, as not all of their runs were completed"

    def _to_target(self, goal: str, ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> str:
        if len(ours) == len(self._ours) and len(theirs) == len(self._theirs):
            return self._faster(ours, theirs, _to_reach(goal), _seconds)
        if not ours and not theirs:
            return f"neither {self._name} nor {self._baseline} reached {goal} ({self._number(self._ours)})"
        one = self._reached(self._name, goal, ours, self._ours)
        other = self._reached(self._baseline, "it", theirs, self._theirs)
        return f"{one}, while {other}" + (": their times can't be compared" if ours and theirs else "")

    def _reached(self, name: str, goal: str, times: Mapping[Hashable, float], of: Mapping[Hashable, Any]) -> str:
        if not times:
            return f"{name} never reached {goal} ({self._number(of)})"
        which = "" if len(times) == len(of) else f" in {len(times)} of {self._number(of)}"
        return f"{name} reached {goal}{which} after {_seconds([mean(times.values())])[0]}"

    def _faster(
        self,
        ours: Mapping[Hashable, float],
        theirs: Mapping[Hashable, float],
        words: _Words,
        written: Callable[[Sequence[MeanOfRuns | None]], list[str]],
    ) -> str:
        """Say which was faster, and how sure that is."""
        one, other = mean(ours.values()), mean(theirs.values())
        both = ours.keys() & theirs.keys() or None
        took, there = (
            math.fsum(value for seed, value in of.items() if both is None or seed in both) for of in (ours, theirs)
        )
        text, number = " against ".join(written([one, other])), self._number(self._ours)
        same = f"{self._name} {words.same.format(self._baseline)}"
        if len(ours) > 1 and not apart(one, other):
            if len(ours) < LEAST:
                return f"{same}, within the range of {number} ({text})"
            return f"{same}, within the spread ({text}, {number})"
        few = {1: ": no spread is known", 2: ": too few for an interval"}.get(min(len(ours), len(theirs)), "")
        figures = f"({text}, {number}{few})"
        if not took or not there:  # one was there at once, which has no ratio to anything
            return f"{same} {figures}" if took == there else f"{self._name} and {self._baseline} took {figures[1:-1]}"
        if abs(there / took - 1) < EQUAL:
            return f"{same} {figures}"
        if there > took:
            return f"{self._name} {words.faster.format(f'{there / took:.2f}', self._baseline)} {figures}"
        return f"{self._name} {words.slower.format(f'{took / there:.2f}', self._baseline)} {figures}"

    def _final(self) -> str:
        """Compare the last values of the metric; empty if one side has none."""
        metric = self._metric
        if metric is None:
            return ""
        ours, theirs = _known(self._ours, _final_value), _known(self._theirs, _final_value)
        one, other = mean(ours.values()), mean(theirs.values())
        if one is None or other is None:
            return ""
        if len(ours) < len(self._ours) or len(theirs) < len(self._theirs):  # those that went well are no fair choice
            figures = f"{self._of(one, self._ours)} against {self._of(other, self._theirs)}"
            return f"final {metric} can't be compared, as not all of their runs have one ({figures})"
        text = f"({metric_of(one)} against {metric_of(other)})"
        if set(ours.values()) == set(theirs.values()) and len(set(ours.values())) == 1:
            return f"final {metric} equal ({metric_text(one.mean)})"
        if min(one.runs, other.runs) < LEAST:
            return f"final {metric} {text[1:-1]}"
        if not apart(one, other):
            return f"final {metric} equal within the spread {text}"
        way = better(metric, self._target) * (1 if one.mean > other.mean else -1)
        word = {1: "better", -1: "worse", 0: "higher" if one.mean > other.mean else "lower"}[way]
        return f"final {metric} {word} {text}"

    def _of(self, value: MeanOfRuns, of: Mapping[Hashable, Any]) -> str:
        """Write out the mean of those runs that have a value, and how many these are if some have none."""
        return metric_of(value) + ("" if value.runs == len(of) else f" in {value.runs} of {self._number(of)}")

    def _number(self, of: Mapping[Hashable, Any]) -> str:
        if len(of) == 1:
            return "one seed"
        return count(len(of), "seed" if all(isinstance(key, int) for key in of) else "run")


def apart(one: MeanOfRuns | None, other: MeanOfRuns | None) -> bool:
    """Whether the intervals of two means have no value in common. Fewer runs than `LEAST` have their range."""
    if one is None or other is None:
        return False
    (low, high), (low_other, high_other) = _interval(one), _interval(other)
    return high < low_other or high_other < low


def metric_of(value: MeanOfRuns) -> str:
    """Format a mean with half of its interval. Of two runs, format the range."""
    if value.plus_minus is None:
        return f"{value.low:.4g}" if value.low == value.high else f"{value.low:.4g} to {value.high:.4g}"
    return f"{value.mean:.4g} ± {value.plus_minus:.2g}"


def _interval(value: MeanOfRuns) -> tuple[float, float]:
    if value.plus_minus is None:
        return value.low, value.high
    return value.mean - value.plus_minus, value.mean + value.plus_minus


def _went_wrong(runs: Runs, baseline: str, target: Target | None, metric: str | None) -> Iterator[str]:
    """Say which runs had no good end, and which trainings came to nothing on late gradients."""
    for name, of in runs.items():
        for outcome in dict.fromkeys(run["outcome"] for run in of.values()):
            number = sum(run["outcome"] == outcome for run in of.values())
            what = {"diverged": "diverged", "crashed": "crashed"}.get(outcome, f"ended as {outcome}")
            if outcome != "completed":
                yield f"{name}: {number} of {count(len(of), 'run')} {what}."
    for name, of in runs.items():
        if said := _late(name, of, runs[baseline] if name != baseline else {}, target, metric):
            yield said


def _late(
    name: str,
    of: Mapping[Hashable, Mapping[str, Any]],
    beside: Mapping[Hashable, Mapping[str, Any]],
    target: Target | None,
    metric: str | None,
) -> str:
    """Say that a training got worse on late gradients, or stayed where it began while the baseline's did not."""
    way = 0 if metric is None else better(metric, target)
    learnt = bool(beside) and not any(_in_vain(run, way) for run in beside.values())
    bad = [run for run in of.values() if run.get("harm") or (learnt and run.get("late") and _in_vain(run, way))]
    if not bad:
        return ""
    worst = max(bad, key=lambda run: run["staleness"]["mean"])
    seeds = "" if len(of) == 1 else f" in {len(bad)} of {count(len(of), 'run')}"
    stale = f"gradients were {worst['staleness']['mean']:.1f} versions late on average"
    if not any(run.get("harm") for run in bad):
        ends = listed([f"{metric_text(run['first'])} to {metric_text(run['final'])}" for run in bad])
        return f"{name} did not learn{seeds}: {metric} went from {ends}, while {stale}. {_try(worst)}"
    return f"{name} got worse{seeds} while {stale}; `paceline explain` of that run says more. {_try(worst)}"


def _try(run: Mapping[str, Any]) -> str:
    return advice(run["workers"], run["staleness"])


def _in_vain(run: Mapping[str, Any], way: int) -> bool:
    """Whether the run's last value is known to be no better than its first, or not finite."""
    first, final = run.get("first"), run["final"]
    if not way or first is None:
        return False
    return final is None or way * final <= way * first


def _known(
    of: Mapping[Hashable, Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float | None]
) -> dict[Hashable, float]:
    found = {seed: value(run) for seed, run in of.items()}
    return {seed: one for seed, one in found.items() if one is not None}


def _sample_seconds(run: Mapping[str, Any]) -> float | None:
    return 1 / run["samples_per_second"] if run["samples_per_second"] else None


def _final_value(run: Mapping[str, Any]) -> float | None:
    """Return what the run has come to. A run that broke off has not come to its last value."""
    return run["final"] if run["outcome"] == "completed" else None


def _whole_seconds(run: Mapping[str, Any]) -> float | None:
    return run["wall_seconds"] if run["outcome"] == "completed" else None


def _seconds(values: Sequence[MeanOfRuns | None]) -> list[str]:
    return list(_in_unit(values, 1.0, "s", least=1))


def _duration(values: Sequence[MeanOfRuns | None]) -> list[str]:
    """Write out durations of samples, in the unit that fits the longest."""
    longest = max((value.mean for value in values if value is not None), default=0.0)
    unit, name = next(((unit, name) for unit, name in ((1.0, "s"), (1e-3, "ms")) if longest >= unit), (1e-6, "µs"))
    return list(_in_unit(values, unit, name, least=0))


def _in_unit(values: Iterable[MeanOfRuns | None], unit: float, name: str, least: int) -> Iterator[str]:
    """Write each value with the places that show two digits of the greatest, and `least` places or more."""
    known = [value for value in values if value is not None]
    longest = max((value.high / unit for value in known), default=0.0)
    places = max(least, 1 - math.floor(math.log10(longest))) if longest > 0 else least
    for value in known:
        mid, low, high = (f"{one / unit:.{places}f}" for one in (value.mean, value.low, value.high))
        if value.plus_minus is not None:
            yield f"{mid} ± {value.plus_minus / unit:.{places}f} {name}"
        else:
            yield f"{mid} {name}" if low == high else f"{low} to {high} {name}"
