"""What became of updates, of histories made by hand and of random ones."""

from __future__ import annotations

import pytest

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica
from paceline.records.update_outcomes import Applied, Dropped, Fate, UpdateOutcomes
from records.histories import PROTOCOLS, History

LOST = ("lost",)


def ready(worker: int, step: int, version: int = 0, samples: int | None = 8) -> GradientReady:
    return GradientReady(worker=worker, step=step, version=version, samples=samples, at=1.0)


def drop(worker: int, step: int) -> DropUpdate:
    return DropUpdate(worker=worker, step=step, samples="return", why=LOST)


def told(fates: UpdateOutcomes, *whats: Fact | Order) -> list[Fate]:
    """The fates that these facts and orders decide, in turn."""
    found: list[Fate] = []
    for what in whats:
        if hasattr(what, "at"):
            fates.fact(what)  # type: ignore[arg-type]
        else:
            found += fates.order(what)  # type: ignore[arg-type]
    return found


def test_an_update_is_as_stale_as_the_versions_between_what_it_was_computed_on_and_what_it_made() -> None:
    apply = ApplyUpdate(version=5, contributions=((0, 3, 0.5), (1, 7, 0.5)))
    assert told(UpdateOutcomes(), ready(0, 3, version=4), ready(1, 7, version=2, samples=None), apply) == [
        Applied(0, 3, version=5, staleness=0, samples=8, replica=False, group=None),
        Applied(1, 7, version=5, staleness=2, samples=None, replica=False, group=None),
    ]


def test_what_was_dropped_before_it_was_applied_lost_nothing() -> None:
    assert told(UpdateOutcomes(), ready(0, 0), drop(0, 0)) == [Dropped(0, 0, lost=None, why=LOST)]


def test_a_step_is_lost_with_its_replica_until_that_was_averaged() -> None:
    step, other = (StepReplica(worker=0, step=number, version=number + 1) for number in (0, 1))
    reduce = Reduce(group=0, members=(0, 1), what="parameters")
    fates = UpdateOutcomes()
    made = told(fates, ready(0, 0), step, reduce, ReduceFinished(group=0, at=2.0), ready(0, 1, version=2), other)
    assert told(fates, drop(0, 0), drop(0, 1)) == [
        Dropped(0, 0, lost=None, why=LOST),
        Dropped(0, 1, lost=made[1], why=LOST),  # type: ignore[arg-type]
    ]


def test_an_average_that_failed_has_saved_nothing() -> None:
    step, reduce = StepReplica(worker=0, step=0, version=1), Reduce(group=0, members=(0, 1), what="parameters")
    (made, dropped) = told(
        UpdateOutcomes(), ready(0, 0), step, reduce, ReduceFailed(group=0, lost=(1,), at=2.0), drop(0, 0)
    )
    assert dropped == Dropped(0, 0, lost=made, why=LOST)  # type: ignore[arg-type]


def test_what_is_in_a_mean_gradient_is_applied_once_with_the_first_replica_that_is_stepped() -> None:
    reduce = Reduce(group=4, members=(0, 1), what="gradients", contributions=((0, 0, 0.5), (1, 0, 0.5)))
    steps = [StepReplica(worker=worker, step=0, version=1, group=4) for worker in (0, 1)]
    assert told(UpdateOutcomes(), ready(0, 0), ready(1, 0), reduce, ReduceFinished(group=4, at=2.0), *steps) == [
        Applied(worker, 0, version=1, staleness=0, samples=8, replica=True, group=4) for worker in (0, 1)
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_gradient_has_one_fate_and_nothing_of_it_is_kept(protocol: str) -> None:
    fates, gradients, found = UpdateOutcomes(), [], []

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        if isinstance(fact, GradientReady):
            gradients.append((fact.worker, fact.step))
        found.extend(told(fates, fact, *orders))

    History(protocol, seed=1, on_record=record).run()
    assert sorted((fate.worker, fate.step) for fate in found) == sorted(gradients)
    assert fates == UpdateOutcomes()
