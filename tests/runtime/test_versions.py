"""Which versions are recorded, and what is in them."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paceline.runtime.recordings import Recordings
from paceline.runtime.versions import Means, StoredVersions


def test_a_version_has_the_buffers_of_those_whose_deaths_were_not_told_before_it_was_ordered(tmp_path: Path) -> None:
    """When it is made, and when somebody's death is noticed, is a matter of time: its replay would have others'."""
    journal: Any = None
    recordings = Recordings(tmp_path, 1, journal)
    recordings.epoch_opened(8)
    written: list[Any] = []
    host: Any = SimpleNamespace(
        samples=8,
        lost={},
        shelf=SimpleNamespace(place=lambda item: item.version),
        arithmetic=SimpleNamespace(write=lambda order, *items: written.append(order)),
    )
    members: Any = {worker: SimpleNamespace(left=None) for worker in range(3)}
    offer: Any = SimpleNamespace(buffers=None, loads=True)
    versions = StoredVersions(host, members, recordings)
    versions.begin(offer)
    versions.ordered(1)
    members[0].left = "died"
    host.lost[0] = None
    versions.made(1, 1.0)
    host.samples = 16
    versions.ordered(2)
    versions.made(2, 2.0)
    assert [order.workers for order in written] == [[0, 1, 2], [1, 2]]


def test_a_mean_that_a_replay_is_to_record_has_no_more_replicas_than_the_recorded_one(tmp_path: Path) -> None:
    """A death takes samples away, so their number can be there twice: first with the replica of who then died."""
    journal: Any = None
    recordings = Recordings(tmp_path, 4, journal)
    recordings.prescribed = deque([(72, 1)])
    cuts: list[tuple[int, list[int]]] = []
    host: Any = SimpleNamespace(
        samples=72,
        lost={},
        steps=SimpleNamespace(workers=[0, 1], steps=9),
        averages=SimpleNamespace(made=3),
        copies=SimpleNamespace(cut=lambda workers, version, ready: cuts.append((host.samples, workers))),
    )
    members: Any = {worker: SimpleNamespace(offer=True) for worker in range(2)}
    means = Means(host, False, members, recordings, journal, lambda: 1.0)
    means.ordered(5)
    host.samples, host.lost = 64, {1: None}
    means.ordered(6)
    host.samples = 72
    means.ordered(7)
    assert cuts == [(72, [0])]
