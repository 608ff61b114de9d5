"""How long what a script has started may go on after it: as in plain Python, until the run is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.coordinator.run_state import RunState
from support.launch import Launch
from support.run_state import Stage
from support.scripts import ENDLESS, training


class Ended(Stage):
    """A run whose worker's script has ended, and whose process never does: a thread waits for ever."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run_state.members.ends(0)

    @property
    def killed(self) -> list[int]:
        return self.crew.killed

    def pass_time(self) -> None:
        """Let the workers' processes go, and wait for longer than any grace."""
        self.coordinator.ended()
        self.loop.pass_time()


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    return Ended(tmp_path)


STOPS: dict[str, Callable[[RunState], None]] = {
    "a failure": lambda run: run.shutdown.fail("worker 1 died"),
    "a divergence": lambda run: run.shutdown.diverge("a gradient is NaN"),
    "an interrupt": lambda run: run.shutdown.interrupt(1, signal.SIGTERM),
    "evaluate() that raises": lambda run: run.evaluation.give_up("evaluate() raised"),
    "a limit": lambda run: run.shutdown.conclude(),
}


@pytest.mark.parametrize("why", STOPS)
def test_what_a_script_has_started_is_ended_some_time_after_the_run_is_told_to_stop(why: str, ended: Ended) -> None:
    STOPS[why](ended.run_state)
    ended.pass_time()
    assert ended.killed == [0], "it is said once"


def test_what_a_script_has_started_may_go_on_for_ever_in_a_run_that_is_completed(ended: Ended) -> None:
    ended.pass_time()
    assert ended.killed == []


def test_a_worker_that_evaluates_after_a_limit_is_not_ended_before_it_is_let_go(ended: Ended, tmp_path: Path) -> None:
    """Its script has ended in time; recorded versions may take longer than that."""
    (tmp_path / "versions" / "00000001.safetensors").touch()
    ended.run_state.versions.hashes[1] = "its checksum"
    STOPS["a limit"](ended.run_state)
    ended.run_state.evaluation.after_training(wanted=True)
    ended.pass_time()
    assert ended.killed == []
    ended.run_state.evaluation.done()
    ended.pass_time()
    assert ended.killed == [0]


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
