"""Of how many samples a check takes versions to be: as many as a run counts, of histories made by hand."""

from __future__ import annotations

from paceline.core.facts import GradientReady, ReduceFinished, TrainingBegan
from paceline.core.orders import ApplyUpdate, DropUpdate, Reduce, StepReplica
from paceline.records.check.versions_made import PossibleVersion, VersionsMade


def began(made: VersionsMade, samples: tuple[int, ...]) -> None:
    """Each worker's first gradient has that many samples."""
    members = tuple((worker, "node-0", 0) for worker in range(len(samples)))
    made.record(TrainingBegan(members=members, version=0, at=0.0, seed=0), ())
    for worker, count in enumerate(samples):
        made.record(GradientReady(worker=worker, step=0, version=0, samples=count, at=1.0), ())


def replica_steps(made: VersionsMade, samples: int) -> None:
    """Worker 0's replica is stepped with its own gradient."""
    fact = GradientReady(worker=0, step=0, version=0, samples=samples, at=1.0)
    made.record(fact, (StepReplica(worker=0, step=0, version=1),))


def test_a_version_of_the_store_has_the_samples_of_all_updates_so_far() -> None:
    made = VersionsMade(recorded={1: None, 2: None})
    began(made, (3, 5, 7))
    first = ApplyUpdate(version=1, contributions=((0, 0, 0.5), (2, 0, 0.5)))
    made.record(GradientReady(worker=0, step=1, version=0, samples=1, at=2.0), (first,))
    drop = DropUpdate(worker=1, step=0, samples="return", why=("late",))
    made.record(
        GradientReady(worker=2, step=1, version=1, samples=1, at=3.0),
        (drop, ApplyUpdate(version=2, contributions=((0, 1, 1.0),))),
    )
    assert made.versions == {1: PossibleVersion(2.0, 10), 2: PossibleVersion(3.0, 11)}


def test_the_samples_of_a_mean_gradient_count_as_each_member_steps() -> None:
    """A run may record the mean of replicas after each of these steps."""
    made = VersionsMade(recorded={1: 3, 2: 8})
    began(made, (3, 5))
    reduce = Reduce(group=0, members=(0, 1), what="gradients", contributions=((0, 0, 0.5), (1, 0, 0.5)))
    made.record(GradientReady(worker=0, step=1, version=0, samples=1, at=2.0), (reduce,))
    steps = tuple(StepReplica(worker=worker, step=0, version=1, group=0) for worker in (0, 1))
    made.record(ReduceFinished(group=0, at=3.0), steps)
    assert made.means == [PossibleVersion(3.0, 3, replicas=2), PossibleVersion(3.0, 8, replicas=2)]


def test_samples_that_were_lost_with_a_replica_are_taken_back() -> None:
    made = VersionsMade()
    replica_steps(made, samples=8)
    assert made.samples == 8
    drop = DropUpdate(worker=0, step=0, samples="return", why=("lost",))
    made.record(GradientReady(worker=1, step=0, version=0, samples=4, at=2.0), (drop,))
    assert made.samples == 0


def test_a_step_that_no_replica_made_counts_no_samples_even_when_it_is_dropped() -> None:
    made = VersionsMade(undone=frozenset({(0, 0)}))
    replica_steps(made, samples=8)
    assert made.samples == 0
    drop = DropUpdate(worker=0, step=0, samples="return", why=("lost",))
    made.record(GradientReady(worker=1, step=0, version=0, samples=4, at=2.0), (drop,))
    assert made.samples == 0
