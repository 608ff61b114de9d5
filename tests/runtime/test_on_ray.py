"""`paceline run --on ray`: a real Ray cluster of several nodes, real runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.cluster_examples import command, lay_out, small
from support.launch import Launch
from support.nursery import Process
from support.rays import RayCluster
from support.runs import Run, ended
from support.scripts import training
from support.sound import right

SAMPLES = 2 * 64
WAITS = """
from pathlib import Path
there = Path(__file__).parent
(there / f"at-{me}").touch()
while not (there / "go-on").exists(): time.sleep(0.05)
"""
"""Notes that the worker is in its first step, where all wait until they are to go on."""
SLOWLY = """
from pathlib import Path
there = Path(__file__).parent
(there / f"at-{me}").touch()
time.sleep(0.0 if (there / "go-on").exists() else 0.2)
"""
"""Notes the same, and goes on slowly: who comes is given what another worker has, between two of its steps."""


def on(cluster: RayCluster, hosts: str = "3", *, protocol: str = "asp") -> tuple[str, ...]:
    """Flags of a run with one worker on each of so many nodes."""
    flags = "--name", "head", "-n", "1", "--threads", "1", "-p", protocol
    return "--on", "ray", "--address", cluster.address, "--hosts", hosts, *flags


def until(so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def await_workers(launch: Launch, *workers: int) -> None:
    until(lambda: all((launch.tmp_path / f"at-{worker}").exists() for worker in workers))


def refused(run: Run, *words: str) -> None:
    """It was refused in one line, which has these words, and left no folder."""
    assert run.code == 2, run.err
    (line,) = run.err.splitlines()
    assert all(word in line for word in words), line
    assert not run.folder.exists()


def test_nodes_of_a_cluster_take_part_each_with_an_agent(launch: Launch, ray_cluster: RayCluster) -> None:
    run = launch.run(training(before="print('I am', me)"), *on(ray_cluster), "--tee", "all").completed()
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert sorted(host for _, host, _ in json.loads(facts)["members"]) == ["head", "ray-1", "ray-2"]
    assert run.summary["samples"] == SAMPLES
    right(run)
    assert all(f"[worker {worker}] I am {worker}\n" in run.out for worker in range(3))
    until(lambda: not ray_cluster.agents())


@pytest.mark.long
def test_a_program_runs_on_a_cluster_too(launch: Launch, ray_cluster: RayCluster) -> None:
    (launch.tmp_path / "train.py").write_text(training())
    program = f"""
import paceline
run = paceline.run("train.py", on="ray", address={ray_cluster.address!r}, hosts=2, workers=1, threads=1, quiet=True)
print(run.status, len(run.summary["per_host"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=launch.tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "completed 2"
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
    for one in there:
        for what in "cmdline", "environ":
            with suppress(OSError):  # Ray has ended a process of its own
                assert not re.search(rb"paceline_[0-9a-f]{64}", Path(f"/proc/{one}/{what}").read_bytes())
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
