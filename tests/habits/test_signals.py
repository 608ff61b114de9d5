"""The script's own signal handlers are called, and save what they are for."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator

import pytest

from paceline.protocols import registry
from paceline.records.snapshots import whole
from paceline.training import signals
from paceline.training.replaced import put_back
from support.events import said
from support.launch import Launch
from support.processes import until_asleep
from support.runs import ended
from support.scripts import ENDLESS, training
from support.suites import each


@pytest.mark.parametrize("protocol", each(registry(), default=["all-reduce"]))
def test_a_handler_that_exits_leaves_a_snapshot_to_go_on_from(protocol: str, launch: Launch) -> None:
    """It may come as the worker waits: a replica makes the step that was ordered all the same."""
    exits = "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))"
    script = training("if step == 3: tell('trains', me)\ntime.sleep(0.01)", before=exits, **ENDLESS)
    run = launch.signalled(signal.SIGTERM, script, "-p", protocol)
    assert run.code == 130
    assert "still run" not in run.err
    assert "can't be made" not in run.err
    assert next(whole(run.folder), None) is not None


def test_a_signal_that_no_script_handles_is_said_and_the_run_goes_on(launch: Launch) -> None:
    inside = """
        if step == 3:
            tell("trains", me)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
    """
    go_on = launch.tmp_path / "go-on"
    process = launch.start(training(inside), "-n", "2", "-p", "asp", args=(str(go_on),))
    for worker in range(2):
        launch.events.wait_for("trains", worker)
    process.send_signal(signal.SIGUSR1)
    said(process, "paceline: SIGUSR1 has come, and no script has a handler for it: nothing is done\n")
    go_on.touch()
    ended(process).completed()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """Which signals have handlers of the script, each time that this has changed. Handlers are wrapped here."""
    monkeypatch.setattr(signals, "_handlers", signals._Handlers())
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # as a launcher has one
    told = list[list[int]]()
    signals.watch(told.append)
    yield told
    put_back(signals.HANDLERS)
    monkeypatch.undo()
    faulthandler.unregister(signal.SIGUSR2)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_a_script_registers_with_faulthandler_is_passed_on_too(launch: Launch) -> None:
    inside = """
        if step == 3:
            tell("trains", me)
            while not os.path.getsize(f"{sys.argv[1]}/stacks-{me}"):
                time.sleep(0.01)
    """
    before = """
    import faulthandler
    stacks = open(f"{sys.argv[1]}/stacks-{me}", "w")
    faulthandler.register(signal.SIGUSR1, file=stacks)
    """
    script = training(inside, before=before)
    launch.signalled(signal.SIGUSR1, script, "-p", "asp", args=(str(launch.tmp_path),)).completed()


def test_a_signal_counts_as_handled_until_its_last_handler_is_gone(told: list[list[int]]) -> None:
    faulthandler.register(signal.SIGUSR2)
    assert faulthandler.unregister(signal.SIGUSR2)
    faulthandler.register(signal.SIGUSR2)
    faulthandler.register(signal.SIGUSR2, chain=True)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    assert told == [[signal.SIGUSR2], [], [signal.SIGUSR2]]
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert told[3:] == [[]]


RAISES = training(
    """
    if step == 3:
        tell("waits", me, os.getpid())
        while me == 1 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    """,
    before="""
    class Asked(Exception):
        pass
    def ask(number, frame):
        raise Asked
    signal.signal(signal.SIGUSR1, ask)
    """,
    after="",
).replace(
    "        optimizer.step()\n",
    """        try:
            optimizer.step()
        except Asked:
            print("left a wait")
            tell("left", me)
""",
)


@pytest.mark.parametrize("protocol", each(registry(), default=("bsp", "all-reduce")))
def test_a_handler_that_raises_leaves_a_wait_and_the_script_can_go_on(protocol: str, launch: Launch) -> None:
    """Worker 0 waits for worker 1, which waits for a file. The signal comes to worker 0's process alone."""
    go_on = launch.tmp_path / "go-on"
    process = launch.start(RAISES, "-n", "2", "-p", protocol, args=(str(go_on),))
    pid = int(launch.events.wait_for("waits", 0)[2])
    launch.events.wait_for("waits", 1)
    until_asleep(pid)
    os.kill(pid, signal.SIGUSR1)
    if protocol in ("bsp", "all-reduce"):
        launch.events.wait_for("left", 0)
    go_on.touch()
    run = ended(process).completed()
    assert run.log(0) == ("left a wait\n" if protocol in ("bsp", "all-reduce") else run.log(0))
    assert run.summary["samples"] == 128
    assert "Traceback" not in run.log(0)


def test_handlers_are_called_after_what_holds_them_back_and_in_what_lets_them_through(told: list[list[int]]) -> None:
    came = list[int]()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    assert told == [[signal.SIGUSR1]]
    with signals.held_back:
        with signals.held_back:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        assert came == []
        signals.let_through(lambda: signal.raise_signal(signal.SIGUSR1))
        assert len(came) == 3
        signal.raise_signal(signal.SIGUSR1)
        assert len(came) == 3
    assert len(came) == 4
    signals.forget()
    signal.raise_signal(signal.SIGUSR1)
    assert len(came) == 4
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is not None
