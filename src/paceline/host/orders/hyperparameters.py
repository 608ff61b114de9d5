"""What scripts' optimizers had for each step, from which the store's optimizer has what a version is made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.orders import AdjustTraining, ApplyUpdate
from paceline.core.state_edits import StateEdit, StateEdits
from paceline.host.worker_state import WorkerState

Scalars = list[dict[str, Any]]
"""An optimizer's hyperparameters, by parameter group."""


class Hyperparameters:
    """Keeps what each step's worker said, until the step's update is in a version. Pure."""

    def __init__(self, workers: Mapping[int, WorkerState], rate_scale: float, *, steps_in_store: bool) -> None:
        """`rate_scale` is the factor of the learning rates until an order says otherwise.

        If the store does not step the optimizer, it is sent none.
        """
        self._workers = workers
        self.steps_in_store = steps_in_store
        self._rate_scale = rate_scale
        self._scales: dict[int, tuple[float, float]] = {}
        """By worker: the factors of its learning rates and its momentum, if they were ordered."""
        self._said: dict[tuple[int, int], Scalars] = {}
        """By worker and step, as the worker may have pushed another step by the commit."""
        self._edits = StateEdits()

    def adjust(self, order: AdjustTraining) -> None:
        """Make the versions that are ordered from now on with these factors."""
        self._scales[order.worker] = order.learning_rate_scale * self._rate_scale, order.momentum_scale

    def said(self, worker: int, step: int, scalars: Scalars, edits: Sequence[StateEdit]) -> str:
        """The worker's step had these hyperparameters, and its script edited the optimizer's state so before it.

        Return in one line why it may not, or an empty text.
        """
        self._said[worker, step] = scalars
        return self._edits.said(worker, step, edits)

    def of_replica(self, worker: int, scalars: Scalars | None) -> Scalars | None:
        """Return what the worker's replica is stepped with, scaled as was ordered. None: what its optimizer has.

        Its worker multiplies rates by the run's own factor.
        """
        rate, momentum = self._scales.get(worker, (self._rate_scale, 1.0))
        if (rate, momentum) == (self._rate_scale, 1.0):
            return scalars
        return _scaled(self._workers[worker].scalars if scalars is None else scalars, rate / self._rate_scale, momentum)

    def joins(self, worker: int) -> None:
        """The worker takes part from now on, with what the newest version has and rates that are nobody's yet."""
        self._scales.pop(worker, None)
        self._edits.joins(worker)

    def dropped(self, worker: int, step: int) -> None:
        """The step's update is in a version by now, or will be in none."""
        self._said.pop((worker, step), None)
        self._edits.dropped(worker, step)

    def edits(self, order: ApplyUpdate) -> list[StateEdit]:
        """Return the edits of the optimizer's state to make before that version is made."""
        return self._edits.due((worker, step) for worker, step, _ in order.contributions)

    def of(self, order: ApplyUpdate) -> Scalars | None:
        """Return what that version is made with: its contributor's that has served longest, scaled as was ordered.

        One that has joined may have other hyperparameters. Of those that began together it is the lowest.
        """
        if not self.steps_in_store:
            return None
        worker, step, _ = min(order.contributions, key=lambda one: (self._workers[one[0]].joined, one[0], one[1]))
        return _scaled(self._said[worker, step], *self._scales.get(worker, (self._rate_scale, 1.0)))


def _scaled(scalars: Scalars, rate: float, momentum: float) -> Scalars:
    """Return these with the learning rates and momenta times the factors."""
    changed = {key: scale for key, scale in (("lr", rate), ("momentum", momentum)) if scale != 1.0}
    return [
        {**group, **{key: group[key] * scale for key, scale in changed.items() if key in group}} for group in scalars
    ]
