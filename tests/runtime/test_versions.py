"""Which versions are recorded, and what is in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.versions import RecordedVersions
from paceline.core.facts import ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.ipc import messages
from paceline.records.segments import LACKING

OFFER: Any = SimpleNamespace(buffers=None, loads=True)


class Recorded:
    """What a run records, of which a test says how far it is and what workers have told."""

    def __init__(self, record: int, spoiled: Iterable[int] = ()) -> None:
        """`spoiled`: workers with whose replicas no mean can be made."""
        self.settings: Any = SimpleNamespace(folder=Path(), record=record, workers=3)
        self.applied: Any = SimpleNamespace(samples=0, ordered_steps=9, owned=False)
        self.edits: Any = SimpleNamespace(known=lambda: messages.store.WorkersTold(own=self.told))
        self.host: Any = SimpleNamespace(
            spec=SimpleNamespace(pushes="nothing"),
            progress=SimpleNamespace(averages=3, averaging=False),
            record=self._record,
        )
        self.journal: Any = Mock()
        self.told: Any = None
        self.spoiled = set(spoiled)
        self.written: list[tuple[int, list[int]]] = []
        """Version and workers."""
        self.own: list[Any] = []
        """What workers had told, by version that was written."""
        self.versions: RecordedVersions

    def _record(self, version: int, workers: list[int], *rest: Any) -> None:
        self.written.append((version, list(workers)))
        self.own.append(rest[-1].own)
        if self.applied.owned and (spoiled := self.spoiled.intersection(workers)):
            self.versions.void(version, sorted(spoiled))

    def _made(self, policy: RunPolicy | None = None) -> RecordedVersions:
        clock: Any = SimpleNamespace(at=lambda: 1.0)
        given = (self.settings, self.host, self.applied, self.edits, self.journal)
        self.versions = RecordedVersions(*given, clock, policy or RunPolicy())
        return self.versions

    def stored(self, samples: int = 8) -> RecordedVersions:
        versions = self._made()
        versions.epoch_opened(samples)
        versions.begin(OFFER, range(3))
        return versions

    def means(self, samples: int | None, policy: RunPolicy | None = None) -> RecordedVersions:
        self.applied.owned = True
        means = self._made(policy)
        if samples is not None:
            means.epoch_opened(samples)
        means.begin(OFFER, range(2))
        return means

    def ordered(self, step: int, samples: int) -> None:
        """So many samples are applied with that step or version."""
        self.applied.samples = samples
        self.versions.ordered(step)


def left(worker: int, how: Any = "died") -> WorkerLeft:
    return WorkerLeft(worker=worker, reason=how, at=0.5)


def test_a_version_has_the_buffers_of_those_whose_deaths_were_not_told_before_it_was_ordered() -> None:
    """When it is made, and when somebody's death is noticed, is a matter of time: its replay would have others'."""
    run = Recorded(record=1)
    versions = run.stored()
    run.ordered(1, samples=8)
    versions.tell(left(0))
    versions.made(1, 1.0)
    run.ordered(2, samples=16)
    versions.tell(left(1, "finished"))
    versions.made(2, 2.0)
    assert run.written == [(1, [0, 1, 2]), (2, [1, 2])]


def test_the_last_version_of_a_store_has_what_workers_told_after_their_last_step() -> None:
    """A worker learns that there is no more data after its last step. An earlier version has what was told before."""
    run = Recorded(record=1)
    versions = run.stored()
    for version in (1, 2, 3):
        run.told = (0, version)
        run.ordered(version, samples=8 * version)
        versions.made(version, 1.0)
    assert run.own == [(0, 1), (0, 2)]
    run.told = (0, 4)
    assert versions.record_last()
    assert run.own[2:] == [(0, 4)]


def test_the_last_mean_has_what_workers_told_after_their_last_step() -> None:
    """Else that would depend on whether the last step's mean was due while another one was being written."""
    run = Recorded(record=1)
    means = run.means(samples=8)
    run.told = (0, 1)
    run.ordered(1, samples=8)
    means.written(1, "", 0.5)
    run.told = (0, 2)
    assert means.record_last()
    means.written(2, "", 0.5)
    assert not means.record_last()
    assert run.own == [(0, 1), (0, 2)]


def test_a_mean_that_a_replay_is_to_record_has_no_more_replicas_than_the_recorded_one() -> None:
    """A death takes samples away, so their number can be there twice: first with the replica of who then died."""
    run = Recorded(record=4)
    means = run.means(samples=None, policy=RunPolicy(means=deque([(72, 1)])))
    run.ordered(5, samples=72)
    means.tell(left(1))
    run.ordered(6, samples=64)
    assert not run.written
    run.ordered(7, samples=72)
    assert [workers for _, workers in run.written] == [[0]]


def test_a_worker_that_joins_counts_for_means_once_it_has_a_replica() -> None:
    """Until then its place has the replica of the process that died."""
    run = Recorded(record=4)
    means = run.means(samples=64)
    means.tell(left(1))
    means.tell(WorkerJoined(worker=1, host="node-0", step=1, at=0.6))
    run.ordered(5, samples=16)
    means.tell(ReplicaCopied(source=0, worker=1, at=0.7))
    means.void(1, [])
    run.ordered(6, samples=20)
    assert [workers for _, workers in run.written] == [[0], [0, 1]]


def test_a_mean_that_can_t_be_made_is_due_again() -> None:
    run = Recorded(record=1, spoiled=[1])
    means = run.means(samples=64)
    run.ordered(5, samples=64)
    assert (run.written, means.newest.version) == ([(1, [0, 1])], 0)
    means.tell(left(1))
    run.ordered(6, samples=64)  # a further step of the same batch
    assert run.written[1:] == []
    run.ordered(7, samples=68)
    assert (run.written[1:], means.newest.version) == ([(1, [0])], 1)


def test_the_last_mean_goes_without_a_replica_that_was_left_in_the_middle_of_a_step() -> None:
    """Its worker had finished, so it counts."""
    run = Recorded(record=0, spoiled=[1])
    run.applied.samples = 64
    assert run.means(samples=None).record_last()
    assert [workers for _, workers in run.written] == [[0, 1], [0]]
    run.journal.ledger.note.assert_called_once_with(LACKING, [1])


def test_versions_are_noted_in_the_order_in_which_they_were_made_though_a_later_one_is_on_disk_first() -> None:
    run = Recorded(record=1)
    versions = run.stored()
    for version, samples in ((1, 8), (2, 16)):
        run.applied.samples = samples
        versions.ordered(version)
        versions.made(version, float(version))
    versions.written(2, "b", None)
    assert versions.hashes == {}
    versions.written(1, "a", None)
    assert list(versions.hashes.items()) == [(1, "a"), (2, "b")]
    assert [call.args[0] for call in run.journal.recorded.call_args_list] == [1, 2]
