"""Hosts that leave in good order, as real processes do once they get SIGTERM.

That nothing is undone by it, whatever befalls them, is for the histories of `tests/cluster`. `tests/journeys` has a
host that had joined.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from support.events import await_file, await_stop, said
from support.joins import assert_sound, heard, joined, listens
from support.launch import Launch
from support.runs import Run, ended
from support.shards import ADAMW, HOSTS, SGD
from support.shards import script as sharded

IN_SECOND_EPOCH = """
        if epoch == 1:
            (THERE / f"process-{paceline.worker()}").write_text(f"{os.getppid()} {os.getpid()}")
            (THERE / f"at-{paceline.worker()}").touch()
            while not (THERE / "go-on").exists(): time.sleep(0.02)
"""
"""The second epoch waits until all may go on."""
SAMPLES = 2 * 96


def script(optimizer: str = SGD) -> str:
    """With as many batches in each epoch as make whole rounds of three workers."""
    return sharded(optimizer, each_step=IN_SECOND_EPOCH.strip()).replace("(64", "(96")


def moves(run: Run) -> list[list[str]]:
    """By range that moved, as the run has noted it: the hosts that have made one from then on."""
    noted = run.rows("SELECT value FROM run WHERE key = 'moves'")
    return [list(shards) for (moves,) in noted for _, shards in json.loads(moves)]


def left(run: Run) -> list[str]:
    """By worker: how it has left."""
    return [row["left"]["reason"] for row in run.summary["per_worker"]]


class Emulated:
    """Three hosts that one machine emulates, with one worker each, all in the second epoch."""

    def __init__(self, launch: Launch, text: str, *flags: str) -> None:
        self.launch = launch
        self.process = launch.start(text, *HOSTS, *flags)
        for worker in range(3):
            await_file(launch.tmp_path / f"at-{worker}")
        agent, worker = (launch.tmp_path / "process-1").read_text().split()
        self.agent, self.worker = int(agent), int(worker)
        """Of host node-1."""

    def leaves(self) -> None:
        """Ask host node-1 to leave, and wait until that was heard."""
        os.kill(self.agent, signal.SIGTERM)
        said(self.process, "host node-1 was asked to leave: its workers finish their steps")

    def go_on(self) -> None:
        (self.launch.tmp_path / "go-on").touch()

    def ended(self) -> Run:
        """Let all go on, to the run's end."""
        self.go_on()
        return ended(self.process).completed()


OWN = SGD.replace("torch.optim.SGD", "type('Own', (torch.optim.SGD,), {})")
"""It may look across elements, so that the store stays whole."""


@pytest.mark.parametrize(
    ("shards_on", "optimizer", "to"),
    [
        ("all", SGD, [["node-0", "node-2"]]),
        pytest.param("head", SGD, [], marks=pytest.mark.long),
        pytest.param("node-1", OWN, [["node-0"]], marks=pytest.mark.long),
    ],
)
def test_a_host_whose_process_gets_sigterm_leaves_what_it_makes_to_another(
    shards_on: str, optimizer: str, to: list[list[str]], launch: Launch
) -> None:
    """Which process that is was said as the run began."""
    hosts = Emulated(launch, script(optimizer), "-p", "bsp", "--shards-on", shards_on, "--progress", "60")
    os.kill(hosts.agent, signal.SIGTERM)
    told = said(hosts.process, "host node-1 was asked to leave: its workers finish their steps")
    assert f"paceline: host node-1 is process {hosts.agent}\n" in told
    run = hosts.ended()
    assert "host node-1 has left in good order\n" in run.err
    assert left(run) == ["finished", "drained", "finished"]
    assert moves(run) == to
    assert_sound(run, SAMPLES)


@pytest.mark.usefixtures("token")
def test_a_host_that_gets_sigterm_twice_leaves_at_once(launch: Launch) -> None:
    flags = "-p", "asp", "--shards-on", "head", "--on-loss", "continue"
    head = heard(launch.start(script(), *listens(), *flags))
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(other.pid, signal.SIGTERM)
    head.says("host b was asked to leave")
    os.kill(other.pid, signal.SIGTERM)
    assert ended(other).code == 130
    head.says("host b is lost: it was interrupted")
    (launch.tmp_path / "go-on").touch()
    head.ended().completed()


def test_a_run_goes_on_from_a_snapshot_that_was_taken_after_a_range_had_moved(launch: Launch) -> None:
    hosts = Emulated(launch, script(ADAMW), "-p", "bsp", "--checkpoint", "2", "--max-steps", "40")
    hosts.leaves()
    stopped = hosts.ended()
    assert moves(stopped) == [["node-0", "node-2"]]
    assert_sound(launch.resume(stopped.folder).completed(), SAMPLES)


@pytest.mark.parametrize(
    "hangs", ["stopped", pytest.param("its script does not come to its step", marks=pytest.mark.long)]
)
def test_a_host_leaves_without_a_worker_that_hangs_and_the_run_goes_on(hangs: str, launch: Launch) -> None:
    hosts = Emulated(launch, script(), "-p", "bsp", "--drain", "1")
    if hangs == "stopped":
        os.kill(hosts.worker, signal.SIGSTOP)
        await_stop(hosts.worker)
        hosts.go_on()  # otherwise the others hang as well
    hosts.leaves()
    told = said(hosts.process, "host node-1 has left in good order")
    assert "host node-1 leaves without worker 1, which has not finished its step within 1 s (--drain)\n" in told
    run = hosts.ended()
    assert left(run) == ["finished", "died", "finished"]
    assert moves(run) == [["node-0", "node-2"]]
    assert_sound(run, SAMPLES)
