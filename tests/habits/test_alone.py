"""Scripts that behave as if they were alone: they look whether something is there, and make it if it is not."""

from __future__ import annotations

import os
import signal
from hashlib import sha256

import pytest

from support.events import said
from support.launch import Launch
from support.runs import ended
from support.scripts import training

DOWNLOAD = """
import pathlib
place = pathlib.Path(sys.argv[1]) / "data"
if not place.exists():
    place.mkdir()
    with (place / "digits").open("x") as file:
        for part in range(20):
            file.write("digit ")
            file.flush()
            time.sleep(0.01)
assert (place / "digits").read_text().split() == ["digit"] * 20, "half a download"
"""
FOLDER = """
import pathlib
folder = pathlib.Path(sys.argv[1]) / "saved" / time.strftime("%m%d_%H%M%S")
folder.mkdir(parents=True)
(folder / "config.json").write_text("{}")
time.sleep(1.1)  # it reads its data
"""
ORDER = """
import pathlib
def note(what):
    with (pathlib.Path(sys.argv[1]) / "order").open("a") as file:
        file.write(f"{what} {me}\\n")
note("begins")
"""
"""What workers do before they come to `prepare`; the first argument is the test's folder."""


def order(launch: Launch) -> list[str]:
    return (launch.tmp_path / "order").read_text().splitlines()


@pytest.mark.parametrize(("habit", "workers", "protocol"), [(DOWNLOAD, 4, "all-reduce"), (FOLDER, 2, "bsp")])
def test_what_a_script_makes_if_it_is_missing_is_made_by_one_worker(
    habit: str, workers: int, protocol: str, launch: Launch
) -> None:
    script = training(before=habit, epochs=1)
    run = launch.run(script, "-n", str(workers), "-p", protocol, args=(str(launch.tmp_path),)).completed()
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished"] * workers
    assert run.err == ""


def test_the_others_begin_when_worker_0_has_come_to_prepare_and_are_said_to_wait_for_it(launch: Launch) -> None:
    reads = """
if me == 0:
    signal.signal(signal.SIGUSR1, lambda *_: note("goes on"))
    tell("reads", os.getpid())
    signal.pause()
"""
    script = training(before=ORDER + reads, epochs=1)
    flags = ("-n", "3", "-p", "asp", "--report-waits", "0.2")
    process = launch.start(script, *flags, args=(str(launch.tmp_path),))
    worker = int(launch.events.wait_for("reads")[1])
    text = said(process, r"has not called prepare\(\), last heard of \d+ s ago\n")
    assert "paceline: workers 1, 2 have waited for 0 s: the start waits until worker 0 calls prepare()" in text
    assert order(launch) == ["begins 0"]
    os.kill(worker, signal.SIGUSR1)
    ended(process).completed()
    assert order(launch)[:2] == ["begins 0", "goes on 0"]
    assert sorted(order(launch)[2:]) == ["begins 1", "begins 2"]


def test_if_worker_0_is_killed_on_its_way_to_prepare_the_next_one_goes_ahead(launch: Launch) -> None:
    dies = "if me == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(0.2)\nnote('prepares')"
    run = launch.run(
        training(before=ORDER + dies, epochs=1), "-n", "3", "-p", "asp", args=(str(launch.tmp_path),)
    ).completed()
    assert "worker 0 died (killed by SIGKILL); the others go on" in run.err
    assert order(launch)[:3] == ["begins 0", "begins 1", "prepares 1"]
    assert run.summary["samples"] == 64


@pytest.mark.parametrize("on_loss", ["auto", "stop"])
def test_a_script_that_fails_before_prepare_fails_once_and_no_other_worker_begins_it(
    on_loss: str, launch: Launch
) -> None:
    script = training(before=ORDER + "raise FileNotFoundError('no data')")
    run = launch.run(script, "-n", "3", "--on-loss", on_loss, args=(str(launch.tmp_path),))
    assert run.code == 3
    assert order(launch) == ["begins 0"]
    assert run.err.count(" died ") == 1
    assert run.summary["error"].startswith("worker 0 died (exit code 1)")
    assert (run.out + run.err).count("Traceback") == 1


def test_whoever_edits_a_script_while_its_workers_begin_changes_nothing_of_the_run(launch: Launch) -> None:
    edit = "if me == 0: open(__file__, 'w').write('raise SystemExit(9)')"
    run = launch.run(training(before=edit), "-n", "2", "-p", "asp").completed()
    text = training(before=edit).encode()
    assert run.rows("SELECT value FROM run WHERE key = 'script_sha256'") == [(f'"{sha256(text).hexdigest()}"',)]


def test_a_run_that_is_interrupted_before_the_others_begin_ends_at_once(launch: Launch) -> None:
    script = training(before=ORDER + "tell('reads')\nsignal.pause()")
    process = launch.start(script, "-n", "3", args=(str(launch.tmp_path),))
    launch.events.wait_for("reads")
    process.send_signal(signal.SIGINT)
    run = ended(process)
    assert (run.code, run.summary["outcome"]) == (130, "interrupted")
    assert order(launch) == ["begins 0"]


def test_scripts_that_know_better_begin_together(launch: Launch) -> None:
    """They wait for each other before they prepare, which would take for ever if one of them went ahead."""
    waits = "while len((pathlib.Path(sys.argv[1]) / 'order').read_text().splitlines()) < 2: time.sleep(0.01)"
    flags = ("-n", "2", "--start", "together")
    run = launch.run(training(before=ORDER + waits), *flags, args=(str(launch.tmp_path),)).completed()
    assert 'start = "together"' in (run.folder / "config.toml").read_text()
