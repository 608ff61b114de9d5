"""How a run goes: what is seen, how it is said, where, and that it is said nowhere else."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.core.choice import choose
from paceline.core.facts import GradientReady, TrainingBegan, UpdateArrived
from paceline.core.orders import ApplyUpdate
from paceline.protocols import registry
from paceline.records.summary import Tally
from paceline.runtime import progress
from paceline.runtime.member import Member
from paceline.runtime.output import Output
from paceline.runtime.progress import Lines, Row, Screen, View, Watch, line, screen, state
from support.events import LONG
from support.launch import Launch
from support.scripts import training

LOGGING = training("time.sleep(0.02); paceline.log(loss=1.0)", epochs=3)
"""A run that takes half a second or more."""


class Asked:
    """Stands in for `Settings`."""

    def __init__(self, **given: Any) -> None:
        self.__dict__ |= {"epochs": None, "max_steps": None, "max_seconds": None, **given}


def member(worker: int = 0, **known: Any) -> Member:
    none: Any = None
    found = Member(worker=worker, process=0, watch=0, channel=none, log=Path(), printed=None)
    for name, value in {"stage": "training", **known}.items():
        setattr(found, name, value)
    return found


def stepped(tally: Tally, worker: int, step: int, at: float) -> None:
    """That worker's step was computed on the newest version and is the next."""
    version = tally.versions
    ready = GradientReady(worker=worker, step=step, version=max(0, version - worker), samples=4, at=at)
    tally.record(ready, ())
    applied = ApplyUpdate(version=version + 1, contributions=((worker, step, 1.0),))
    tally.record(UpdateArrived(worker=worker, step=step, at=at), (applied,))


@pytest.fixture
def tally() -> Tally:
    """Of two workers, who begin."""
    tally = Tally()
    began = TrainingBegan(members=((0, "a", 0), (1, "a", 0)), version=0, at=0.0, work=None, seed=0)
    tally.record(began, ())
    return tally


# --- what is seen


def test_a_view_has_each_workers_steps_lead_staleness_and_what_it_logged_last(tally: Tally) -> None:
    watch = Watch(Asked(), {0: member(0, logged={"accuracy": 0.5, "loss": 2.0}), 1: member(1)}, tally)  # type: ignore[arg-type]
    for step in range(3):
        stepped(tally, 0, step, 1.0)
    stepped(tally, 1, 0, 1.0)
    view = watch.look(2.0)
    assert view.rows == (
        Row(0, 3, 1.5, "idle", 2, 0, ("loss", 2.0)),
        Row(1, 1, 0.5, "idle", 0, 1, None),
    )
    assert (view.steps, view.speed, view.done, view.left) == (4, 2.0, None, None)


def test_a_speed_is_of_the_last_seconds(tally: Tally) -> None:
    watch = Watch(Asked(), {0: member(0), 1: member(1)}, tally)  # type: ignore[arg-type]
    step = 0
    for at in range(1, 11):
        for _ in range(1 if at > 5 else 100):
            stepped(tally, 0, step, float(at))
            step += 1
        view = watch.look(float(at))
    assert view.rows[0].speed == 1.0


def test_time_that_begins_anew_with_training_leaves_no_speed_behind(tally: Tally) -> None:
    watch = Watch(Asked(), {0: member(0), 1: member(1)}, tally)  # type: ignore[arg-type]
    watch.look(30.0)
    stepped(tally, 0, 0, 0.5)
    assert watch.look(1.0).speed == 1.0


@pytest.mark.parametrize(
    ("given", "epoch", "done"),
    [
        ({}, None, None),
        ({}, (32, 2), 0.125),
        ({"epochs": 4}, (32, 2), 0.0625),
        ({}, (32, None), None),
        ({"max_steps": 4}, (32, 2), 0.5),
        ({"max_seconds": 3.0}, None, 2 / 3),
        ({"max_steps": 1}, None, 1.0),
    ],
)
def test_what_is_done_is_the_share_of_whatever_ends_the_run_first(
    given: dict[str, Any], epoch: tuple[int, int | None] | None, done: float | None, tally: Tally
) -> None:
    watch = Watch(Asked(**given), {0: member(0), 1: member(1)}, tally)  # type: ignore[arg-type]
    if epoch is not None:
        watch.epoch_opened(*epoch)
    stepped(tally, 0, 0, 1.0)
    stepped(tally, 1, 0, 1.0)
    view = watch.look(2.0)
    assert view.done == done
    assert view.left == (None if done is None else pytest.approx(2.0 * (1 - done) / done))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"stage": "starting"}, "starting"),
        ({"step": 4}, "computing"),
        ({"on_the_way": {3}}, "pushing"),
        ({"waits": "its lead is 4, the bound 3: it waits for worker 2"}, "waiting for worker 2"),
        ({"waits": "version 7 is being made"}, "waiting: version 7 is being made"),
        ({"stage": "gone", "left": "died"}, "died"),
        ({"stage": "ended", "left": "finished"}, "finished"),
        ({"stage": "closing", "left": "finished", "waits": None}, "finished"),
    ],
)
def test_a_workers_state_is_a_few_words(known: dict[str, Any], said: str) -> None:
    assert state(member(**known)) == said


# --- how it is said

VIEW = View(
    seconds=65.4,
    steps=400,
    speed=8.0,
    done=0.25,
    rows=(
        Row(0, 150, 3.0, "waiting for worker 3", 3, 1, ("loss", 0.5)),
        Row(1, 150, 3.0, "waiting for worker 3", 3, 2, ("loss", 0.7)),
        Row(2, 0, 0.0, "died", None, None, None),
        Row(3, 100, 2.0, "computing", 0, 0, ("loss", 0.9)),
    ),
)


def test_a_line_has_all_of_it_in_short() -> None:
    assert line(VIEW) == (
        "65 s: 400 steps, 8.0 a second; 25% done, about 3:16 left; loss 0.7; staleness 1.0; "
        "workers 0, 1 waiting for worker 3"
    )
    assert line(View(1.0, 0, 0.0, None, ())) == "1 s: 0 steps, 0.0 a second"


def test_where_seconds_are_virtual_what_is_left_is_in_real_ones() -> None:
    assert "65 s: 400 steps, 8.0 a second; 25% done, about 30 s left" in line(replace(VIEW, passed=10.0))


@pytest.mark.parametrize(("share", "done"), [(0.4, 0.4), (0.1, 0.25), (0.0, 0.25)])
def test_whatever_else_may_end_a_run_counts_if_it_is_nearer(share: float, done: float) -> None:
    watch = Watch(Asked(max_seconds=40.0), {0: member(0)}, Tally())  # type: ignore[arg-type]
    watch.share, watch.passed = lambda: share, lambda: 3.0
    view = watch.look(10.0)
    assert (view.done, view.passed) == (done, 3.0)


def test_a_screen_has_a_line_for_each_worker() -> None:
    assert [" ".join(words.split()) for words in screen(VIEW, "ssp").splitlines()] == [
        "ssp · 1:05 · 400 steps · 8.0 steps/s · 25%, about 3:16 left",
        "worker steps steps/s lead stale loss",
        "0 150 3.0 3 1 0.5 waiting for worker 3",
        "1 150 3.0 3 2 0.7 waiting for worker 3",
        "2 0 0.0 - - - died",
        "3 100 2.0 0 0 0.9 computing",
    ]


def test_of_hundreds_of_workers_the_first_are_shown_and_the_others_counted() -> None:
    crowd = replace(VIEW, rows=tuple(replace(VIEW.rows[0], worker=number) for number in range(500)))
    shown = screen(crowd, "ssp").splitlines()
    assert len(shown) == 2 + 16 + 1
    assert shown[-1] == "and 484 more workers"
    assert "workers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 484 more waiting for" in line(crowd)


@pytest.mark.parametrize("sign", [None, ("JPY_PARENT_PID", "7"), ("COLAB_GPU", ""), ("TERM", "dumb")])
def test_a_notebooks_terminal_is_shown_lines(
    sign: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("JPY_PARENT_PID", "COLAB_GPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if sign is not None:
        monkeypatch.setenv(*sign)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    asked: Any = Asked(quiet=False, json=False, progress=10.0, choice=choose("asp", registry()))
    found = progress.shower(asked, Output(shown_on=sys.stdout, prefix=False))
    assert found is not None
    found.close()
    assert isinstance(found, Lines) == (sign is not None)


@pytest.mark.parametrize(
    ("seconds", "said"), [(8.4, "8 s"), (125.0, "2:05"), (3725.0, "1:02:05"), (36000.0, "10:00:00")]
)
def test_times_are_written_as_clocks_show_them(seconds: float, said: str) -> None:
    assert progress._time(seconds) == said


def test_lines_are_said_while_anybody_trains(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Output(shown_on=sys.stdout, prefix=False), 1.0)
    over = tuple(replace(row, lead=None) for row in VIEW.rows)
    for view in (View(1.0, 0, 0.0, None, VIEW.rows), VIEW, replace(VIEW, rows=over)):
        lines.show(view)
    assert capsys.readouterr().err == f"paceline: {line(VIEW)}\n"


def test_what_is_printed_meanwhile_stands_above_the_screen_and_the_screen_goes_when_it_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = io.StringIO()
    output = Output(shown_on=sys.stdout, prefix=False)
    shown = Screen(output, "ssp", Console(file=terminal, force_terminal=True, width=100, highlight=False))
    shown.show(VIEW)
    output.say("worker 2 died [exit code 1]")
    shown.show(VIEW)
    before_end = terminal.getvalue()
    shown.close()
    output.say("over")
    assert capsys.readouterr() == ("", "paceline: over\n")
    above = before_end.index("paceline: worker 2 died [exit code 1]\n")
    assert before_end.index("computing") < above < before_end.rindex("computing")
    erased = terminal.getvalue().rpartition("computing")[2]
    assert erased.count("\x1b[2K") == len(screen(VIEW, "ssp").splitlines())


# --- in real runs


def test_where_no_terminal_is_a_line_comes_so_often(launch: Launch) -> None:
    run = launch.run(LOGGING, "-p", "asp", "--progress", "0.05").completed()
    assert re.search(
        r"^paceline: \d+ s: \d+ steps, [\d.]+ a second; \d+% done(, about .+ left)?; loss 1;?", run.err, re.M
    )


@pytest.mark.parametrize("flags", [("--json", "--progress", "0.05"), ("--quiet", "--progress", "0.05")])
def test_json_and_quiet_say_nothing_of_how_it_goes(flags: tuple[str, ...], launch: Launch) -> None:
    run = launch.run(LOGGING, "-p", "asp", *flags).completed()
    assert run.err == ""
    if "--json" in flags:
        assert json.loads(run.out) == {**run.summary, "folder": str(run.folder)}


@pytest.mark.long
def test_on_a_terminal_the_workers_are_shown_and_the_summary_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOGGING)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "paceline", "run", "-p", "asp", "--out", "run", "train.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=end, stdout=end, stderr=end)
    os.close(end)
    shown = b"".join(iter(_reader(terminal), b"")).decode()
    assert process.wait(LONG) == 0
    assert re.search(r"asp · \d+ s · \d+ steps", shown)
    last = shown.rindex("\x1b[2K")
    assert "2 workers" in shown[last:], "the summary comes after the screen is gone"


def _reader(terminal: int) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            return os.read(terminal, 1 << 16)
        except OSError:  # nobody has the other end any more
            return b""

    return read
