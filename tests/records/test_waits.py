"""Who waited for whom, of histories made by hand and of simulated runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFinished,
    TrainingBegan,
    UpdateArrived,
    WorkerLeft,
)
from paceline.core.orders import Hold, Order, Reduce, Release, StartPush
from paceline.protocols import registry
from paceline.records import spans
from paceline.records.reading import open_run
from paceline.records.waits import Blame, Waits, WorkerWait
from records.histories import waits
from support.recorded import simulated

Pair = tuple[Fact, tuple[Order, ...]]

BEGAN: Pair = TrainingBegan(members=((0, "here", 0), (1, "here", 0)), version=0, at=0.0), ()


def ready(worker: int, step: int, at: float, *orders: Order) -> Pair:
    return GradientReady(worker=worker, step=step, version=0, samples=8, at=at), orders


def arrived(worker: int, step: int, at: float, *orders: Order) -> Pair:
    return UpdateArrived(worker=worker, step=step, at=at), orders


def hold(worker: int, *why: str | int) -> Hold:
    return Hold(worker=worker, why=why)


def release(worker: int, step: int) -> Release:
    return Release(worker=worker, step=step, version=1)


def found(*pairs: Pair) -> list[WorkerWait]:
    return list(waits(pairs))


def blame(ended: Iterable[WorkerWait]) -> list[dict[int, float]]:
    """Whom these waits are due to, told after the last of them."""
    return [due for _, due in Blame(Waits()).judge(ended)]


def test_a_wait_ends_with_the_release_and_is_blamed_on_the_worker_whose_fact_brought_it() -> None:
    assert found(
        BEGAN,
        ready(0, 0, 1.0),
        arrived(0, 0, 1.5, hold(0, "awaits", 1)),
        ready(1, 0, 3.0),
        arrived(1, 0, 4.0, release(0, 1), release(1, 1)),
    ) == [
        WorkerWait(
            worker=0,
            step=0,
            began=1.5,
            ended=4.0,
            awaited=1,
            why=("awaits", 1),
            cause=5,
            fact=UpdateArrived(worker=1, step=0, at=4.0),
        )
    ]


def test_a_reason_of_another_kind_is_another_wait() -> None:
    first, second = found(
        BEGAN,
        arrived(0, 0, 1.0, hold(0, "turn", 1)),
        arrived(1, 0, 3.0, hold(0, "awaits", 1)),
        ready(1, 1, 5.0, release(0, 1)),
    )
    assert (first.began, first.ended, first.why, first.cause) == (1.0, 3.0, ("turn", 1), 3)
    assert (second.began, second.ended, second.why, second.cause) == (3.0, 5.0, ("awaits", 1), 4)


def test_who_still_waits_when_one_of_several_has_come_waits_for_the_last_of_them() -> None:
    (wait,) = found(
        BEGAN,
        arrived(0, 0, 1.0, hold(0, "awaits", "1, 2")),
        arrived(1, 0, 3.0, hold(0, "awaits", "2")),
        arrived(2, 0, 6.0, release(0, 1)),
    )
    assert (wait.began, wait.ended, wait.awaited, wait.why) == (1.0, 6.0, 2, ("awaits", "2"))


def test_what_a_worker_ends_itself_or_a_group_does_is_blamed_on_nobody() -> None:
    own, group = found(
        BEGAN,
        ready(0, 0, 1.0, hold(0, "pulling")),
        (ParametersTaken(worker=0, version=1, at=2.0), (release(0, 1),)),
        ready(1, 0, 2.5, hold(1, "averaging")),
        (ReduceFinished(group=0, at=4.0), (release(1, 1),)),
    )
    assert (own.worker, own.awaited) == (0, None)
    assert (group.worker, group.awaited, group.cause) == (1, None, 5)


def test_a_wait_ends_when_its_worker_goes_on_in_any_way() -> None:
    reduce = Reduce(group=0, members=(0, 1), what="parameters")
    ends = found(
        BEGAN,
        ready(0, 0, 1.0, hold(0, "turn")),
        ready(1, 0, 2.0, StartPush(worker=0, step=0), hold(1, "turn")),
        ready(0, 1, 3.0, reduce, hold(0, "late")),
        (WorkerLeft(worker=0, reason="died", at=5.0), ()),
    )
    assert [(wait.worker, wait.step, wait.began, wait.ended) for wait in ends] == [
        (0, 0, 1.0, 2.0),
        (1, 0, 2.0, 3.0),
        (0, 1, 3.0, 5.0),
    ]
    assert ends[-1].awaited is None


def test_a_wait_that_never_ends_goes_on_to_the_last_fact_and_has_no_cause() -> None:
    (wait,) = found(BEGAN, arrived(0, 0, 1.0, hold(0, "awaits", 1)), ready(1, 0, 2.0))
    assert (wait.ended, wait.seconds, wait.awaited, wait.cause) == (2.0, 1.0, None, None)


def test_what_begins_and_ends_at_the_same_moment_is_no_wait() -> None:
    assert found(BEGAN, arrived(0, 0, 1.0, hold(0, "awaits", 1)), ready(1, 0, 1.0, release(0, 1))) == []


@pytest.mark.parametrize("protocol", ["bsp", "ssp", "dssp", "all-reduce", "ripples"])
def test_of_a_straggler_everybody_waits_for_it_for_as_long_as_the_step_times_say(tmp_path: Path, protocol: str) -> None:
    run = open_run(simulated(tmp_path / "run", protocol, steps=100), registry())
    with closing(run.ledger):
        every = list(waits(run.history()))
        ((measured,),) = run.ledger.execute("SELECT sum(wait) FROM step_times")
    seconds = {worker: sum(wait.seconds for wait in every if wait.awaited == worker) for worker in range(4)}
    assert seconds[3] > 10 * max(seconds[worker] for worker in range(3))
    assert sum(wait.seconds for wait in every) == pytest.approx(measured, rel=0.1)


def wait(worker: int, began: float, ended: float, awaited: int | None) -> WorkerWait:
    return WorkerWait(worker=worker, step=0, began=began, ended=ended, awaited=awaited, why=("",), cause=1)


def test_of_a_wait_for_one_that_waited_itself_the_one_behind_it_is_to_blame_for_that_part() -> None:
    assert blame([wait(1, 2.0, 5.0, 2), wait(0, 1.0, 6.0, 1)]) == [{2: 3.0}, {1: 2.0, 2: 3.0}]


def test_a_wait_for_nobody_is_due_to_nobody_and_is_passed_on_to_nobody() -> None:
    assert blame([wait(1, 1.0, 3.0, None), wait(0, 1.0, 3.0, 1)]) == [{}, {1: 2.0}]


def test_of_a_chain_at_one_moment_the_first_link_is_to_blame(tmp_path: Path) -> None:
    folder = simulated(
        tmp_path / "run", "hsp:idle=guarded,stale=next,broadcast=all", steps=100
    )  # its pushes take turns
    run = open_run(folder, registry())
    with closing(run.ledger):
        due = blame(waits(run.history()))
    seconds = {worker: sum(one.get(worker, 0.0) for one in due) for worker in range(4)}
    assert seconds[3] > 10 * max(seconds[worker] for worker in range(3))


def test_blame_is_told_when_the_awaited_worker_waits_no_longer() -> None:
    found, history = Waits(), (BEGAN, ready(1, 0, 2.0, hold(1, "turn")))
    for fact, orders in history:
        assert found.record(fact, orders) == []
    judge, first = Blame(found), wait(0, 1.0, 6.0, 1)
    assert list(judge.judge([first])) == []
    (second,) = found.record(*ready(2, 0, 7.0, release(1, 1)))
    assert list(judge.judge([second])) == [(first, {1: 1.0, 2: 4.0}), (second, {2: 5.0})]


@pytest.mark.parametrize("protocol", ["bsp", "ssp", "hsp:idle=guarded,stale=next,broadcast=all", "ripples"])
def test_blame_told_as_waits_end_is_that_told_after_the_last(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "LEAST", 0)  # forget whatever may be forgotten, at once
    run = open_run(simulated(tmp_path / "run", protocol, steps=400), registry())
    with closing(run.ledger):
        found, streamed = Waits(), []
        judge = Blame(found)
        most = 0
        for fact, orders in run.history():
            streamed += judge.judge(found.record(fact, orders))
            most = max(most, judge.own.kept)
        streamed += judge.judge(found.rest())
        every = list(waits(run.history()))
    assert streamed == list(zip(every, blame(every), strict=True))
    assert len(every) > 100
    assert most < len(every) / 4
