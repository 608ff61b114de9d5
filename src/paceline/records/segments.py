"""The segments of a run, and what was undone before each.

A run that was interrupted and resumed has several. Each begins with a fact `TrainingBegan`, and a later one goes on
from a snapshot in the same ledger. What came after that snapshot is undone, and is kept in a ledger of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.choice import Choice, choose, typed, written
from paceline.core.machine import Spec
from paceline.core.phrases import count
from paceline.errors import ConfigError

PLACEMENT = "placement"
"""The note of the hosts that make versions, if several do: by host the first byte of its range, and the byte after its
last one. Without it the head makes all of each version."""
MOVES = "moves"
"""The note of each move of ranges: the version after which other hosts make versions, and those hosts, as under
`PLACEMENT`."""
LACKING = "lacking"
"""The note of the workers whose replicas the last mean lacks. Their processes or hosts ended in a step, and the run
ended before the machine was told."""
AVERAGED = "averaged"
"""The note of the workers whose replicas became the version of a switch, for each such switch."""
ON_DEVICES = "on_devices"
"""The note of the devices that workers computed on: by worker the GPU's name, or an empty string."""
OF_ONE = (
    *("beginning", "end", "deaths", "absent", "admitted", "gave", "handed"),
    *(PLACEMENT, MOVES, LACKING, AVERAGED, ON_DEVICES),
)
"""Keys of the table `run` about the newest segment alone. Those of earlier ones are in the table `segments`."""
ASKED = (
    *("arguments", "threads", "devices", "shards", "record", "limits", "learning_rate_scale", "start"),
    "compress",
    *("hosts", "shards_on", "scenario"),
)
"""Keys of the table `run` that a resumed run may change. Those of earlier segments are in `segments`, too."""

SEGMENT_OF_FACT = "(SELECT count(*) FROM segments WHERE segments.fact <= facts.id)"
"""SQL: one more than the number of the segment that a row of `facts` is in; 0 if the ledger has no such table."""
SEGMENT_OF_LEASE = (
    "(SELECT count(*) FROM segments LEFT JOIN marks ON marks.snapshot = segments.snapshot "
    "WHERE coalesce(marks.leases, 0) < leases.rowid)"
)
"""The same of a row of `leases`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of a run that came after the snapshot from which the run went on, and was undone."""

    versions: int = 0
    samples: int | None = 0
    """In gradients that were ready; None if they were not counted."""
    seconds: float = 0.0
    facts: int = 0
    files: tuple[str, ...] = ()
    """The ledgers of the stretch, in the run's folder."""

    def __bool__(self) -> bool:
        """Whether it has anything that a user may miss."""
        return bool(self.versions or self.samples or self.seconds)

    def __str__(self) -> str:
        samples = "" if self.samples is None else f"{count(self.samples, 'sample')} and "
        return f"{count(self.versions, 'version')}, {samples}{self.seconds:.3g} s"

    def __add__(self, other: Stretch) -> Stretch:
        counted = self.samples is not None and other.samples is not None
        return Stretch(
            versions=self.versions + other.versions,
            samples=(self.samples or 0) + (other.samples or 0) if counted else None,
            seconds=self.seconds + other.seconds,
            facts=self.facts + other.facts,
            files=(*self.files, *other.files),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The part of a run from one `TrainingBegan` to the next."""

    number: int
    """From 0."""
    fact: int
    """The row of its `TrainingBegan`."""
    at: float
    """When it began, in seconds since the run's start."""
    version: int
    """The version that it began with."""
    workers: int
    """The configured workers."""
    choice: Choice
    """The protocol that it began with."""
    snapshot: int | None = None
    """The fact of the snapshot that it goes on from; None in the first segment."""
    undone: Stretch = field(default_factory=Stretch)
    """What was undone before it."""
    hosts: int = 1
    """The configured hosts."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The note of the machines."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """The run's notes in this segment under the keys in `OF_ONE`; in earlier segments also under those in `ASKED`."""


def segments_of(ledger: sqlite3.Connection, config: Mapping[str, Any], known: Mapping[str, Spec]) -> list[Segment]:
    """Return the segments that have begun, in order. `config` is the table `run`.

    A run that has not begun to train has one segment, which follows from that table.
    """
    rows = ledger.execute(
        "SELECT segment, fact, at, version, workers, protocol, snapshot, notes, environment FROM segments "
        "WHERE at IS NOT NULL ORDER BY segment"
    ).fetchall()
    if not rows:
        protocol, environment = (json.dumps(config.get(key, {})) for key in ("protocol", "environment"))
        rows = [(0, 1, 0.0, 0, config["workers"], protocol, None, None, environment)]
    undone = dict(undone_before(ledger))
    now, hosts = {key: config[key] for key in OF_ONE if key in config}, _hosts(config, config)
    return [
        Segment(
            number=number,
            fact=fact,
            at=at,
            version=version,
            workers=int(workers),
            choice=choice_of({"protocol": json.loads(protocol)}, known),
            snapshot=snapshot,
            undone=undone.get(number, Stretch()),
            hosts=hosts if notes is None else _hosts(json.loads(notes), config),
            notes=now if notes is None else dict(json.loads(notes)),
            environment=json.loads(environment or "{}"),
        )
        for number, fact, at, version, workers, protocol, snapshot, notes, environment in rows
    ]


def _hosts(notes: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return the configured hosts, from these notes or the scenario's tables."""
    return int(notes.get("hosts") or len(config["scenario"].get("host", ())) or 1)


def undone_before(ledger: sqlite3.Connection) -> Iterator[tuple[int, Stretch]]:
    """Yield each segment's number with what was undone before it, in order."""
    rows = ledger.execute(
        "SELECT segment, snapshot, undone_versions, undone_samples, undone_seconds, undone_facts, undone_files "
        "FROM segments ORDER BY segment"
    )
    for number, snapshot, versions, samples, seconds, facts, files in rows:
        undone = Stretch()
        if snapshot is not None:
            undone = Stretch(
                versions=versions, samples=samples, seconds=seconds, facts=facts, files=tuple(json.loads(files))
            )
        yield number, undone


def segment_at(segments: Sequence[Segment], at: float) -> Segment:
    """Return the segment at that moment. At the beginning of a segment, return that one."""
    return next((one for one in reversed(segments) if one.at <= at), segments[0])


def choice_of(config: Mapping[str, Any], known: Mapping[str, Spec]) -> Choice:
    """Return the protocol that a run began with, from its configuration."""
    name, recorded = config["protocol"]["name"], config["protocol"]["config"]
    settings = ",".join(
        f"{key}={value if isinstance(value, str) else written(value)}" for key, value in recorded.items()
    )
    return choose(f"{name}:{settings}" if settings else name, known)


def name_of(protocol: Mapping[str, Any], known: Mapping[str, Spec]) -> str:
    """Return the name for people of a recorded protocol, whose name and parameters a configuration or a summary has.

    One that is not known here, or whose parameters are not, keeps all of them.
    """
    try:
        return choice_of({"protocol": protocol}, known).name
    except ConfigError:
        return typed(protocol["name"], protocol["config"])
