"""Runs that end otherwise than by their script, and go on; and workers that die and come back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest

from support.events import LONG, said
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, killed_once_kept, replayed
from support.scripts import ENDLESS, that_draws, that_resumes, training

TWO = ("-n", "2", "--threads", "1")
SAMPLES = 2 * 240
"""Of `support.scripts.that_draws`, in both epochs."""


def right(run: Run) -> None:
    """The ledger is right, and each sample was used once in each epoch."""
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    assert (found := checked(run.folder)).ok, found.wrong


def same_bits(one: Run, other: Run) -> bool:
    return bool(one.summary["final_parameters_sha256"] == other.summary["final_parameters_sha256"])


def test_a_run_whose_launcher_is_killed_goes_on_and_is_replayed_to_the_same_bits(launch: Launch) -> None:
    process = launch.start(that_draws("time.sleep(0.005)"), *TWO, "-p", "asp", "--checkpoint", "4")
    killed = killed_once_kept(process, snapshots=2)
    launch.assert_nothing_left()
    run = launch.resume(killed.folder).completed()
    assert run.summary["segments"] == 2
    right(run)
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert same_bits(run, again)


@pytest.mark.parametrize("protocol", ["bsp", "all-reduce"])
def test_a_run_that_is_stopped_and_resumed_ends_on_the_bits_of_one_that_was_not(protocol: str, launch: Launch) -> None:
    flags = (*TWO, "-p", protocol, "--checkpoint", "3")
    script = that_resumes()
    one = launch.run(script, *flags).completed()
    stopped = launch.run(script, *flags, "--max-steps", "37").completed()
    assert stopped.summary["steps"] >= 37
    resumed = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    right(resumed)
    assert same_bits(resumed, one)


def test_when_the_launcher_is_killed_so_is_everything_else(launch: Launch) -> None:
    """Also a loader's processes, one that the script forked, a worker that is stopped and one that never listens."""
    script = training(
        """
        if step == 2:
            if os.fork() == 0:
                signal.pause()
            tell("trains", me)
            while True:
                os.kill(os.getpid(), signal.SIGSTOP) if me == 1 else signal.pause()
        """,
        **ENDLESS,
        num_workers=2,
    )
    process = launch.start(script, "-n", "2", "-p", "asp")
    for worker in range(2):
        launch.events.wait_for("trains", worker)
    (traces,) = launch.traces
    here = 1 + 1 + 1 + 2 * (1 + 2 + 1)  # launcher, zygote, store, and for each worker what it started
    assert len(traces.processes()) == here
    process.kill()
    assert process.wait(LONG) == -signal.SIGKILL
    launch.assert_nothing_left()
    process.communicate()


def test_a_second_ctrl_c_ends_at_once_though_a_script_ignores_the_first(launch: Launch) -> None:
    script = training("if step == 0: tell('trains', me)", after="tell('ignores', me)\nwhile True: pass", **ENDLESS)
    process = launch.start(script, "-n", "2", "-p", "asp")
    launch.events.wait_for("trains", 0)
    launch.events.wait_for("trains", 1)
    os.killpg(process.pid, signal.SIGINT)
    said(process, "interrupted: ending the run")
    os.killpg(process.pid, signal.SIGINT)
    run = ended(process)
    assert run.code == 130
    assert run.summary["outcome"] == "interrupted"
    assert "has not ended its script in time" not in run.err, "it was not the second one that ended it"
    launch.assert_nothing_left()


BACK = """
there = os.path.dirname(__file__)
if paceline.resumed():
    open(os.path.join(there, f"back-{paceline.worker()}"), "w").close()
step = 0
"""
AWAITS = """
while paceline.worker() == 0 and step == 9 and not all(os.path.exists(f"{there}/back-{one}") for one in (1, 2)):
    time.sleep(0.01)
"""
"""Worker 0 leaves work to those that come back."""


@pytest.mark.parametrize("protocol", ["ps-plus", "all-reduce"])
def test_workers_that_die_come_back_and_the_run_is_whole(protocol: str, launch: Launch) -> None:
    events = "".join(
        f'[[event]]\nkill = true\nworker = {worker}\nat_step = {step}\nrejoin_after = "10ms"\n'
        for worker, step in ((1, 3), (2, 6))
    )
    (launch.tmp_path / "deaths.toml").write_text(f'[cluster]\nworkers = 3\ncompute = "5ms"\n{events}')
    flags = ("--scenario", str(launch.tmp_path / "deaths.toml"), "--threads", "1")
    run = launch.run(that_draws(AWAITS).replace("step = 0\n", BACK), "-p", protocol, *flags).completed()
    assert run.rows("SELECT count(*) FROM facts WHERE kind = 'WorkerJoined'") == [(2,)]
    right(run)
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert same_bits(run, again)


def test_a_ledger_that_was_changed_is_found_and_its_replay_ends_otherwise(launch: Launch) -> None:
    """Worker 1 is said to have contributed with more weight than it had."""
    run = launch.run(that_draws(), *TWO, "-p", "asp").completed()
    right(run)
    forged = run.folder.with_name("forged")
    shutil.copytree(run.folder, forged)
    with closing(sqlite3.connect(forged / "ledger.sqlite")) as ledger, ledger:
        ((row, body),) = ledger.execute("SELECT id, body FROM orders WHERE kind = 'ApplyUpdate' AND version = 20")
        order = json.loads(body)
        order["contributions"][0][2] *= 2
        ledger.execute("UPDATE orders SET body = ? WHERE id = ?", (json.dumps(order), row))
    assert not checked(forged).ok
    again = replayed(forged)
    assert again.code == 3
    assert "version 20 is" in again.out


def test_runs_end_with_the_command_to_type_next_and_show_a_failed_script_s_traceback_once(launch: Launch) -> None:
    shown = ("-n", "2", "--progress", "1000")
    run = launch.run(training(), *shown).completed()
    assert run.err == f"next: paceline explain {run.folder}\n"
    everywhere = training("if epoch == 1 and step > 10:\n    raise ValueError('a bad batch')")
    failed = launch.run(everywhere, *shown)
    assert failed.code == 3
    assert (failed.out + failed.err).count("ValueError: a bad batch") == 1
    assert failed.err.splitlines()[-1].startswith(f"next: read {failed.folder}/worker-")


def test_a_resumed_run_that_is_beyond_its_limit_is_refused_and_stays_as_it_was(launch: Launch) -> None:
    stopped = launch.run(training(), *TWO, "--max-steps", "9").completed()
    before = (stopped.folder / "summary.json").read_bytes()
    for limit in (("--max-seconds", "0.001"), ("--max-steps", "3")):
        refused = launch.resume(stopped.folder, *limit)
        assert refused.code == 2
        (line,) = refused.err.splitlines()
        assert f"{limit[0]} is {limit[1]}, and the run has trained for " in line
    assert (stopped.folder / "summary.json").read_bytes() == before
