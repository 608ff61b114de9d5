"""Compares runs under several protocols, by arithmetic on their summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from paceline.core.choice import Choice
from paceline.errors import ConfigError
from paceline.files import read_json
from paceline.records.harm import harm, late
from paceline.records.optimum import PARTS, over_best
from paceline.records.summary import Summary, Target, first_logged, last_logged, metrics_of

COMPARISON = "compare.json"
"""The file that makes a folder a comparison's."""

T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom."""
NORMAL95 = 1.960
"""The same quantile for infinitely many degrees."""
LEAST = 3
"""Runs that an interval needs. With two, Student's t is 12.7: the interval would be wider than the values."""


@dataclass(frozen=True, slots=True)
class MeanOfRuns:
    """A mean over runs."""

    mean: float
    plus_minus: float | None
    """Half of the 95 % interval, by Student's t; None for fewer runs than `LEAST`."""
    runs: int
    low: float
    high: float
    """The greatest value; `low` is the least."""


def mean(values: Iterable[float | None]) -> MeanOfRuns | None:
    """Return the mean of the values that are not None, or None if there are none.

    >>> mean([4.0, 6.0])
    Mean(mean=5.0, plus_minus=None, runs=2, low=4.0, high=6.0)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    half = t95(len(known) - 1) * stdev(known) / math.sqrt(len(known)) if len(known) >= LEAST else None
    return MeanOfRuns(fmean(known), None if half is None else float(f"{half:.9g}"), len(known), min(known), max(known))


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to three digits. Beyond 30 degrees it is interpolated."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    return NORMAL95 + (T95[-1] - NORMAL95) * len(T95) / freedom


def seconds_to(target: Target, summary: Summary) -> float | None:
    """Return when a version or a logged value first met the target, in seconds; None if none did."""
    met = [row["at_seconds"] for row in summary["evaluations"] if target.met_by(_metrics(row))][:1]
    logged = summary.get("logged", {}).get(target.metric)
    if logged is not None and (found := first_logged(target, logged)) is not None:
        met.append(found["at_seconds"])
    return min(met, default=None)


def final(metric: str, summary: Summary) -> float | None:
    """Return the metric of the last version, or its last logged value. None: there is none, or it is not finite."""
    last = summary["evaluations"][-1] if summary["evaluations"] else {}
    logged = last_logged(summary).get(metric)
    value: float | None = last.get(metric) if metric in last or logged is None else logged["value"]
    return value


def waiting(summary: Summary) -> float | None:
    """Return the share of waiting in all workers' time, 0 to 1."""
    rows = summary["per_worker"]
    total = math.fsum(row[f"{part}_seconds"] for row in rows for part in PARTS)
    return math.fsum(row["wait_seconds"] for row in rows) / total if total else None


def first(metric: str, summary: Summary) -> float | None:
    """Return the metric of the first version with metrics, or its first logged value. None as in `final`."""
    evaluated = next((row[metric] for row in summary["evaluations"] if metric in row), None)
    logged = summary.get("scalars", {}).get(metric)
    return evaluated if logged is None or evaluated is not None else logged["first"]["value"]


def chief_metric(summary: Summary) -> str | None:
    """Return the metric by which runs are compared without a target: an evaluated one, or else one that is logged.

    Of those that a script logs, an accuracy comes first, then a value of validation data, then a loss.
    """
    if evaluated := metrics_of(summary["evaluations"]):
        return evaluated[0]
    names = list(last_logged(summary))
    return next((name for part in ("acc", "val", "loss", "") for name in names if part in name.lower()), None)


def plain_run(
    summary: Summary, target: Target | None, metric: str | None, choice: Choice | None = None
) -> dict[str, Any]:
    """Return the values of one run that are compared. A `choice` of None is none of our protocols."""
    completed = summary["outcome"] == "completed"
    return {
        "outcome": summary["outcome"],
        "error": summary["error"],
        "wall_seconds": summary["wall_seconds"],
        "seconds_to_target": None if target is None else seconds_to(target, summary),
        "samples_per_second": summary["samples_per_second"] if completed else None,
        "first": first(metric, summary) if metric is not None else None,
        "final": final(metric, summary) if metric is not None else None,
        "waiting": waiting(summary),
        "over_best": over_best(summary),
        "staleness": {"mean": summary["staleness"]["mean"], "max": summary["staleness"]["max"]},
        "workers": summary["workers"],
        "late": choice is not None and late(summary, choice),
        "harm": [] if choice is None else harm(summary, choice),
    }


def compared(runs: Mapping[str, Mapping[Any, Mapping[str, Any]]], *, target: bool) -> list[dict[str, Any]]:
    """Return one row for each protocol, in order. `runs`: by protocol and seed, from `plain_run`.

    `seconds` is the time to the target, of the runs that met it. Without a target it is the whole time of completed
    runs. The speed-up is the first protocol's time over this one's, for the seeds for which both have a time. It is
    None if there is no such seed.
    """
    times = {protocol: {seed: _seconds(run, target) for seed, run in of.items()} for protocol, of in runs.items()}
    first = next(iter(times.values()), {})
    return [
        {
            "protocol": protocol,
            "runs": len(of),
            "diverged": sum(run["outcome"] == "diverged" for run in of.values()),
            "never": sum(seconds is None for seconds in times[protocol].values()) if target else None,
            "seconds": _plain(times[protocol].values()),
            "speed_up": _speed_up(first, times[protocol]),
            "samples_per_second": _plain(run["samples_per_second"] for run in of.values()),
            "final": _plain(run["final"] for run in of.values()),
            "waiting": _plain(run["waiting"] for run in of.values()),
            "over_best": _plain(run.get("over_best") for run in of.values()),
            "staleness": {
                "mean": _plain(run["staleness"]["mean"] for run in of.values()),
                "max": max(_known(run["staleness"]["max"] for run in of.values()), default=None),
            },
        }
        for protocol, of in runs.items()
    ]


def runs_of(folder: Path) -> list[Path]:
    """Return the folders of this comparison's runs so far, protocol by protocol.

    Raises ConfigError, in one line, if there are none or the comparison can't be read.
    """
    file = folder / COMPARISON
    try:
        names = [str(run["folder"]) for run in read_json(file).get("runs", ())]
        if strange := [name for name in names if Path(name).name != name]:
            raise ValueError(f"{strange[0]} is no folder in it")
        found = [folder / name for name in names]
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(f"{file}: no comparison can be read there ({error!r})") from None
    if not found:
        raise ConfigError(f"{folder} is a comparison's folder, and none of its runs has ended yet")
    return found


def _seconds(run: Mapping[str, Any], target: bool) -> float | None:
    if target:
        return run["seconds_to_target"]  # type: ignore[no-any-return]
    return run["wall_seconds"] if run["outcome"] == "completed" else None


def _speed_up(first: Mapping[Any, float | None], this: Mapping[Any, float | None]) -> float | None:
    pairs = [(one, other) for seed, one in first.items() if one and (other := this.get(seed))]
    if not pairs:
        return None
    return math.fsum(one for one, _ in pairs) / math.fsum(other for _, other in pairs)


def _plain(values: Iterable[float | None]) -> dict[str, Any] | None:
    found = mean(values)
    return None if found is None else asdict(found)


def _known(values: Iterable[int | None]) -> Sequence[int]:
    return [value for value in values if value is not None]


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: row[name] for name in metrics_of([row]) if row[name] is not None}
