"""What scripts edit in the optimizer's state where one store has it for all workers: each edit is made once. Pure.

Every worker runs the whole script, so the k-th edits of all workers are one. It is made before the first version that
has an update of a worker which had made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

StateEdit = tuple[list[int], str | None, float | int | None]
"""(parameters, key, value): the entry `key` of these parameters' states is filled with that number, or becomes None.

Parameters are given by number. An empty list means all of them. Without a key their states are gone, as at the start.
Such an edit means the same on whatever version it is made.
"""
CLEARED: StateEdit = ([], None, None)


class StateEdits:
    """The edits so far, and which of them are made."""

    def __init__(self) -> None:
        self._every: list[list[StateEdit]] = []
        """What was edited between two steps, in order."""
        self._by: dict[int, int] = {}
        """By worker: how many of these it has come to."""
        self._at: dict[tuple[int, int], int] = {}
        """By (worker, step): how many it had come to by that step."""
        self._made = 0

    def joins(self, worker: int) -> None:
        """The worker takes part from now on: what was edited so far is in what it begins with."""
        self._by[worker] = len(self._every)

    def said(self, worker: int, step: int, edits: Sequence[StateEdit]) -> str:
        """The worker has edited this before that step. Return why it may not, in one line; empty if it may."""
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
        """The step's update is in a version by now, or will be in none."""
        self._at.pop((worker, step), None)

    def due(self, steps: Iterable[tuple[int, int]]) -> list[StateEdit]:
        """A version is made of these (worker, step). Return what is to be edited before."""
        came_to = max((self._at.get(step, 0) for step in steps), default=0)
        due, self._made = self._every[self._made : came_to], max(self._made, came_to)
        return [edit for edits in due for edit in edits]
