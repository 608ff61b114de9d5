"""Replicas on a host that is not the head: what comes from other hosts, and what others may have."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.items import Replica, Version
from paceline.host import messages as host_messages
from paceline.host.memory_plan import MemoryPlan
from paceline.host.overlap import Computing
from paceline.host.replicas.host_replicas import HostReplicas
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.transfer.item_names import fields_of

PLAN = MemoryPlan(2, slots=0, areas=10)


class Replicas:
    """Host b with workers 2 and 3, whose replicas have begun as version 0."""

    def __init__(self) -> None:
        self.carrier, self.memory, self.workers = Mock(), Mock(), Mock()
        self.said: list[Any] = []
        self.shelf = Shelf(on_emptied=lambda place: self.here.emptied(place))
        seats = {worker: WorkerState(worker, trains=True) for worker in (2, 3)}
        given = self.shelf, PLAN, self.memory, self.workers, seats, Mock(), self.carrier
        self.here = HostReplicas(*given, self.said.append, Computing(), name="b")
        self.shelf.put(Version(0), ("beginning",), PLAN.shared)
        self.here.begin({2: 0, 3: 0}, Version(0))
        self.shelf.release(("beginning",))

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


def test_a_step_that_a_replica_goes_without_changes_nothing(replicas: Replicas) -> None:
    replicas.here.carry_out(host_messages.TakeStep(2, 0, None, None, None))
    assert replicas.here.steps.replica(2) == Replica(2, 0)
    replicas.workers.send.assert_not_called()
