"""Which gradients are likely to go into the next average, or the next version: hosts begin with these early.

Nothing is decided here. What was begun early is of the round that is ordered, or it is dropped: see `averages` and
`shards.early_versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

Begun = TypeVar("Begun")
"""What was begun."""
Gradients = Mapping[int, tuple[int, float]]
"""By member: the step whose gradient it gives, and what that weighs."""


class ExpectedRound(Generic[Begun]):
    """Expects that the members of a round give their next gradients to one with the same weights. Pure.

    Weights differ in a round whose batches are smaller, say at an epoch's end. So those of a single round are expected
    no more than those before it: what is expected changes once two rounds have had the same.
    """

    def __init__(self, begin: Callable[[Gradients], Begun | None], drop: Callable[[Begun], object]) -> None:
        """`begin` begins a round of these, unless that doesn't pay."""
        self._begin = begin
        self._drop = drop
        self._weights: dict[int, float] = {}
        """By expected member: what its gradient is likely to weigh. Empty: nobody knows."""
        self._last: dict[int, float] = {}
        """The same of the last round that was ordered."""
        self._steps: dict[int, int] = {}
        """By member that computes, or has computed: the step, of which nothing was withdrawn."""
        self._begun: tuple[Gradients, Begun] | None = None
        """What was begun early, and is not ordered yet."""

    @property
    def begun(self) -> Begun | None:
        """What was begun, and is not ordered yet."""
        return None if self._begun is None else self._begun[1]

    def computes(self, worker: int, step: int) -> None:
        """The worker computes that step: its host has a place for the gradient."""
        self.leaves(worker)
        self._steps[worker] = step
        if self._weights and self._steps.keys() == self._weights.keys():
            gradients = {member: (self._steps[member], weight) for member, weight in self._weights.items()}
            begun = self._begin(gradients)
            self._begun = None if begun is None else (gradients, begun)
        elif worker not in self._weights:  # it is going to be a member, too
            self.drop()

    def leaves(self, worker: int) -> None:
        """The worker gives no gradient by the step that it was in, or nobody may use what it has told of that."""
        self._steps.pop(worker, None)
        if self._begun is not None and worker in self._begun[0]:
            self.drop()

    def withdrawn(self, worker: int, step: int) -> None:
        """The worker has changed what it had told of that step."""
        if self._steps.get(worker) == step:
            self.leaves(worker)

    def begun_of(self, contributions: Iterable[tuple[int, int, float]]) -> Begun | None:
        """A round of these (member, step, weight) is ordered. Return what was begun of it.

        What was begun of another one is dropped.
        """
        gradients = {worker: (step, weight) for worker, step, weight in contributions}
        weights = {worker: weight for worker, (_, weight) in gradients.items()}
        found, self._begun = self._begun, None
        if found is not None and found[0] != gradients:
            self._drop(found[1])
            found = None
        if weights == self._last or self._weights not in (weights, self._last):
            self._weights = weights if weights == self._last else {}
        self._last = weights
        self._steps.clear()
        return None if found is None else found[1]

    def drop(self) -> None:
        """What was begun is not going to be ordered."""
        found, self._begun = self._begun, None
        if found is not None:
            self._drop(found[1])

    def forget(self) -> None:
        """Other workers make rounds from now on, or none."""
        self.drop()
        self._weights, self._last = {}, {}
        self._steps.clear()
