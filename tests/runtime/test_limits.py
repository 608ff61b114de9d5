"""What ends a run, and how gently: limits, targets and signals, without processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from paceline.coordinator.member import Members
from paceline.coordinator.shutdown import GRACE, GRACE_AT_CTRL_C, GRACE_AT_LIMIT, PATIENCE, Shutdown
from paceline.ipc import messages
from paceline.records.summary import Target

Stopped = tuple[int, bool, bool]
"""A worker that was told to stop: itself, whether at once, whether as Ctrl-C does it."""


class Run:
    """Two workers that train. A test says when time has passed."""

    def __init__(self, **given: Any) -> None:
        limits = {"max_steps": None, "max_seconds": None, "targets": (), "stop_at_target": False}
        limits |= {"on_divergence": "stop", "checkpoint": 0, "drain": 10.0, "resumed": None, **given}
        settings: Any = SimpleNamespace(**limits)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.said: list[str] = []
        self.stopped: list[Stopped] = []
        self.signalled: list[tuple[int, int]] = []
        self.killed: list[int] = []
        self.before: Callable[[Callable[[], None]], None] = lambda go_on: go_on()
        loop: Any = SimpleNamespace(after=lambda seconds, call: self.timers.append((seconds, call)))
        others: Any = Mock(give_up=lambda: self.said.append("other hosts are given up"))
        output: Any = Mock(say=self.said.append)
        snapshots: Any = Mock(stop=lambda go_on: self.before(go_on))
        departures: Any = Mock(leave=lambda member, how: self.members.leaves(member.worker, how))
        host: Any = Mock(numbers=range(2), send=self._send, kill=self.killed.append)
        self.members = Members(host, {}, lambda: 0.0)
        for worker in self.members:
            self.members.trains(worker)
        self.shutdown = Shutdown(settings, self.members, departures, snapshots, host, others, loop, output)

    def _send(self, worker: int, message: Any) -> None:
        if isinstance(message, messages.worker.Signal):
            self.signalled.append((worker, message.number))
        else:
            self.stopped.append((worker, message.at_once, message.interrupted))

    def pass_time(self) -> list[float]:
        """Let all that is due come about. Return after how many seconds each was."""
        due, self.timers = self.timers, []
        for _, call in due:
            call()
        return [seconds for seconds, _ in due]


GENTLY, AT_ONCE, LIKE_CTRL_C = (False, False), (True, False), (False, True)


def told(how: tuple[bool, bool]) -> list[Stopped]:
    return [(worker, *how) for worker in range(2)]


@pytest.mark.parametrize(
    ("given", "happens", "line"),
    [
        ({"max_steps": 4}, lambda run: run.shutdown.stepped(4), "--max-steps is reached: ending the run"),
        (
            {"max_seconds": 1.0},
            lambda run: run.shutdown.training_begins(0.0),
            "--max-seconds is reached: ending the run",
        ),
        (
            {"targets": (Target.parse("accuracy>=0.9"),), "stop_at_target": True},
            lambda run: run.shutdown.evaluated({"accuracy": 0.95}),
            "--stop-at-target: accuracy>=0.9 is reached: ending the run",
        ),
    ],
)
def test_a_limit_ends_a_run_gently_and_completes_it(
    given: dict[str, Any], happens: Callable[[Run], None], line: str
) -> None:
    run = Run(**given)
    happens(run)
    run.pass_time()
    assert run.stopped == told(GENTLY)
    assert run.said[0] == line
    assert run.shutdown.outcome == "completed"
    assert [member.left for member in run.members.values()] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("given", "happens"),
    [
        ({"max_steps": 4}, lambda run: run.shutdown.stepped(3)),
        ({}, lambda run: (run.shutdown.stepped(1_000_000), run.shutdown.begin(), run.shutdown.training_begins(0.0))),
        ({"targets": (Target.parse("accuracy>=0.9"),)}, lambda run: run.shutdown.evaluated({"accuracy": 1.0})),
    ],
)
def test_a_limit_that_is_not_reached_or_not_set_ends_nothing(
    given: dict[str, Any], happens: Callable[[Run], None]
) -> None:
    run = Run(**given)
    happens(run)
    assert run.timers == []
    assert run.stopped == []


def test_targets_may_be_met_by_different_versions() -> None:
    run = Run(targets=(Target.parse("accuracy>=0.9"), Target.parse("loss<=1")), stop_at_target=True)
    run.shutdown.evaluated({"accuracy": 0.95, "loss": 2.0})
    assert run.stopped == []
    run.shutdown.evaluated({"accuracy": 0.5, "loss": 0.5})
    assert run.stopped == told(GENTLY)


@pytest.mark.parametrize(("at", "left"), [(0.0, 5.0), (3.5, 1.5), (9.0, 0.0)])
def test_seconds_count_from_the_beginning_of_training_and_a_resumed_run_has_those_that_are_left(
    at: float, left: float
) -> None:
    run = Run(max_seconds=5.0)
    run.members.trained = False
    run.shutdown.begin()
    assert [seconds for seconds, _ in run.timers] == [PATIENCE]  # nothing ends it that was not asked for
    run.timers.clear()
    run.members.trained = True
    run.shutdown.training_begins(at)
    assert [seconds for seconds, _ in run.timers] == [left]


@pytest.mark.parametrize(("limit", "patience"), [(1.0, "600s"), (7200.0, "7200s")])
def test_a_run_with_a_limit_fails_if_its_training_does_not_begin(limit: float, patience: str) -> None:
    run = Run(max_seconds=limit)
    run.members.trained = False
    run.shutdown.begin()
    run.pass_time()
    error = f"training had not begun after {patience}, and --max-seconds asks for an end"
    assert (run.shutdown.outcome, run.shutdown.error) == ("failed", error)
    assert run.stopped == told(GENTLY)


def test_training_that_has_begun_is_not_ended_by_the_limit_on_its_beginning() -> None:
    run = Run(max_seconds=1.0)
    run.shutdown.begin()
    run.pass_time()
    assert run.stopped == []


@pytest.mark.parametrize(
    ("keyboard", "trains", "how", "grace"),
    [
        (True, True, LIKE_CTRL_C, GRACE_AT_CTRL_C),
        (True, False, AT_ONCE, GRACE),
        (False, True, AT_ONCE, GRACE),
    ],
)
def test_the_first_signal_ends_a_run_as_gently_as_its_sender_may_expect(
    keyboard: bool, trains: bool, how: tuple[bool, bool], grace: float
) -> None:
    run = Run()
    for member in run.members.values():
        member.stage = "training" if trains else "closing"
    run.shutdown.interrupt(1, signal.SIGINT if keyboard else signal.SIGTERM)
    assert run.stopped == told(how)
    assert run.pass_time() == [grace]
    assert run.shutdown.outcome == "interrupted"
    assert run.killed == [0, 1], "they have had their time"


@pytest.mark.parametrize(
    ("number", "others", "grace"),
    [(signal.SIGINT, LIKE_CTRL_C, GRACE_AT_CTRL_C), (signal.SIGTERM, AT_ONCE, GRACE_AT_CTRL_C)],
)
def test_a_script_with_a_handler_gets_the_signal_and_goes_on_after_its_loops(
    number: signal.Signals, others: tuple[bool, bool], grace: float
) -> None:
    run = Run()
    run.members[0].handles = frozenset({signal.SIGUSR1})
    run.members[1].handles = frozenset({number})
    run.shutdown.interrupt(1, number)
    assert run.signalled == [(1, number)]
    assert run.stopped == [(0, *others), (1, *GENTLY)]
    assert [seconds for seconds, _ in run.timers] == [grace]


def test_the_second_signal_ends_every_process_at_once() -> None:
    """Also if both come together."""
    run = Run()
    run.shutdown.interrupt(2, signal.SIGINT)
    assert run.killed == [0, 1]
    run = Run()
    run.shutdown.interrupt(1, signal.SIGINT)
    assert (run.killed, run.shutdown.at_once) == ([], False)
    run.shutdown.interrupt(1, signal.SIGINT)
    assert (run.killed, run.shutdown.at_once) == ([0, 1], True)


def test_a_signal_after_a_limit_shortens_the_time_that_scripts_have() -> None:
    run = Run(max_steps=1)
    run.shutdown.conclude()
    run.shutdown.interrupt(1, signal.SIGINT)
    assert [seconds for seconds, _ in run.timers] == [GRACE_AT_LIMIT, GRACE]
    assert run.stopped == told(GENTLY), "they are told once"


def test_what_a_run_failed_of_first_is_its_error() -> None:
    run = Run()
    run.shutdown.refuse("it can't be done")
    run.shutdown.fail("a worker died")
    run.shutdown.diverge("a gradient is NaN")
    run.shutdown.interrupt(1, signal.SIGTERM)
    assert (run.shutdown.outcome, run.shutdown.error) == ("failed", "it can't be done")
    assert run.shutdown.usage_error == "it can't be done"
    run.shutdown.break_off("the ledger can't be written")
    assert run.shutdown.error == "the ledger can't be written"


def test_only_scripts_that_run_on_after_their_grace_are_ended_in_a_run_that_is_completed() -> None:
    run = Run()
    run.shutdown.conclude()
    run.members[0].stage = "ended"
    run.pass_time()
    assert run.killed == [1]
    assert run.said == ["worker 1 has not ended its script in time and is ended"]


def test_workers_are_told_to_stop_once_what_comes_before_is_done() -> None:
    run = Run()
    before: list[Callable[[], None]] = []
    run.before = before.append
    run.shutdown.conclude()
    assert run.shutdown.stopping
    assert not run.stopped
    assert [member.left for member in run.members.values()] == [None, None]
    before[0]()
    assert run.stopped == told(GENTLY)
    assert [member.left for member in run.members.values()] == ["finished", "finished"]
    before[0]()
    assert len(run.stopped) == 2


@pytest.mark.parametrize(
    ("stops", "how"),
    [
        ([Shutdown.conclude, lambda ending: ending.interrupt(1, signal.SIGINT)], GENTLY),
        ([Shutdown.conclude, lambda ending: ending.fail("a disk is full")], GENTLY),
        ([lambda ending: ending.fail("a disk is full")], AT_ONCE),
        ([lambda ending: ending.diverge("NaN")], AT_ONCE),
    ],
    ids=["interrupted as it ends", "failed as it ends", "failed", "diverged"],
)
def test_a_run_that_is_stopped_once_more_or_does_not_end_well_waits_for_nothing(
    stops: list[Callable[[Shutdown], None]], how: tuple[bool, bool]
) -> None:
    run = Run()
    run.before = lambda go_on: None
    for stop in stops:
        stop(run.shutdown)
    assert run.stopped == told(how)


def test_a_run_that_loses_a_host_as_it_ends_well_has_its_scripts_left_at_once() -> None:
    """They may wait for a version of which that host had a part: seed 188 of the schedules of shards."""
    run = Run()
    run.shutdown.conclude()
    assert run.stopped == told(GENTLY)
    run.shutdown.lacks_host = True
    run.shutdown.fail("a host is lost")
    run.shutdown.fail("and another")
    assert run.stopped == [*told(GENTLY), *told(AT_ONCE)]
    assert GRACE in run.pass_time()
