"""A script that an engine starts several times: which processes become one run, and how they find each other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.errors import USAGE, ConfigError
from paceline.launch.environment import Ranks, placement, ranks
from paceline.launch.ranks import _listening, flags_of, script_of, wait
from support.engines import Torchruns, jobset, pytorchjob, ray, slurm, summary, torchrun, well
from support.leftovers import Traces
from support.scripts import training

Engine = Callable[[int, int, str], dict[str, str]]
SCRIPT = training(after='paceline.finish()\nprint("worker", me, "of", paceline.workers())')


def two(environ: dict[str, str], local: int, hosts: int) -> dict[str, str]:
    """What torchrun or Slurm sets with two processes a host, from what it sets with one."""
    if "SLURM_STEP_ID" in environ:
        rank = int(environ["SLURM_NODEID"]) * 2 + local
        return environ | {
            "SLURM_STEP_NUM_TASKS": str(2 * hosts),
            "SLURM_NTASKS": str(2 * hosts),
            "SLURM_LOCALID": str(local),
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_TASKS_PER_NODE": f"2(x{hosts})",
        }
    rank = int(environ["GROUP_RANK"]) * 2 + local
    many = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": str(2 * hosts), "LOCAL_RANK": str(local), "RANK": str(rank)}
    return environ | many


def found(environ: dict[str, str]) -> Ranks:
    several = ranks(environ)
    assert several is not None
    return several


@pytest.mark.parametrize("engine", [torchrun, slurm])
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_processes_of_a_host_are_those_of_one_launcher(engine: Engine, hosts: int) -> None:
    every = [[found(two(engine(host, hosts, "head"), local, hosts)) for local in range(2)] for host in range(hosts)]
    for host, those in enumerate(every):
        assert [(one.host, one.hosts, one.local, one.locals) for one in those] == [
            (host, hosts, local, 2) for local in (0, 1)
        ]
        assert len({one.run for one in those}) == 1
        placed = placement(those[0].environ)
        assert placed is not None
        assert (placed.host, placed.hosts, placed.locals) == (host, hosts, 1)
    assert len({one.run for those in every for one in those}) == hosts, "each host's processes wait for their own"


def test_a_restart_has_another_name_so_that_none_waits_for_the_attempt_before() -> None:
    first, again = (found(two(torchrun(0, 1, "a"), 1, 1) | {"TORCHELASTIC_RESTART_COUNT": n}) for n in "01")
    assert first.run != again.run


def test_nodes_may_have_different_numbers_of_tasks() -> None:
    environ = two(slurm(2, 3, "a"), 0, 3) | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_STEP_NUM_TASKS": "5"}
    assert found(environ | {"SLURM_PROCID": "4"}).locals == 1
    for text in ("", "2(x2)", "two", "2(x2),0"):
        with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE"):
            ranks(environ | {"SLURM_STEP_TASKS_PER_NODE": text})


@pytest.mark.parametrize("engine", [pytorchjob, jobset])
def test_a_process_in_each_of_several_pods_is_one_of_several(engine: Engine) -> None:
    assert found(engine(1, 2, "head")).locals == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        torchrun(0, 1, "a"),
        slurm(0, 1, "a"),
        pytorchjob(0, 1, "a"),
        ray(1, 2, "a"),
        {**two(slurm(0, 1, "a"), 0, 1), "SLURM_STEP_ID": "4294967290"},
        {**two(torchrun(0, 1, "a"), 0, 1), "PACELINE_ALONE": "1"},
    ],
)
def test_a_process_that_is_the_only_one_stays_as_it_is(environ: dict[str, str]) -> None:
    """And so do functions under Ray, the script of a Slurm job, and processes whose user says so."""
    assert ranks(environ) is None


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("python train.py", ("train.py", [])),
        ("python -u -X dev -Wignore -B a/train.py -m x --epochs 3", ("a/train.py", ["-m", "x", "--epochs", "3"])),
    ],
)
def test_the_script_is_that_of_pythons_own_command_line(words: str, script: tuple[str, list[str]]) -> None:
    assert script_of(words.split()) == script


@pytest.mark.parametrize("words", ["python", "python -m train", "python -u -c pass", "python -"])
def test_what_is_no_script_with_a_path_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="PACELINE_ALONE=1"):
        script_of(words.split())


def test_flags_are_read_as_on_a_command_line() -> None:
    assert flags_of({}) == []
    assert flags_of({"PACELINE_RUN_ARGS": "-p ssp:bound=3 --out 'a b'"}) == ["-p", "ssp:bound=3", "--out", "a b"]
    with pytest.raises(ConfigError, match="PACELINE_RUN_ARGS"):
        flags_of({"PACELINE_RUN_ARGS": "--out 'a"})


def test_the_others_wait_until_the_last_process_of_the_run_has_closed_its_end() -> None:
    name = f"paceline-test-{os.getpid()}"
    code = "import sys\nfrom paceline.launch.ranks import wait\nsys.exit(wait(sys.argv[1]))"
    waits = subprocess.Popen([sys.executable, "-c", code, name])  # comes before the first process does
    first = _listening(name)
    other = first.dup()  # as a worker has it that was forked
    assert select.select([first], [], [], 60)[0], "it has connected"
    first.close()
    assert waits.poll() is None
    other.close()
    assert waits.wait(60) == 0


def test_a_first_process_that_never_comes_is_waited_for_in_vain_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert wait("paceline-test-of-nobody", within=0.0) == USAGE
    assert "has not come to paceline.prepare()" in capsys.readouterr().err


@pytest.mark.real_run
def test_tasks_of_srun_train_one_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**os.environ, "PACELINE_RUN_ARGS": "-p asp --threads 1 --quiet"}
    tasks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environ | two(slurm(0, 1, "localhost"), local, 1),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for local in range(2)
    ]
    said = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert said[1] == "", "it waits, and trains nothing"
    assert "Slurm has started this script in several processes, which train one model" in said[0]
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "asp-4711-0"
    assert (summary(run)["samples"], summary(run)["outcome"]) == (2 * 64, "completed")
    assert [(run / f"worker-{worker}.log").read_text() for worker in range(2)] == ["worker 0 of 2\n", "worker 1 of 2\n"]


@pytest.fixture
def torchruns(tmp_path: Path, token: Path) -> Iterator[Torchruns]:
    (tmp_path / "train.py").write_text(SCRIPT)
    traces = Traces(tmp_path / "temporary")
    both = Torchruns(tmp_path, traces)
    yield both
    both.close()
    traces.assert_nothing_left()


@pytest.mark.real_run
def test_two_hosts_with_two_processes_each_train_one_model(torchruns: Torchruns) -> None:
    torchruns.start_script(2, ("--rdzv-id", "digits"), "train.py", run="-p asp --threads 1 --quiet")
    said = well(torchruns.ended())
    assert said.count("which train one model: each of 2 hosts goes on as") == 1
    found = summary(torchruns.folder / "runs" / "asp-digits")
    assert (found["samples"], found["outcome"], len(found["per_worker"])) == (2 * 64, "completed", 4)  # type: ignore[arg-type]
