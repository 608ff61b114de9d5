"""What a timeline says of a run's ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from picture import timeline_of

from paceline.core.facts import (
    GradientReady,
    ParametersTaken,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import ApplyUpdate, Order, SwitchProtocol
from paceline.records.ledger import Ledger
from paceline.records.run_model import Stay, Switch
from paceline.records.timeline import (
    ComputingSpan,
    Timeline,
    TransferSpan,
    VersionMark,
    Waiting,
)
from paceline.records.times import FetchTimes, StepTimes, TransferTimes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(Ledger(path)) as ledger:
        yield ledger


@pytest.fixture
def read(path: Path, ledger: Ledger) -> Callable[[], Timeline]:
    def close_and_read() -> Timeline:
        ledger.close()
        return timeline_of(path)

    return close_and_read


def began(*workers: int, at: float = 0.0) -> TrainingBegan:
    return TrainingBegan(members=tuple((worker, "here", 0) for worker in workers), version=0, at=at)


def left(worker: int, reason: str, at: float) -> WorkerLeft:
    return WorkerLeft(worker=worker, reason=reason, at=at)


def make(version: int, *updates: tuple[int, int]) -> ApplyUpdate:
    return ApplyUpdate(version=version, contributions=tuple((worker, step, 1.0) for worker, step in updates))


def computed(ledger: Ledger, worker: int, step: int, version: int, since: float, until: float) -> None:
    """A step from then until then, on that version; its gradient is heard of at once."""
    fact = GradientReady(worker=worker, step=step, version=version, samples=8, at=until)
    ledger.record(fact, ())
    ledger.step_times(worker, step, StepTimes(since, until - since, 0.0, 0.0, 0.0, 0.0))


def arrived(ledger: Ledger, worker: int, step: int, at: float, *orders: Order) -> None:
    ledger.record(UpdateArrived(worker=worker, step=step, at=at), orders)


def fetched(
    ledger: Ledger, host: str, source: str, size: int, began: float, ended: float, worker: int | None = None
) -> None:
    """Version 3, or the update of step 3 of a worker."""
    kind = "version" if worker is None else "update"
    one = FetchTimes(host=host, source=source, kind=kind, worker=worker, number=3, bytes=size, began=began, ended=ended)
    ledger.fetched(one)


def step(began: float, ended: float, number: int, on: int, made: int | None = None) -> ComputingSpan:
    return ComputingSpan(began=began, ended=ended, step=number, version=on, made=made)


def test_a_worker_computes_or_waits_until_it_leaves(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.note("protocol", {"name": "asp", "config": {}})
    ledger.record(began(0, 1, at=0.5), ())
    computed(ledger, 0, 0, version=0, since=1.0, until=2.0)
    arrived(ledger, 0, 0, 2.5, make(1, (0, 0)))
    computed(ledger, 0, 1, version=1, since=3.0, until=4.0)
    computed(ledger, 1, 0, version=0, since=1.5, until=4.5)
    arrived(ledger, 1, 0, 5.0, make(2, (1, 0)))
    arrived(ledger, 0, 1, 5.5, make(3, (0, 1)))
    ledger.record(left(0, "finished", 6.0), ())
    ledger.record(left(1, "died", 7.0), ())
    zero, one = (timeline := read()).lanes
    assert (timeline.protocol, timeline.began, timeline.ended) == ("asp", 0.5, 7.0)
    assert timeline.versions[0] == VersionMark(version=1, at=2.5, updates=1)
    assert [one.staleness for lane in timeline.lanes for one in lane.computing] == [0, 1, 1]
    assert zero.stays == (Stay(began=0.5, ended=6.0, left="finished"),)
    assert zero.computing == (step(1.0, 2.0, 0, on=0, made=1), step(3.0, 4.0, 1, on=1, made=3))
    assert zero.waiting == (
        Waiting(began=0.5, ended=1.0),
        Waiting(began=2.0, ended=3.0),
        Waiting(began=4.0, ended=6.0),
    )
    assert one.stays == (Stay(began=0.5, ended=7.0, left="died"),)
    assert one.waiting == (Waiting(began=0.5, ended=1.5), Waiting(began=4.5, ended=7.0))


def test_what_a_host_fetched_is_a_pull_of_each_worker_that_took_it_and_a_push_of_the_update_s_worker(
    ledger: Ledger, read: Callable[[], Timeline]
) -> None:
    """Of a version that was fetched again, each worker has the last fetch before it took the version."""
    ledger.note("protocol", {"name": "asp", "config": {}})
    members = ((0, "node-0", 0), (1, "node-1", 0), (2, "node-1", 0), (3, "node-2", 0))
    ledger.record(TrainingBegan(members=members, version=0, at=0.0), ())

    def taken(worker: int, at: float) -> None:
        ledger.record(ParametersTaken(worker=worker, version=3, at=at), ())

    fetched(ledger, "node-1", "node-0", 40, 0.5, 1.0)
    taken(0, 1.0)
    taken(1, 1.0)
    fetched(ledger, "node-1", "node-0", 40, 1.5, 2.0)
    taken(2, 2.0)
    fetched(ledger, "node-2", "node-0", 40, 2.0, 2.5)
    taken(3, 2.5)
    fetched(ledger, "node-0", "node-1", 40, 2.5, 3.0, worker=2)
    moved = [[(one.direction, one.number, one.began, one.ended) for one in lane.transfers] for lane in read().lanes]
    assert moved == [
        [],
        [("pull", 3, 0.5, 1.0)],
        [("pull", 3, 1.5, 2.0), ("push", 3, 2.5, 3.0)],
        [("pull", 3, 2.0, 2.5)],
    ]
    assert read().hosts == {0: "node-0", 1: "node-1", 2: "node-1", 3: "node-2"}


def test_an_item_in_parts_is_one_pull_from_all_hosts_that_have_them_and_one_push_to_all_that_need_it(
    ledger: Ledger, read: Callable[[], Timeline]
) -> None:
    ledger.note("protocol", {"name": "asp", "config": {}})
    members = ((0, "node-0", 0), (1, "node-1", 0))
    ledger.record(TrainingBegan(members=members, version=0, at=0.0), ())

    fetched(ledger, "node-1", "node-0", 40, 0.5, 1.0)
    fetched(ledger, "node-1", "node-2", 30, 0.5, 2.0)
    ledger.record(ParametersTaken(worker=1, version=3, at=2.0), ())
    fetched(ledger, "node-2", "node-1", 8, 3.5, 4.0, worker=1)
    fetched(ledger, "node-0", "node-1", 9, 3.0, 5.0, worker=1)
    (_, lane) = read().lanes
    assert [(one.direction, one.size, one.began, one.ended) for one in lane.transfers] == [
        ("pull", 70, 0.5, 2.0),
        ("push", 17, 3.0, 5.0),
    ]


def test_transfers_go_on_beside_computing_and_are_told_apart(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.record(began(0), ())
    computed(ledger, 0, 0, version=0, since=1.0, until=3.0)
    ledger.transferred(0, "push", 0, 700, TransferTimes(3.0, 4.0, 4.1))
    ledger.transferred(0, "pull", 1, 700, TransferTimes(1.0, 2.0, 2.1))
    (lane,) = read().lanes
    assert lane.transfers == (
        TransferSpan(began=1.0, ended=2.0, direction="pull", number=1, size=700),
        TransferSpan(began=3.0, ended=4.0, direction="push", number=0, size=700),
    )
    assert lane.computing == (step(1.0, 3.0, 0, on=0),)


def test_who_comes_back_stays_twice_and_does_nothing_in_between(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.record(began(0), ())
    computed(ledger, 0, 0, version=0, since=0.0, until=1.0)
    ledger.record(left(0, "died", 2.0), ())
    ledger.record(WorkerJoined(worker=0, host="here", step=1, at=5.0), ())
    computed(ledger, 0, 1, version=0, since=6.0, until=7.0)
    (lane,) = read().lanes
    assert lane.stays == (Stay(began=0.0, ended=2.0, left="died"), Stay(began=5.0, ended=7.0, left=None))
    assert lane.waiting == (Waiting(began=1.0, ended=2.0), Waiting(began=5.0, ended=6.0))


def test_a_switch_has_a_time_and_begins_another_stay(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.record(began(0), ())
    members = ((0, "here", 1),)
    arrived(ledger, 0, 0, 3.0, SwitchProtocol(to="asp", parameters=(), members=members, since=2.0))
    ledger.record(began(0, at=3.5), ())
    timeline = read()
    assert timeline.switches == (Switch(to="asp", since=2.0, at=3.0, why=("unsaid",), pause=1.0),)
    assert timeline.began == 0.0
    first, second = Stay(began=0.0, ended=3.0, left="interrupted"), Stay(began=3.5, ended=3.5, left=None)
    assert timeline.lanes[0].stays == (first, second)


def test_where_clocks_disagree_steps_are_cut_so_that_none_overlap(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.record(began(0, at=1.0), ())
    computed(ledger, 0, 0, version=0, since=0.9, until=2.1)
    computed(ledger, 0, 1, version=0, since=2.0, until=3.0)
    ledger.record(left(0, "finished", 2.9), ())
    (lane,) = read().lanes
    assert lane.computing == (step(1.0, 2.1, 0, on=0), step(2.1, 2.9, 1, on=0))
    assert lane.waiting == ()


def test_times_of_a_step_whose_fact_was_not_written_are_left_out(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.record(began(0), ())
    ledger.step_times(0, 0, StepTimes(0.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    ledger.record(left(0, "died", 2.0), ())
    assert read().lanes[0].computing == ()


def test_a_step_has_what_copies_took_and_is_no_longer_by_that(ledger: Ledger, read: Callable[[], Timeline]) -> None:
    ledger.note("protocol", {"name": "asp", "config": {}})
    ledger.record(began(0, at=0.5), ())
    for number, copies in enumerate([(0.25, 0.5), (None, None)]):
        since = 1.0 + 2 * number
        ledger.record(GradientReady(worker=0, step=number, version=0, samples=8, at=since + 1.0), ())
        ledger.step_times(0, number, StepTimes(since, 1.0, 0.0, 0.0, 0.0, 0.0, *copies))
    ledger.record(left(0, "finished", 6.0), ())
    (lane,) = read().lanes
    first, second = step(1.0, 2.0, 0, on=0), step(3.0, 4.0, 1, on=0)
    assert lane.computing == (replace(first, to_device=0.25, from_device=0.5), second)
