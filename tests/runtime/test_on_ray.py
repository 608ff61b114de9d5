"""`paceline run --on ray`: a real Ray cluster of several nodes, real runs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from support.cluster_examples import command, lay_out, small
from support.launch import Launch
from support.machines import SAMPLES, WAITS, assert_no_token, await_workers, refused
from support.nursery import Process
from support.rays import RayCluster
from support.runs import ended
from support.scripts import training
from support.sound import right

SLOWLY = """
from pathlib import Path
there = Path(__file__).parent
(there / f"at-{me}").touch()
time.sleep(0.0 if (there / "go-on").exists() else 0.2)
"""
"""Notes where a worker is, and goes on slowly: who comes is given what another worker has, between two of its steps."""


def on(cluster: RayCluster, hosts: str = "3") -> tuple[str, ...]:
    """Flags of a run with one worker on each of so many nodes."""
    flags = "--name", "head", "-n", "1", "--threads", "1", "-p", "asp"
    return "--on", "ray", "--address", cluster.address, "--hosts", hosts, *flags


def until(so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nodes_of_a_cluster_take_part_each_with_an_agent(launch: Launch, ray_cluster: RayCluster) -> None:
    run = launch.run(training(before="print('I am', me)"), *on(ray_cluster), "--tee", "all").completed()
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert sorted(host for _, host, _ in json.loads(facts)["members"]) == ["head", "ray-1", "ray-2"]
    assert run.summary["samples"] == SAMPLES
    right(run)
    assert all(f"[worker {worker}] I am {worker}\n" in run.out for worker in range(3))
    until(lambda: not ray_cluster.agents())


@pytest.mark.long
def test_the_command_of_the_example_of_a_ray_job_trains_on_three_nodes(
    launch: Launch, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = small(command("ray.sh"))
    run = launch.tmp_path / "shared"
    words[words.index("--out") + 1] = str(run)
    lay_out(launch.tmp_path)
    monkeypatch.chdir(launch.tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)  # Ray sets it for the entrypoint of a job
    process = Process(words)
    process.folder = run  # type: ignore[attr-defined]
    ran = ended(process).completed()
    hosts = {host["host"] for host in ran.summary["per_host"]}
    assert len(hosts) == 3
    assert hosts > {"ray-1", "ray-2"}
    until(lambda: not ray_cluster.agents())


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_agents_end_with_the_head_and_have_the_token_to_themselves(
    end: signal.Signals, launch: Launch, ray_cluster: RayCluster
) -> None:
    process = launch.start(training(WAITS), *on(ray_cluster))
    await_workers(launch, 0, 1, 2)
    there = [*launch.traces[-1].processes(), *ray_cluster.traces.processes()]
    assert len(there) > 4
    assert_no_token(there)
    os.kill(process.pid, end)
    (launch.tmp_path / "go-on").touch()
    assert ended(process).code == (130 if end == signal.SIGINT else -signal.SIGKILL)
    launch.assert_nothing_left()
    until(lambda: not ray_cluster.agents())


@pytest.mark.long
def test_a_node_that_dies_is_a_lost_host_and_one_that_comes_is_a_new_one(
    launch: Launch, ray_cluster: RayCluster
) -> None:
    process = launch.start(training(SLOWLY, epochs=30), *on(ray_cluster, "2:4"), "--on-loss", "continue")
    # two nodes besides this one are there, and the second of them comes as soon as the run has begun
    await_workers(launch, 0, 1, 2)
    ray_cluster.kill_node()
    ray_cluster.add_node()
    await_workers(launch, 3)
    (launch.tmp_path / "go-on").touch()
    run = ended(process, 120)
    assert run.code == 0, run.err
    assert len(re.findall(r"host ray-\d is lost", run.err)) == 1, run.err
    assert "host ray-3 has come" in run.err
    assert "raylet" not in run.err  # Ray's own words of that: twenty lines
    right(run)
    until(lambda: not ray_cluster.agents())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--on ray --address 127.0.0.1:1 --hosts 2", ("--on ray", "127.0.0.1:1")),
        ("--on ray --address ray://a:1 --hosts 2", ("ray://a:1 is not the address",)),
        ("--on ray --address 127.0.0.1:1", ("--on ray", "--hosts")),
        ("--on ray --address 127.0.0.1:1 --hosts 2 --ssh ssh", ("--ssh is ssh",)),
        ("--on ray:3 --hosts 2", ('--on is "ray:3"; it must be', "or ray")),
        ("--address 127.0.0.1:1", ("--address is 127.0.0.1:1", "--on ray")),
    ],
)
def test_what_can_t_be_is_refused_in_one_line(flags: str, words: tuple[str, ...], launch: Launch) -> None:
    refused(launch.run(training(), "-n", "1", "--threads", "1", "-p", "asp", *flags.split()), *words)
