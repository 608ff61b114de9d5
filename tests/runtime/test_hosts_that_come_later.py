"""Machines that come to a run which has begun without them: `--hosts 2:3`, over loopback."""

from __future__ import annotations

import os
import re
import signal
import tomllib
from pathlib import Path

import pytest

from paceline.net.token import Token, write
from paceline.protocols import registry
from support.events import said
from support.launch import Launch
from support.recorded import checked
from support.runs import Launcher, Run, ended, replayed
from support.suites import each

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")
IN_GROUPS = sorted(name for name, spec in registry().items() if spec.in_groups)
SCRIPT = """
import time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
def wait(name):
    while not (THERE / name).exists():
        time.sleep(0.002)

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(192, 6), torch.randint(0, 3, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, keep={"scheduler": scheduler})
me, batches = paceline.worker(), 0
(THERE / f"prepared-{me}").touch()
for epoch in paceline.epochs(3):
    for x, y in loader:
        batches += 1
        (THERE / f"trains-{me}").touch()
        if me in FIRST and batches == 5:
            wait("prepared-LATE")
        if me in FIRST and batches >= 5 and not (THERE / "trains-LATE").exists():
            time.sleep(0.05)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    scheduler.step()
"""
"""The first workers wait in their fifth step until a later one has come, and then go slowly until it trains."""
SAMPLES = 3 * 192


def script(first: str = "(0, 1)", late: str = "2") -> str:
    return SCRIPT.replace("FIRST", first).replace("LATE", late)


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all hosts of these tests have."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(tmp_path / "token"))


def begun(launch: Launch, text: str, *flags: str, hosts: str = "2:3", workers: int = 1) -> tuple[Launcher, str]:
    """Return the head, which waits for others, and its address."""
    listens = "--listen", "127.0.0.1:0", "--hosts", hosts, "--name", "head", "-n", str(workers), "--threads", "1"
    process = launch.start(text, *listens, *flags)
    found = re.search(r"paceline join (\S+) -n", said(process, "paceline join .*\n"))
    assert found is not None
    return process, found[1]


def joined(launch: Launch, address: str, name: str, workers: int = 1) -> Launcher:
    return launch.start_joining(address, "--name", name, "-n", str(workers))


def facts(run: Run, *kinds: str) -> list[tuple[str, int]]:
    """These facts in order: what it was, and of which worker."""
    rows = run.rows("SELECT kind, json_extract(body, '$.worker') FROM facts ORDER BY id")
    return [(kind, worker) for kind, worker in rows if kind in kinds]


def is_sound(run: Run) -> None:
    """Each sample was used once, the rules hold, and a replay comes to the same bits."""
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.parametrize("protocol", each(STORED, default=("bsp",)))
def test_a_host_that_comes_while_others_train_takes_part(protocol: str, launch: Launch) -> None:
    head, address = begun(launch, script(), "-p", protocol)
    others = [joined(launch, address, "b")]
    said(head, "the run begins with 2 hosts, and 1 more may come")
    others.append(joined(launch, address, "c"))
    said(head, "host c has come, with 1 worker\n")
    run = ended(head).completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert "worker 2 takes part from step 0 on" in run.err
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 2)]
    assert [one["left"]["reason"] for one in run.summary["per_worker"]] == ["finished"] * 3
    assert [(one["host"], one["workers"]) for one in run.summary["per_host"]] == [("b", [1]), ("c", [2]), ("head", [0])]
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert [host["name"] for host in config["scenario"]["host"]] == ["head", "b", "c"]
    assert set(config["environment"]["hosts"]) == {"head", "b", "c"}
    is_sound(run)


@pytest.mark.parametrize("protocol", each(IN_GROUPS, long=("ad-psgd", "all-reduce")))
def test_a_host_that_comes_while_others_average_takes_part(protocol: str, launch: Launch) -> None:
    """It fetches the replica that its worker shows before that has joined."""
    head, address = begun(launch, script(), "-p", protocol)
    others = [joined(launch, address, "b")]
    said(head, "the run begins with 2 hosts, and 1 more may come")
    others.append(joined(launch, address, "c"))
    run = ended(head).completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert facts(run, "WorkerJoined") == [("WorkerJoined", 2)]
    shown = "SELECT count(*) FROM fetches WHERE kind = 'replica' AND host = 'c' AND worker <> 2"
    assert run.rows(shown) == [(1,)]
    is_sound(run)


@pytest.mark.long
def test_a_host_with_several_workers_that_comes_while_others_train_adds_up_their_updates(launch: Launch) -> None:
    head, address = begun(launch, script("(0, 1)", "3"), "-p", "bsp", hosts="1:2", workers=2)
    other = joined(launch, address, "b", 2)
    run = ended(head).completed()
    assert ended(other).code == 0
    both = "SELECT id FROM orders WHERE kind = 'ApplyUpdate' AND json_array_length(body, '$.contributions') = 4"
    versions = len(run.rows(both))
    assert run.rows("SELECT source, host, COUNT(*) FROM fetches WHERE kind = 'sum'") == [("b", "head", versions)]
    assert versions > 0
    is_sound(run)


@pytest.mark.long
def test_a_host_that_never_comes_is_missed_by_nobody(launch: Launch) -> None:
    head, address = begun(launch, script(first="()"), "-p", "bsp", hosts="2:4")
    other = joined(launch, address, "b")
    run = ended(head).completed()
    assert ended(other).code == 0
    assert [one["worker"] for one in run.summary["per_worker"]] == [0, 1]
    assert [one["host"] for one in run.summary["per_host"]] == ["b", "head"]
    assert "died" not in run.err
    is_sound(run)


def test_a_run_that_begins_alone_says_that_it_waits_for_nobody(launch: Launch) -> None:
    head = launch.start(script(), "--listen", "127.0.0.1:0", "--hosts", "1:2", "-n", "1")
    told = said(head, "paceline join .*\n")
    os.kill(head.pid, signal.SIGINT)
    ended(head)
    assert told.startswith("paceline: other hosts may come at any time; on each other machine: ")


def test_a_run_that_begins_alone_takes_hosts_with_several_workers_as_they_come(launch: Launch) -> None:
    head, address = begun(launch, script("(0, 1)", "3"), "-p", "asp", hosts="1:2", workers=2)
    other = joined(launch, address, "b", 2)
    run = ended(head).completed()
    assert ended(other).code == 0
    assert "host b has come, with 2 workers" in run.err
    assert sorted(facts(run, "WorkerJoined")) == [("WorkerJoined", 2), ("WorkerJoined", 3)]
    is_sound(run)


def test_one_host_too_many_and_one_with_too_many_workers_are_refused(launch: Launch) -> None:
    head, address = begun(launch, script(), "-p", "asp")
    others = [joined(launch, address, "b")]
    said(head, "1 more may come")
    refused = ended(joined(launch, address, "c", 2))
    assert refused.code == 2
    assert "there is room for 1 worker, and 2 would come; join with fewer (-n)" in refused.err
    others.append(joined(launch, address, "c"))
    said(head, "host c has come")
    refused = ended(joined(launch, address, "d"))
    assert refused.code == 2
    assert "this run has all of its 3 hosts" in refused.err
    assert refused.err.count("\n") == 1
    ended(head).completed()
    assert [ended(other).code for other in others] == [0, 0]


@pytest.mark.long
def test_a_host_that_leaves_again_is_lost_as_any_other(launch: Launch) -> None:
    stays = script().replace(
        "optimizer.zero_grad()", "if me == 2 and batches == 2: wait('never')\n        optimizer.zero_grad()"
    )
    head, address = begun(launch, stays, "-p", "asp")
    first = joined(launch, address, "b")
    said(head, "1 more may come")
    second = joined(launch, address, "c")
    said(head, "worker 2 takes part")
    second.send_signal(signal.SIGINT)
    assert ended(second).code == 130
    run = ended(head).completed()
    assert "host c is lost: it was interrupted" in run.err
    assert ended(first).code == 0
    assert ("WorkerLeft", 2) in facts(run, "WorkerLeft")
    assert (found := checked(run.folder)).ok, found.wrong


@pytest.mark.long
def test_a_worker_that_comes_later_goes_on_with_its_own_steps_in_a_resumed_run(launch: Launch) -> None:
    head, address = begun(launch, script(), "-p", "asp", "--max-steps", "80")
    others = [joined(launch, address, "b")]
    said(head, "1 more may come")
    others.append(joined(launch, address, "c"))
    first = ended(head).completed()
    steps = {one["worker"]: one["steps"] for one in first.summary["per_worker"]}
    assert [ended(other).code for other in others] == [0, 0]
    for name in ("prepared-2", "trains-2"):
        (launch.tmp_path / name).unlink()
    flags = "--listen", "127.0.0.1:0", "--hosts", "2:3", "--name", "head", "-n", "1"
    head = launch.start_resumed(first.folder, "--max-steps", "10000", *flags)
    found = re.search(r"paceline join (\S+) -n", said(head, "paceline join .*\n"))
    assert found is not None
    others = [joined(launch, found[1], "b")]
    said(head, "1 more may come")
    others.append(joined(launch, found[1], "d"))
    run = ended(head).completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert f"worker 2 takes part from step {steps[2]} on" in run.err
    is_sound(run)


@pytest.mark.parametrize(
    ("hosts", "line"),
    [
        ("3:2", "--hosts is 3:2: it begins with more hosts than there may be; write the lower one first"),
        ("0:2", '--hosts is "0"; it must be a whole number, 1 or more'),
        ("2:", '--hosts is ""; it must be a whole number, 2 or more'),
        ("2:65", '--hosts is "65"; it must be a whole number, 64 or less'),
    ],
)
def test_numbers_of_hosts_that_make_no_run_are_refused(hosts: str, line: str, launch: Launch) -> None:
    run = launch.run(script(), "--listen", "127.0.0.1:0", "--hosts", hosts)
    assert run.code == 2
    assert line in run.err
    assert run.err.count("\n") == 1
