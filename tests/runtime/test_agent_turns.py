"""Orders to a host wait until what training begins with is there. What the run's end may need does not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from paceline.coordinator.agent import _Agent
from paceline.host import messages as host_messages
from paceline.host.events import WorkerEnded


class Turns:
    """A host's end of what the head says, while what training begins with is on its way."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.agent = _Agent.__new__(_Agent)
        self.agent.over, self.agent._to_start = None, set()
        self.branch, self.workers, self.link = Mock(), Mock(), Mock()
        self.agent._branch, self.agent._workers, self.agent._link = self.branch, self.workers, self.link
        self.agent._mover = Mock()
        self.branch.in_turn = self.later.append

    def begins(self) -> None:
        """What training begins with is there."""
        for call in self.later:
            call()


@pytest.mark.parametrize("why", [None, "it lacks a version"])
def test_a_worker_is_ended_though_training_has_yet_to_begin_there(why: str | None) -> None:
    host = Turns()
    host.agent.delivered(host_messages.EndWorker(2, why))
    if why is None:
        host.workers.end.assert_called_once_with(2)
    else:
        host.workers.give_up.assert_called_once_with(2, why)


def test_a_host_that_is_lost_and_a_stopped_store_are_seen_to_at_once() -> None:
    host = Turns()
    host.agent.delivered(host_messages.HostLost("c", "silent"))
    host.branch.miss.assert_called_once_with("c", "silent")
    host.agent.delivered(host_messages.Wake())
    host.branch.wake.assert_called_once_with()


def test_what_else_the_head_orders_waits_in_order() -> None:
    host = Turns()
    for order in (host_messages.VersionMade(1), host_messages.WorkerGone(2, True), host_messages.ForgetWorker(2)):
        host.agent.delivered(order)
    assert host.branch.mock_calls == []
    host.begins()
    assert [name for name, *_ in host.branch.mock_calls] == ["made", "left", "gone"]


def test_a_worker_that_is_ended_before_its_turn_to_begin_never_begins_and_its_end_is_told() -> None:
    host = Turns()
    host.agent.delivered(host_messages.StartWorker(2))
    host.agent.delivered(host_messages.EndWorker(2, None))
    host.link.send.assert_called_once_with(WorkerEnded(2, signal.SIGKILL))
    host.workers.end.assert_not_called()
    host.begins()
    host.branch.returns.assert_called_once_with(2)
    host.workers.start.assert_not_called()


def test_a_worker_that_is_started_once_more_after_that_begins_once() -> None:
    host = Turns()
    for order in (host_messages.StartWorker(2), host_messages.EndWorker(2, None), host_messages.StartWorker(2)):
        host.agent.delivered(order)
    host.begins()
    host.workers.start.assert_called_once_with([2])
