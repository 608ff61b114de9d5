"""Which versions are recorded, and what is in them."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.versions import Means, StoredVersions
from paceline.core.facts import ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.ipc import messages
from paceline.records.segments import LACKING


class Edits:
    """What workers have told besides, as a test says."""

    def __init__(self, **told: Any) -> None:
        self.known = lambda: messages.store.WorkersTold(**told)


def settings_of(folder: Path, record: int) -> Any:
    spec = SimpleNamespace(averages="parameters")
    return SimpleNamespace(folder=folder, record=record, workers=3, choice=SimpleNamespace(spec=spec))


CLOCK: Any = SimpleNamespace(at=lambda: 1.0)
UNEDITED: Any = Edits()


def test_a_version_has_the_buffers_of_those_whose_deaths_were_not_told_before_it_was_ordered(tmp_path: Path) -> None:
    """When it is made, and when somebody's death is noticed, is a matter of time: its replay would have others'."""
    journal: Any = None
    settings = settings_of(tmp_path, record=1)
    written: list[Any] = []
    host: Any = SimpleNamespace(record=lambda version, workers, *_: written.append((version, workers)))
    applied: Any = SimpleNamespace(samples=8)
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    versions = StoredVersions(settings, host, applied, UNEDITED, journal)
    versions.epoch_opened(8)
    versions.begin(offer, range(3))
    versions.ordered(1)
    versions.tell(WorkerLeft(worker=0, reason="died", at=0.5))
    versions.made(1, 1.0)
    applied.samples = 16
    versions.ordered(2)
    versions.tell(WorkerLeft(worker=1, reason="finished", at=1.5))
    versions.made(2, 2.0)
    assert written == [(1, [0, 1, 2]), (2, [1, 2])]


def test_the_last_version_of_a_store_has_what_workers_told_after_their_last_step(tmp_path: Path) -> None:
    """A worker learns that there is no more data after its last step. An earlier version has what was told before."""
    journal: Any = None
    settings = settings_of(tmp_path, record=1)
    written: list[Any] = []
    host: Any = SimpleNamespace(record=lambda version, *rest: written.append((version, rest[-1].own)))
    applied: Any = SimpleNamespace(samples=0)
    edits: Any = Edits()
    versions = StoredVersions(settings, host, applied, edits, journal)
    versions.epoch_opened(8)
    for version in (1, 2, 3):
        applied.samples += 8
        edits.known = Edits(own=(0, version)).known
        versions.ordered(version)
        versions.made(version, 1.0)
    assert written == [(1, (0, 1)), (2, (0, 2))]
    edits.known = Edits(own=(0, 4)).known
    assert versions.record_last()
    assert written[2:] == [(3, (0, 4))]


def test_the_last_mean_has_what_workers_told_after_their_last_step(tmp_path: Path) -> None:
    """Else that would depend on whether the last step's mean was due while another one was being written."""
    journal: Any = Mock()
    settings = settings_of(tmp_path, record=1)
    written: list[Any] = []
    host: Any = SimpleNamespace(
        progress=SimpleNamespace(averages=3, averaging=False),
        record=lambda version, *rest: written.append((version, rest[-1].own)),
    )
    applied: Any = SimpleNamespace(samples=8, ordered_steps=9)
    edits: Any = Edits()
    means = Means(settings, host, applied, edits, journal, CLOCK, RunPolicy())
    means.epoch_opened(8)
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    means.begin(offer, range(2))
    edits.known = Edits(own=(0, 1)).known
    means.ordered(1)
    means.written(1, "", 0.5)
    edits.known = Edits(own=(0, 2)).known
    assert means.record_last()
    means.written(2, "", 0.5)
    assert not means.record_last()
    assert written == [(1, (0, 1)), (2, (0, 2))]


def test_a_mean_that_a_replay_is_to_record_has_no_more_replicas_than_the_recorded_one(tmp_path: Path) -> None:
    """A death takes samples away, so their number can be there twice: first with the replica of who then died."""
    journal: Any = None
    settings = settings_of(tmp_path, record=4)
    cuts: list[tuple[int, list[int]]] = []
    applied: Any = SimpleNamespace(samples=72, ordered_steps=9)
    host: Any = SimpleNamespace(
        progress=SimpleNamespace(averages=3),
        record=lambda version, workers, *_: cuts.append((applied.samples, workers)),
    )
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    means = Means(settings, host, applied, UNEDITED, journal, CLOCK, RunPolicy(means=deque([(72, 1)])))
    means.begin(offer, range(2))
    means.ordered(5)
    applied.samples = 64
    means.tell(WorkerLeft(worker=1, reason="died", at=0.5))
    means.ordered(6)
    applied.samples = 72
    means.ordered(7)
    assert cuts == [(72, [0])]


def test_a_worker_that_joins_counts_for_means_once_it_has_a_replica(tmp_path: Path) -> None:
    """Until then its place has the replica of the process that died."""
    journal: Any = None
    cuts: list[list[int]] = []
    settings = settings_of(tmp_path, record=4)
    applied: Any = SimpleNamespace(samples=16, ordered_steps=9)
    host: Any = SimpleNamespace(
        progress=SimpleNamespace(averages=3), record=lambda version, workers, *_: cuts.append(workers)
    )
    means = Means(settings, host, applied, UNEDITED, journal, CLOCK, RunPolicy())
    means.epoch_opened(64)
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    means.begin(offer, range(2))
    means.tell(WorkerLeft(worker=1, reason="died", at=0.5))
    means.tell(WorkerJoined(worker=1, host="node-0", step=1, at=0.6))
    means.ordered(5)
    assert cuts == [[0]]
    means.tell(ReplicaCopied(source=0, worker=1, at=0.7))
    means.void(1, [])
    applied.samples = 20
    means.ordered(6)
    assert cuts == [[0], [0, 1]]


def test_a_mean_that_can_t_be_made_is_due_again(tmp_path: Path) -> None:
    journal: Any = None
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    settings = settings_of(tmp_path, record=1)
    cuts: list[tuple[int, list[int]]] = []

    def record(version: int, workers: list[int], *_: str) -> None:
        cuts.append((version, workers))
        if 1 in workers:
            means.void(version, [1])

    applied: Any = SimpleNamespace(samples=64, ordered_steps=9)
    host: Any = SimpleNamespace(progress=SimpleNamespace(averages=3, averaging=False), record=record)
    means = Means(settings, host, applied, UNEDITED, journal, CLOCK, RunPolicy())
    means.epoch_opened(64)
    means.begin(offer, range(2))
    means.ordered(5)
    assert (cuts, means.newest.version) == ([(1, [0, 1])], 0)
    means.tell(WorkerLeft(worker=1, reason="died", at=0.5))
    means.ordered(6)  # a further step of the same batch
    assert cuts[1:] == []
    applied.samples = 68
    means.ordered(7)
    assert (cuts[1:], means.newest.version) == ([(1, [0])], 1)


def test_the_last_mean_goes_without_a_replica_that_was_left_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """Its worker had finished, so it counts."""
    journal: Any = Mock()
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    settings = settings_of(tmp_path, record=0)
    cuts: list[list[int]] = []

    def record(version: int, workers: list[int], *_: str) -> None:
        cuts.append(workers)
        if 1 in workers:
            means.void(version, [1])

    applied: Any = SimpleNamespace(samples=64, ordered_steps=9)
    host: Any = SimpleNamespace(progress=SimpleNamespace(averages=3, averaging=False), record=record)
    means = Means(settings, host, applied, UNEDITED, journal, CLOCK, RunPolicy())
    means.begin(offer, range(2))
    assert means.record_last()
    assert cuts == [[0, 1], [0]]
    journal.ledger.note.assert_called_once_with(LACKING, [1])
