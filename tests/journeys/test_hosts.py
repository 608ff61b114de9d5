"""Runs on several hosts, emulated here or joined over loopback: shards, sums, replicas, and hosts that come and go."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch

from support.chaos import Schedule, carry_out
from support.events import await_file
from support.joins import heard, hosts_in, joined, listens
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, killed_once_kept, replayed
from support.scripts import that_draws
from support.shards import ADAMW, HOSTS, TWO_EACH, script

SAMPLES = 2 * 64
"""Of `support.shards.script`, in both epochs."""
ON_TWO = ("--emulate-hosts", "2", "-n", "2", "--threads", "1", "--tee", "none")


def right(run: Run) -> None:
    """The ledger is right, and each sample was used once in each epoch."""
    assert run.summary["samples_missed"] == 0
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (found := checked(run.folder)).ok, found.wrong


def sound(run: Run) -> None:
    """So it is, and a replay on one host ends on the same bits."""
    right(run)
    assert "the same bits" in replayed(run.folder).completed().out


def test_three_hosts_each_make_a_range_of_every_version(launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", "asp").completed()
    assert run.summary["samples"] == SAMPLES
    assert run.rows("SELECT COUNT(DISTINCT host) FROM fetches WHERE kind = 'update'") == [(3,)]
    sound(run)


def test_rounds_move_one_sum_a_host_and_end_where_rounds_on_one_host_do(launch: Launch) -> None:
    exact = script(ADAMW).replace(
        "torch.manual_seed(3)", "torch.manual_seed(3); torch.set_default_dtype(torch.float64)"
    )
    run = launch.run(exact, *TWO_EACH, "-p", "bsp").completed()
    ((arrived, summed),) = run.rows(
        "SELECT COUNT(*), COUNT(json_extract(body, '$.sum')) FROM facts WHERE kind = 'UpdateArrived'"
    )
    assert 0 < summed <= arrived
    sound(run)
    alone = launch.run(exact, "-n", "6", "--threads", "1", "-p", "bsp").completed().final()
    with_sums = run.final()
    assert all(torch.allclose(with_sums[name], alone[name], rtol=1e-4, atol=1e-5) for name in alone)


def test_replicas_on_three_hosts_are_averaged(launch: Launch) -> None:
    hosts = ("--emulate-hosts", "3", "-n", "1", "--threads", "1", "--tee", "none")
    run = launch.run(that_draws(), *hosts, "-p", "ad-psgd").completed()
    assert run.summary["samples"] == 2 * 240
    assert run.rows("SELECT DISTINCT kind FROM fetches WHERE kind IN ('partial', 'mean') ORDER BY kind") == [
        ("mean",),
        ("partial",),
    ]
    sound(run)


DIES = """
there = os.path.join(os.path.dirname(__file__), "dies")
if epoch == 1 and paceline.worker() == 2:
    open(there, "w").close()
    os.kill(os.getppid(), signal.SIGKILL)
if epoch == 1 and paceline.worker() > 1:
    time.sleep(60)
while epoch == 1 and not os.path.exists(there):
    time.sleep(0.01)
"""
"""In the second epoch, worker 2 kills its agent. The others leave it a batch, and none of its host finishes."""


def test_the_others_go_on_without_a_host_that_is_killed_and_take_over_its_batches(launch: Launch) -> None:
    run = launch.run(that_draws(DIES), *ON_TWO, "-p", "asp", "--on-loss", "continue").completed()
    assert "host node-1 is lost" in run.err
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "finished", "died", "died"]
    right(run)


CUTS = (("node-1", "CarryOut", 2, "cut control", 0.0), ("node-1", "fetch", 2, "cut data", 0.0))


def test_a_link_that_breaks_and_comes_back_loses_and_doubles_nothing(launch: Launch) -> None:
    flags = "--emulate-hosts", "2", "-n", "1", "--threads", "1", "--shards-on", "all", "-p", "bsp"
    schedule = replace(Schedule.of("shards", 2), flags=flags, faults=CUTS, resumes=())
    befell = {f"{what}, in {process} at {place} {nth}" for process, place, nth, what, _ in CUTS}
    assert set(carry_out(schedule, launch)) == befell


def test_rounds_on_several_hosts_that_are_killed_go_on_to_the_bits_of_one_run(launch: Launch) -> None:
    flags = (*HOSTS, "-p", "bsp", "--checkpoint", "3")
    text = script(ADAMW, each_step="time.sleep(0.01)")
    whole = launch.run(text, *flags).completed()
    stopped = killed_once_kept(launch.start(text, *flags), snapshots=2)
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["segments"] == 2
    a, b = whole.final(), resumed.final()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (found := checked(resumed.folder)).ok, found.wrong


@pytest.mark.usefixtures("token")
def test_hosts_join_over_tls_and_one_leaves_in_good_order_with_its_range(launch: Launch) -> None:
    """All wait in the second epoch until that host was asked to leave."""
    waits = "(THERE / f'at-{paceline.worker()}').touch() if epoch else None"
    waits += "\n        while epoch and not (THERE / 'go-on').exists(): time.sleep(0.02)"
    head = heard(launch.start(script(ADAMW, each_step=waits), *listens(3), "-p", "asp"))
    joiners = [joined(launch, head, name) for name in ("b", "c")]
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    os.kill(joiners[1].pid, signal.SIGTERM)
    head.says("host c was asked to leave: its workers finish their steps")
    (launch.tmp_path / "go-on").touch()
    run = head.ended().completed()
    assert [ended(joiner).code for joiner in joiners] == [0, 0]
    leavers = [hosts_in(run)[row["worker"]] for row in run.summary["per_worker"] if row["left"]["reason"] == "drained"]
    assert leavers == ["c"]
    assert len(run.rows("SELECT value FROM run WHERE key = 'moves'")) == 1
    sound(run)
