"""What there is of updates that workers of this host compute: other hosts fetch it before the rest is there."""

from __future__ import annotations

from paceline.core.items import Update
from paceline.host.coverage import Coverage
from paceline.host.fetches import Where


class Computing:
    """What workers have told of their updates. Whether an update counts is not known before it is finished."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, Coverage]] = {}
        """By worker: the step of which it has told something last, and what."""
        self._finished: dict[int, int] = {}
        """By worker: the last step that it has finished."""

    def told(self, worker: int, step: int, begin: int, end: int) -> None:
        """These bytes of the update that the worker computes are in its place."""
        if worker not in self._told or self._told[worker][0] != step:
            self._told[worker] = step, Coverage()
        self._told[worker][1].add(begin, end)

    def finished(self, worker: int, step: int) -> None:
        """All of that update is in its place."""
        self._told.pop(worker, None)
        self._finished[worker] = step

    def look(self, update: Update, begin: int, end: int, *, laid: bool) -> Where:
        """Where these bytes are. `laid`: whether the update has a place.

        What is not finished may never be, as its worker leaves. Who waits for it is told by the head, and by nobody
        else: the head might not have heard of the worker's end.
        """
        if update.step <= self._finished.get(update.worker, -1):
            return "here" if laid else "gone"
        step, coverage = self._told.get(update.worker, (-1, None))
        there = laid and coverage is not None and step == update.step and coverage.has(begin, end)
        return "here" if there else "coming"
