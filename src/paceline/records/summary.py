"""The summary: a run's results, as one JSON object with the same keys under every protocol.

`Tally` counts while the run goes on, from the same calls that feed the ledger. Times are seconds, and moments (`at`,
`at_seconds`) count from the run's start.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.core.choice import Choice
from paceline.core.facts import Fact, GradientReady
from paceline.core.orders import Order
from paceline.errors import ConfigError
from paceline.files import read_json, write_whole
from paceline.records.optimum import over_optimum
from paceline.records.run_model import Moment, RunModel
from paceline.records.segments import Stretch
from paceline.records.spans import Busy
from paceline.records.times import FetchTimes, StepTimes, StepTotals
from paceline.records.update_outcomes import Applied, Undone
from paceline.version import __version__

Outcome = Literal["completed", "interrupted", "failed", "diverged", "crashed"]
"""Readers call a run `crashed` if it has written no summary."""
Summary = dict[str, Any]

DIGITS = 9  # significant digits of a float in a summary

MOMENT = ("version", "at_seconds", "samples")
"""Keys of an evaluation beside the metrics."""

_MEETS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A metric and the value that it should reach."""

    text: str
    """The target as typed, without spaces around the sign. It is the key in the summary."""
    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target. Raises ConfigError, in one line, for any mistake.

        >>> Target.parse("accuracy >= 0.95").text
        'accuracy>=0.95'
        """
        found = re.fullmatch(r"\s*([^<>=\s]+)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
        try:
            metric, sign, written = found.groups() if found else ("", "", "")
            value = float(written)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            example = text if re.fullmatch(r"[\w.-]+", text) else "accuracy"
            raise ConfigError(
                f'target "{text}" is not METRIC>=VALUE (or <=, >, <); write it in quotes, or the shell takes the sign '
                f"away: --target '{example}>=0.9'"
            )
        return cls(metric + sign + written, metric, sign, value)

    def met_by(self, metrics: Mapping[str, float]) -> bool:
        """Whether these metrics reach the target. A missing metric and NaN do not."""
        return _MEETS[self.sign](metrics.get(self.metric, math.nan), self.value)


class Logged:
    """The logged values of one metric. Only records are kept: the first value beyond each threshold is one of them."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self._highs: list[dict[str, Any]] = []
        self._lows: list[dict[str, Any]] = []

    def add(self, worker: int, step: int, version: int, at: float, value: float) -> None:
        """Add a value that was logged in this worker's step, which is computed on this version."""
        self.last = {"at_seconds": at, "value": value, "version": version, "worker": worker, "step": step}
        if not self._highs and math.isfinite(value):
            self._highs, self._lows = [self.last], [self.last]
        elif self._highs and self._highs[-1]["value"] < value < math.inf:
            self._highs.append(self.last)
        elif self._lows and self._lows[-1]["value"] > value > -math.inf:
            self._lows.append(self.last)

    @property
    def records(self) -> list[float]:
        """The least and the greatest value are among these."""
        return [row["value"] for row in (*self._highs[-1:], *self._lows[-1:])]

    def plain(self) -> dict[str, Any]:
        return {"last": self.last, "highs": self._highs, "lows": self._lows}


@dataclass(slots=True)
class Ends:
    """The first and the last logged value of one metric, each with its moment."""

    first: dict[str, Any]
    last: dict[str, Any]


@dataclass(slots=True)
class WorkerTotals:
    """One worker's sums over the run."""

    steps: int = 0
    samples: int = 0
    times: StepTotals = field(default_factory=StepTotals)
    gradients: int = 0
    """Batches in the gradients that it has computed, or pieces of batches."""
    max_lead: int = 0
    stale: int | None = None
    """The staleness of its last applied update."""


MOVED = "moving_cpu_seconds"
"""The key of the run's note of CPU seconds by host."""


@dataclass(slots=True)
class Exchange:
    """What one host has exchanged with other hosts."""

    cpu_seconds: float | None = None
    """The CPU time that this took; None if unknown."""
    bytes_in: int = 0
    bytes_out: int = 0
    fetching: Busy = field(default_factory=Busy)


@dataclass(slots=True)
class Tally:
    """Counts a run as it goes, O(1) for each fact, amortized."""

    model: RunModel = field(default_factory=RunModel)
    undone_before: Stretch = field(default_factory=Stretch)
    """What was undone when the run was resumed. No other field counts it."""
    shares: defaultdict[int, WorkerTotals] = field(default_factory=lambda: defaultdict(WorkerTotals))
    """By worker."""
    steps: int = 0
    """Applied updates, without those lost with a replica."""
    gradients: int = 0
    """Batches in these."""
    applied_at: float = 0.0
    """When the last one was ordered."""
    staleness: Counter[int] = field(default_factory=Counter)
    counted: bool = True
    """Whether every gradient so far told its samples."""
    recorded_versions: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    logged: dict[str, Logged] = field(default_factory=dict)
    """By metric of a target."""
    ends: dict[str, Ends] = field(default_factory=dict)
    """By logged metric, whether or not a target names it."""
    distances: list[tuple[int, float, float]] = field(default_factory=list)
    """(version, at, distance) of `consensus`."""
    exchanges: defaultdict[str, Exchange] = field(default_factory=lambda: defaultdict(Exchange))
    """By host; none in a run on one host."""

    def record(self, fact: Fact, orders: Sequence[Order]) -> Moment:
        """Count a fact and its orders. Return what the model says of them."""
        moment = self.model.record(fact, orders)
        if isinstance(fact, GradientReady):
            self.counted = self.counted and fact.samples is not None
            self.shares[fact.worker].gradients += self.model.gradients(fact.samples)
        for outcome in moment.outcomes:
            if isinstance(outcome, Applied):
                self.applied_at = fact.at
                self.shares[outcome.worker].stale = self._count(outcome, 1)
            elif not isinstance(outcome, Undone) and outcome.lost is not None:
                self._count(outcome.lost, -1)
        for worker in moment.advanced:
            share, lead = self.shares[worker], self.model.counts.lead(worker)
            if lead > share.max_lead:
                share.max_lead = lead
        return moment

    def undone(self, worker: int, step: int) -> None:
        """Take back the step that the worker's replica was ordered and did not make: the worker had left."""
        lost = self.model.outcomes.taken_back(worker, step)
        if lost is not None:
            self._count(lost, -1)

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        """Add a finished step's times."""
        self.shares[worker].times.add(times)
        if self.model.switches:
            self.model.computed(worker, step, times.began)

    def fetched(self, fetch: FetchTimes) -> None:
        """Count a fetch between hosts."""
        there = self.exchanges[fetch.host]
        there.bytes_in += fetch.bytes
        there.fetching.add(fetch.began, fetch.ended)
        self.exchanges[fetch.source].bytes_out += fetch.bytes

    def moved(self, cpu_seconds: Mapping[str, float]) -> None:
        """Add the CPU seconds, by host, of moving bytes between hosts."""
        for host, seconds in cpu_seconds.items():
            if (exchange := self.exchanges.get(host)) is not None:
                exchange.cpu_seconds = (exchange.cpu_seconds or 0.0) + seconds

    @property
    def moved_seconds(self) -> dict[str, float]:
        """By host: the known CPU seconds of moving bytes in all."""
        known = {host: exchange.cpu_seconds for host, exchange in self.exchanges.items()}
        return {host: seconds for host, seconds in known.items() if seconds is not None}

    def recorded(self, version: int, at: float, samples: int | None) -> None:
        self.recorded_versions[version] = (at, samples)

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        self.metrics.setdefault(version, {}).update(metrics)

    def logs(self, metric: str, worker: int, step: int, version: int, at: float, value: float) -> None:
        """Add a logged value of a target's metric."""
        self.logged.setdefault(metric, Logged()).add(worker, step, version, at, value)

    def logs_any(self, metric: str, worker: int, step: int, version: int, at: float, value: float) -> None:
        """Add a logged value of any metric, of which the first and the last are kept."""
        row = {"at_seconds": at, "value": value, "version": version, "worker": worker, "step": step}
        self.ends.setdefault(metric, Ends(row, row)).last = row

    def consensus(self, version: int, at: float, distance: float) -> None:
        """Add how far the replicas were from their mean, which is this recorded version. See `Ledger.consensus`."""
        self.distances.append((version, at, distance))

    def summary(
        self,
        *,
        protocol: Choice,
        workers: int,
        threads: int | None,
        seed: int,
        outcome: Outcome,
        compress: str | None = None,
        error: str | None = None,
        stopped: str | None = None,
        ended: float | None = None,
        samples_missed: int = 0,
        final_parameters_sha256: str | None = None,
        targets: Sequence[Target] = (),
    ) -> Summary:
        """Return the summary, ready for `write`.

        `ended`: the run's end (default: the last fact). `wall_seconds` and the rates count from the beginning of
        training until then, without the time between segments. They are 0 before training begins. A present worker
        stays until then. `samples_missed`: see `Leases.left_over`.

        Numbers of samples are None once any gradient came without one. The staleness of no updates is None, and so is a
        value that JSON cannot write (NaN, infinity). If each worker owns a replica, the versions are the recorded means
        of the replicas. Its steps are those applied to a replica, without those lost with it. Only a run on several
        hosts has `per_host`, and only one with parameters on devices has the seconds of copies.
        """
        model = self.model
        ended = model.at if ended is None else ended
        copied = any(share.times.copied for share in self.shares.values())
        wall = 0.0 if model.began is None else ended - model.began - model.paused
        steps = self.steps
        samples = self._if_counted(sum(share.samples for share in self.shares.values()))
        total = sum(stale * times for stale, times in self.staleness.items())
        rows = [self._row(worker, ended, copied, protocol.pieces) for worker in sorted(model.hosts)]
        made = model.versions if protocol.has_store else max((row["steps"] for row in rows), default=0)
        optimum = None
        if steps and not model.resumed and (self.counted or not model.several):  # else another protocol may have begun
            seconds = self.applied_at - (model.began or 0.0)
            gradients = self.gradients / protocol.pieces
            optimum = over_optimum(protocol.spec, workers, seconds, made, gradients, total / steps, rows)
        summary = {
            "paceline": __version__,
            "protocol": {"name": protocol.spec.name, "config": protocol.parameters()},
            **({"compress": compress} if compress else {}),
            "workers": workers,
            "threads": threads,
            "seed": seed,
            "outcome": outcome,
            "error": error,
            **({} if stopped is None else {"stopped": stopped}),
            "wall_seconds": wall,
            "steps": steps,
            "samples": samples,
            "samples_missed": self._if_counted(samples_missed),
            "versions": model.versions if protocol.has_store else len(self.recorded_versions),
            "steps_per_second": steps / wall if wall else 0.0,
            "samples_per_second": None if samples is None else samples / wall if wall else 0.0,
            "per_worker": rows,
            **({"per_host": [self._host(host) for host in sorted(self.exchanges)]} if self.exchanges else {}),
            "staleness": {
                "mean": total / steps if steps else None,
                "max": max(self.staleness, default=None),
                "histogram": {str(stale): times for stale, times in sorted(self.staleness.items())},
            },
            **({} if optimum is None else {"over_optimum": optimum}),
            "switches": self._switches(protocol),
            "consensus": [
                {"version": version, "at_seconds": at, "distance": distance} for version, at, distance in self.distances
            ],
            "final_parameters_sha256": final_parameters_sha256,
            "evaluations": [
                {**self._moment(version), **self.metrics[version], **self._moment(version)}
                for version in self.recorded_versions
                if version in self.metrics
            ],
            **({"logged": {metric: one.plain() for metric, one in self.logged.items()}} if self.logged else {}),
            **({"scalars": {metric: asdict(one) for metric, one in self.ends.items()}} if self.ends else {}),
            "targets": {target.text: self._first(target) for target in targets},
            "segments": 0 if model.began is None else 1 + len(model.resumed),
            "undone": {
                "versions": self.undone_before.versions,
                "samples": self._if_counted(self.undone_before.samples),
                "seconds": self.undone_before.seconds,
            },
        }
        return tidied(summary)

    def _switches(self, protocol: Choice) -> list[dict[str, Any]]:
        if not protocol.parts:  # also if the protocol of an earlier segment had parts
            return []
        switches = self.model.switches
        names = [protocol.parts[0].spec.name, *(switch.to for switch in switches)]
        return [
            {
                "from": before,
                "to": switch.to,
                "at_seconds": switch.at,
                "pause_seconds": switch.pause,
                "why": protocol.sentence(switch.why),
            }
            for before, switch in zip(names, switches, strict=False)
            if before != switch.to or switch.why[0] != "resumed"  # a segment may go on under the same part
        ]

    def _count(self, applied: Applied, times: int) -> int:
        """Add the update `times` times. Return its staleness."""
        stale = applied.staleness
        assert stale is not None  # only gradients that were ready are applied
        self.steps += times
        self.gradients += times * self.model.gradients(applied.samples)
        share = self.shares[applied.worker]
        share.steps += times
        share.samples += times * (applied.samples or 0)
        self.staleness[stale] += times
        if not self.staleness[stale]:
            del self.staleness[stale]
        return stale

    def _if_counted(self, samples: int | None) -> int | None:
        return samples if self.counted else None

    def _row(self, worker: int, ended: float, copied: bool, pieces: int) -> dict[str, Any]:
        share = self.shares[worker]
        times = share.times
        each = times.steps * pieces / share.gradients if self.model.several and share.gradients else 1.0
        seconds = {
            "compute_seconds": times.compute,
            "wait_seconds": times.wait,
            "transfer_seconds": times.transfer,
        }
        # not by sum(), which rounds otherwise from Python 3.12 on: a summary is the same to the bit in all versions
        other = self.model.seconds(worker, ended) - (times.compute + times.wait + times.transfer)
        copies = {"to_device_seconds": times.to_device, "from_device_seconds": times.from_device}
        for part in sorted(seconds, key=lambda name: seconds[name], reverse=True):  # clocks may disagree a little
            seconds[part] -= (excess := min(max(-other, 0.0), seconds[part]))
            other += excess
        return {
            "worker": worker,
            "steps": share.steps,
            "computed": times.steps,
            "gradient_seconds": times.gradient and times.gradient * each,
            "samples": self._if_counted(share.samples),
            **seconds,
            "other_seconds": max(other, 0.0),
            **(copies if copied else {}),
            "max_lead": share.max_lead,
            "left": self._departure(worker),
        }

    def _departure(self, worker: int) -> dict[str, Any] | None:
        """Return why and when the worker left; None if it is present, or was when the run was interrupted."""
        last = self.model.stays_of(worker)[-1]
        return None if last.left in (None, "interrupted") else {"reason": last.left, "at": last.ended}

    def _host(self, host: str) -> dict[str, Any]:
        shares = {worker: self.shares[worker] for worker, on in sorted(self.model.hosts.items()) if on == host}
        exchange = self.exchanges[host]
        return {
            "host": host,
            "workers": list(shares),
            "steps": sum(share.steps for share in shares.values()),
            "samples": self._if_counted(sum(share.samples for share in shares.values())),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            "fetching_seconds": exchange.fetching.seconds,
            **({} if exchange.cpu_seconds is None else {"moving_cpu_seconds": exchange.cpu_seconds}),
        }

    def _moment(self, version: int) -> dict[str, Any]:
        at, samples = self.recorded_versions[version]
        return {"version": version, "at_seconds": at, "samples": self._if_counted(samples)}

    def _first(self, target: Target) -> dict[str, Any] | None:
        logged = self.logged.get(target.metric)
        found = None if logged is None else first_logged(target, logged.plain())
        for version in self.recorded_versions:
            if target.met_by(self.metrics.get(version, {})):
                moment = self._moment(version)
                del moment["version"]
                return moment if found is None or moment["at_seconds"] <= found["at_seconds"] else found
        return found


def metric_text(value: float | None) -> str:
    """Format a metric. None: it was not finite."""
    return "not finite" if value is None else f"{value:.4g}"


def metrics_of(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics of all evaluations, in the script's order."""
    return list(dict.fromkeys(name for one in evaluations for name in one if name not in MOMENT))


def first_logged(target: Target, logged: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first logged value that meets the target, or None. `logged`: its metric's part of a summary."""
    rows = logged["highs" if target.sign[0] == ">" else "lows"]
    found = next((row for row in rows if target.met_by({target.metric: row["value"]})), None)
    # that version's samples are not known
    return None if found is None else {**found, "samples": None}


def last_logged(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the last logged value of each metric, with its moment. Earlier versions noted targets' metrics alone."""
    found = {metric: one["last"] for metric, one in summary.get("logged", {}).items()}
    return found | {metric: one["last"] for metric, one in summary.get("scalars", {}).items()}


def values_of(metric: str, summary: Summary) -> list[float]:
    """Return a metric's finite values in a summary, evaluated and logged. The best is among them."""
    logged = summary.get("logged", {}).get(metric, {"highs": [], "lows": []})
    values = [row[metric] for row in summary["evaluations"] if row.get(metric) is not None]
    return values + [row["value"] for row in (*logged["highs"], *logged["lows"])]


def first_met(target: Target, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the moment and the samples of the first evaluated version that meets the target, or None."""
    for row in evaluations:
        if target.met_by({name: row[name] for name in metrics_of([row])}):
            return {"at_seconds": row["at_seconds"], "samples": row["samples"]}
    return None


def tidied(summary: Summary) -> Summary:
    """Round floats to `DIGITS` digits, and replace what JSON cannot write by None."""
    found: Summary = _tidy(summary)
    return found


def write(path: Path, summary: Summary) -> None:
    """Write the summary, whole or not at all."""
    write_whole(path, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def read(path: Path) -> Summary:
    """Read what `write` wrote. Raises ConfigError if it is not there."""
    try:
        summary: Summary = read_json(path)
        if not isinstance(summary, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no summary can be read there ({error}); name a run's summary.json") from error
    return summary


def _tidy(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list | tuple) else value
