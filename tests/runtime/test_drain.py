"""Hosts that leave in good order, as real processes do once they get SIGTERM.

That nothing is undone by it, whatever befalls them, is for the histories of `tests/cluster`. `tests/journeys` has a
host that had joined.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from support.events import await_file, said
from support.joins import assert_sound, heard, joined, listens
from support.launch import Launch
from support.runs import ended
from support.shards import ADAMW, HOSTS, SGD
from support.shards import script as sharded

IN_SECOND_EPOCH = """
        if epoch == 1:
            (THERE / f"agent-{paceline.worker()}").write_text(str(os.getppid()))
            (THERE / f"at-{paceline.worker()}").touch()
            while not (THERE / "go-on").exists(): time.sleep(0.02)
"""
"""The second epoch waits until all may go on."""
SAMPLES = 2 * 96


def script(optimizer: str = SGD) -> str:
    """With as many batches in each epoch as make whole rounds of three workers."""
    return sharded(optimizer, each_step=IN_SECOND_EPOCH.strip()).replace("(64", "(96")


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


def test_a_host_whose_process_gets_sigterm_leaves_its_range_to_another_and_the_run_goes_on_from_a_later_snapshot(
    launch: Launch,
) -> None:
    """Which process that is was said as the run began."""
    flags = *HOSTS, "-p", "bsp", "--checkpoint", "2", "--max-steps", "40", "--progress", "60"
    process = launch.start(script(ADAMW), *flags)
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    agent = int((launch.tmp_path / "agent-1").read_text())
    os.kill(agent, signal.SIGTERM)
    told = said(process, "host node-1 was asked to leave: its workers finish their steps")
    assert f"paceline: host node-1 is process {agent}\n" in told
    (launch.tmp_path / "go-on").touch()
    stopped = ended(process).completed()
    assert "host node-1 has left in good order\n" in stopped.err
    assert [row["left"]["reason"] for row in stopped.summary["per_worker"]] == ["stopped", "drained", "stopped"]
    ((moves,),) = stopped.rows("SELECT value FROM run WHERE key = 'moves'")
    assert [list(shards) for _, shards in json.loads(moves)] == [["node-0", "node-2"]]
    assert_sound(launch.resume(stopped.folder).completed(), SAMPLES)
