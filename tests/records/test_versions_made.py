"""Of how many samples a check takes versions to be: as many as a run counts, of histories made by hand."""

from __future__ import annotations

from paceline.core.facts import Fact, GradientReady, ParametersTaken, ReduceFinished, TrainingBegan, UpdateArrived
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica
from paceline.protocols import registry
from paceline.records.check.versions_made import VersionsMade
from paceline.records.rules import Rules


class Told:
    """The versions that follow from a history. Each worker's first gradient has as many samples as are given."""

    def __init__(
        self,
        protocol: str,
        *samples: int,
        undone: frozenset[tuple[int, int]] = frozenset(),
        recorded: dict[int, int | None] | None = None,
    ) -> None:
        self.rules, self.made = Rules(registry()[protocol]), VersionsMade(recorded=recorded or {})
        self.rules.outcomes.undone = undone
        members = tuple((worker, "node-0", 0) for worker in range(len(samples)))
        self.told(TrainingBegan(members=members, version=0, at=0.0))
        for worker, count in enumerate(samples):
            self.told(ParametersTaken(worker=worker, version=0, at=1.0))
            self.told(GradientReady(worker=worker, step=0, version=0, samples=count, at=1.0))

    def told(self, fact: Fact, *orders: Order) -> None:
        self.rules.fact(fact)
        for order in orders:
            self.made.order(order, self.rules.order(order))

    def steps_a_replica(self) -> None:
        """Worker 0's, with its own gradient."""
        step = StepReplica(worker=0, step=0, version=1)
        self.told(GradientReady(worker=1, step=1, version=0, samples=4, at=2.0), step)


def drop(worker: int) -> DropUpdate:
    return DropUpdate(worker=worker, step=0, samples="return", why=("lost",))


def test_a_version_of_the_store_has_the_samples_of_all_updates_so_far() -> None:
    history = Told("asp", 3, 5, 7, recorded={1: None, 2: None})
    history.told(UpdateArrived(worker=0, step=0, at=2.0))
    first = ApplyUpdate(version=1, contributions=((0, 0, 0.5), (2, 0, 0.5)))
    history.told(UpdateArrived(worker=2, step=0, at=2.0), drop(1), first)
    history.told(GradientReady(worker=0, step=1, version=0, samples=1, at=2.0))
    second = ApplyUpdate(version=2, contributions=((0, 1, 1.0),))
    history.told(UpdateArrived(worker=0, step=1, at=3.0), second)
    assert history.made.versions == {1: 10, 2: 11}


def test_the_samples_of_a_mean_gradient_count_as_each_member_steps() -> None:
    """A run may record the mean of replicas after each of these steps."""
    history = Told("all-reduce", 3, 5, recorded={1: 3, 2: 8})
    reduce = Reduce(group=0, members=(0, 1), what="gradients", contributions=((0, 0, 0.5), (1, 0, 0.5)))
    history.told(GradientReady(worker=0, step=1, version=0, samples=1, at=2.0), reduce)
    steps = (StepReplica(worker=worker, step=0, version=1, group=0) for worker in (0, 1))
    history.told(ReduceFinished(group=0, at=3.0), *steps)
    assert history.made.means == [3, 8]


def test_samples_that_were_lost_with_a_replica_are_taken_back() -> None:
    history = Told("ripples", 8, 4)
    history.steps_a_replica()
    assert history.made.samples == 8
    history.told(GradientReady(worker=1, step=2, version=0, samples=4, at=2.0), drop(0))
    assert history.made.samples == 0


def test_a_step_that_no_replica_made_counts_no_samples_even_when_it_is_dropped() -> None:
    history = Told("ripples", 8, 4, undone=frozenset({(0, 0)}))
    history.steps_a_replica()
    assert history.made.samples == 0
    history.told(GradientReady(worker=1, step=2, version=0, samples=4, at=2.0), drop(0))
    assert history.made.samples == 0
