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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.core.choice import Choice
from paceline.core.counts import Counts
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica, SwitchProtocol, Why
from paceline.errors import ConfigError
from paceline.files import read_json, write_whole
from paceline.records.segments import Stretch
from paceline.records.times import Busy, FetchTimes, StepTimes
from paceline.records.update_outcomes import Applied, UpdateOutcomes
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

_COUNTED = frozenset({ApplyUpdate, DropUpdate, Reduce, StepReplica, SwitchProtocol})
"""The few kinds of orders that a tally counts."""


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
class WorkerTotals:
    """One worker's sums over the run."""

    host: str = ""
    """The worker's last host."""
    since: float | None = None
    """When its present stay began; None while it is away."""
    stayed: float = 0.0
    """Seconds of its earlier stays."""
    left: dict[str, Any] | None = None
    steps: int = 0
    samples: int = 0
    compute: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    to_device: float | None = None
    """Seconds of copies to the device, which overlap the parts above. None: there were none."""
    from_device: float | None = None
    max_lead: int = 0
    stale: int | None = None
    """The staleness of its last applied update."""

    def seconds(self, now: float) -> float:
        """Return its seconds in the run until `now`."""
        return self.stayed + (0.0 if self.since is None else now - self.since)


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
class SwitchRecord:
    """A switch from one protocol to another."""

    to: str
    at: float
    why: Why
    since: float
    """When the previous protocol began its last steps."""
    waiting: set[int]
    """Workers without parameters under the new protocol yet."""
    pause: float = 0.0
    """Seconds from `since` until the last worker had them."""


@dataclass(slots=True)
class Tally:
    """Counts a run as it goes, O(1) for each fact, amortized."""

    began: float | None = None
    """When training began."""
    latest: float = 0.0
    """The last fact's moment."""
    segments: int = 0
    """How often training began: more than once in a resumed run."""
    paused: float = 0.0
    """Seconds between segments."""
    undone_before: Stretch = field(default_factory=Stretch)
    """What was undone when the run was resumed. No other field counts it."""
    counts: Counts = field(default_factory=Counts)
    shares: dict[int, WorkerTotals] = field(default_factory=dict)
    fates: UpdateOutcomes = field(default_factory=UpdateOutcomes)
    versions: int = 0
    """Versions made in the store."""
    steps: int = 0
    """Applied updates, without those lost with a replica."""
    staleness: Counter[int] = field(default_factory=Counter)
    counted: bool = True
    """Whether every gradient so far told its samples."""
    recorded_versions: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    logged: dict[str, Logged] = field(default_factory=dict)
    """By metric of a target."""
    distances: list[tuple[int, float, float]] = field(default_factory=list)
    """(version, at, distance) of `consensus`."""
    exchanges: defaultdict[str, Exchange] = field(default_factory=lambda: defaultdict(Exchange))
    """By host; none in a run on one host."""
    switches: list[SwitchRecord] = field(default_factory=list)
    left_undone: frozenset[tuple[int, int]] = frozenset()
    """(worker, step) that replicas were ordered and did not make, if known beforehand."""

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """Count a fact and its orders."""
        before, self.latest = self.latest, fact.at
        match fact:
            case GradientReady():
                self.fates.fact(fact)
                self.counted = self.counted and fact.samples is not None
            case UpdateArrived(worker=worker):
                self._advance([worker])
            case TrainingBegan(members=members):
                self.fates.fact(fact)
                self._begin(fact.at, before)
                for worker, host, _ in members:
                    self._enter(worker, host, fact.at)
            case WorkerJoined(worker=worker, host=host):
                self._enter(worker, host, fact.at)
            case StepDeclined(worker=worker):
                self.counts.leave(worker)
            case WorkerResumed(worker=worker):
                self.counts.enter(worker)
            case WorkerLeft(worker=worker):
                if worker in self.counts.finished:
                    self.counts.leave(worker)
                share = self.shares[worker]
                share.stayed, share.since = share.seconds(fact.at), None
                share.left = {"reason": fact.reason, "at": fact.at}
                self._resumed(worker, None)
            case ParametersTaken(worker=worker):
                self._resumed(worker, fact.at)
            case ReduceFinished() | ReduceFailed():
                self.fates.fact(fact)
        stepped = []
        for order in orders:
            if type(order) not in _COUNTED:
                continue
            for fate in self.fates.order(order):
                if isinstance(fate, Applied):
                    self._apply(fate)
                elif fate.lost is not None:
                    self._count(fate.lost, -1)
            if isinstance(order, ApplyUpdate):
                self.versions += 1
            elif isinstance(order, StepReplica):
                stepped.append(order.worker)
            elif isinstance(order, SwitchProtocol):
                waiting = {worker for worker, _, _ in order.members}
                self.switches.append(
                    SwitchRecord(order.to, fact.at, order.why, order.since, waiting, fact.at - order.since)
                )
        if stepped:
            self._advance(stepped)

    def undone(self, worker: int, step: int) -> None:
        """Take back the step that the worker's replica was ordered and did not make: the worker had left."""
        lost = self.fates.taken_back(worker, step)
        if lost is not None:
            self._count(lost, -1)

    def step_times(self, worker: int, times: StepTimes) -> None:
        """Add a finished step's times. The summary computes `other` anew."""
        share = self.shares[worker]
        share.compute += times.compute
        share.wait += times.wait
        share.transfer += times.push + times.pull
        if times.to_device is not None:
            share.to_device = (share.to_device or 0.0) + times.to_device
        if times.from_device is not None:
            share.from_device = (share.from_device or 0.0) + times.from_device

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
        value that JSON cannot write (NaN, infinity). The versions of a decentralized run are the recorded means of its
        replicas. Its steps are those applied to a replica, without those lost with it. Only a run on several hosts has
        `per_host`, and only one with parameters on devices has the seconds of copies.
        """
        ended = self.latest if ended is None else ended
        copied = any((share.to_device, share.from_device) != (None, None) for share in self.shares.values())
        wall = 0.0 if self.began is None else ended - self.began - self.paused
        steps = self.steps
        samples = self._if_counted(sum(share.samples for share in self.shares.values()))
        total = sum(stale * times for stale, times in self.staleness.items())
        summary = {
            "paceline": __version__,
            "protocol": {"name": protocol.spec.name, "config": protocol.parameters()},
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
            "versions": len(self.recorded_versions) if protocol.spec.family == "decentralized" else self.versions,
            "steps_per_second": steps / wall if wall else 0.0,
            "samples_per_second": None if samples is None else samples / wall if wall else 0.0,
            "per_worker": [self._row(worker, ended, copied) for worker in sorted(self.shares)],
            **({"per_host": [self._host(host) for host in sorted(self.exchanges)]} if self.exchanges else {}),
            "staleness": {
                "mean": total / steps if steps else None,
                "max": max(self.staleness, default=None),
                "histogram": {str(stale): times for stale, times in sorted(self.staleness.items())},
            },
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
            "targets": {target.text: self._first(target) for target in targets},
            "segments": self.segments,
            "undone": {
                "versions": self.undone_before.versions,
                "samples": self._if_counted(self.undone_before.samples),
                "seconds": self.undone_before.seconds,
            },
        }
        return tidied(summary)

    def _begin(self, at: float, before: float) -> None:
        """Begin a segment. An interrupted one before it ended with its last fact."""
        if self.began is None:
            self.began = at
        else:
            self.paused += at - before
        self.segments += 1
        self.counts = Counts()
        for share in self.shares.values():
            share.stayed, share.since = share.seconds(before), None
        for switch in self.switches:
            switch.waiting.clear()

    def _enter(self, worker: int, host: str, at: float) -> None:
        self.counts.enter(worker)
        share = self.shares.setdefault(worker, WorkerTotals())
        share.host, share.left = host, None
        if share.since is None:
            share.since = at

    def _resumed(self, worker: int, at: float | None) -> None:
        """Note when the worker got its first parameters after a switch. None: it left."""
        if self.switches and worker in self.switches[-1].waiting:
            switch = self.switches[-1]
            switch.waiting.discard(worker)
            if at is not None:
                switch.pause = at - switch.since

    def _switches(self, protocol: Choice) -> list[dict[str, Any]]:
        if not protocol.parts:  # also if the protocol of an earlier segment had parts
            return []
        names = [*(part.spec.name for part in protocol.parts[:1]), *(switch.to for switch in self.switches)]
        return [
            {
                "from": before,
                "to": switch.to,
                "at_seconds": switch.at,
                "pause_seconds": switch.pause,
                "why": protocol.sentence(switch.why),
            }
            for before, switch in zip(names, self.switches, strict=False)
            if before != switch.to or switch.why[0] != "resumed"  # a segment may go on under the same part
        ]

    def _advance(self, workers: Sequence[int]) -> None:
        """Count a step of these workers, at the same moment. A worker that has declined since has no lead."""
        here = [worker for worker in workers if worker in self.counts.finished]
        for worker in here:
            self.counts.advance(worker)
        for worker in here:
            share = self.shares[worker]
            share.max_lead = max(share.max_lead, self.counts.lead(worker))

    def _apply(self, applied: Applied) -> None:
        self.shares[applied.worker].stale = self._count(applied, 1)
        if self.left_undone and (applied.worker, applied.step) in self.left_undone:
            self.undone(applied.worker, applied.step)

    def _count(self, applied: Applied, times: int) -> int:
        """Add the update `times` times. Return its staleness."""
        stale = applied.staleness
        assert stale is not None  # only gradients that were ready are applied
        self.steps += times
        share = self.shares[applied.worker]
        share.steps += times
        share.samples += times * (applied.samples or 0)
        self.staleness[stale] += times
        if not self.staleness[stale]:
            del self.staleness[stale]
        return stale

    def _if_counted(self, samples: int | None) -> int | None:
        return samples if self.counted else None

    def _row(self, worker: int, ended: float, copied: bool) -> dict[str, Any]:
        share = self.shares[worker]
        seconds = {
            "compute_seconds": share.compute,
            "wait_seconds": share.wait,
            "transfer_seconds": share.transfer,
        }
        # not by sum(), which rounds otherwise from Python 3.12 on: a summary is the same to the bit in all versions
        other = share.seconds(ended) - (share.compute + share.wait + share.transfer)
        copies = {"to_device_seconds": share.to_device, "from_device_seconds": share.from_device}
        for part in sorted(seconds, key=lambda name: seconds[name], reverse=True):  # clocks may disagree a little
            seconds[part] -= (excess := min(max(-other, 0.0), seconds[part]))
            other += excess
        return {
            "worker": worker,
            "steps": share.steps,
            "samples": self._if_counted(share.samples),
            **seconds,
            "other_seconds": max(other, 0.0),
            **(copies if copied else {}),
            "max_lead": share.max_lead,
            "left": share.left,
        }

    def _host(self, host: str) -> dict[str, Any]:
        shares = {worker: share for worker, share in sorted(self.shares.items()) if share.host == host}
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


def metrics_of(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics of all evaluations, in the script's order."""
    return list(dict.fromkeys(name for one in evaluations for name in one if name not in MOMENT))


def first_logged(target: Target, logged: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first logged value that meets the target, or None. `logged`: its metric's part of a summary."""
    rows = logged["highs" if target.sign[0] == ">" else "lows"]
    found = next((row for row in rows if target.met_by({target.metric: row["value"]})), None)
    # that version's samples are not known
    return None if found is None else {**found, "samples": None}


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
