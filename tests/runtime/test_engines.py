"""One `paceline run` a host where an engine's variables say which host it is: a head and another host, on loopback."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.launch.environment import placement
from paceline.runs import engine
from support.engines import AT_PORT, await_snapshot, free_port, jobset_at, pytorchjob_at, slurm_at, summary, well
from support.launch import Launch
from support.leftovers import Traces
from support.nursery import Process
from support.recorded import checked
from support.runs import Run, ended
from support.scripts import training

BEFORE = """
print("found", [name for name in os.environ if name in ("RANK", "MASTER_ADDR", "SLURM_PROCID", "PET_NODE_RANK")])
"""
SCRIPT = training("if 'slow' in sys.argv and not paceline.resumed(): time.sleep(0.1)", before=BEFORE, epochs=3)
WORDS = "-p", "bsp", "-n", "1", "--threads", "1", "--quiet"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a script, and a token that all hosts have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)


def folder_of(environ: dict[str, str]) -> Path:
    """The folder of the run that these variables are of."""
    found = placement(environ)
    assert found is not None
    return engine.folder_of(found, "bsp")


def start(launch: Launch, environ: dict[str, str], *words: str, command: str = "run", first: str = "") -> Process:
    """`paceline run WORDS` as an engine starts it on that host, not waited for."""
    traces = Traces(launch.tmp_path / f"of-{len(launch.traces)}")
    launch.traces.append(traces)
    process = Process([command, *words], traces.environment | environ, first)
    process.folder = Path()  # type: ignore[attr-defined]
    return process


def both(launch: Launch, environ: Callable[[int], dict[str, str]], *words: str) -> list[Run]:
    """The head and the other host, to their end."""
    processes = [start(launch, environ(host), *words) for host in (1, 0)]
    return [ended(process) for process in reversed(processes)]


def refused(launch: Launch, environ: dict[str, str], *words: str, first: str = "") -> str:
    """The one line with which it is refused."""
    run = ended(start(launch, environ, *words, first=first))
    assert run.code == 2, run.err
    assert run.err.count("\n") == 1, run.err
    return run.err


@pytest.mark.parametrize("name", AT_PORT)
def test_each_engine_starts_one_launcher_a_host_and_nothing_else_is_said(name: str, launch: Launch) -> None:
    said = well(both(launch, AT_PORT[name](free_port()), *WORDS, "train.py"))
    (run,) = Path("runs").iterdir()
    assert f"waiting for 1 more host, which {name} starts" in said
    assert "does not see" not in said
    assert summary(run)["outcome"] == "completed"
    assert (run / "worker-1.log").read_text() == "found []\n"
    assert (found := checked(run)).ok, found.wrong


def test_a_requeued_job_goes_on_from_the_snapshot_that_its_end_has_written(launch: Launch) -> None:
    port = free_port()
    words = *WORDS, "--host-timeout", "3", "train.py", "slow"
    first = [start(launch, slurm_at(port)(host), *words) for host in (0, 1)]
    folder = folder_of(slurm_at(port)(0))
    await_snapshot(folder, [])
    for process in first:  # Slurm signals all tasks of the step
        process.terminate()
    codes = [ended(process).code for process in first]
    assert codes[0] == 130
    assert summary(folder)["outcome"] == "interrupted"
    well(both(launch, slurm_at(port, attempt=1), *words))
    assert (summary(folder)["outcome"], summary(folder)["segments"]) == ("completed", 2)
    assert summary(folder)["samples"] == 3 * 64
    assert (found := checked(folder)).ok, found.wrong


def test_a_run_that_is_complete_is_not_begun_anew(launch: Launch) -> None:
    """The port of --listen is everywhere that of the head."""
    port = free_port()
    said = well(both(launch, pytorchjob_at(1), *WORDS, "--listen", f"127.0.0.1:{port}", "train.py"))
    assert f"listening at 127.0.0.1:{port}" in said
    (run,) = Path("runs").iterdir()
    before = (run / "summary.json").read_bytes()
    assert well(both(launch, pytorchjob_at(1), *WORDS, "train.py")).count("it is complete") == 2
    assert (run / "summary.json").read_bytes() == before
    assert [path.name for path in Path("runs").iterdir()] == [run.name]


@pytest.mark.long
def test_a_run_without_a_snapshot_is_put_aside(launch: Launch) -> None:
    port, words = free_port(), (*WORDS, "--checkpoint", "0", "train.py")
    well(both(launch, pytorchjob_at(port), *words[:-1], "--max-steps", "2", "train.py"))
    (run,) = Path("runs").iterdir()
    assert f"put aside as {run}-aside-1" in well(both(launch, pytorchjob_at(port), *words))
    assert sorted(Path("runs").iterdir()) == [run, run.with_name(f"{run.name}-aside-1")]


def test_a_host_that_does_not_see_the_heads_folder_says_what_that_means(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    head = start(launch, pytorchjob_at(port)(0), *WORDS, "train.py")
    elsewhere = launch.tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(elsewhere)
    other = start(launch, pytorchjob_at(port)(1), *WORDS, "train.py")
    runs = [ended(head), ended(other)]
    well(runs)
    assert (
        "a restart that moves the head can't go on; name an --out on a file system that all hosts have" in runs[1].err
    )
    assert "a restart that moves the head" not in runs[0].err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--emulate-hosts", "2"], "--emulate-hosts is 2, and PyTorchJob has started this run on 2 hosts"),
        (["--on", "ssh:a"], "--on is ssh:a, and PyTorchJob has started this run on 2 hosts"),
        (["--hosts", "2:4"], "--hosts is 2:4, and PyTorchJob has started this run on 2 hosts"),
        (["--listen", "127.0.0.1:0"], "--listen is 127.0.0.1:0, and the other hosts"),
        (["-p", "ddp"], "runs on one host only so far"),
        (["--scenario", "hosts.toml"], "the machines that join are the hosts"),
    ],
)
def test_flags_that_contradict_the_engine_are_refused_on_every_host(
    words: list[str], says: str, launch: Launch
) -> None:
    Path("hosts.toml").write_text("[[host]]\nworkers = 1\n[[host]]\nworkers = 1\n")
    for host in range(2):
        assert says in refused(launch, pytorchjob_at(free_port())(host), "--quiet", *words, "train.py")


def test_without_a_token_one_line_says_how_all_hosts_get_it(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_TOKEN_FILE")
    assert "give each pod a Secret with it as PACELINE_TOKEN" in refused(
        launch, pytorchjob_at(1)(0), *WORDS, "train.py"
    )
    assert "before srun" in refused(launch, slurm_at(free_port())(1), *WORDS, "train.py")


def test_a_head_that_is_a_name_of_loopback_is_refused_with_a_way_out(launch: Launch) -> None:
    environ = pytorchjob_at(free_port())(0) | {"MASTER_ADDR": "localhost"}
    first = "import socket; socket.gethostname = lambda: 'localhost'"
    said = refused(launch, environ, *WORDS, "train.py", first=first)
    assert "where no other machine comes; name its own address with --listen" in said


def test_a_host_whose_head_never_listens_says_for_whom_it_has_waited() -> None:
    port, lines = free_port(), list[str]()
    found = placement(jobset_at(port)(1))
    assert found is not None
    with pytest.raises(ConfigError, match=r"the head, JobSet's host 0 of 2 \(127\.0\.0\.1\), does not listen"):
        engine.await_head(found, lambda: ("127.0.0.1", port), lambda: False, lines.append, within=0.0)


def test_a_run_that_is_still_written_is_neither_renamed_nor_gone_on_with(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = launch.tmp_path / "written"
    folder.mkdir()
    monkeypatch.setattr(engine, "ENDS_WITHIN", 0.0)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="still going on"):
            engine.await_end(folder, print)
    finally:
        os.close(lock)
    engine.await_end(folder, print)


def test_other_commands_have_nothing_to_do_with_the_engine(launch: Launch) -> None:
    words = "-p", "bsp", "-p", "asp", "-n", "2", "--threads", "1", "--quiet", "train.py"
    run = ended(start(launch, pytorchjob_at(free_port())(1), *words, command="compare"))
    assert run.code == 0, run.err
