"""The commands in `examples/clusters`, as their engines start them: with exactly the variables that each sets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.launch.environment import placement
from paceline.net.token import Token
from support.cluster_examples import CLUSTERS, command, lay_out, small
from support.engines import free_port, jobset_at, pytorchjob_at, slurm_at
from support.leftovers import Traces
from support.nursery import Process
from support.runs import ended
from support.suites import each

ENGINES = {"slurm.sh": slurm_at, "jobset.yaml": jobset_at, "pytorchjob.yaml": pytorchjob_at}
"""By file: the engine that starts its command on each host."""
LONG = ("jobset.yaml", "pytorchjob.yaml")  # torchrun itself is started in `runtime/test_torchrun.py`
RAY = "ray.sh"
"""Its command is started once, as the entrypoint of a Ray job: see `runtime/test_on_ray.py`, which has a cluster."""


def test_every_file_is_tried() -> None:
    assert {path.name for path in CLUSTERS.iterdir()} == {*ENGINES, RAY}


@pytest.mark.real_run
@pytest.mark.parametrize("file", each(ENGINES, long=LONG))
def test_its_command_trains_on_two_hosts(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = small(command(file))
    environ = ENGINES[file](free_port())
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_TOKEN", Token.drawn().text)
    traces = [Traces(tmp_path / f"temporary-{host}") for host in range(2)]
    processes = []
    for host in range(2):
        processes.append(Process(words, traces[host].environment | environ(host)))
        processes[-1].folder = Path()  # type: ignore[attr-defined]
    runs = [ended(process) for process in processes]
    assert [run.code for run in runs] == [0, 0], "".join(run.out + run.err for run in runs)
    (run,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["outcome"], summary["workers"]) == ("completed", 2)
    for one in traces:
        one.assert_nothing_left()


def test_the_ray_job_writes_outside_the_directory_that_ray_brings_and_removes() -> None:
    words = command(RAY)
    assert Path(words[words.index("--out") + 1]).is_absolute()
    assert "ray job submit --working-dir . -- paceline run " in (CLUSTERS / RAY).read_text()


def test_the_jobset_gives_each_pod_what_its_engine_is_known_by() -> None:
    text = (CLUSTERS / "jobset.yaml").read_text()
    given = dict.fromkeys(re.findall(r"- name: (PET_\w+)", text), "0")
    (hosts,) = re.findall(r'- name: PET_NNODES\n +value: "(\d+)"', text)
    (pods,) = re.findall(r"parallelism: (\d+)", text)
    assert hosts == pods
    found = placement(given | {"PET_NNODES": hosts, "PET_MASTER_PORT": "29400"})
    assert found is not None
    assert (found.engine, found.hosts) == ("JobSet", int(hosts))
