"""What a run settles by itself, and a director settles in its place: time, data, and the deaths that it bears."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.coordinator.worker_failures import loss_is_borne
from paceline.core.agreements import Value
from paceline.core.leases import Dealing, Leases
from paceline.job.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """How a coordinator runs. It asks these, and knows nothing of who answers."""

    now: Callable[[], float]
    """The clock of the run's time."""
    measures: bool
    """Whether times of steps and commits are kept as they were measured here."""
    leases: Callable[[Dealing, list[int], Mapping[str, Any] | None], Leases]
    """Makes the book of leases for these workers, from what was kept of an earlier one if the run goes on."""
    answers: Callable[[int, int], bool]
    """Whether this worker, which asks for a batch in that epoch, is answered. Otherwise it waits."""
    goes_on_without: Callable[[int, int], bool]
    """Whether the others go on without this worker, whose process ended with that status."""
    stays: Callable[[int], bool]
    """Whether this worker, whose script has no step left to make, does not leave by that, as it is to be killed."""
    leaves_undone: Callable[[int, int], bool]
    """Whether the worker's replica must not make this step when it is ordered to, as if its worker had left."""
    joins_in: Callable[[int], int | None]
    """The epoch in which this worker, which comes while others train, is to ask for its first batch; None: it takes
    part in the first one that has a batch for it."""
    admitted_in: Callable[[int, int], int | None]
    """The epoch in which this worker's script goes on as it comes for the nth time; None: the one that is under way."""
    hand_over: Callable[[int, int, list[int]], list[int]]
    """Those of these workers of whom the first that lives hands over to this one, which joins for the nth time."""
    told_edit: Callable[[int], Path | None]
    """The file with the values that all take at that change of the model's structure; None: the first worker's."""
    pauses: Callable[[int, int], bool]
    """Of a run that is made again: whether the worker has paused in `agree` in the place of that step."""
    agreed: Callable[[int], Sequence[Value]]
    """The same: what the worker's next call of `agree` comes to; nothing if it never came to anything."""
    decides: Callable[[], bool]
    """Whether a machine decides, which may have to know how much work there is."""
    host_of: Callable[[int], str]
    """By worker: its host, if what workers of one host have is summed first in averages. Empty: it is not."""
    deaths_are_told: bool
    """Whether someone else says which groups fail. Otherwise a member's death fails its group."""


def of_a_run(settings: Settings, now: Callable[[], float]) -> RunPolicy:
    """Return the terms of a run that nobody directs. `now` is a clock of real time."""
    return RunPolicy(
        now=now,
        measures=True,
        leases=lambda dealing, workers, before: (
            Leases(dealing, workers) if before is None else Leases.resumed(before, dealing, workers)
        ),
        answers=lambda worker, epoch: True,
        goes_on_without=lambda worker, status: loss_is_borne(settings.on_loss, status),
        stays=lambda worker: False,
        leaves_undone=lambda worker, step: False,
        joins_in=lambda worker: None,
        admitted_in=lambda worker, nth: None,
        hand_over=lambda worker, nth, others: others,
        told_edit=lambda number: None,
        pauses=lambda worker, step: False,
        agreed=lambda worker: (),
        decides=lambda: True,
        host_of=lambda worker: "",
        deaths_are_told=False,
    )
