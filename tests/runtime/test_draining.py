"""Workers that hold up a host which leaves in good order, and the signals that ask it to.

When workers leave, ranges move and the host goes is for the histories of `tests/cluster`.
"""

from __future__ import annotations

import signal
from typing import Any
from unittest.mock import Mock, call

import pytest

from paceline.coordinator.agent import _interrupted
from paceline.coordinator.drain import Drain
from paceline.coordinator.member import Member, Members
from paceline.coordinator.shutdown import GRACE
from paceline.ipc import messages

SECONDS = 10.0
STOP = messages.worker.StopTraining(at_once=True, interrupted=False)


class Run:
    """Workers 0 on the head, and 1 and 2 on host b, which all train."""

    def __init__(self) -> None:
        self.coming: dict[int, tuple[int, ...]] = {}
        self.told: list[tuple[int, messages.Message]] = []
        self.killed: list[int] = []
        self.departing, self.ledger, self.loop, self.say = Mock(), Mock(), Mock(), Mock()
        departures: Any = Mock(leave=self._leave)
        host: Any = Mock(numbers=range(3), kill=self.killed.append)
        host.updates = lambda worker: Mock(coming=self.coming.get(worker, ()), unapplied=())
        host.send = lambda worker, message: self.told.append((worker, message))
        self.members = Members(host, {0: "head", 1: "b", 2: "b"}, lambda: 0.0)
        for worker in self.members:
            self.members.trains(worker)
        output: Any = Mock(say=self.say)
        self.draining = Drain(self.members, host, self.departing, departures, self.ledger, self.loop, output, SECONDS)

    def _leave(self, member: Member, how: str) -> None:
        assert how == "drained"
        self.members.leaves(member.worker, how)  # type: ignore[arg-type]

    def asked(self) -> None:
        self.draining.asked("b")
        self.draining.go_on()

    def after(self, seconds: float) -> None:
        """So many seconds are over."""
        for due, call_it in (one.args for one in self.loop.after.call_args_list):
            if due == seconds:
                call_it()

    def gone(self, *workers: int) -> None:
        for worker in workers:
            self.members.goes(worker)
        self.draining.go_on()


def test_a_worker_that_has_finished_before_is_told_to_stop_and_its_end_is_no_death() -> None:
    run = Run()
    run.members.leaves(1, "finished")
    assert not run.draining.sees_off(1)
    run.asked()
    assert (1, STOP) in run.told
    assert run.members[1].left == "finished"
    assert run.draining.sees_off(1)
    assert not run.draining.sees_off(0)


def test_a_worker_whose_script_outlasts_its_grace_is_ended() -> None:
    run = Run()
    run.asked()
    run.gone(2)
    run.after(GRACE)
    assert run.killed == [1]


def test_workers_whose_step_or_update_is_not_there_in_time_are_lost_and_the_host_leaves_without_them() -> None:
    run = Run()
    run.members[1].step, run.coming[2] = 4, (4,)
    run.asked()
    run.after(GRACE)
    assert run.killed == []
    run.after(SECONDS)
    assert run.killed == [1, 2]
    assert not run.draining.sees_off(1), "its end is a death"
    said = "host b leaves without workers 1, 2, which have not finished their steps within 10 s (--drain)"
    assert run.say.call_args == call(said)
    run.gone(1, 2)
    assert run.departing.move.called


@pytest.mark.parametrize(
    ("signals", "keyboard", "may_drain", "does"),
    [
        (1, False, True, call.drain()),
        (2, False, True, call.leave("it was interrupted", "interrupted")),
        (1, True, True, call.leave("it was interrupted", "interrupted")),
        (1, False, False, call.leave("it was interrupted", "interrupted")),
    ],
)
def test_one_sigterm_has_a_host_leave_in_good_order_unless_its_standard_input_has_ended(
    signals: int, keyboard: bool, may_drain: bool, does: Any
) -> None:
    here = Mock()
    _interrupted(
        here, Mock(take=lambda: signals, last=signal.SIGINT if keyboard else signal.SIGTERM), lambda: may_drain
    )
    assert here.mock_calls == [does]
