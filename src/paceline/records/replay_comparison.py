"""Compares a replay with its recording, table by table.

A replay's facts and orders are the recording's own. Its workers' results are compared to the last bit: the order of
each epoch, leased and used batches, learning rates, versions, evaluations, scalars. Times are not compared, since a
replay has the recorded ones. If the run crashed, or the replay ends at a version, only what both must have is compared.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby, zip_longest
from typing import Any

from paceline.core.phrases import cut
from paceline.records.reading import RecordedRun
from paceline.records.segments import SEGMENT_OF_FACT, SEGMENT_OF_LEASE

AT_LENGTH = 120
"""The most characters of a value in a sentence."""
BEGINS_OTHERWISE = (
    "The beginning differs: the script draws what it begins with from elsewhere than torch, numpy and random, which "
    "--seed seeds, or the script has changed, or what it reads."
)
ABSENT = object()
"""Takes the place of a row that one side lacks."""

Tell = Callable[[str, str, Mapping[str, Any], str, Any, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first row of a table that differs between the ledgers, or that only one of them has."""

    table: str
    row: str
    """The row in words."""
    key: Mapping[str, Any]
    """The columns that identify it."""
    what: str
    """The columns that differ, in words."""
    recorded: Any
    """None if the recording lacks the row."""
    again: Any
    """None if the replay lacks the row."""

    def __str__(self) -> str:
        return f"{self.row} is the first that differs: {self.what} {_said(self.again)}, recorded {_said(self.recorded)}"

    def to_plain(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "row"}


@dataclass(slots=True, kw_only=True)
class Compared:
    """The result of comparing a replay with its recording."""

    differences: list[Difference] = field(default_factory=list)
    """At most one for each table, in the order of a run."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows of each kind were compared."""
    last: tuple[int, str] | None = None
    """The replay's last recorded version, with its hash."""

    @property
    def same(self) -> bool:
        """Whether nothing differs, and there were versions to compare."""
        return not self.differences and self.bits

    @property
    def bits(self) -> bool:
        """Whether there were versions to compare, and all are the same."""
        differs = any(one.table in ("versions", "checksums") for one in self.differences)
        return not differs and bool(self.counts["versions"] or self.counts["checksums"])

    @property
    def sentences(self) -> list[str]:
        """Lines for the user: what is the same, then what differs."""
        counts = self.counts
        said = []
        if self.bits and self.last is not None:
            version, sha256 = self.last
            compared = f"{counts['versions']} recorded versions, {counts['checksums']} checksums"
            said.append(f"the same bits: {compared}; version {version} is {sha256}")
        if self.same:
            rest = ", ".join(
                f"{counts[name]:,} {words[counts[name] > 1]}" for name, words in RESULTS.items() if counts[name]
            )
            said += [f"the same results: {rest}"] if rest else []
        elif not self.differences:
            said.append("no version of it was recorded that the replay made: there are no bits to compare")
        said += map(str, self.differences)
        if any(one.table == "run" for one in self.differences):
            said.append(BEGINS_OTHERWISE)
        for one in self.differences:
            if one.table in ("scalars", "evaluations") and None not in (one.recorded, one.again):
                said.append(f"If {one.what} depends on time, it is never the same: --except {one.what} leaves it out.")
        return said


RESULTS = {
    "epochs": ("epoch's order", "epochs' orders"),
    "leases": ("lease", "leases"),
    "steps": ("step's batches and learning rates", "steps' batches and learning rates"),
    "consensus": ("distance of replicas", "distances of replicas"),
    "evaluations": ("value of evaluations", "values of evaluations"),
    "scalars": ("scalar", "scalars"),
}
"""What is compared beside versions and checksums, in the singular and the plural."""


def compare(
    recorded: RecordedRun, again: sqlite3.Connection, until: int | None = None, excused: Collection[str] = ()
) -> Compared:
    """Compare the replay's ledger with the recording. `excused`: scalars and metrics that may differ."""
    compared = Compared()
    found: dict[str, Difference] = {}

    def tell(table: str, row: str, key: Mapping[str, Any], what: str, then: Any, now: Any) -> None:
        then, now = (None if value is ABSENT else value for value in (then, now))
        found.setdefault(table, Difference(table=table, row=row, key=key, what=what, recorded=then, again=now))

    sides = _Sides(recorded, again, until)
    _beginning(sides, tell)
    compared.counts["epochs"] = _epochs(sides, tell)
    compared.counts["leases"] = _leases(sides, tell)
    compared.counts["steps"] = _steps(sides, tell)
    compared.counts["checksums"] = _checksums(sides, tell)
    compared.counts["versions"] = _versions(sides, tell)
    compared.counts["consensus"] = _consensus(sides, tell)
    compared.counts["evaluations"] = _evaluations(sides, tell, excused)
    compared.counts["scalars"] = _scalars(sides, tell, excused)
    if "checksums" in found and "versions" in found:  # usually the same version, and the first of the two reports it
        later = max(("checksums", "versions"), key=lambda table: found[table].key["version"])
        del found[later]
    compared.differences = list(found.values())
    last = again.execute("SELECT version, sha256 FROM versions ORDER BY version DESC LIMIT 1").fetchone()
    compared.last = None if last is None else (int(last[0]), str(last[1]))
    return compared


_LEASES = f"""
    SELECT worker, during, epoch, batch, number, stay, max(stay) OVER (PARTITION BY worker) AS last FROM (
        SELECT worker, during, epoch, batch, number,
            1000000 * max(segment, 1)
                + sum(during IS NULL AND epoch IS NULL) OVER (PARTITION BY worker, segment ORDER BY number) AS stay
        FROM (
            SELECT worker, max(during, -1 - during) AS during, epoch, batch, rowid AS number,
                {SEGMENT_OF_LEASE} AS segment
            FROM leases
        )
    ) WHERE during IS NOT NULL
"""
"""SQL: the table `leases`, with the number of the process that had each lease, and of the worker's last process.

A process is identified by its segment, and by how often the worker had come back in that segment."""


class _Sides:
    """Both ledgers, and which of their rows must be the same."""

    def __init__(self, recorded: RecordedRun, again: sqlite3.Connection, until: int | None) -> None:
        self.recorded = recorded.ledger
        self.again = again
        self.until = until
        self.evaluated = (recorded.summary or {}).get("outcome") == "completed"
        """Whether all of the recording's versions were evaluated, if any were. Then the replay's are, too.

        If all workers of a replay have died, none is left to evaluate. A run may evaluate in a process beside them.
        """
        self.cuts = [segment.version for segment in recorded.segments[1:]]
        """The versions from which the run went on."""
        self.completed = self.evaluated and until is None
        steps = "SELECT worker, step FROM facts WHERE kind = 'GradientReady'"
        self.told = set(again.execute(steps))
        """(worker, step) of the steps that both have made. How much further workers came is chance."""
        left = "SELECT worker, json_extract(body, '$.reason') FROM facts WHERE kind = 'WorkerLeft'"
        reasons = again.execute(left).fetchall()
        self.finished = {worker for worker, reason in reasons if reason == "finished"}
        """Workers whose rows must all be in both. Of a worker that came back, only later rows must."""
        joined = "SELECT worker, max(step) FROM facts WHERE kind = 'WorkerJoined' GROUP BY worker"
        self.joined = dict(again.execute(joined))
        """By worker that came back: its first step since."""
        began = again.execute("SELECT body FROM facts WHERE kind = 'TrainingBegan'").fetchone()
        members = {} if began is None else {member[0] for member in json.loads(began[0])["members"]}
        self.all_finished = self.completed and self.finished == set(members)

    def both(self, query: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the rows of both ledgers."""
        return self.recorded.execute(query).fetchall(), self.again.execute(query).fetchall()

    def made(self, worker: int, step: int) -> bool:
        """Whether both have finished this step."""
        whole = worker in self.finished and step >= self.joined.get(worker, 0)
        return whole or (worker, step) in self.told

    def may_lack(self, version: int, has: Collection[int]) -> bool:
        """Whether the recording, which `has` these versions, may lack this one: it ended or was cut before."""
        if self.until is not None and version >= self.until:
            return True
        if any(version <= cut and not any(version < one <= cut for one in has) for cut in self.cuts):
            return True  # a killed run is cut at its end, and its last version may be missing
        return self.until is None and not self.completed and version > max(has, default=-1)


def _beginning(sides: _Sides, tell: Tell) -> None:
    """Compare what each segment began with. Older runs, and runs that crashed early, have no such note.

    Scripts' changes are noted when they are written, before any worker's first step. If a segment ended before such a
    step, it is chance whether they were.
    """
    query = (
        "SELECT segment, json_extract(notes, '$.beginning') FROM segments WHERE at IS NOT NULL AND notes IS NOT NULL "
        "UNION ALL SELECT (SELECT count(*) FROM segments WHERE at IS NOT NULL AND notes IS NOT NULL), "
        "json_extract(value, '$') FROM run WHERE key = 'beginning'"
    )
    then, now = (dict(side) for side in sides.both(query))
    steps = f"SELECT DISTINCT max(0, {SEGMENT_OF_FACT} - 1) FROM facts WHERE kind = 'GradientReady'"
    stepped = {segment for (segment,) in sides.recorded.execute(steps)}
    for segment in sorted(then.keys() & now.keys()):
        one, other = then[segment], now[segment]
        if one != other and None not in (one, other) and segment in stepped:
            what = f"segment {segment}" if segment else "training"
            tell("run", f"what {what} begins with", {"key": "beginning"}, "checksum", one, other)


def _epochs(sides: _Sides, tell: Tell) -> int:
    rows = sides.both("SELECT epoch, first, batches, samples, digest, batch_order FROM epochs ORDER BY epoch, first")
    then, now = ({row[:2]: row[2:] for row in side} for side in rows)
    leased = (
        f"SELECT worker, during, epoch, max(batch) FROM ({_LEASES}) WHERE stay = last GROUP BY worker, during, epoch"
    )
    needed: dict[int, int] = {}
    """By epoch: the last batch that some worker asked for."""
    for side in sides.both(leased):
        for worker, during, epoch, batch in side:
            if worker in sides.finished:
                needed.setdefault(during, 0)
                if epoch is not None:
                    needed[epoch] = max(needed.get(epoch, 0), batch)
    both = 0
    for epoch, first in sorted(then.keys() | now.keys()):
        one, other = then.get((epoch, first)), now.get((epoch, first))
        both += one is not None and other is not None and not first
        needs = first <= needed.get(epoch, -1)
        if one == other or ((one is None or other is None) and not (needs or sides.all_finished)):
            continue
        row = f"epoch {epoch}, from batch {first} on" if first else f"epoch {epoch}"
        key = {"epoch": epoch}
        if one is None or other is None:
            tell("epochs", row, key, "digest", ABSENT if one is None else one[2], ABSENT if other is None else other[2])
            continue
        orders = _listed(one[3]), _listed(other[3])
        for batch, (before, after) in enumerate(_pairs(*orders), first):
            if before != after:
                tell("epochs", row, {**key, "batch": batch}, f"batch {batch}", before, after)
        for name, before, after in zip(("batches", "samples", "digest"), one, other, strict=False):
            if before != after:
                tell("epochs", row, key, name, before, after)
    return both


def _leases(sides: _Sides, tell: Tell) -> int:
    rows = sides.both(f"SELECT worker, stay, during, epoch, batch FROM ({_LEASES}) ORDER BY worker, stay, number")
    last = dict(sides.again.execute(f"SELECT worker, max(last) FROM ({_LEASES}) GROUP BY worker"))
    then, now = (_grouped(side, 2) for side in rows)
    for (worker, stay), place, one, other in _differing(then, now):
        whole = worker in sides.finished and stay == last.get(worker)  # how far it came before it died is chance
        if whole or ABSENT not in (one, other):
            number = place + 1
            key = {"worker": worker, "number": number}
            tell("leases", f"lease {number} of worker {worker}", key, "[during, epoch, batch]", one, other)
    return sum(min(len(then[process]), len(now[process])) for process in then.keys() & now.keys())


def _steps(sides: _Sides, tell: Tell) -> int:
    """Compare each step's batches, taken or skipped, its samples and its learning rates."""
    query = "SELECT worker, step, epoch, batch, used FROM batches ORDER BY worker, step, rowid"
    used = tuple(_grouped(side, 2) for side in sides.both(query))
    query = "SELECT worker, step, samples, learning_rates FROM pushes ORDER BY worker, step"
    pushed = tuple(_grouped(side, 2) for side in sides.both(query))
    both = 0
    for worker, step in sorted({key for side in (*used, *pushed) for key in side}):
        if not sides.made(worker, step):
            continue
        row, key = f"step {step} of worker {worker}", {"worker": worker, "step": step}
        for place, (one, other) in enumerate(_pairs(*(side.get((worker, step), []) for side in used))):
            if one != other:
                tell("batches", row, {**key, "place": place}, "[epoch, batch, used]", one, other)
        pushes = [side.get((worker, step), []) for side in pushed]
        both += all(pushes)
        for one, other in _pairs(*pushes):
            if one is ABSENT or other is ABSENT:
                tell("pushes", row, key, "[samples, learning rates]", one, other)
            else:
                for name, before, after in zip(("samples", "learning rates"), one, other, strict=True):
                    if before != after:
                        tell("pushes", row, key, name, _listed(before), _listed(after))
    return both


def _checksums(sides: _Sides, tell: Tell) -> int:
    then, now = (dict(side) for side in sides.both("SELECT version, checksum FROM checksums"))
    return _of_versions(sides, tell, "checksums", {"checksum": (then, now)})


def _versions(sides: _Sides, tell: Tell) -> int:
    rows = sides.both("SELECT version, sha256, samples FROM versions")
    hashes = tuple({version: sha256 for version, sha256, _ in side} for side in rows)
    samples = tuple({version: number for version, _, number in side} for side in rows)
    return _of_versions(sides, tell, "versions", {"SHA-256": hashes, "samples": samples})


def _of_versions(sides: _Sides, tell: Tell, table: str, columns: Mapping[str, tuple[Any, ...]]) -> int:
    then, now = next(iter(columns.values()))
    for version in sorted(then.keys() | now.keys()):
        if sides.until is not None and version > sides.until:
            continue
        if version not in then and sides.may_lack(version, then):
            continue
        for what, (one, other) in columns.items():
            before, after = one.get(version, ABSENT), other.get(version, ABSENT)
            if before != after:
                tell(table, f"version {version}", {"version": version}, what, before, after)
    return len(then.keys() & now.keys())


def _recorded(sides: _Sides) -> set[int]:
    """Return the versions that both have recorded."""
    then, now = sides.both("SELECT version FROM versions")
    return {version for (version,) in set(then) & set(now) if sides.until is None or version <= sides.until}


def _consensus(sides: _Sides, tell: Tell) -> int:
    query = "SELECT version, replicas, distance FROM consensus ORDER BY version"
    both = _recorded(sides)
    then, now = (_grouped([row for row in side if row[0] in both], 1) for side in sides.both(query))
    for (version,), _, one, other in _differing(then, now):
        tell("consensus", f"version {version}", {"version": version}, "[replicas, distance]", one, other)
    return len(then.keys() | now.keys())


def _evaluations(sides: _Sides, tell: Tell, excused: Collection[str]) -> int:
    query = "SELECT version, metric, value FROM evaluations ORDER BY rowid"
    both = _recorded(sides)
    then, now = (
        _grouped([row for row in side if row[0] in both and row[1] not in excused], 2) for side in sides.both(query)
    )
    for (version, metric), _, one, other in _differing(then, now):
        if sides.evaluated or ABSENT not in (one, other):
            tell("evaluations", f"version {version}", {"version": version, "metric": metric}, metric, one, other)
    return sum(map(len, then.values()))


def _scalars(sides: _Sides, tell: Tell, excused: Collection[str]) -> int:
    query = "SELECT worker, step, name, value FROM scalars ORDER BY worker, step, rowid"
    then, now = (
        _grouped([row for row in side if sides.made(*row[:2]) and row[2] not in excused], 3)
        for side in sides.both(query)
    )
    for (worker, step, name), _, one, other in _differing(then, now):
        key = {"worker": worker, "step": step, "name": name}
        tell("scalars", f"step {step} of worker {worker}", key, name, one, other)
    return sum(map(len, then.values()))


_Groups = dict[tuple[Any, ...], list[Any]]
"""By the first columns of rows: the rest of each row."""


def _grouped(rows: Iterable[tuple[Any, ...]], columns: int) -> _Groups:
    """Return the rest of each row by its first columns. A rest of one column is that value itself."""
    groups: _Groups = {}
    for key, members in groupby(rows, key=lambda row: row[:columns]):
        rest = [row[columns:] for row in members]
        groups.setdefault(key, []).extend(value[0] if len(value) == 1 else list(value) for value in rest)
    return groups


def _differing(then: _Groups, now: _Groups) -> Iterator[tuple[tuple[Any, ...], int, Any, Any]]:
    """Yield each pair of rows that differ, with the key of their group and their place in it."""
    for key in sorted(then.keys() | now.keys()):
        for place, (one, other) in enumerate(_pairs(then.get(key, []), now.get(key, []))):
            if one != other:
                yield key, place, one, other


def _pairs(then: Iterable[Any], now: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of both in pairs. A row that only one has is paired with ABSENT."""
    return zip_longest(then, now, fillvalue=ABSENT)


def _listed(text: Any) -> Any:
    """Return the value of this JSON, or the text if it is not JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _said(value: Any) -> str:
    return cut("none" if value is None else value if isinstance(value, str) else json.dumps(value), AT_LENGTH)
