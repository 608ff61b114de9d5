"""What a recorded run prescribes to its replay in each segment: leases, recordings, and where the segment begins."""

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
from paceline.core.phrases import error_line
from paceline.errors import ConfigError
from paceline.records.reading import RecordedRun
from paceline.records.segments import ASKED, AVERAGED, LACKING, Segment
from paceline.records.snapshots import Snapshot, SnapshotState, folder_of, read

if TYPE_CHECKING:
    from paceline.coordinator.run_policy import Prescribed, RunPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPart:
    """A segment of a recorded run, as its replay needs it."""

    segment: Segment
    recorded: RecordedRun
    begins: Snapshot | None
    """The snapshot that the segment goes on from; None in the first one."""
    ends: SnapshotState | None
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
        """Whether the run ended in this segment, and recorded its last version there."""
        if self.ends is None:
            return self.recorded.ended
        end = self.segment.notes.get("end")
        return end is not None and end["facts"] == self.ends.fact

    @property
    def failed(self) -> bool:
        """Whether the run failed in this segment."""
        end = self.recorded.end
        return self.ends is None and isinstance(end, dict) and end.get("outcome") == "failed"

    def prescribe(self, policy: RunPolicy) -> None:
        """Set the replay's policy to what the run did in this segment."""
        recorded, notes = self.recorded, self.segment.notes
        policy.prescribed, policy.recorded = self.leases(), recorded.folder
        policy.leaving, policy.agreed = self.leaving(), self.agreed()
        policy.paused, policy.revoked = self.declined("paused"), self.declined("revoked")
        # A worker that died before its first step came back under the same number of returns: the last one counts.
        policy.admitted = {(worker, nth): epoch for worker, nth, epoch in notes.get("admitted", ())}
        policy.handed = {(worker, nth): source for worker, nth, source in notes.get("handed", ())}
        policy.gave, policy.averaged = deque(notes.get("gave", ())), deque(notes.get(AVERAGED, ()))
        policy.means, policy.lacking = self.recordings(), frozenset(notes.get(LACKING, ()))
        policy.undone = frozenset(recorded.ledger.execute("SELECT worker, step FROM undone"))
        if self.segment.hosts > 1:  # in averages, what workers of one host have is summed first
            policy.hosts = dict(enumerate(recorded.scenario_of(self.segment).hosts(self.segment.workers)))

    def leases(self) -> Prescribed:
        """Return the leases in this segment by worker, without those that a worker asked for after the cut."""
        from paceline.coordinator.run_policy import Answer

        leases: Prescribed = {worker: deque() for worker in range(self.segment.workers)}
        query = "SELECT worker, during, epoch, batch FROM leases WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        states = (None if self.begins is None else self.begins.state, self.ends)
        first, last = (None if one is None else self._mark(one) for one in states)
        rows = self.recorded.ledger.execute(query, (first or 0, sys.maxsize if last is None else last))
        newest: dict[tuple[int, int, int], int] = {}
        """By worker, epoch and batch: the place of its last lease of that batch."""
        for worker, during, epoch, batch in rows:
            answers = leases[worker]
            if during is not None:
                newest[worker, epoch, batch] = len(answers)
                got = None if epoch in (None, -1) else Batch(epoch, batch)
                answers.append(Answer(max(during, -1 - during), got, for_now=epoch == -1, along=during < 0))
            elif epoch is None:
                answers.append(None)
            elif (place := newest.get((worker, epoch, batch))) is not None:
                asked = answers[place]
                answers[place] = None if asked is None else asked._replace(taken=True)
        return leases

    def opened(self) -> list[tuple[int, list[list[int]], str, int, int | None]]:
        """Return the epochs, or blocks of one, that were opened in this segment up to the next one's snapshot.

        Each is the epoch, its batches' samples, their digest, the first batch, and the samples expected.
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
        """Return each worker's reasons for leaving in this segment, in order."""
        query = (
            "SELECT worker, json_extract(body, '$.reason') FROM facts "
            "WHERE kind = 'WorkerLeft' AND id >= ? AND id <= ? ORDER BY id"
        )
        found: dict[int, deque[str]] = {}
        for worker, reason in self.recorded.ledger.execute(query, self._facts):
            found.setdefault(worker, deque()).append(reason)
        return found

    def declined(self, how: str) -> frozenset[tuple[int, int]]:
        """Return each (worker, step) that was declined in this segment, and whose fact says so much."""
        query = (
            f"SELECT worker, step FROM facts WHERE kind = 'StepDeclined' AND json_extract(body, '$.{how}') "
            "AND id >= ? AND id <= ?"
        )
        return frozenset(self.recorded.ledger.execute(query, self._facts))

    def agreed(self) -> dict[int, deque[Value]]:
        """Return the results of each worker's calls of `agree` in this segment."""
        query = "SELECT worker, result FROM agreed WHERE fact >= ? AND fact <= ? ORDER BY rowid"
        found: dict[int, deque[Value]] = {}
        for worker, result in self.recorded.ledger.execute(query, self._facts):
            found.setdefault(worker, deque()).append(json.loads(result))
        return found

    def recordings(self) -> deque[tuple[int, int]] | None:
        """Return the samples and replicas of each mean that was recorded in this segment while it trained.

        The mean that a run records at its end is left out: the replay records one there by itself. So are those
        that switches make. None if samples are not counted, and where a store makes all versions, whose recording does
        not depend on time.
        """
        if not self.segment.choice.has_replicas:
            return None
        ledger = self.recorded.ledger
        query = (
            "SELECT version, at, samples, replicas FROM versions JOIN consensus USING (version, at) "
            "WHERE version > ? AND version <= ? AND version NOT IN "
            "(SELECT coalesce(json_extract(body, '$.version'), -1) FROM orders WHERE kind = 'SwitchProtocol') "
            "ORDER BY version"
        )
        first = 0 if self.begins is None else self.begins.state.version
        last = sys.maxsize if self.ends is None else self.ends.version
        rows = ledger.execute(query, (first, last)).fetchall()
        if any(samples is None for _, _, samples, _ in rows):
            return None
        (newest,) = ledger.execute("SELECT max(version) FROM versions WHERE version <= ?", (last,)).fetchone()
        query = "SELECT max(at) FROM facts WHERE id IN (SELECT fact FROM orders) AND id >= ? AND id <= ?"
        (over,) = ledger.execute(query, self._facts).fetchone()
        if self.closed and rows and rows[-1][0] == newest and rows[-1][1] >= (over or 0.0):
            rows.pop()
        return deque((samples, replicas) for _, _, samples, replicas in rows)

    def _mark(self, state: SnapshotState) -> int:
        """Return the last row of `leases` that belongs to this snapshot."""
        (row,) = self.recorded.ledger.execute("SELECT leases FROM marks WHERE snapshot = ?", (state.fact,)).fetchone()
        return int(row)


def parts(recorded: RecordedRun, until: int | None) -> list[RecordedPart]:
    """Return the run's segments, up to the one that made this version. Raises ConfigError if a snapshot is missing."""
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
    """Return the snapshot that this segment goes on from, with the moment at which the segment begins."""
    folder = folder_of(recorded.folder, segment.snapshot or 0)
    try:
        snapshot = read(folder)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{folder}: the run went on from this snapshot, and its replay can't ({error_line(error)}); a replay needs "
            "the snapshots of a run that was resumed"
        ) from None
    return Snapshot(snapshot.folder, msgspec.structs.replace(snapshot.state, at=segment.at))
