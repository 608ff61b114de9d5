"""What a recorded run prescribes to its replay, segment by segment: leases, recordings, and where each goes on from."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.agreements import Value
from paceline.core.leases import Batch
from paceline.errors import ConfigError
from paceline.records.reading import RecordedRun
from paceline.records.segments import ASKED, Segment
from paceline.records.snapshots import Snapshot, State, folder_of, read

if TYPE_CHECKING:
    from paceline.coordinator.run_policy import Prescribed, RunPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPart:
    """A segment of a recorded run, and what its replay takes from there."""

    segment: Segment
    recorded: RecordedRun
    begins: Snapshot | None
    """The snapshot that the segment goes on from; None in the first one."""
    ends: State | None
    """The state at its end, from which the next segment goes on; None in the last one."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The run's configuration, as it was in this segment."""
        notes = self.segment.notes
        return {**self.recorded.config, **{key: notes[key] for key in ASKED if key in notes}}

    @property
    def facts(self) -> int | None:
        """How many facts the segment has; None in the last one: all the rest."""
        return None if self.ends is None else self.ends.fact + 1 - self.segment.fact

    @property
    def closed(self) -> bool:
        """Whether the run came to its end in this segment, and recorded the last version there."""
        if self.ends is None:
            return self.recorded.ended
        end = self.segment.notes.get("end")
        return end is not None and end["facts"] == self.ends.fact

    @property
    def failed(self) -> bool:
        """Whether the run came to its end in this segment, and had failed."""
        end = self.recorded.end
        return self.ends is None and isinstance(end, dict) and end.get("outcome") == "failed"

    def prescribe(self, policy: RunPolicy) -> None:
        """Have the replay go the course that the run went in this segment."""
        recorded, notes = self.recorded, self.segment.notes
        policy.prescribed, policy.recorded = self.leases(), recorded.folder
        policy.leaving, policy.paused, policy.agreed = self.leaving(), self.paused(), self.agreed()
        # A worker that came, and died before its first step, came anew as the same return: the last time counts.
        policy.admitted = {(worker, nth): epoch for worker, nth, epoch in notes.get("admitted", ())}
        policy.handed = {(worker, nth): source for worker, nth, source in notes.get("handed", ())}
        policy.undone = frozenset(recorded.ledger.execute("SELECT worker, step FROM undone"))
        if self.segment.hosts > 1:  # in averages, what workers of one host have is summed first
            policy.hosts = dict(enumerate(recorded.scenario_of(self.segment).hosts(self.segment.workers)))

    def leases(self) -> Prescribed:
        """By worker, what it was leased in this segment. A batch that it asked for after the cut is not among it."""
        from paceline.coordinator.run_policy import Answer

        leases: Prescribed = {worker: deque() for worker in range(self.segment.workers)}
        query = "SELECT worker, during, epoch, batch FROM leases WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        states = (None if self.begins is None else self.begins.state, self.ends)
        first, last = (None if one is None else self._mark(one) for one in states)
        rows = self.recorded.ledger.execute(query, (first or 0, sys.maxsize if last is None else last))
        newest: dict[tuple[int, int, int], int] = {}
        """By worker, epoch and batch: the place of its last lease of that."""
        for worker, during, epoch, batch in rows:
            answers = leases[worker]
            if during is not None:
                newest[worker, epoch, batch] = len(answers)
                got = None if epoch in (None, -1) else Batch(epoch, batch)
                answers.append(Answer(during, got, for_now=epoch == -1))
            elif epoch is None:
                answers.append(None)
            elif (place := newest.get((worker, epoch, batch))) is not None:
                asked = answers[place]
                answers[place] = None if asked is None else asked._replace(taken=True)
        return leases

    def opened(self) -> list[tuple[int, list[list[int]], str, int, int | None]]:
        """Each epoch, or block of one, that was opened in this segment, and belongs to the next one's beginning.

        That is the epoch, the samples of its batches, their digest, its first batch, and the samples expected.
        """
        query = (
            "SELECT epoch, batch_order, digest, first, expected FROM epochs "
            "WHERE rowid > coalesce((SELECT epochs FROM marks WHERE snapshot = ?), 0) "
            "AND rowid <= (SELECT epochs FROM marks WHERE snapshot = ?) ORDER BY rowid"
        )
        states = (None if self.begins is None else self.begins.state, self.ends)
        rows = self.recorded.ledger.execute(query, [None if state is None else state.fact for state in states])
        return [(epoch, json.loads(order), digest, first, expected) for epoch, order, digest, first, expected in rows]

    @property
    def _facts(self) -> tuple[int, int]:
        """The first and the last fact of this segment."""
        return self.segment.fact, sys.maxsize if self.ends is None else self.ends.fact

    def leaving(self) -> dict[int, deque[str]]:
        """By worker: how it left each time in this segment."""
        query = (
            "SELECT worker, json_extract(body, '$.reason') FROM facts "
            "WHERE kind = 'WorkerLeft' AND id >= ? AND id <= ? ORDER BY id"
        )
        found: dict[int, deque[str]] = {}
        for worker, reason in self.recorded.ledger.execute(query, self._facts):
            found.setdefault(worker, deque()).append(reason)
        return found

    def paused(self) -> frozenset[tuple[int, int]]:
        """(worker, step) of this segment that workers declined as they waited in `agree`."""
        query = (
            "SELECT worker, step FROM facts WHERE kind = 'StepDeclined' AND json_extract(body, '$.paused') "
            "AND id >= ? AND id <= ?"
        )
        return frozenset(self.recorded.ledger.execute(query, self._facts))

    def agreed(self) -> dict[int, deque[Value]]:
        """By worker: what its calls of `agree` came to in this segment."""
        query = "SELECT worker, result FROM agreed WHERE fact >= ? AND fact <= ? ORDER BY rowid"
        found: dict[int, deque[Value]] = {}
        for worker, result in self.recorded.ledger.execute(query, self._facts):
            found.setdefault(worker, deque()).append(json.loads(result))
        return found

    def recordings(self) -> deque[tuple[int, int]] | None:
        """Of how many samples and replicas each mean was that was recorded in this segment while it trained.

        None if samples are not counted. A run that came to its end recorded the last mean there, as its replay will.
        What a store makes is recorded as in any run: when is no matter of time.
        """
        ledger = self.recorded.ledger
        query = (
            "SELECT at, samples, (SELECT replicas FROM consensus WHERE consensus.version = versions.version) "
            "FROM versions WHERE version > ? AND version <= ? ORDER BY version"
        )
        first = 0 if self.begins is None else self.begins.state.version
        rows = ledger.execute(query, (first, sys.maxsize if self.ends is None else self.ends.version)).fetchall()
        if self.segment.choice.spec.family == "parameter-server" or any(samples is None for _, samples, _ in rows):
            return None
        query = "SELECT max(at) FROM facts WHERE id IN (SELECT fact FROM orders) AND id >= ? AND id <= ?"
        (over,) = ledger.execute(query, self._facts).fetchone()
        if self.closed and rows and rows[-1][0] >= (over or 0.0):
            rows.pop()
        workers = self.segment.workers
        return deque((samples, workers if replicas is None else replicas) for _, samples, replicas in rows)

    def _mark(self, state: State) -> int:
        """The last row of `leases` that belongs to that snapshot."""
        (row,) = self.recorded.ledger.execute("SELECT leases FROM marks WHERE snapshot = ?", (state.fact,)).fetchone()
        return int(row)


def parts(recorded: RecordedRun, until: int | None) -> list[RecordedPart]:
    """The segments of the run, up to the one that came to that version. Raises ConfigError if a snapshot has gone."""
    found: list[RecordedPart] = []
    begins: Snapshot | None = None
    for segment, following in zip(recorded.segments, [*recorded.segments[1:], None], strict=True):
        ends = None if following is None else _snapshot(recorded, following)
        state = None if ends is None else ends.state
        found.append(RecordedPart(segment=segment, recorded=recorded, begins=begins, ends=state))
        if state is not None and until is not None and state.version >= until:
            break
        begins = ends
    return found


def _snapshot(recorded: RecordedRun, segment: Segment) -> Snapshot:
    """The snapshot that this segment goes on from, with the moment at which it does."""
    folder = folder_of(recorded.folder, segment.snapshot or 0)
    try:
        snapshot = read(folder)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"{folder}: the run went on from this snapshot, and its replay can't ({why}); a replay needs the "
            "snapshots of a run that was resumed"
        ) from None
    return Snapshot(snapshot.folder, msgspec.structs.replace(snapshot.state, at=segment.at))
