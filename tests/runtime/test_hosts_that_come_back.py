"""Workers of other hosts that died come back, and hosts that were lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from support.events import LONG, await_file, said
from support.joins import assert_sound, facts_of
from support.launch import Launch
from support.leftovers import Watch
from support.recorded import checked
from support.runs import ended
from support.scripts import that_meets
from support.suites import each

SAMPLES = 2 * 240
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1", "--tee", "none")
PREPARED = "if paceline.resumed(): touch('prepared')"
LINGERS = """
if paceline.resumed():
    touch("back")
if me in {others} and step == 4:
    wait("prepared")
if me in {others} and step >= 4 and not there("back"):
    time.sleep(0.05)  # a worker that joins gets what it begins with between two steps of others
"""
DIES = LINGERS.format(others=(0, 1, 2)) + "if me == 3 and step == 3 and not paceline.resumed(): os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("protocol", each(["bsp", "ps-plus", "sync-switch"], default=("bsp",)))
def test_a_worker_of_another_host_comes_back(protocol: str, launch: Launch) -> None:
    script = that_meets(DIES, prepared=PREPARED)
    run = launch.run(script, *HOSTS, "-p", protocol, "--restart", "1").completed()
    assert facts_of(run, "WorkerJoined") == [3]
    assert "worker 3 is back" in run.err
    assert "is lost" not in run.err
    assert_sound(run, SAMPLES)


STOPS = """
if me in (2, 3) and not paceline.resumed():
    touch(f"pids-{me}", f"{os.getppid()} {os.getpid()}")
    if step == 3:
        touch(f"fourth-{me}")
        wait("over")  # which a replay finds
"""


def pids(launch: Launch, worker: int) -> list[int]:
    """Of the worker's host and of the worker."""
    await_file(file := launch.tmp_path / f"pids-{worker}")
    return [int(one) for one in file.read_text().split()]


def stop_host(launch: Launch) -> Callable[[], None]:
    """Stop the processes of host node-1: its agent, and its workers. Return what lets them go on."""
    for worker in (2, 3):
        await_file(launch.tmp_path / f"fourth-{worker}")
    processes = {one for worker in (2, 3) for one in pids(launch, worker)}
    assert len(processes) == 3
    for process in processes:
        os.kill(process, signal.SIGSTOP)

    def go_on() -> None:
        for process in processes:
            os.kill(process, signal.SIGCONT)

    return go_on


@pytest.mark.parametrize("protocol", ["asp", pytest.param("bsp", marks=pytest.mark.long)])
def test_a_host_that_was_stopped_comes_back_as_a_new_incarnation(protocol: str, launch: Launch) -> None:
    script = that_meets(STOPS + LINGERS.format(others=(0, 1)), prepared=PREPARED)
    process = launch.start(script, *HOSTS, "-p", protocol, "--restart", "1", "--host-timeout", "2")
    go_on = stop_host(launch)
    said(process, "host node-1 is lost: silent for")
    go_on()
    said(process, "host node-1 is back")
    run = ended(process).completed()
    (launch.tmp_path / "over").touch()
    assert facts_of(run, "WorkerLeft")[:2] == [2, 3]
    assert sorted(facts_of(run, "WorkerJoined")) == [2, 3]
    assert_sound(run, SAMPLES)


def test_a_host_that_nobody_awaits_ends_when_it_goes_on(launch: Launch) -> None:
    """The run takes long enough for that: the other workers wait for the agent's end."""
    process = launch.start(
        that_meets(STOPS + "if me < 2 and step == 4: wait('ended')"), *HOSTS, "-p", "asp", "--host-timeout", "2"
    )
    go_on = stop_host(launch)
    with ExitStack() as kept:
        watches = [kept.enter_context(Watch(one)) for one in pids(launch, 2)]
        said(process, "host node-1 is lost: silent for")
        go_on()
        assert all(watch.ends(LONG) for watch in watches)
    (launch.tmp_path / "ended").touch()
    run = ended(process).completed()
    assert not facts_of(run, "WorkerJoined")
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_host_whose_agent_is_killed_stays_away_and_so_do_its_workers(launch: Launch) -> None:
    kills = "if me == 2 and step == 3: os.kill(os.getppid(), signal.SIGKILL); wait('never')"
    run = launch.run(that_meets(kills), *HOSTS, "-p", "asp", "--restart", "3").completed()
    assert "host node-1 is lost: its agent has ended" in run.err
    assert "back" not in run.err
    assert facts_of(run, "WorkerLeft")[:2] == [2, 3]
    assert (found := checked(run.folder)).ok, found.wrong


def test_agents_end_with_a_head_that_is_stopped_and_leave_nothing(launch: Launch) -> None:
    stays = "touch(f'pids-{me}', f'{os.getppid()} {os.getpid()}'); wait('never')"
    process = launch.start(that_meets(stays), *HOSTS, "-p", "asp", "--host-timeout", "2")
    assert [pids(launch, worker)[0] for worker in range(2)] == [process.pid] * 2
    with ExitStack() as kept:
        there = {one for worker in (2, 3) for one in pids(launch, worker)}
        watches = [kept.enter_context(Watch(one)) for one in there]
        os.kill(process.pid, signal.SIGSTOP)
        assert all(watch.ends(LONG) for watch in watches)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    launch.assert_nothing_left()
