"""What the books say of a run in which every worker owns a replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from picture import timeline_of

from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, TrainingBegan, WorkerLeft
from paceline.core.machine import State
from paceline.core.orders import DropUpdate, Order, Reduce, StepReplica
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger, connect
from paceline.records.summary import Summary, Tally
from paceline.records.timeline import AveragingSpan, Timeline
from paceline.records.times import StepTimes

Pair = tuple[Fact, tuple[Order, ...]]


def began(*workers: int) -> Pair:
    return TrainingBegan(members=tuple((worker, "here", 0) for worker in workers), version=0, at=0.0), ()


def own(worker: int, step: int, on: int, makes: int, at: float = 1.0, samples: int = 8) -> Pair:
    """A gradient that goes into its worker's replica at once."""
    fact = GradientReady(worker=worker, step=step, version=on, samples=samples, at=at)
    return fact, (StepReplica(worker=worker, step=step, version=makes),)


def ready(worker: int, step: int, on: int, *orders: Order, at: float = 1.0) -> Pair:
    return GradientReady(worker=worker, step=step, version=on, samples=8, at=at), orders


def average(group: int, *members: int) -> Reduce:
    return Reduce(group=group, members=members, what="parameters", why=("drawn", group))


def mean_gradient(group: int, *steps: tuple[int, int]) -> Reduce:
    members = tuple(worker for worker, _ in steps)
    contributions = tuple((worker, step, 1 / len(steps)) for worker, step in steps)
    return Reduce(group=group, members=members, what="gradients", contributions=contributions)


def finished(group: int, *orders: Order, at: float = 2.0) -> Pair:
    return ReduceFinished(group=group, at=at), orders


def died(worker: int, *steps: int, at: float = 3.0) -> Pair:
    """And these steps of it are lost."""
    drops = tuple(DropUpdate(worker=worker, step=step, samples="return") for step in steps)
    return WorkerLeft(worker=worker, reason="died", at=at), drops


def told(pairs: Sequence[Pair]) -> Tally:
    tally = Tally()
    for pair in pairs:
        tally.record(*pair)
    return tally


def summed_up(tally: Tally, state: State = "replicas") -> Summary:
    choice = choose("asp", registry())
    choice = replace(choice, spec=replace(choice.spec, state=state))
    return tally.summary(protocol=choice, workers=2, threads=1, seed=0, outcome="completed")


def shares(tally: Tally) -> list[tuple[int, int]]:
    return [(row["steps"], row["samples"]) for row in summed_up(tally)["per_worker"]]


def written(path: Path, pairs: Sequence[Pair], computed: bool = False) -> Path:
    with closing(Ledger(path)) as ledger:
        for fact, orders in pairs:
            ledger.record(fact, orders)
            if computed and isinstance(fact, GradientReady):
                ledger.step_times(fact.worker, fact.step, StepTimes(fact.at - 0.5, 0.5, 0.0, 0.0, 0.0, 0.0))
    return path


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(connect(path)) as database:
        return database.execute(query).fetchall()


# Worker 1 dies: its step 0 was averaged, step 1 was not; the average in which it was failed.
PAIRS: list[Pair] = [
    began(0, 1),
    own(0, 0, on=0, makes=1, at=1.0),
    (own(1, 0, on=0, makes=1)[0], (*own(1, 0, on=0, makes=1)[1], average(0, 0, 1))),
    finished(0, at=2.0),
    own(0, 1, on=1, makes=3, at=2.5),
    (own(1, 1, on=0, makes=3, at=3.0)[0], (*own(1, 1, on=0, makes=3)[1], average(1, 0, 1))),
    died(1, 1, at=3.5),
    (ReduceFailed(group=1, lost=(1,), at=4.0), ()),
    own(0, 2, on=3, makes=4, at=5.0),
]
# Worker 1 dies while the mean of round 0 is made; that has its gradient. Round 1 comes to nothing.
ROUNDS: list[Pair] = [
    began(0, 1),
    ready(0, 0, 0),
    ready(1, 0, 0, mean_gradient(0, (0, 0), (1, 0))),
    died(1, at=1.5),
    finished(0, StepReplica(worker=0, step=0, version=1, group=0)),
    ready(0, 1, 1, mean_gradient(1, (0, 1)), at=2.5),
]


def test_a_step_in_a_replica_is_applied_and_as_stale_as_the_replica_had_changed() -> None:
    tally = told([began(0), own(0, 0, on=0, makes=1), own(0, 1, on=0, makes=3, samples=4)])
    assert shares(tally) == [(2, 12)]
    assert summed_up(tally)["staleness"] == {"mean": 1.0, "max": 2, "histogram": {"0": 1, "2": 1}}
    assert not tally.model.outcomes.ready


def test_a_step_that_died_with_its_replica_is_taken_back() -> None:
    tally = told(PAIRS[:6])
    assert summed_up(tally)["staleness"]["histogram"] == {"0": 2, "1": 1, "2": 1}
    tally = told(PAIRS)
    assert shares(tally) == [(3, 24), (1, 8)]
    assert summed_up(tally)["staleness"] == {"mean": 0.25, "max": 1, "histogram": {"0": 3, "1": 1}}


def test_each_gradient_in_a_mean_that_was_stepped_with_counts_once_even_if_its_worker_is_gone() -> None:
    steps = [StepReplica(worker=worker, step=0, version=1, group=0) for worker in (0, 1)]
    both = told([*ROUNDS[:3], finished(0, *steps)])
    assert shares(both) == [(1, 8), (1, 8)]
    assert shares(told(ROUNDS)) == [(1, 8), (1, 8)]
    for tally in (both, told(ROUNDS)):
        assert summed_up(tally)["staleness"]["histogram"] == {"0": 2}
        assert not tally.model.outcomes.alone


def test_a_lead_is_in_steps_of_the_own_replica_and_nobody_leads_where_all_step_at_once() -> None:
    alone = told([began(0, 1), own(0, 0, 0, 1), own(0, 1, 1, 2), own(1, 0, 0, 1)])
    assert [row["max_lead"] for row in summed_up(alone)["per_worker"]] == [2, 0]
    steps = [StepReplica(worker=worker, step=0, version=1, group=0) for worker in (0, 1)]
    together = told([*ROUNDS[:3], finished(0, *steps)])
    assert [row["max_lead"] for row in summed_up(together)["per_worker"]] == [0, 0]


def test_versions_of_a_decentralized_run_are_its_recorded_means() -> None:
    tally = told(PAIRS)
    for version in (0, 3, 7):
        tally.recorded(version, 1.0, 8)
    assert summed_up(tally)["versions"] == 3
    assert summed_up(tally, "store")["versions"] == 0


def test_consensus_is_in_the_summary_and_in_the_ledger(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        journal = Journal(ledger)
        journal.consensus(0, 0.5, 4, 0.0)
        journal.consensus(7, 1.5, 3, 0.25)
    assert summed_up(journal.tally)["consensus"] == [
        {"version": 0, "at_seconds": 0.5, "distance": 0.0},
        {"version": 7, "at_seconds": 1.5, "distance": 0.25},
    ]
    assert rows(tmp_path / "ledger.sqlite", "SELECT * FROM consensus") == [(0, 0.5, 4, 0.0), (7, 1.5, 3, 0.25)]
    journal.tally.consensus(8, 2.0, math.inf)
    assert summed_up(journal.tally)["consensus"][-1]["distance"] is None


def test_applied_updates_are_those_in_replicas_that_were_not_lost_and_in_means_that_were_used(tmp_path: Path) -> None:
    query = "SELECT worker, step, version, weight FROM applied_updates ORDER BY worker, step"
    path = written(tmp_path / "pairs.sqlite", PAIRS)
    assert rows(path, query) == [(0, 0, 1, 1.0), (0, 1, 3, 1.0), (0, 2, 4, 1.0), (1, 0, 1, 1.0)]
    path = written(tmp_path / "rounds.sqlite", ROUNDS)
    assert rows(path, query) == [(0, 0, 1, 0.5), (1, 0, 1, 0.5)]


def read(path: Path, pairs: Sequence[Pair]) -> Timeline:
    return timeline_of(written(path, pairs, computed=True))


def test_an_average_is_in_each_members_lane_from_its_order_to_its_end(tmp_path: Path) -> None:
    zero, one = read(tmp_path / "pairs.sqlite", PAIRS).lanes
    first = AveragingSpan(began=1.0, ended=2.0, group=0, members=(0, 1), what="parameters", outcome="finished")
    second = AveragingSpan(began=3.0, ended=4.0, group=1, members=(0, 1), what="parameters", outcome="failed")
    assert zero.averaging == one.averaging == (first, second)
    zero, one = read(tmp_path / "rounds.sqlite", [*ROUNDS, died(0, at=6.0)]).lanes
    open_ = AveragingSpan(began=2.5, ended=6.0, group=1, members=(0,), what="gradients", outcome=None)
    assert (zero.averaging[1:], len(one.averaging)) == ((open_,), 1)


STOPPED: list[Pair] = [
    began(0, 1),
    own(0, 0, on=0, makes=1, at=1.0),
    (own(1, 0, on=0, makes=1)[0], (*own(1, 0, on=0, makes=1)[1], average(0, 0, 1))),
    (WorkerLeft(worker=1, reason="stopped", at=1.5), ()),
    finished(0, at=2.0),
]
"""Worker 1 had been stopped when its replica was ordered its step: the average is of the replica without it."""


def test_a_step_that_was_left_undone_is_applied_nowhere(tmp_path: Path) -> None:
    """Told as it happens, or known beforehand from the ledger."""
    path, live, again = tmp_path / "ledger.sqlite", Tally(), Tally()
    again.model.outcomes.undone = frozenset({(1, 0)})
    with closing(Ledger(path)) as ledger:
        journal = Journal(ledger)
        journal.tally = live
        for fact, orders in STOPPED:
            journal.record(fact, orders)
            again.record(fact, orders)
            if fact == STOPPED[2][0]:
                journal.undone(1, 0)
        ledger.epoch_opened(0, [[10], [11]], "digest")
        ledger.batch_used(0, 0, 0, 0, "step")
        ledger.batch_used(1, 0, 0, 1, "step")
    assert shares(live) == shares(again) == [(1, 8), (0, 0)]
    assert summed_up(live) == summed_up(again)
    assert rows(path, "SELECT worker, step FROM applied_updates") == [(0, 0)]
    assert rows(path, "SELECT sample FROM applied_samples") == [(10,)]


def test_a_step_that_was_left_undone_is_in_no_version_of_a_timeline(tmp_path: Path) -> None:
    """As in the summary. A reader that takes orders for made says that the update went into the replica."""
    path = written(tmp_path / "ledger.sqlite", STOPPED, computed=True)
    with closing(Ledger(path, resume=True)) as ledger:
        ledger.undone(1, 0)
    zero, one = timeline_of(path).lanes
    assert [step.made for step in (*zero.computing, *one.computing)] == [1, None]
