"""How a run goes: what is seen, how it is said or drawn, where, and that it is said nowhere else."""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from paceline.coordinator.evaluation import Evaluation
from paceline.coordinator.member import WAITS, Member
from paceline.core.choice import choose
from paceline.core.facts import GradientReady, TrainingBegan, UpdateArrived, WorkerJoined, WorkerLeft
from paceline.core.orders import ApplyUpdate
from paceline.core.phrases import MOST
from paceline.core.reasons import Why
from paceline.display import progress
from paceline.display.progress import ProgressLines, Screen, line
from paceline.display.screen import BLOCKS, screen, sparkline
from paceline.display.state import Curve, Row, Score, State, View, Watch, duration, ranges, settled, state
from paceline.display.waits import WaitReports
from paceline.protocols import registry
from paceline.records.summary import Tally, Target
from support.launch import Launch
from support.outputs import output_to
from support.run_state import SETTINGS
from support.scripts import training

LOGGING = training("time.sleep(0.02); paceline.log(loss=1.0)", epochs=3)
"""A run that takes half a second or more."""


def watch_of(members: Any, tally: Tally, evaluation: Any = None, **asked: Any) -> Watch:
    """A watch over a run on one host, on which no update is on its way."""
    host: Any = Mock(updates=lambda worker: Mock(coming=()))
    return Watch(replace(SETTINGS, **asked), members, host, tally, evaluation or Mock(counts=None), {}, {})


def member(worker: int = 0, **known: Any) -> Member:
    found = Member(worker=worker)
    for name, value in {"stage": "training", **known}.items():
        setattr(found, name, value)
    return found


def stepped(tally: Tally, worker: int, step: int, at: float) -> None:
    """That worker's step was computed on the newest version and is the next."""
    version = tally.model.versions
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
    watch = watch_of({0: member(0, logged={"accuracy": 0.5, "loss": 2.0}), 1: member(1)}, tally)
    watch.begin(0.0)
    for step in range(3):
        stepped(tally, 0, step, 1.0)
    stepped(tally, 1, 0, 1.0)
    view = watch.look(2.0)
    assert view.rows == (
        Row(0, 3, 1.5, State("idle"), 2, 0, ("loss", 2.0)),
        Row(1, 1, 0.5, State("idle"), 0, 1, None),
    )
    assert (view.steps, view.speed, view.done, view.left) == (4, 2.0, None, None)


def test_steps_of_workers_that_a_resumed_run_has_no_more_are_done(tally: Tally) -> None:
    watch = watch_of({0: member(0)}, tally)
    for worker in (0, 1):
        stepped(tally, worker, 0, 1.0)
    assert watch.look(2.0).steps == 2


def test_a_speed_is_of_the_last_seconds(tally: Tally) -> None:
    watch = watch_of({0: member(0), 1: member(1)}, tally)
    step = 0
    for at in range(1, 11):
        for _ in range(1 if at > 5 else 100):
            stepped(tally, 0, step, float(at))
            step += 1
        view = watch.look(float(at))
    assert view.rows[0].speed == 1.0


def test_what_a_run_did_before_it_was_resumed_is_in_no_speed(tally: Tally) -> None:
    watch = watch_of({0: member(0), 1: member(1)}, tally)
    for step in range(100):
        stepped(tally, 0, step, 10.0)
    assert watch.look(0.5).speed == 0.0  # scripts start: time counts from the command's start
    watch.begin(10.0)
    stepped(tally, 0, 100, 11.0)
    assert watch.look(12.0).speed == 0.5


def test_a_worker_that_comes_later_has_the_speed_of_its_steps_since(tally: Tally) -> None:
    members = {0: member(0), 1: member(1)}
    watch = watch_of(members, tally)
    watch.begin(0.0)
    watch.look(1.0)
    members[2] = member(2)
    speeds = [watch.look(3.0).rows[2].speed]
    tally.record(WorkerJoined(worker=2, host="a", step=0, at=3.0), ())
    for step, at in enumerate((4.0, 6.0, 8.0, 10.0)):
        stepped(tally, 2, step, at)
        speeds.append(watch.look(at).rows[2].speed)
    assert speeds == [0.0, 0.25, 0.4, 0.6, 0.5]


@pytest.mark.parametrize(
    ("given", "epoch", "done", "until"),
    [
        ({"epochs": 4}, (32, 2), 0.0625, "4 epochs"),
        ({"epochs": 1}, (32, 2, 2), 0.125, "1 epoch"),
        ({}, (32, 2, 2), 0.0625, "2 epochs"),
        ({}, (32, None), None, ""),
        ({"max_steps": 4}, (32, 2), 0.5, "--max-steps 4"),
        ({"max_seconds": 3.0}, None, 2 / 3, "--max-seconds 3"),
        ({"max_steps": 1}, None, 1.0, "--max-steps 1"),
    ],
)
def test_what_is_done_is_the_share_of_whatever_ends_the_run_first(
    given: dict[str, Any], epoch: tuple[Any, ...] | None, done: float | None, until: str, tally: Tally
) -> None:
    watch = watch_of({0: member(0), 1: member(1)}, tally, **given)
    if epoch is not None:
        watch.epoch_opened(*epoch)
    stepped(tally, 0, 0, 1.0)
    stepped(tally, 1, 0, 1.0)
    view = watch.look(2.0)
    assert (view.done, view.until) == (done, until)
    assert view.left == (None if done is None else pytest.approx(2.0 * (1 - done) / done))


def test_a_workers_state_is_a_word() -> None:
    assert state(member(stage="starting")) == "starting"
    assert state(member(step=4)) == "computing"
    assert state(member(waits=("version",))) == "waiting"
    assert (state(member()), state(member(), pushing=True)) == ("idle", "pushing")
    for stage, left, waits in (("gone", "died", ()), ("ended", "finished", ()), ("closing", "finished", None)):
        assert state(member(stage=stage, left=left, waits=waits)) == left


def now(waits: dict[int, Why], leads: dict[int, int | None] | None = None, **given: Any) -> tuple[dict[int, str], Any]:
    """What is shown of each worker that waits, and how many wait for each worker."""
    reasons = choose("ripples", registry()).reasons | choose("ssp", registry()).reasons | WAITS
    states, awaited_by = settled(waits, leads or dict.fromkeys(range(5), 0), given.get("hosts", {}), reasons)
    return {worker: str(state) for worker, state in states.items()}, awaited_by


def test_a_wait_is_for_those_who_have_not_come_by_now_and_counts_for_each_of_them() -> None:
    first, second = ("awaits", (1, 2, 3, 4)), ("above-bound", 4, 3, (2, 3))
    shown, awaited_by = now({0: first, 1: second, 4: second})
    assert shown == dict.fromkeys((0, 1, 4), "waiting for workers 2-3")
    assert awaited_by == {2: 3, 3: 3}
    in_circle = now({0: ("awaits", (1,)), 1: ("awaits", (0,))})
    assert in_circle == ({0: "waiting for worker 1", 1: "waiting for worker 0"}, {0: 1, 1: 1})


def test_a_wait_for_so_many_workers_is_for_the_slowest_that_do_not_wait_and_any_other_is_its_sentence() -> None:
    waits: dict[int, Why] = {0: ("above-bound", 4, 3, 5), 3: ("version",)}
    shown, awaited_by = now(waits, {0: 1, 1: 1, 2: 0, 3: 0, 4: None})
    assert shown == {0: "waiting for worker 2", 3: "waiting: its version is being made"}
    assert awaited_by == {2: 1}
    shown, awaited_by = now({0: ("begins-after", 1), 1: ("awaits-many", 2, 30)})
    start = "waiting: the start waits until worker 1 calls prepare()"
    assert shown == {0: start, 1: "waiting: its group waits for 2 of its 30 workers"}
    assert awaited_by == {}


def test_no_protocol_has_a_code_of_the_waits_that_no_protocol_orders() -> None:
    assert not [code for spec in registry().values() for code in spec.reasons if code in WAITS]


HOSTS = {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1", 4: "node-2"}


@pytest.mark.parametrize(
    ("awaited", "gone", "said"),
    [((2, 3), (), "host node-1, workers 2-3"), ((2,), (), "worker 2"), ((3,), (2,), "host node-1, worker 3")],
)
def test_a_wait_for_all_workers_of_a_host_names_the_host(
    awaited: tuple[int, ...], gone: tuple[int, ...], said: str
) -> None:
    leads = {worker: None if worker in gone else 0 for worker in range(5)}
    assert now({0: ("awaits", awaited)}, leads, hosts=HOSTS)[0] == {0: f"waiting for {said}"}


def test_a_curve_keeps_its_course_and_its_mean_in_a_few_points_however_long_it_is() -> None:
    curve = Curve()
    for value in range(1024):
        curve.add(float(value))
        curve.add(math.nan)
        curve.add(math.inf)
    assert Curve.MOST // 2 <= len(curve.points) < Curve.MOST
    assert curve.points == sorted(curve.points)
    assert sum(curve.points) / len(curve.points) == 511.5


def test_a_view_has_the_course_of_what_workers_that_train_log(tally: Tally) -> None:
    members = {0: member(0, logged={"loss": 2.0}), 1: member(1, logged={"loss": 4.0})}
    watch = watch_of(members, tally)
    watch.look(1.0)
    members[1].logged["loss"] = 1.0
    assert watch.look(2.0).curve == (3.0, 1.5)
    assert watch.look(2.0).logged == ("loss", 1.5)
    for worker in (0, 1):
        tally.record(WorkerLeft(worker=worker, reason="finished", at=3.0), ())
    assert watch.look(4.0).curve == (3.0, 1.5, 1.5), "after training nothing is added"


def test_a_target_has_the_best_value_so_far_and_the_moment_at_which_it_was_met(tally: Tally) -> None:
    targets = (Target.parse("accuracy>=0.9"), Target.parse("loss<=0.1"))
    watch = watch_of({0: member(0)}, tally, targets=targets)
    assert watch.look(1.0).scores == (
        Score("accuracy", None, "accuracy>=0.9", None),
        Score("loss", None, "loss<=0.1", None),
    )
    for version, accuracy, loss in ((1, math.nan, math.nan), (2, 0.95, 0.2), (3, 0.92, 0.4), (4, 0.5, 0.5)):
        tally.recorded(version, 10.0 * version, None)
        tally.evaluated(version, {"accuracy": accuracy, "loss": loss})
    assert watch.look(1.0).scores == (
        Score("accuracy", 0.95, "accuracy>=0.9", 20.0),
        Score("loss", 0.2, "loss<=0.1", None),
    )
    tally.logs("loss", worker=0, step=7, version=7, at=15.0, value=0.05)
    tally.logs("accuracy", worker=0, step=7, version=7, at=15.0, value=0.93)
    assert watch.look(1.0).scores == (
        Score("accuracy", 0.95, "accuracy>=0.9", 15.0),
        Score("loss", 0.05, "loss<=0.1", 15.0),
    )
    without = watch_of({0: member(0)}, tally)
    tally.evaluated(4, {"accuracy": 0.7, "loss": 0.3})
    assert without.look(1.0).scores == (Score("accuracy", 0.7), Score("loss", 0.3))


# --- who waits


def test_a_view_counts_the_versions_that_are_evaluated(tally: Tally) -> None:
    known = {0: member(0, stage="ended")}
    members: Any = Mock(ended=lambda: [known[0]])
    versions: Any = Mock(files=lambda: [(1, "one"), (2, "two")])
    journal: Any = Mock(tally=tally)
    evaluation = Evaluation(members, Mock(), versions, journal, Mock(), Mock(), None)
    watch = watch_of(known, tally, evaluation)
    assert (watch.look(1.0).evaluated, watch.look(1.0).evaluates) == (None, False)
    evaluation.after_training(wanted=True)
    assert (watch.look(1.0).evaluated, watch.look(1.0).evaluates) == ((0, 2), True)
    evaluation.done()
    assert watch.look(1.0).evaluated == (1, 2)
    evaluation.give_up("evaluate() raised")
    assert not watch.look(1.0).evaluates


def waiting(workers: range, reason: Callable[[int], str], **known: Any) -> list[Member]:
    return [member(worker, waits=(reason(worker),), since=0.0, **known) for worker in workers]


def test_many_workers_that_wait_for_the_same_share_a_line() -> None:
    members = [*waiting(range(299), lambda _: "version 3 waits for worker 299"), member(299, step=1, heard=-5.0)]
    members[5].since = -20.0
    (line,) = WaitReports(10.0, {}, {}).lines(members, None, 10.0)
    said = "workers 0-298 have waited for 10 s or more: version 3 waits for worker 299; worker 299 computes step 1, "
    assert line == f"{said}last heard of 15 s ago"


def test_a_few_workers_that_wait_have_a_line_each_with_their_own_time_once_their_scripts_have_begun() -> None:
    one, two = waiting(range(2), lambda _: "the disk")
    two.since = -3.0
    lines = WaitReports(10.0, {}, {}).lines([one, two], None, 10.0)
    assert lines == ["worker 0 has waited for 10 s: the disk", "worker 1 has waited for 13 s: the disk"]
    starting = waiting(range(2), lambda _: "the start", stage="starting")
    assert WaitReports(10.0, {}, {}).lines(starting, None, 10.0) == ["workers 0, 1 have waited for 10 s: the start"]


def test_of_many_reasons_to_wait_the_first_are_told_and_the_others_counted() -> None:
    members = waiting(range(300), lambda worker: f"reason {worker}")
    lines = WaitReports(10.0, {}, {}).lines(members, None, 10.0)
    assert lines[MOST - 1 :] == [
        "worker 7 has waited for 10 s: reason 7",
        "workers 8-299 have waited for 10 s, too, for other reasons",
    ]


def test_of_many_that_compute_those_are_told_that_were_heard_of_longest_ago() -> None:
    computing = [member(worker, step=1, heard=float(worker % 100)) for worker in range(1, 300)]
    (line,) = WaitReports(10.0, {}, {}).lines([*waiting(range(1), lambda _: "a turn"), *computing], "the store", 200.0)
    named = [f"worker {worker} computes step 1" for worker in (1, 2, 100, 101, 102, 200, 201, 202)]
    assert [part.partition(",")[0] for part in line.split("; ")[1:-2]] == named
    assert line.endswith("; 291 other workers were heard of since then; the store")


# --- how it is said

FOR_3 = State("waiting", "worker 3")
FOUR = View(
    seconds=65.4,
    steps=400,
    speed=8.0,
    done=0.25,
    until="20 epochs",
    rows=(
        Row(0, 150, 3.0, FOR_3, 3, 1, ("loss", 0.5)),
        Row(1, 150, 3.0, FOR_3, 3, 2, ("loss", 0.7)),
        Row(2, 0, 0.0, State("died"), None, None, None),
        Row(3, 100, 2.0, State("computing"), 0, 0, ("loss", 0.9), awaited_by=2),
    ),
    curve=tuple(2.0 * 0.97**at for at in range(60)),
    scores=(Score("accuracy", None, "accuracy>=0.9"),),
)
VIEW = replace(FOUR, until="", curve=(), scores=(), rows=tuple(replace(row, awaited_by=0) for row in FOUR.rows))
"""The same, without what a screen alone shows."""


def test_a_host_none_of_whose_workers_waits_is_named() -> None:
    hosts = {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1", 4: "node-2", 5: "node-2"}
    waits = waiting(range(1), lambda _: "a turn") + waiting(range(4, 5), lambda _: "a turn")
    members = [*waits, *(member(worker, step=1, heard=0.0) for worker in (1, 2, 3, 5))]
    lines = WaitReports(10.0, hosts, {}).lines(members, "the store", 10.0)
    assert len(lines) == 2
    assert all(line.endswith("last heard of 10 s ago; no worker of host node-1 waits; the store") for line in lines)


def test_a_line_has_all_of_it_in_short() -> None:
    assert line(VIEW) == (
        "65 s: 400 steps, 8.0 a second; 25% done, about 3:16 left; loss 0.7; staleness 1.0; "
        "workers 0-1 waiting for worker 3"
    )
    assert line(View(1.0, 0, 0.0, None, ())) == "1 s: 0 steps, 0.0 a second"
    virtual = replace(VIEW, passed=10.0)
    assert "65 s: 400 steps, 8.0 a second; 25% done, about 30 s left" in line(virtual), "what is left is in real ones"
    scores = (Score("accuracy", 0.81234), Score("loss", None, "loss<=0.1"))
    evaluated = replace(VIEW, evaluated=(3, 8), scores=scores)
    assert line(evaluated) == "65 s: 3 of 8 versions evaluated; accuracy 0.8123"


@pytest.mark.parametrize(("share", "done"), [(0.4, 0.4), (0.1, 0.25), (0.0, 0.25)])
def test_whatever_else_may_end_a_run_counts_if_it_is_nearer(share: float, done: float) -> None:
    watch = watch_of({0: member(0)}, Tally(), max_seconds=40.0)
    watch.share, watch.passed = lambda: share, lambda: 3.0
    view = watch.look(10.0)
    assert (view.done, view.passed) == (done, 3.0)


def test_workers_are_listed_in_ranges_and_of_many_the_first() -> None:
    assert ranges([2, 0, 1, 4], 2) == "0-2, 4"
    assert ranges([0, 2, 4, 6], 2) == "0, 2 and 2 more"
    assert ranges([0, 1, 3, 4, 6, 7], 2) == "0-1, 3-4 and 2 more"


SIGNS = (("JPY_PARENT_PID", "7"), ("COLAB_GPU", ""), ("TERM", "dumb"), ("CI", "true"), ("encoding", "ascii"))


@pytest.mark.parametrize("sign", [None, *SIGNS])
def test_what_shows_each_picture_below_the_one_before_is_shown_lines(
    sign: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("JPY_PARENT_PID", "COLAB_GPU", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if sign is not None:
        monkeypatch.setenv(*sign)
    for stream in ("stdout", "stderr"):
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if sign == ("encoding", "ascii") else "utf-8")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, stream, terminal)
    asked = replace(SETTINGS, quiet=False, progress=10.0, folder=tmp_path)
    found = progress.shower(asked, output_to(sys.stdout))
    assert found is not None
    found.close()
    assert isinstance(found, ProgressLines) == (sign is not None)


def test_times_are_written_as_clocks_show_them() -> None:
    assert [duration(seconds) for seconds in (8.4, 125.0, 3725.0, 36000.0)] == ["8 s", "2:05", "1:02:05", "10:00:00"]


def test_lines_are_said_while_anybody_trains_or_evaluates(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(output_to(sys.stdout), 1.0)
    over = tuple(replace(row, lead=None) for row in VIEW.rows)
    evaluated = replace(VIEW, rows=over, evaluated=(1, 2))
    for view in (View(1.0, 0, 0.0, None, VIEW.rows), VIEW, replace(VIEW, rows=over), evaluated):
        lines.show(view)
    assert capsys.readouterr().err == f"paceline: {line(VIEW)}\npaceline: {line(evaluated)}\n"


def test_what_is_printed_meanwhile_stands_above_the_screen_and_the_screen_goes_when_it_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = io.StringIO()
    output = output_to(sys.stdout)
    console = Console(file=terminal, force_terminal=True, width=100, height=24, highlight=False)
    shown = Screen(output, "ssp", Path("runs/one"), console)
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
    assert erased.count("\x1b[2K") == len(screen(VIEW, "ssp", "runs/one", 100, 24).plain.splitlines())


def test_no_color_leaves_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> str:
        terminal = io.StringIO()
        screen = Screen(output_to(sys.stdout), "ssp", Path(), Console(file=terminal, **looks))
        screen.show(VIEW)
        screen.close()
        return terminal.getvalue()

    looks: dict[str, Any] = {"force_terminal": True, "width": 100, "color_system": "standard"}
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33mwaiting for \x1b[0m\x1b[1;35mworker 3\x1b[0m" in shown()
    assert "\x1b[1;31mdied\x1b[0m" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "waiting for worker 3" in shown()
    assert not re.search(r"\x1b\[[0-9;]*m", shown())


def test_a_terminal_that_takes_no_more_is_not_written_to_until_it_does() -> None:
    """Whoever writes to a terminal that was stopped with Ctrl-S waits: the whole run would."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb"), open(writing, "wb", buffering=0) as pipe:
        terminal = io.StringIO()
        terminal.fileno = pipe.fileno  # type: ignore[method-assign]
        console = Console(file=terminal, force_terminal=True, width=100)
        shown = Screen(output_to(sys.stdout), "ssp", Path(), console)
        while pipe.write(b"x" * 4096):
            pass
        shown.show(VIEW)
        assert "computing" not in terminal.getvalue()
        os.read(reading, 1 << 16)
        shown.show(VIEW)
        shown.close()
    assert "computing" in terminal.getvalue()


# --- in real runs


def test_where_no_terminal_is_a_line_comes_so_often(launch: Launch) -> None:
    run = launch.run(LOGGING, "-p", "asp", "--progress", "0.05").completed()
    assert re.search(
        r"^paceline: \d+ s: \d+ steps, [\d.]+ a second; \d+% done(, about .+ left)?; loss 1;?", run.err, re.M
    )


# --- what a terminal shows at a given width


STORE = State("waiting", why="the store")
SLOW = Row(63, 100, 0.5, State("computing"), 0, 0, ("loss", 0.9), awaited_by=40)
CROWD = replace(
    FOUR,
    rows=(
        *(Row(at, 150 + at % 4, 2.0, State("waiting", "worker 63"), 3, at % 3, ("loss", 0.5)) for at in range(40)),
        *(Row(at, 149, 2.5, State("computing"), 2, 1, ("loss", 0.6)) for at in range(40, 60)),
        *(Row(at, 149, 2.0, STORE, 2, 1, None) for at in range(60, 63)),
        SLOW,
    ),
)


def shown(view: View, width: int = 80, height: int = 24, title: str = "ssp:bound=3") -> list[str]:
    return screen(view, title, "runs/one", width, height).plain.splitlines()


def test_a_screen_has_how_far_it_is_the_loss_a_line_for_each_worker_the_targets_and_the_folder() -> None:
    assert shown(FOUR) == [
        "ssp:bound=3 · 4 workers · 1:05 · 400 steps · 8.0 steps/s",
        "━━━━━━━━━━━╸────────────────────────────────── 25% of 20 epochs, about 3:16 left",
        "loss 0.7 ███▇▇▇▇▆▆▆▆▆▅▅▅▅▅▅▄▄▄▄▄▄▄▄▃▃▃▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁ 0.332 to 2",
        "workers  steps  steps/s  lead  stale  loss",
        "0          150      3.0     3      1   0.5  waiting for worker 3",
        "1          150      3.0     3      2   0.7  waiting for worker 3",
        "2            0      0.0     -      -     -  died",
        "3          100      2.0     0      0   0.9  computing; 2 wait for it",
        "accuracy>=0.9: not evaluated yet",
        "folder: runs/one",
    ]


def test_of_64_workers_those_in_like_state_share_a_line_and_the_one_that_others_wait_for_comes_first() -> None:
    assert shown(CROWD)[3:-2] == [
        "workers   n    steps  steps/s  lead  stale  loss",
        "63        1      100      0.5     0      0   0.9  computing; 40 wait for it",
        "40-59    20      149      2.5     2      1   0.6  computing",
        "0-39     40  150-153      2.0     3    0-2   0.5  waiting for worker 63",
        "60-62     3      149      2.0     2      1     -  waiting: the store",
    ]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("view", [FOUR, CROWD])
def test_no_line_is_wider_than_the_terminal_though_the_protocol_has_a_long_name(view: View, width: int) -> None:
    lines = shown(view, width, title="sync-switch:first=bsp,then=ssp,switch_at=0.25,rescale=none,window=20")
    assert max(map(len, lines)) <= width
    assert lines[0].endswith(f" · {len(view.rows)} workers · 1:05 · 400 steps · 8.0 steps/s")


@pytest.mark.parametrize(("height", "groups"), [(24, 16), (12, 4), (1, 4)])
def test_where_64_workers_wait_for_as_many_others_the_smallest_groups_are_one(height: int, groups: int) -> None:
    pairs = [Row(at, 9, 1.0, State("waiting", f"worker {max(9, at // 2)}"), 0, 0, None) for at in range(64)]
    lines = [line.split() for line in shown(replace(CROWD, rows=tuple(pairs)), height=height) if "waiting" in line]
    assert len(lines) == groups
    assert [line[-1] for line in lines[:3]] == ["9", "others", f"{34 - groups}"]
    assert sum(int(line[1]) for line in lines) == 64
    left = [Row(at, 9, 1.0, State(f"state {at}"), 0, 0, None) for at in range(64)]
    assert shown(replace(CROWD, rows=tuple(left)), height=24)[-3] == "and 48 more workers", "of those who don't wait"
    apart = tuple(Row(at, 9, 1.0, State("pushing" if at % 2 else "computing"), 0, 0, None) for at in range(64))
    cut_off = shown(replace(CROWD, rows=apart))[3]
    assert cut_off == "0, 2, 4, 6, 8, 10,…  32      9      1.0     0      0  computing", (
        "names are cut, not what they do"
    )


def test_of_several_that_others_wait_for_it_is_said_and_of_one_how_many() -> None:
    rows = (FOUR.rows[0], replace(FOUR.rows[3], awaited_by=1))
    assert shown(replace(FOUR, rows=rows))[5].endswith("computing; 1 waits for it")
    crowd = (*CROWD.rows, replace(SLOW, worker=64))
    assert shown(replace(CROWD, rows=crowd))[4].endswith("computing; others wait")


def test_before_training_there_is_no_bar_and_no_loss_and_after_it_one_of_evaluations() -> None:
    start = View(2.0, 0, 0.0, None, tuple(Row(at, 0, 0.0, State("starting"), None, None, None) for at in range(2)))
    assert shown(start) == [
        "ssp:bound=3 · 2 workers · 2 s · 0 steps",
        "workers  steps  steps/s  lead  stale",
        "0            0      0.0     -      -  starting",
        "1            0      0.0     -      -  starting",
        "folder: runs/one",
    ]
    over = replace(FOUR, done=1.0, evaluated=(10, 40))
    assert shown(over)[1] == "━━━━━━━━━━━━━─────────────────────────────────────── 10 of 40 versions evaluated"
    assert shown(replace(over, evaluated=(40, 40)))[1].endswith("━ 100% of 20 epochs")


def test_a_target_that_is_met_says_when_and_any_other_the_best_so_far() -> None:
    scores = (Score("accuracy", 0.93, "accuracy>=0.9", 12.34), Score("loss", 0.31, "loss<=0.2"))
    assert shown(replace(FOUR, scores=scores))[-2] == (
        "accuracy>=0.9: after 12.3 s, best 0.93 · loss<=0.2: best 0.31 so far"
    )
    assert shown(replace(FOUR, scores=(Score("accuracy", 0.93), Score("f1", 0.5))))[-2] == "accuracy 0.93 · f1 0.5"


def test_a_loss_that_is_not_finite_is_said_and_a_terminal_too_narrow_for_a_curve_has_none() -> None:
    rows = (Row(0, 9, 1.0, State("computing"), 0, 0, ("loss", math.nan)),)
    assert shown(replace(FOUR, rows=rows, curve=()))[2] == "loss nan"
    assert shown(FOUR, width=20)[2] == "loss 0.7  0.332 to 2"


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ((1.0, 2.0), 0, ""),
        ((3.0, 3.0), 8, BLOCKS[0] * 2),
        ((0.0, 7.0, 3.0), 8, "▁█▄"),
        ((0.0, 2.0, 6.0, 8.0), 2, "▁█"),
        (tuple(range(8)), 8, BLOCKS),
    ],
)
def test_a_sparkline_has_a_block_for_each_value_or_for_the_mean_of_some(
    values: tuple[float, ...], width: int, line: str
) -> None:
    assert sparkline(values, width) == line
