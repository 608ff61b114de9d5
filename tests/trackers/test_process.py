"""The process that logs to one tracker, with a tracker that fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from paceline.display.trackers.process import serve
from paceline.errors import PeerLost
from paceline.ipc.channel import Channel, pair
from paceline.ipc.messages.tracker import (
    End,
    FromTracker,
    Log,
    Open,
    RunOpened,
    RunRefused,
    ToTracker,
    Values,
    ValuesLeftOut,
)
from support.events import LONG

OPEN = Open("a run", "digits", None, "/runs/1", "digits.py", {}, None)


def values(*steps: int) -> Log:
    return Log([Values("version", step, 0.0, {"accuracy": 0.5, "loss": 1.0}) for step in steps])


class Fake:
    """A tracker that refuses values of some steps, or to begin or end."""

    def __init__(self, refuses: Sequence[object] = ()) -> None:
        self.refuses = refuses
        self.steps: list[int] = []
        self.calls = 0
        self.ended: End | None = None

    def open(self, order: Open) -> RunOpened:
        self.refuse_if("open")
        return RunOpened("7", "there")

    def log(self, rows: Sequence[Values]) -> None:
        self.calls += 1
        for row in rows:
            self.refuse_if(row.step)
        self.steps += [row.step for row in rows]

    def end(self, order: End) -> None:
        self.refuse_if("end")
        self.ended = order

    def refuse_if(self, what: object) -> None:
        if what in self.refuses:
            raise OSError("No space left\non the device")


def served(tracker: Fake, *told: Open | Log | End, ends: bool = True) -> list[FromTracker]:
    """What the process says if it is told that. `ends`: whether the launcher is there until the end."""
    ours, theirs = pair()
    launcher, channel = Channel(ours, FromTracker, "the tracker"), Channel(theirs, ToTracker, "the launcher")
    for message in told:
        launcher.send(message)
    if not ends:
        launcher.close()
    serve(channel, tracker)
    channel.close()
    said: list[FromTracker] = []
    while ends:
        try:
            said.append(launcher.receive()[0])
        except PeerLost:
            break
    return said


def test_what_comes_together_is_logged_in_one_call() -> None:
    tracker = Fake()
    assert served(tracker, OPEN, values(1, 2), values(3), End("completed", {})) == [RunOpened("7", "there")]
    assert (tracker.steps, tracker.calls) == ([1, 2, 3], 2)
    assert tracker.ended == End("completed", {})


def test_a_tracker_that_can_not_begin_is_told_in_one_line_and_gets_nothing() -> None:
    tracker = Fake(["open"])
    assert served(tracker, OPEN, values(1), End("completed", {})) == [
        RunRefused("OSError: No space left on the device")
    ]
    assert tracker.steps == []
    assert tracker.ended is None


def test_a_failure_is_told_once_and_the_values_that_it_costs_are_counted() -> None:
    tracker = Fake([2, 3])
    told = OPEN, *map(values, range(1, 6)), End("completed", {"final/steps": 5})
    assert served(tracker, *told) == [RunOpened("7", "there"), ValuesLeftOut("OSError: No space left on the device")]
    assert tracker.steps == [1, 4, 5]  # it is tried again
    assert tracker.ended == End("completed", {"final/steps": 5, "final/values_left_out": 4})


def test_values_that_the_launcher_has_left_out_are_counted_too() -> None:
    tracker = Fake([1])
    served(tracker, OPEN, values(1), End("completed", {"final/values_left_out": 10}))
    assert tracker.ended == End("completed", {"final/values_left_out": 12})


def test_a_tracker_that_fails_at_the_end_is_told() -> None:
    said = served(Fake(["end"]), OPEN, End("completed", {}))
    assert said[1:] == [ValuesLeftOut("OSError: No space left on the device")]


def test_if_the_launcher_is_killed_the_tracker_s_run_ends_as_crashed() -> None:
    tracker = Fake()
    served(tracker, OPEN, values(1), ends=False)
    assert tracker.steps == [1]
    assert tracker.ended == End("crashed", {})


BLOCKED = """
import sys, threading
from paceline.display.trackers import process, tensorboard
process.GRACE = 0.0
def block(self, order):
    print("blocked", flush=True)
    threading.Event().wait()
tensorboard.TensorBoard.open = block
process.main("tensorboard", int(sys.argv[1]))
"""


def test_if_the_launcher_is_killed_a_tracker_that_blocks_does_not_keep_the_process() -> None:
    ours, theirs = pair()
    launcher = Channel(ours, FromTracker, "the tracker")
    command = [sys.executable, "-c", BLOCKED, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, text=True) as blocked:
        try:
            theirs.close()
            launcher.send(OPEN)
            assert blocked.stdout is not None
            assert blocked.stdout.readline() == "blocked\n"
            launcher.close()
            assert blocked.wait(LONG) == 1
        finally:
            blocked.kill()
