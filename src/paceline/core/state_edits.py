"""Scripts' edits of the optimizer's state, where the store has it for all workers: each edit is made once. Pure.

Every worker runs the whole script, so the k-th edits of all workers are one edit. It is made before the first version
with an update of a worker that had come to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

StateEdit = tuple[list[int], str | None, float | int | None]
"""(parameters, key, value): fill the entry `key` of these parameters' states with that number, or set it to None.

Parameters are given by number, and an empty list means all. Without a key their states are removed. An edit has the
same effect on any version.
"""
CLEARED: StateEdit = ([], None, None)


class StateEdits:
    """All edits so far, and how many of them are made."""

    def __init__(self) -> None:
        self._every: list[list[StateEdit]] = []
        """In order: all edits between two steps."""
        self._by: dict[int, int] = {}
        """By worker: how many of these it has come to."""
        self._at: dict[tuple[int, int], int] = {}
        """By (worker, step): how many it had come to by that step."""
        self._made = 0

    def joins(self, worker: int) -> None:
        """The worker takes part from now on. It begins with all edits so far."""
        self._by[worker] = len(self._every)

    def said(self, worker: int, step: int, edits: Sequence[StateEdit]) -> str:
        """The worker has made these edits before that step. Return in one line why it may not, or an empty text."""
        number = self._by.get(worker, 0)
        if edits:
            if number == len(self._every):
                self._every.append(list(edits))
            elif self._every[number] != list(edits):
                return (
                    f"worker {worker} changed the optimizer's state in another way than the worker before it (change "
                    f"{number + 1} since training began); all workers train with one optimizer: do the same in each"
                )
            number += 1
        self._by[worker] = self._at[worker, step] = number
        return ""

    def dropped(self, worker: int, step: int) -> None:
        """The step's update is in a version, or will never be."""
        self._at.pop((worker, step), None)

    def due(self, steps: Iterable[tuple[int, int]]) -> list[StateEdit]:
        """A version is made of these (worker, step). Return the edits to make first."""
        came_to = max((self._at.get(step, 0) for step in steps), default=0)
        due, self._made = self._every[self._made : came_to], max(self._made, came_to)
        return [edit for edits in due for edit in edits]
