"""The launcher's side: what trackers are told, and that none of them holds up the run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.display.trackers import feed, record_of
from paceline.display.trackers.feed import Trackers, opening
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings
from paceline.protocols import registry
from paceline.records.summary import Summary, Tally
from support.events import LONG
from support.run_state import SETTINGS

NEVER_READS = "import time; time.sleep(600)"
DIES = "pass"
WRITES = """
import json, socket, sys, time
from paceline.ipc.channel import Channel
from paceline.ipc.messages.tracker import End, Log, RunOpened, ToTracker

channel = Channel(socket.socket(fileno=int(sys.argv[2])), ToTracker, "the launcher")
opened, _ = channel.receive()
channel.send(RunOpened("7", "there"))
steps = []
while isinstance(message := channel.receive()[0], Log):
    steps += [row.step for row in message.rows]
with open(opened.folder + "/" + sys.argv[1], "w") as file:
    json.dump([steps, message.outcome, message.results], file)
"""
"""A tracker that keeps the steps and the results in a file of its name."""


class Run:
    """A run with trackers whose processes are these programs, by name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
        program = f"import sys; exec({programs!r}[sys.argv[1]])"
        monkeypatch.setattr(feed, "COMMAND", (sys.executable, "-c", program))
        self.folder = folder
        self.settings = replace(SETTINGS, folder=folder, log_to=tuple(programs), quiet=False)
        self.lines: list[str] = []
        self.loop = Loop()
        self.gives_up = False

    def goes(self, act: Callable[[Trackers], None], summary: Summary | None = None) -> None:
        with Trackers(lambda: self.gives_up) as trackers:
            with trackers.started(self.settings, self.loop, self.lines.append):
                trackers.begin({})
                act(trackers)
            self.loop.close()
            trackers.summary = summary

    def until(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG
        while not is_so():
            assert time.monotonic() < until
            self.loop.wait(0.05)

    def written(self, name: str) -> list[Any]:
        found: list[Any] = json.loads((self.folder / name).read_text())
        return found


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    return lambda **programs: Run(tmp_path, monkeypatch, programs)


def logs(steps: Sequence[int]) -> Callable[[Trackers], None]:
    return lambda trackers: [trackers.logged(0, step, {"loss": 0.5}) for step in steps] and None


def summary(outcome: str) -> Summary:
    found = Tally().summary(protocol=choose("asp", registry()), workers=1, threads=1, seed=0, outcome="completed")
    return found | {"outcome": outcome}


def test_every_tracker_gets_all_and_the_end_of_the_run(made: Callable[..., Run]) -> None:
    run = made(one=WRITES, other=WRITES)
    run.goes(logs(range(3)), summary("completed"))
    for name in ("one", "other"):
        steps, outcome, results = run.written(name)
        assert (steps, outcome, results["final/steps"]) == ([0, 1, 2], "completed", 0)


def test_a_run_that_came_to_nothing_has_failed(made: Callable[..., Run]) -> None:
    run = made(one=WRITES)
    run.goes(logs([]))
    assert run.written("one") == [[], "failed", {}]


def test_what_is_told_before_the_process_reads_is_sent_later_and_in_order(made: Callable[..., Run]) -> None:
    run = made(one=f"import time; time.sleep(0.5)\n{WRITES}")
    run.goes(logs(range(3000)), summary("completed"))
    assert run.written("one")[0] == list(range(3000))


def test_a_tracker_that_does_not_read_costs_the_others_nothing_and_the_run_no_wait(
    made: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST", 500)
    monkeypatch.setattr(feed, "TOGETHER", 1)
    monkeypatch.setattr(feed, "GATHERS", 0.0)
    run = made(stuck=NEVER_READS, good=WRITES)

    def act(trackers: Trackers) -> None:
        for step in range(2000):
            trackers.logged(0, step, {"loss": 0.5})
            if not step % 200:
                run.loop.wait(0.0)
        run.until(lambda: any(line.startswith("logging to good") for line in run.lines))
        ended = feed.Feed.has_ended
        monkeypatch.setattr(feed.Feed, "has_ended", lambda one, within: ended(one, within) or one.name == "stuck")

    run.goes(act, summary("completed"))
    slow = "stuck is slower than the run, so some values are left out there; the run goes on, and its folder has all"
    assert run.lines.count(slow) == 1
    assert run.written("good")[1] == "completed"


def test_what_a_tracker_has_not_taken_in_time_is_told_and_its_process_ends(
    made: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "PATIENCE", 0.1)
    monkeypatch.setattr(feed, "SOON", 0.0)
    run = made(stuck=NEVER_READS)
    processes: list[Any] = []
    run.goes(lambda trackers: processes.extend(one._process for one in trackers._feeds), summary("completed"))
    assert capsys.readouterr().err.splitlines() == [
        "paceline: waiting for stuck to take the rest of what is logged (interrupt to leave it out)",
        "paceline: stuck has not taken all that is logged; the run's folder has it",
    ]
    assert processes[0].returncode is not None


def test_an_interrupt_ends_the_wait(made: Callable[..., Run]) -> None:
    run = made(stuck=NEVER_READS)
    run.gives_up = True
    began = time.monotonic()
    run.goes(logs([1]), summary("completed"))
    assert time.monotonic() - began < feed.PATIENCE / 2


def test_a_process_that_dies_is_told_in_one_line(made: Callable[..., Run]) -> None:
    run = made(gone=DIES)

    def act(trackers: Trackers) -> None:
        run.until(lambda: bool(run.lines))
        logs(range(100))(trackers)

    run.goes(act, summary("completed"))
    assert run.lines == ["the process that logs to gone has died; the run goes on, and its folder has all"]


def test_a_process_that_can_not_be_started_is_told_in_one_line(
    made: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(one=WRITES)
    monkeypatch.setattr(feed, "COMMAND", ("/there/is/none",))
    run.goes(logs(range(3)), summary("completed"))
    (line,) = run.lines
    assert line.startswith("nothing is logged to one (its process can't be started: No such file or directory)")


def test_which_run_of_the_tracker_it_is_is_kept_in_the_run_s_folder(made: Callable[..., Run]) -> None:
    run = made(one=WRITES)
    run.goes(logs([]), summary("completed"))
    assert json.loads(record_of(run.folder, "one").read_text()) == {"run": "7", "where": "there"}


def test_a_full_disk_does_not_end_the_run(made: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feed, "write_whole", full)
    run = made(one=WRITES)
    run.goes(lambda _: run.until(lambda: len(run.lines) > 1), summary("completed"))
    assert run.lines[0] == "logging to one: there"
    assert "one.json can't be written (No space left on device): a resumed run will be another run of" in run.lines[1]


# --- what a tracker's run begins with ---------------------------------------------------------------


def begun(settings: Settings, **changed: Any) -> Any:
    return opening("wandb", replace(settings, **changed), {})


def test_a_run_of_a_comparison_is_in_a_group_of_the_comparison_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "compare-1" / "bsp-seed0"
    folder.mkdir(parents=True)
    assert begun(SETTINGS, folder=folder).group is None
    (folder.parent / "compare.json").write_text("{}")
    order = begun(SETTINGS, folder=folder, script=Path("there/digits.py"))
    assert (order.group, order.name, order.project) == ("compare-1", "bsp-seed0", "digits")


def test_only_a_resumed_run_goes_on_in_a_run_of_the_tracker(tmp_path: Path) -> None:
    record_of(tmp_path, "wandb").parent.mkdir()
    record_of(tmp_path, "wandb").write_text('{"run": "7", "where": "there"}')
    assert begun(SETTINGS, folder=tmp_path).before is None
    resumed: Any = object()
    assert begun(SETTINGS, folder=tmp_path, resumed=resumed).before == "7"
    record_of(tmp_path, "wandb").write_text("damaged")
    assert begun(SETTINGS, folder=tmp_path, resumed=resumed).before is None
