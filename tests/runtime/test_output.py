"""What workers print, on its way to the screen and to their logs."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from paceline.core.phrases import MOST
from paceline.display.progress import Screen
from paceline.display.state import View
from paceline.host import worker_output
from paceline.host.worker_output import LONGEST, MOST_WORDS
from paceline.terminal import say
from support.events import LONG
from support.launch import Launch
from support.outputs import output_to
from support.runs import ended
from support.scripts import ENDLESS, training


class Worker:
    """What a worker prints comes out at `shown`."""

    def __init__(self, tmp_path: Path, prefix: bool = False) -> None:
        self.shown = io.StringIO()
        self.output = output_to(self.shown, tmp_path, prefix=prefix)
        self.log = tmp_path / "worker-0.log"

    def prints(self, data: bytes) -> None:
        self.output.printed(0, data)

    def ends(self) -> None:
        self.output.printed(0, b"")
        self.output.close()


@pytest.mark.parametrize("prefix", [False, True])
def test_of_a_line_without_an_end_no_more_is_kept_than_a_line_may_have(tmp_path: Path, prefix: bool) -> None:
    """What is kept is looked through again with each piece that comes: all of 40 MB took 38 seconds."""
    worker = Worker(tmp_path, prefix)
    for sent in range(1, 41):
        worker.prints(b"x" * 50_000)
        assert worker.shown.getvalue().count("x") >= sent * 50_000 - LONGEST
    worker.ends()
    assert worker.shown.getvalue().count("x") == 40 * 50_000
    assert worker.log.stat().st_size == 40 * 50_000


def test_a_progress_bar_is_shown_as_it_goes(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.prints(b"\r 10%\r 20%\r")
    assert worker.shown.getvalue() == "\r 10%\r 20%\r"
    worker.prints(b" 30%\r")
    assert worker.shown.getvalue() == "\r 10%\r 20%\r 30%\r"
    worker.ends()


def test_on_a_terminal_with_the_table_a_progress_bar_stands_above_it_in_one_line(tmp_path: Path) -> None:
    terminal, worker = io.StringIO(), Worker(tmp_path)
    view = View(seconds=1.0, steps=2, speed=3.0, done=None, rows=())
    console = Console(file=terminal, force_terminal=True, width=100, highlight=False)
    shown = Screen(worker.output, "ssp", tmp_path, console)
    worker.prints(b"before\n\r 10%\r 20%\r")
    shown.show(view)
    assert "before" in terminal.getvalue()
    assert " 20%\n" in terminal.getvalue()
    assert " 10%" not in terminal.getvalue()
    worker.prints(b" 90%\rall of it\n")
    shown.show(view)
    assert "all of it" in terminal.getvalue()
    assert " 90%" not in terminal.getvalue()
    shown.close()
    worker.ends()


def test_what_nobody_reads_in_time_is_not_shown_and_what_comes_after_it_is(tmp_path: Path) -> None:
    read, write = os.pipe()
    with open(write, "w") as unread:
        shown = output_to(unread, tmp_path, patience=0.0)
        for _ in range(10):
            shown.printed(0, b"lost\n" * 5_000)  # more than a pipe has room for
        os.read(read, 1 << 20)
        shown.printed(0, b"shown\n")
        assert os.read(read, 1 << 20) == b"shown\n"
        assert (tmp_path / "worker-0.log").read_bytes() == b"lost\n" * 50_000 + b"shown\n"
        shown.close()
    os.close(read)


def test_a_log_that_can_t_be_written_is_said_once_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(tmp_path)
    worker.log.symlink_to("/dev/full")
    worker.prints(b"one\n")
    worker.prints(b"two\n")
    worker.ends()
    assert worker.shown.getvalue() == "one\ntwo\n"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: {worker.log} can't be written (No space left on device)")


def test_of_hundreds_that_die_at_once_the_first_are_told_one_by_one_and_the_others_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = list[Callable[[], None]]()
    output = output_to(sys.stdout, tmp_path, shows=False)
    output.after = lambda _, call: later.append(call)
    for worker in range(200):
        (tmp_path / f"worker-{worker}.log").write_text(f"the last word of worker {worker}\n")
        output.died(worker, "killed by SIGKILL", f" in step {worker}; the others go on")
    said = capsys.readouterr().err.splitlines()
    assert said[-3:] == [
        "paceline: worker 7 died (killed by SIGKILL) in step 7; the others go on",
        f"paceline:   its last lines, of {tmp_path}/worker-7.log:",
        "  | the last word of worker 7",
    ]
    assert len(said) == 3 * MOST
    (tell,) = later
    tell()
    rest = f"paceline: workers 8-199 died, too (killed by SIGKILL); what was printed there is in {tmp_path}\n"
    assert capsys.readouterr().err == rest
    output.died(200, "killed by SIGKILL", "")
    assert len(later) == 2, "the next ones are told as soon"
    output.died(201, "exit code 1", "")
    assert capsys.readouterr().err == "paceline: worker 201 died (exit code 1)\n", "another kind is told at once"
    output.close()
    assert capsys.readouterr().err == rest.replace("workers 8-199", "worker 200")


def test_a_run_whose_standard_error_is_full_trains(launch: Launch) -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)"
    run = launch.run(training(), "-n", "2", "--progress", "0.01", first=full).completed()
    assert "32 steps" in run.out


@pytest.mark.real_run
def test_a_run_whose_standard_error_is_closed_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(training())
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" -m paceline run -n 2 --progress 0.01 --out run train.py 2>&-', sys.executable],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert "32 steps" in done.stdout


def test_a_run_whose_output_nobody_reads_ends_when_it_is_told_to(launch: Launch) -> None:
    """As with a pager that is left alone. The launcher is in the middle of a line when the signal comes."""
    process = launch.start(training("print('x' * 20_000)", **ENDLESS), "-n", "1")
    pipe = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    room = select.poll()
    room.register(pipe, select.POLLOUT)
    soon = time.monotonic() + LONG
    while room.poll(0):
        assert time.monotonic() < soon
        time.sleep(0.01)
    os.close(pipe)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONG) == 130
    run = ended(process)
    assert run.summary["outcome"] == "interrupted"
    assert "Traceback" not in run.out + run.err


def test_what_another_machine_s_worker_prints_has_colours_and_progress_and_nothing_else_for_the_terminal(
    tmp_path: Path,
) -> None:
    worker = Worker(tmp_path)
    kept = "\x1b[31mred\x1b[0m 50 %\r\x1b[A\x1b[K\tdone é😀👩\u200d🚀\u3000\n"
    worker.output.printed(0, kept.encode() + b"\x1b]52;c;cm0=\x07\x1b[6n\x1b[?1049h\x1b[2J\x1b[H\x00\n", elsewhere=True)
    assert worker.shown.getvalue() == kept + "\\x1b]52;c;cm0=\\x07\\x1b[6n\\x1b[?1049h\\x1b[2J\\x1b[H\\x00\n"
    worker.prints(b"\x1b]8;;file\x1b\\\n")
    assert worker.shown.getvalue().endswith("\x1b]8;;file\x1b\\\n"), "the user's own script has the terminal"


def test_our_lines_are_lines_whatever_stands_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Worker(tmp_path).output.say("host b is lost: \x1b[2J\n" + "x" * 9000)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert len(line) < 5000


def test_of_too_many_lines_of_one_host_or_worker_the_rest_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, due = Worker(tmp_path), list[Callable[[], None]]()
    worker.output.after = lambda seconds, call: due.append(call)
    for number in range(1000):
        worker.output.passes_on("host b", f"line {number}")
    worker.output.passes_on("worker 3", "a line")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [*(f"paceline: line {number}" for number in range(MOST_WORDS)), "paceline: a line"]
    (tell,) = due
    tell()
    worker.output.passes_on("host b", "once more")
    assert capsys.readouterr().err == "paceline: 940 more lines of host b are left out\npaceline: once more\n"


def test_a_worker_elsewhere_that_prints_without_end_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_output, "MOST_KEPT", 1000)
    worker = Worker(tmp_path)
    for _ in range(10):
        worker.output.printed(0, b"x" * 300, elsewhere=True)
    assert worker.log.stat().st_size == 900
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("it lacks the rest of what worker 0 prints")
    (tmp_path / "here").mkdir()
    here = Worker(tmp_path / "here")
    here.prints(b"x" * 3000)
    assert here.log.stat().st_size == 3000


def test_a_command_that_talks_to_another_machine_shows_its_words_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("the head says \x1b[2J")
    assert capsys.readouterr().err == "paceline: the head says \\x1b[2J\n"


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad\n'


def test_the_traceback_of_a_script_that_fails_everywhere_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = list[Callable[[], None]]()
    output = output_to(sys.stdout, tmp_path, shows=True)
    output.shows = lambda worker: worker == 0
    output.after = lambda _, call: later.append(call)
    (tmp_path / "worker-1.log").write_text(TRACEBACK)
    output.died(1, "exit code 1", " in step 3")
    output.printed(0, f"loss 0.5\n{TRACEBACK}".encode())  # the first worker's comes later, and is on the screen
    later.pop()()
    output.close()
    said = capsys.readouterr()
    assert (said.out + said.err).count("ValueError: bad") == 1
    assert f"its last lines are the same as worker 0's; all of it: {tmp_path}/worker-1.log" in said.err


def test_a_traceback_that_is_not_on_the_screen_is_told_whether_or_not_another_one_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = output_to(sys.stdout, tmp_path, shows=True)
    output.shows = lambda worker: worker == 0
    output.after = lambda _, call: None
    (tmp_path / "worker-1.log").write_text(TRACEBACK)
    (tmp_path / "worker-2.log").write_text(f"loss 0.25\n{TRACEBACK}")
    output.died(1, "exit code 1", "")
    output.died(2, "exit code 1", "")
    assert "ValueError" not in capsys.readouterr().err
    output.close()
    said = capsys.readouterr().err
    assert said.count("  | ValueError: bad") == 1
    assert "its last lines are the same as worker 1's" in said
