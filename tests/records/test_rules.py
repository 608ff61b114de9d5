"""Rules that a check holds facts and orders to, of histories made by hand: sums, groups, and samples of versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.choice import choose
from paceline.core.facts import (
    AlarmRang,
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFinished,
    TrainingBegan,
    UpdateArrived,
)
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, SetAlarm, StepReplica
from paceline.protocols import registry
from paceline.records import violations
from paceline.records.check.versions_made import VersionsMade
from paceline.records.rules import Rules
from paceline.records.violations import Violation
from support.recorded import checked, edited, said, simulated, wrong


class Told:
    """What follows from a history. Each worker's first gradient has as many samples as are given."""

    def __init__(
        self,
        protocol: str,
        *samples: int,
        undone: frozenset[tuple[int, int]] = frozenset(),
        recorded: dict[int, int | None] | None = None,
    ) -> None:
        choice = choose(protocol, registry())
        self.rules, self.made = Rules(choice), VersionsMade(choice, recorded=recorded or {})
        self.rules.outcomes.undone = undone
        self.members = tuple((worker, f"node-{worker // 2}", 0) for worker in range(len(samples)))
        self.told(TrainingBegan(members=self.members, version=0, at=0.0))
        for worker, count in enumerate(samples):
            self.told(ParametersTaken(worker=worker, version=0, at=0.0))
            self.told(GradientReady(worker=worker, step=0, version=0, samples=count, at=0.0))

    def told(self, fact: Fact, *orders: Order) -> None:
        self.rules.fact(fact)
        for order in orders:
            self.made.order(order, self.rules.order(order))

    def steps_a_replica(self) -> None:
        """Worker 0's, with its own gradient."""
        step = StepReplica(worker=0, step=0, version=1)
        self.told(GradientReady(worker=1, step=1, version=0, samples=4, at=2.0), step)


def broken_rule(*arrivals: tuple[int, int | None, float]) -> str | None:
    """The rule that these break. Each is the (worker, sum, at) of an update that arrives."""
    history = Told("bsp", 1, 1, 1, 1)
    try:
        for worker, number, at in arrivals:
            history.told(UpdateArrived(worker=worker, step=0, sum=number, at=at))
        history.told(TrainingBegan(members=tuple((*one[:2], 1) for one in history.members), version=0, at=2.0))
    except Violation as broken:
        return broken.rule
    return None


def test_updates_arrive_together_with_those_of_their_host_or_alone() -> None:
    assert broken_rule((0, 7, 1.0), (1, 7, 1.0), (2, 8, 1.5), (3, 8, 1.5)) is None
    assert broken_rule((0, None, 1.0), (1, None, 1.1), (2, 8, 1.5), (3, 8, 1.5)) is None


@pytest.mark.parametrize(
    "arrivals",
    [
        [(0, 7, 1.0), (1, None, 1.0), (2, 8, 1.5), (3, 8, 1.5)],
        [(0, 7, 1.0), (1, 7, 1.0), (2, 8, 1.5)],
        [(0, 7, 1.0), (1, 7, 1.0), (2, 7, 1.0), (3, 7, 1.0)],
        [(0, 7, 1.0), (1, 7, 1.1), (2, 8, 1.5), (3, 8, 1.5)],
        [(0, 7, 1.0), (0, 7, 1.0)],
        [(0, 7, 1.0), (2, 8, 1.0), (1, 7, 1.0), (3, 8, 1.0)],
    ],
    ids=["of one", "the last one of one", "of two hosts", "at two moments", "of one worker twice", "in two parts"],
)
def test_a_sum_that_no_host_has_made_is_named(arrivals: list[tuple[int, int | None, float]]) -> None:
    assert broken_rule(*arrivals) == violations.SUMS


def test_a_run_on_one_host_has_no_sums_and_the_last_sum_of_a_run_is_of_several_updates_too(tmp_path: Path) -> None:
    alone = simulated(tmp_path / "alone", "bsp")
    last = "(SELECT max(id) FROM facts WHERE kind = 'UpdateArrived')"
    hosts = said(simulated(tmp_path / "hosts", "bsp"), hosts=2)
    assert checked(hosts).ok
    for folder, which in ((alone, "kind = 'UpdateArrived'"), (hosts, f"id = {last}")):
        found = wrong(edited(folder, f"UPDATE facts SET body = json_set(body, '$.sum', 1) WHERE {which}"))
        assert (found.table, found.rule) == ("facts", violations.SUMS)


def test_an_alarm_rings_once_after_its_time_and_none_is_set_as_a_run_is_resumed() -> None:
    history, ten = Told("quorum:m=1", 1, 1), SetAlarm(number=10, seconds=0.5)
    history.told(UpdateArrived(worker=0, step=0, at=1.0), ten)
    history.told(AlarmRang(number=10, at=1.5 - 1e-9))  # rounded
    with pytest.raises(Violation, match=violations.ALARMS):  # it has rung
        history.told(AlarmRang(number=10, at=1.6))
    history.told(UpdateArrived(worker=1, step=0, at=2.0), SetAlarm(number=11, seconds=0.5))
    with pytest.raises(Violation, match=violations.ALARMS):  # it is early
        history.told(AlarmRang(number=11, at=2.4))
    history.told(ParametersTaken(worker=1, version=0, at=2.5), SetAlarm(number=12, seconds=0.5))
    with pytest.raises(Violation, match=violations.ALARMS):
        history.rules.order(SetAlarm(number=12, seconds=1.0))
    resumed = tuple((*one[:2], 1) for one in history.members)
    history.told(TrainingBegan(members=resumed, version=0, at=3.0))
    with pytest.raises(Violation, match=violations.ALARMS):
        history.told(AlarmRang(number=12, at=4.0))


def test_a_worker_is_in_one_group_at_a_time() -> None:
    first, second = (Reduce(group=group, members=(group, 1), what="parameters") for group in (0, 2))
    history = Told("ad-psgd", 1, 1, 1)
    with pytest.raises(Violation, match=violations.NO_OVERLAP):
        history.told(GradientReady(worker=0, step=1, version=0, samples=1, at=2.0), first, second)


# --- of how many samples a version is


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


def test_samples_that_were_lost_with_a_replica_are_taken_back_and_those_of_an_undone_step_never_count() -> None:
    for undone, counted in ((frozenset[tuple[int, int]](), 8), (frozenset({(0, 0)}), 0)):
        history = Told("ripples", 8, 4, undone=undone)
        history.steps_a_replica()
        assert history.made.samples == counted
        history.told(GradientReady(worker=1, step=2, version=0, samples=4, at=2.0), drop(0))
        assert history.made.samples == 0
