"""How long what a script has started may go on after it: as in plain Python, until the run is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.scenario import Scenario
from paceline.core.choice import choose
from paceline.fabric.channel import Channel, pair
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.runtime import messages
from paceline.runtime.coordinator import Coordinator
from paceline.runtime.member import Member
from paceline.runtime.settings import Settings
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

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)


class Ended(Coordinator):
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
        ours, self.theirs = pair()
        channel = Channel(ours, messages.FromWorker, "worker 0")
        self.member = Member(worker=0, process=0, watch=0, channel=channel, log=folder / "log", printed=None)
        self.member.stage = "ended"
        self.killed: list[int] = []
        self.timers, output = Timers(), Quiet()
        loop: Any = self.timers
        super().__init__(settings, [self.member], Journal(NoLedger()), output, loop, lambda _: None)  # type: ignore[arg-type]

    def _kill(self, member: Member) -> None:
        self.killed.append(member.worker)

    def pass_time(self) -> None:
        """Let the workers' processes go, and wait for longer than any grace."""
        self._conclude()
        while self.timers.calls:
            self.timers.calls.pop(0)()


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Ended]:
    made = Ended(tmp_path)
    yield made
    made.member.channel.close()
    made.theirs.close()


STOPS: dict[str, Callable[[Ended], None]] = {
    "a failure": lambda run: run.fail("worker 1 died"),
    "a divergence": lambda run: run._diverged("a gradient is NaN"),
    "an interrupt": lambda run: run.interrupt(),
    "evaluate() that raises": lambda run: run._evaluation_failed("evaluate() raised"),
    "a limit": lambda run: run._stop(30.0, at_once=False),
}


@pytest.mark.parametrize("why", STOPS)
def test_what_a_script_has_started_is_ended_some_time_after_the_run_is_told_to_stop(why: str, ended: Ended) -> None:
    STOPS[why](ended)
    ended.pass_time()
    assert ended.killed == [0], "it is said once"


def test_what_a_script_has_started_may_go_on_for_ever_in_a_run_that_is_completed(ended: Ended) -> None:
    ended.pass_time()
    assert ended.killed == []


def test_a_worker_that_evaluates_after_a_limit_is_not_ended_before_it_is_let_go(ended: Ended) -> None:
    """Its script has ended in time; recorded versions may take longer than that."""
    STOPS["a limit"](ended)
    ended._evaluations.present = ended.member, 1
    ended.pass_time()
    assert ended.killed == []
    ended._evaluations.done()
    ended.pass_time()
    assert ended.killed == [0]


@pytest.mark.parametrize(("why", "outcome"), [("a failure", "failed"), ("a divergence", "diverged")])
def test_an_interrupt_keeps_the_outcome_and_the_error_that_a_run_has_already(
    why: str, outcome: str, ended: Ended
) -> None:
    STOPS[why](ended)
    error = ended.error
    for _ in range(2):
        ended.interrupt()
        assert (ended.outcome, ended.error) == (outcome, error)
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
