"""Agents that can't open what is in the run's folder, and are told no path of it: as on machines of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from paceline.coordinator.agent import scratch
from support.launch import Launch
from support.runs import ended
from support.scripts import that_draws, that_resumes
from support.sound import right, same_bits, sound

APART = """
import os, sys
from paceline.net import numbered
from paceline.coordinator import emulated

HIDDEN = {hidden!r}

def refuse(event, arguments):
    for one in arguments:
        if isinstance(one, (str, bytes)) and os.fsdecode(one).startswith(HIDDEN):
            raise RuntimeError(f"{{event}} of {{one}}, on another machine")

def apart(*given, **keys):
    sys.addaudithook(refuse)
    return agent(*given, **keys)

def send(self, message):
    sent = number(self, message)
    assert HIDDEN.encode() not in sent, f"a path of the head is told: {{message}}"
    return sent

agent, emulated.agent = emulated.agent, apart
number, numbered.Line.send = numbered.Line.send, send
"""
"""What agents and their processes open below that path is refused, and no host may tell another one of it."""

HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")


@pytest.fixture
def first(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets hosts apart. What they save for themselves is below the test's folder."""
    monkeypatch.chdir(launch.tmp_path)
    return APART.format(hidden=str(launch.tmp_path / "run_"))


def test_workers_of_another_host_evaluate_what_the_head_has_recorded_and_take_the_final_version(
    launch: Launch, first: str
) -> None:
    """Those of the head have gone by then. Nothing is left where workers of another host save nothing."""
    after = """
    paceline.finish()
    print("final", *(float(value.double().sum()) for value in model.state_dict().values()), flush=True)
    if paceline.worker() < 2: os._exit(0)
    """
    script = that_draws(after=after).replace("    model.eval()\n", "    model.eval(); print('evaluates', flush=True)\n")
    run = launch.run(script, *HOSTS, "-p", "bsp", "--target", "accuracy>=0", first=first).completed()
    evaluated = run.summary["evaluations"]
    assert run.log(2).count("evaluates") == len(evaluated) > 0
    assert "evaluates" not in run.log(1) + run.log(3)
    final = [next(line for line in run.log(worker).splitlines() if "final" in line) for worker in range(4)]
    assert final == final[:1] * 4
    sound(run)
    assert not list(launch.tmp_path.glob("paceline-*"))


def test_what_workers_of_another_host_save_stays_there_and_only_they_find_it(launch: Launch, first: str) -> None:
    after = """
    torch.save(paceline.worker(), "mine.pt")
    assert torch.load("mine.pt") == paceline.worker()
    """
    run = launch.run(that_draws(after=after), *HOSTS, "-p", "asp", first=first).completed()
    mine = str(launch.tmp_path / "mine.pt")
    assert torch.load(mine) == 0
    assert torch.load(f"{run.folder}/worker-1/saved{mine}") == 1
    (there,) = launch.tmp_path.glob("paceline-node-1-*")
    assert [torch.load(f"{there}/worker-{worker}/saved{mine}") for worker in (2, 3)] == [2, 3]
    assert sorted(path.name for path in run.folder.glob("worker-*") if path.is_dir()) == ["worker-1"]


@pytest.mark.long
def test_a_run_goes_on_from_a_snapshot_on_several_hosts(launch: Launch, first: str) -> None:
    flags = ("-p", "bsp", "--checkpoint", "2")
    stopped = launch.run(that_resumes(), *HOSTS, *flags, "--max-steps", "30", first=first).completed()
    run = ended(launch.start_resumed(stopped.folder, first=first)).completed()
    assert run.summary["segments"] == 2
    assert same_bits(run, launch.run(that_resumes(), *HOSTS, *flags, first=first).completed())
    right(run)


# --- where workers of another host save


def test_a_folder_for_what_is_saved_elsewhere_is_kept_and_named_if_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save may have failed, and a script may remove what it has saved."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with scratch("node-1", said.append) as folder, scratch("node-1", said.append) as another:
        assert folder != another
        assert not os.listdir()
        (another / "worker-2" / "saved").mkdir(parents=True)
        file = folder / "worker-2" / "saved" / "best.pt"
        file.parent.mkdir(parents=True)
        file.touch()
    assert said == [f"what workers of host node-1 saved is in {folder}"]
    assert file.exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_such_a_folder_is_with_temporary_files_where_nobody_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr("tempfile.tempdir", None)
    with scratch("node-1", print) as folder:
        assert folder.parent == Path("/tmp")
