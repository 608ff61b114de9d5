"""Workers of other hosts that died come back, and hosts that were lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from support.events import LONG, said
from support.launch import Launch
from support.leftovers import Watch
from support.recorded import checked
from support.runs import Run, ended, replayed
from support.suites import each

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
def touch(name):
    (THERE / name).touch()
def write(name, text):
    (THERE / f"new-{name}").write_text(text)
    os.replace(THERE / f"new-{name}", THERE / name)
def wait(name):
    while not (THERE / name).exists():
        time.sleep(0.002)
def linger(until):
    # a worker that joins gets what it begins with between two steps of others
    if not (THERE / until).exists():
        time.sleep(0.05)
def die():
    os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(192, 6), torch.randint(0, 3, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, keep={"scheduler": scheduler})
if paceline.resumed():
    touch("prepared")
me, batches = paceline.worker(), 0
for epoch in paceline.epochs(3):
    for x, y in loader:
        batches += 1
        if paceline.resumed():
            touch("back")
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    scheduler.step()
"""
SAMPLES = 3 * 192
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")


def script(each_step: str) -> str:
    return SCRIPT.replace("EACH_STEP", each_step.strip().replace("\n", "\n        "))


def await_file(path: Path) -> None:
    deadline = time.monotonic() + LONG
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path} in {LONG} s"
        time.sleep(0.002)


def facts(run: Run, *kinds: str) -> list[tuple[str, int]]:
    """These facts in order: what it was, and of which worker."""
    rows = run.rows("SELECT kind, json_extract(body, '$.worker') FROM facts ORDER BY id")
    return [(kind, worker) for kind, worker in rows if kind in kinds]


def note(run: Run, name: str) -> Any:
    ((value,),) = run.rows("SELECT value FROM run WHERE key = ?", name)
    return json.loads(value)


def is_sound(run: Run) -> None:
    """Each sample was used once, the rules hold, and a replay comes to the same bits."""
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


DIES = """
if me == DIES and batches == 4 and not paceline.resumed():
    die()
if me != DIES and batches == 5:
    wait("prepared")
if me != DIES and batches >= 5:
    linger("back")
"""


@pytest.mark.parametrize("protocol", each(["bsp", "ps-plus", "sync-switch"], default=("bsp",)))
def test_a_worker_of_another_host_comes_back(protocol: str, launch: Launch) -> None:
    run = launch.run(script(DIES.replace("DIES", "3")), *HOSTS, "-p", protocol, "--restart", "1").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 3)]
    assert "worker 3 is back" in run.err
    assert "is lost" not in run.err
    is_sound(run)


@pytest.mark.long
def test_a_worker_that_comes_back_gets_what_one_of_another_host_keeps(launch: Launch) -> None:
    """That is the worker with the most steps: worker 0 waits in its second."""
    behind = DIES.replace("DIES", "1") + "\nif me == 0 and batches == 2:\n    wait('back')"
    run = launch.run(script(behind), *HOSTS, "-p", "asp", "--restart", "1").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 1)]
    ((worker, _, source),) = note(run, "handed")
    assert worker == 1
    assert source in (2, 3)
    is_sound(run)


@pytest.mark.long
def test_a_scenario_says_when_a_killed_worker_of_another_host_comes_back(launch: Launch) -> None:
    scenario = launch.tmp_path / "scenario.toml"
    event = {"worker": 2, "at_step": 3, "kill": True, "rejoin_after": "10ms"}
    scenario.write_text(tomli_w.dumps({"cluster": {"workers": 4}, "event": [event]}))
    lingers = "if me != 2 and batches == 5:\n    wait('prepared')\nif batches >= 5:\n    linger('back')"
    flags = ("--emulate-hosts", "2", "--threads", "1", "--scenario", str(scenario))
    run = launch.run(script(lingers), *flags, "-p", "bsp").completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 2)]
    assert "it comes back in 10ms" in run.err
    is_sound(run)


@pytest.mark.long
def test_over_links_that_a_scenario_describes_a_worker_comes_back_as_well(launch: Launch) -> None:
    scenario = launch.tmp_path / "scenario.toml"
    hosts = [{"workers": 2}, {"workers": 2, "bandwidth": "20Mbit/s", "latency": "1ms"}]
    scenario.write_text(tomli_w.dumps({"host": hosts}))
    flags = ("--threads", "1", "--scenario", str(scenario), "-p", "asp", "--restart", "1")
    run = launch.run(script(DIES.replace("DIES", "3")), *flags).completed()
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 3)]
    is_sound(run)


STOPS = """
if me in (2, 3) and not paceline.resumed():
    write(f"pids-{me}", f"{os.getppid()} {os.getpid()}")
    if batches == 4:
        touch(f"fourth-{me}")
        wait("over")  # which a replay finds
if me in (0, 1) and batches == 5:
    wait("prepared")
if me in (0, 1) and batches >= 5:
    linger("back")
"""


def stop_host(launch: Launch) -> Callable[[], None]:
    """Stop the processes of host node-1: its agent, and its workers. Return what lets them go on."""
    for worker in (2, 3):
        await_file(launch.tmp_path / f"fourth-{worker}")
    processes = {int(one) for worker in (2, 3) for one in (launch.tmp_path / f"pids-{worker}").read_text().split()}
    assert len(processes) == 3
    for process in processes:
        os.kill(process, signal.SIGSTOP)

    def go_on() -> None:
        for process in processes:
            os.kill(process, signal.SIGCONT)

    return go_on


@pytest.mark.parametrize("protocol", ["asp", pytest.param("bsp", marks=pytest.mark.long)])
def test_a_host_that_was_stopped_comes_back_as_a_new_incarnation(protocol: str, launch: Launch) -> None:
    flags = ("-p", protocol, "--restart", "1", "--host-timeout", "2")
    process = launch.start(script(STOPS), *HOSTS, *flags)
    go_on = stop_host(launch)
    said(process, "host node-1 is lost: silent for")
    go_on()
    said(process, "host node-1 is back")
    run = ended(process).completed()
    (launch.tmp_path / "over").touch()
    assert facts(run, "WorkerLeft")[:2] == [("WorkerLeft", 2), ("WorkerLeft", 3)]
    assert sorted(facts(run, "WorkerJoined")) == [("WorkerJoined", 2), ("WorkerJoined", 3)]
    is_sound(run)


def test_a_host_that_nobody_awaits_ends_when_it_goes_on(launch: Launch) -> None:
    """The run takes long enough for that: worker 0 waits for the agent's end."""
    waits = STOPS.replace('wait("prepared")', 'wait("ended")')
    process = launch.start(script(waits), *HOSTS, "-p", "asp", "--host-timeout", "2")
    go_on = stop_host(launch)
    agent, worker = map(int, (launch.tmp_path / "pids-2").read_text().split())
    with Watch(agent) as its_agent, Watch(worker) as its_worker:
        said(process, "host node-1 is lost: silent for")
        go_on()
        assert its_agent.ends(LONG)
        assert its_worker.ends(LONG)
    (launch.tmp_path / "ended").touch()
    (launch.tmp_path / "back").touch()
    run = ended(process).completed()
    assert not facts(run, "WorkerJoined")
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_host_whose_agent_is_killed_stays_away_and_so_do_its_workers(launch: Launch) -> None:
    kills = "if me == 2 and batches == 4:\n    os.kill(os.getppid(), signal.SIGKILL)\n    wait('never')"
    run = launch.run(script(kills), *HOSTS, "-p", "asp", "--restart", "3").completed()
    assert "host node-1 is lost: its agent has ended" in run.err
    assert "back" not in run.err
    assert facts(run, "WorkerLeft")[:2] == [("WorkerLeft", 2), ("WorkerLeft", 3)]
    assert (found := checked(run.folder)).ok, found.wrong


@pytest.mark.parametrize("restart", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_agents_end_with_a_head_that_is_stopped_and_leave_nothing(restart: str, launch: Launch) -> None:
    stays = "write(f'pids-{me}', f'{os.getppid()} {os.getpid()}')\nwait('never')"
    flags = ("-p", "asp", "--host-timeout", "2", "--restart", restart)
    process = launch.start(script(stays), *HOSTS, *flags)
    for worker in range(4):
        await_file(launch.tmp_path / f"pids-{worker}")
    pids = [[int(one) for one in (launch.tmp_path / f"pids-{worker}").read_text().split()] for worker in range(4)]
    assert pids[0][0] == process.pid
    with ExitStack() as kept:
        watches = [kept.enter_context(Watch(number)) for number in {one for two in pids[2:] for one in two}]
        os.kill(process.pid, signal.SIGSTOP)
        assert all(watch.ends(LONG) for watch in watches)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    launch.assert_nothing_left()


FIRST_LIVES_WAIT = """
me = paceline.worker()
if me in (2, 3) and not (THERE / f"pids-{me}").exists():
    write(f"pids-{me}", f"{os.getppid()} {os.getpid()}")
    touch(f"fourth-{me}")
    wait("over")
"""


@pytest.mark.long
def test_a_run_awaits_a_host_that_was_stopped_before_training_began(launch: Launch) -> None:
    text = script("pass").replace("torch.manual_seed(3)", FIRST_LIVES_WAIT + "torch.manual_seed(3)", 1)
    process = launch.start(text, *HOSTS, "-p", "bsp", "--restart", "1", "--host-timeout", "2")
    go_on = stop_host(launch)
    said(process, "host node-1 is lost: silent for")
    go_on()
    run = ended(process).completed()
    assert run.summary["samples"] == SAMPLES
    ((began,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(began)["members"]] == ["node-0", "node-0", "node-1", "node-1"]
    assert (found := checked(run.folder)).ok, found.wrong
