"""Replicas on a host that is not the head: what is kept, what comes from other hosts, and what is free again."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.items import Mean, Replica, Version
from paceline.host import messages as host_messages
from paceline.host.memory_plan import MemoryPlan
from paceline.host.replicas.host_replicas import HostReplicas
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of

PLAN = MemoryPlan(2, slots=0, areas=10)


class Replicas:
    """Host b with workers 2 and 3, whose replicas have begun as version 0."""

    def __init__(self) -> None:
        self.carrier, self.memory, self.workers = Mock(), Mock(), Mock()
        self.said: list[Any] = []
        self.shelf = Shelf(on_emptied=lambda place: self.here.emptied(place))
        seats = {worker: WorkerState(worker, trains=True) for worker in (2, 3)}
        self.here = HostReplicas(
            self.shelf, PLAN, self.memory, self.workers, seats, Mock(), self.carrier, self.said.append, name="b"
        )
        self.shelf.put(Version(0), ("beginning",), PLAN.shared)
        self.here.begin((2, 3), Version(0))
        self.shelf.release(("beginning",))

    def step(self, worker: int, step: int, change: int | None) -> messages.worker.MakeStep:
        """Have the worker's replica stepped, and say that it is. Return what the worker is told."""
        self.here.carry_out(host_messages.TakeStep(worker, step, change, None, None))
        _, told = self.workers.send.call_args.args
        assert isinstance(told, messages.worker.MakeStep)
        self.here.steps.stepped(worker, step)
        return told

    def comes(self, number: int, replica: Replica) -> None:
        """That replica comes from host a."""
        self.here.carry_out(host_messages.CopyItem(number, fields_of(replica), "a"))

    def is_here(self, replica: Replica) -> None:
        """All of it has come."""
        self.here.free(replica, True)
        self.carrier.fetch.call_args.args[2]()


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def test_a_replica_is_not_stepped_in_place_while_the_head_needs_it(replicas: Replicas) -> None:
    first = replicas.step(2, 0, 1).target
    assert replicas.step(2, 1, 2).target == first
    replicas.here.carry_out(host_messages.KeepItem(fields_of(Replica(2, 2))))
    second = replicas.step(2, 2, 3)
    assert (second.source, replicas.shelf.place(Replica(2, 2))) == (first, first)
    assert second.target != first
    replicas.here.carry_out(host_messages.ReleaseItem(fields_of(Replica(2, 2))))
    assert not replicas.shelf.has(Replica(2, 2))
    assert replicas.step(2, 3, 4).target == second.target


def test_another_host_that_asks_before_the_head_has_said_so_waits_until_the_replica_is_named(
    replicas: Replicas,
) -> None:
    copy = Replica(5, 0)
    assert replicas.here.look(copy, 0, 10) == "coming"
    replicas.here.carry_out(host_messages.KeepItem(fields_of(copy), fields_of(Replica(3, 0))))
    replicas.carrier.made.assert_called_once_with(copy)
    assert replicas.here.look(copy, 0, 10) == "here"
    assert replicas.shelf.place(copy) == replicas.shelf.place(Replica(3, 0))


def test_a_copy_is_the_worker_s_replica_once_the_head_says_so_and_its_place_is_not_free_then(
    replicas: Replicas,
) -> None:
    copy = Replica(2, 7)
    replicas.comes(4, copy)
    assert replicas.here.look(copy, 0, 10) == "coming"
    assert replicas.said == []
    replicas.is_here(copy)
    assert replicas.said == [host_messages.ItemCopied(4)]
    replicas.here.carry_out(host_messages.TakeReplica(2, 7, recorded=False))
    replicas.here.carry_out(host_messages.DropCopy(4))
    assert replicas.here.steps.replica(2) == copy
    assert replicas.here.area(2) == replicas.shelf.place(copy)
    assert not replicas.shelf.has(Replica(2, 0))


def test_what_is_here_is_not_fetched_once_more_and_goes_with_the_last_that_needs_it(replicas: Replicas) -> None:
    copy = Replica(7, 1)
    replicas.comes(1, copy)
    place = replicas.shelf.place(copy)
    replicas.is_here(copy)
    replicas.comes(2, copy)
    assert replicas.said == [host_messages.ItemCopied(1), host_messages.ItemCopied(2)]
    assert replicas.carrier.fetch.call_count == 1
    replicas.here.carry_out(host_messages.DropCopy(1))
    assert replicas.shelf.has(copy)
    replicas.here.carry_out(host_messages.DropCopy(2))
    assert not replicas.shelf.has(copy)
    replicas.memory.discard.assert_called_once_with(place)


def test_a_copy_that_is_not_needed_any_more_stops_and_may_come_again(replicas: Replicas) -> None:
    copy = Replica(7, 1)
    replicas.comes(1, copy)
    replicas.here.carry_out(host_messages.DropCopy(1))
    replicas.carrier.cancel.assert_called_once_with(("brought", 1))
    assert not replicas.shelf.has(copy)
    replicas.comes(2, copy)
    assert replicas.carrier.fetch.call_count == 2


def test_a_worker_hears_that_it_takes_part_once_its_replica_is_here(replicas: Replicas) -> None:
    told, copy = Mock(), Replica(2, 3)
    replicas.comes(1, copy)
    replicas.here.carry_out(host_messages.TakeReplica(2, 3, recorded=False))
    replicas.here.when_there(2, told)
    told.assert_not_called()
    replicas.is_here(copy)
    told.assert_called_once_with()


def test_a_mean_gradient_is_kept_until_the_members_here_were_told_to_step_with_it_or_have_left(
    replicas: Replicas,
) -> None:
    replicas.shelf.put(Mean(4), ("mean of group", 4), PLAN.shared)
    replicas.here.steps.await_steps(4, (2, 3))
    replicas.here.carry_out(host_messages.TakeStep(2, 0, 1, 4, None))
    replicas.here.steps.stepped(2, 0)
    assert replicas.shelf.has(Mean(4))
    replicas.here.steps.left(3)
    assert not replicas.shelf.has(Mean(4))


def test_a_step_that_a_replica_goes_without_changes_nothing(replicas: Replicas) -> None:
    replicas.here.carry_out(host_messages.TakeStep(2, 0, None, None, None))
    replicas.workers.send.assert_not_called()
    assert replicas.here.steps.replica(2) == Replica(2, 0)


def test_a_replica_comes_whole_from_the_host_that_has_it(replicas: Replicas) -> None:
    replicas.memory.offer = Mock(cuts=[0, 40, 90], averaged_at=[0, 40, 90], push_bytes=120)
    replicas.comes(1, Replica(7, 1))
    ranges = replicas.here.ranges(Replica(7, 1))
    assert {host for host, _, _ in ranges} == {"a"}
    assert (min(begin for _, begin, _ in ranges), max(end for _, _, end in ranges)) == (0, 120)
