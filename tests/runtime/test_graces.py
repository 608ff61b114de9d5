"""How long what a script has started may go on after it: as in plain Python, until the run is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.scenario import Scenario
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.runtime import messages
from paceline.runtime.coordinator import Coordinator
from paceline.runtime.rooms import Rooms
from paceline.runtime.settings import Settings
from paceline.runtime.terms import of_a_run
from support.launch import Launch
from support.scripts import ENDLESS, training


class Quiet:
    """Stands in for the run's output."""

    def say(self, line: str) -> None:
        pass


class Timers:
    """Stands in for the loop: a test says when time has passed."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def now(self) -> float:
        return 0.0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)


class Processes:
    """Stands in for one worker's process, which never ends."""

    numbers = (0,)

    def __init__(self) -> None:
        self.killed: list[int] = []

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...]) -> None:
        pass

    def end(self, worker: int) -> None:
        self.killed.append(worker)

    def died(self, worker: int, how: str, at: str) -> None:
        pass


class Ended:
    """A run whose worker's script has ended, and whose process never does: a thread waits for ever."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(
            script=Path("train.py"),
            source=b"",
            arguments=(),
            choice=choose("asp", registry()),
            workers=1,
            scenario=Scenario(),
            seed=0,
            threads=1,
            folder=folder,
            shards=None,
            epochs=None,
            record=0,
            targets=(),
            on_loss="auto",
            on_divergence="stop",
            tee="none",
            max_steps=None,
            max_seconds=None,
            report_waits=5.0,
            json=False,
            quiet=True,
        )
        self.timers, self.processes = Timers(), Processes()
        workers: Any = self.processes
        loop: Any = self.timers
        output: Any = Quiet()
        terms = of_a_run(settings, loop.now)
        self.rooms = Rooms(settings, workers, Journal(NoLedger()), output, loop, terms)
        self.rooms.membership.ends(0)
        self.coordinator = Coordinator(self.rooms, lambda _: None)

    @property
    def killed(self) -> list[int]:
        return self.processes.killed

    def pass_time(self) -> None:
        """Let the workers' processes go, and wait for longer than any grace."""
        self.coordinator.ended()
        while self.timers.calls:
            self.timers.calls.pop(0)()


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


STOPS: dict[str, Callable[[Rooms], None]] = {
    "a failure": lambda run: run.ending.fail("worker 1 died"),
    "a divergence": lambda run: run.diverged("a gradient is NaN"),
    "an interrupt": lambda run: run.limits.interrupt(1, keyboard=False),
    "evaluate() that raises": lambda run: run.scores.give_up("evaluate() raised"),
    "a limit": lambda run: run.limits.stop(),
}


@pytest.mark.parametrize("why", STOPS)
def test_what_a_script_has_started_is_ended_some_time_after_the_run_is_told_to_stop(why: str, ended: Ended) -> None:
    STOPS[why](ended.rooms)
    ended.pass_time()
    assert ended.killed == [0], "it is said once"


def test_what_a_script_has_started_may_go_on_for_ever_in_a_run_that_is_completed(ended: Ended) -> None:
    ended.pass_time()
    assert ended.killed == []


def test_a_worker_that_evaluates_after_a_limit_is_not_ended_before_it_is_let_go(ended: Ended) -> None:
    """Its script has ended in time; recorded versions may take longer than that."""
    STOPS["a limit"](ended.rooms)
    ended.rooms.evaluations.begin([(1, "file")])
    ended.rooms.evaluations.go_on(ended.rooms.membership.ended())
    ended.pass_time()
    assert ended.killed == []
    ended.rooms.evaluations.done()
    ended.pass_time()
    assert ended.killed == [0]


@pytest.mark.parametrize(("why", "outcome"), [("a failure", "failed"), ("a divergence", "diverged")])
def test_an_interrupt_keeps_the_outcome_and_the_error_that_a_run_has_already(
    why: str, outcome: str, ended: Ended
) -> None:
    STOPS[why](ended.rooms)
    ending = ended.rooms.ending
    error = ending.error
    for _ in range(2):
        ended.rooms.limits.interrupt(1, keyboard=False)
        assert (ending.outcome, ending.error) == (outcome, error)
    assert error
    assert ended.killed == [0], "the second interrupt ends it at once"


def test_a_run_fails_though_a_healthy_worker_has_a_thread_that_never_ends(launch: Launch) -> None:
    script = training(
        """
        if step == 1 and me == 0:
            import threading
            threading.Thread(target=threading.Event().wait).start()
        if step == 3 and me == 1:
            raise ValueError("in step 3")
        """,
        **ENDLESS,
    )
    run = launch.run(script, "-n", "2", "-p", "bsp")
    assert run.code == 3
    assert (
        run.summary["error"]
        == "worker 1 died (exit code 1) in step 3: its script failed (--on-loss continue goes on without such a worker)"
    )
    assert "worker 0 still runs after its script and is ended" in run.err
