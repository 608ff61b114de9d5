"""Runs on several hosts in which each worker owns a replica: All-Reduce, AD-PSGD and Ripples."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file

from paceline.protocols import registry
from paceline.records.snapshots import newest
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, killed_once_kept, replayed
from support.suites import each

IN_GROUPS = sorted(name for name, spec in registry().items() if spec.in_groups)
ALL_REDUCE = each(IN_GROUPS, long=("ad-psgd", "ripples"))
AD_PSGD = each(IN_GROUPS, long=("all-reduce", "ripples"))
"""Where its groups, which are as AD-PSGD's, are tried in the longer suite only."""
SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Tanh(), nn.Linear(WIDTH, 3))
model[0].bias.requires_grad = False
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
BEFORE_PREPARE
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
BEFORE
for epoch in paceline.epochs(2):
    for x, y in loader:
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
paceline.finish()
print("final", sum(p.double().sum().item() for p in model.parameters()), flush=True)
"""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
ONE = ("-n", "4", "--threads", "1")


def script(before: str = "", each_step: str = "pass", before_prepare: str = "", width: int = 16) -> str:
    text = SCRIPT.replace("WIDTH", str(width)).replace("BEFORE_PREPARE", before_prepare)
    return text.replace("BEFORE", before).replace("EACH_STEP", each_step.strip().replace("\n", "\n        "))


def fetched(run: Run) -> set[tuple[str, str, str]]:
    """(kind, host, source) of all fetches of averages."""
    with closing(sqlite3.connect(run.folder / "ledger.sqlite")) as ledger:
        return set(ledger.execute("SELECT DISTINCT kind, host, source FROM fetches WHERE kind IN ('partial', 'mean')"))


def same_bits(one: Run, other: Run) -> bool:
    a, b = one.final(), other.final()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def sound(run: Run) -> None:
    """The ledger is, and a replay on one host ends on the same bits."""
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


THREE = ("--emulate-hosts", "3", "-n", "1", "--threads", "1")


@pytest.mark.parametrize(
    ("hosts", "protocol"),
    each(
        [(hosts, protocol) for hosts in (HOSTS, THREE) for protocol in IN_GROUPS],
        default=[(HOSTS, "all-reduce"), (HOSTS, "ripples")],  # tests/journeys has AD-PSGD's on three
    ),
)
def test_replicas_on_several_hosts_are_averaged_and_a_replay_on_one_ends_on_the_same_bits(
    protocol: str, hosts: tuple[str, ...], launch: Launch
) -> None:
    run = launch.run(script(), *hosts, "-p", protocol).completed()
    assert run.err == ""
    assert run.summary["samples"] == 2 * 96
    assert {kind for kind, _, _ in fetched(run)} == {"partial", "mean"}
    ends = {
        line for worker in range(run.summary["workers"]) for line in run.log(worker).splitlines() if "final" in line
    }
    assert len(ends) == 1, "all take the same final parameters, wherever they are"
    sound(run)


@pytest.mark.parametrize("protocol", ["ad-psgd", pytest.param("ripples", marks=pytest.mark.long)])
def test_a_replica_elsewhere_begins_with_the_buffers_that_all_begin_with(protocol: str, launch: Launch) -> None:
    """It is averaged before its worker has made a step, and so has any."""
    late = "if paceline.worker() == 3 and not (THERE / 'late').exists(): (THERE / 'late').touch(); time.sleep(0.5)"
    run = launch.run(script(each_step=late), *HOSTS, "-p", protocol, "--record", "4").completed()
    means = sorted((run.folder / "versions").glob("0*.safetensors"))
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    for mean in means:
        here, there = load_file(mean), load_file(again.folder / "versions" / mean.name)
        assert all(torch.equal(here[name], there[name]) for name in here), mean.name


def test_every_host_makes_a_slice_where_the_model_has_enough_pieces(launch: Launch) -> None:
    run = launch.run(script(width=100_000), *HOSTS, "-p", "all-reduce", "--max-steps", "16").completed()
    both = [("node-0", "node-1"), ("node-1", "node-0")]
    assert fetched(run) == {(kind, *pair) for kind in ("partial", "mean") for pair in both}
    sound(run)


def test_all_reduce_over_hosts_ends_on_the_bits_of_rounds_with_a_store_over_the_same_hosts(launch: Launch) -> None:
    """Both add up what a host's workers have first, and then what the hosts have."""
    text = script().replace("nn.BatchNorm1d(16), ", "")
    rounds = launch.run(text, *HOSTS, "-p", "bsp").completed()
    assert same_bits(launch.run(text, *HOSTS, "-p", "all-reduce").completed(), rounds)


@pytest.mark.long
def test_all_reduce_over_hosts_comes_to_what_it_comes_to_on_one(launch: Launch) -> None:
    """Sums are made in another order, so the last bits may differ."""
    text = script(before_prepare="model.double(); data.tensors = (data.tensors[0].double(), data.tensors[1])")
    several = launch.run(text, *HOSTS, "-p", "all-reduce").completed().final()
    one = launch.run(text, *ONE, "-p", "all-reduce").completed().final()
    assert all(torch.allclose(several[name].double(), one[name].double(), rtol=1e-9) for name in one)


@pytest.mark.parametrize("protocol", AD_PSGD)
def test_what_replicas_on_other_hosts_begin_with_comes_with_its_buffers(protocol: str, launch: Launch) -> None:
    """A group may average them before their workers have made a step, which brings the scripts' own buffers."""
    run = launch.run(script(), *HOSTS, "-p", protocol, "--max-steps", "8").completed()
    whole_replica = run.rows("SELECT DISTINCT bytes FROM fetches WHERE kind = 'replica'")
    assert run.rows("SELECT DISTINCT bytes FROM fetches WHERE kind = 'version'") == whole_replica


FILLS = "torch.nn.init.constant_(model[1].weight, 0.25)"


@pytest.mark.parametrize("protocol", AD_PSGD)
def test_what_scripts_change_before_their_first_step_is_what_replicas_on_all_hosts_begin_with(
    protocol: str, launch: Launch
) -> None:
    run = launch.run(script(before=FILLS), *HOSTS, "-p", protocol).completed()
    assert run.summary["samples"] == 2 * 96
    sound(run)


DIES = """
made = globals().get("made", 0) + 1
if made == 3 and paceline.worker() == 2 and not (THERE / "dies").exists():
    (THERE / "dies").touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""
"""In its third step worker 2 kills the agent of its host, if nobody has."""


@pytest.mark.parametrize("protocol", ALL_REDUCE)
def test_the_others_go_on_without_a_host_that_is_killed(protocol: str, launch: Launch) -> None:
    run = launch.run(script(each_step=DIES), *HOSTS, "-p", protocol, "--on-loss", "continue").completed()
    assert "host node-1 is lost" in run.err
    assert run.summary["samples"] + run.summary["samples_missed"] == 2 * 96
    sound(run)


STOPS_ONCE = script(
    each_step="""
if paceline.worker() == 2 and epoch == 1 and not (THERE / "died").exists():
    (THERE / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while epoch == 1 and paceline.worker() != 2 and not (THERE / "back").exists():  # else they may be through before it is
    time.sleep(0.01)
time.sleep(0.05)
""",
    before_prepare="""
if paceline.worker() == 2 and (THERE / "died").exists():
    (THERE / "back").touch()
""",
)


@pytest.mark.parametrize("protocol", AD_PSGD)
def test_a_worker_that_returns_on_another_host_gets_a_replica_from_there(protocol: str, launch: Launch) -> None:
    run = launch.run(STOPS_ONCE, *HOSTS, "-p", protocol, "--restart", "1").completed()
    joined = run.rows("SELECT worker FROM facts WHERE kind = 'WorkerJoined'")
    assert joined == [(2,)]
    assert run.summary["samples"] == 2 * 96
    sound(run)


@pytest.mark.parametrize("protocol", ALL_REDUCE)
def test_a_host_that_leaves_in_good_order_leaves_what_its_workers_have_come_to(protocol: str, launch: Launch) -> None:
    leaves = """
if paceline.worker() == 2 and epoch == 1 and not (THERE / "asked").exists():
    (THERE / "asked").touch()
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(0.02)
"""
    run = launch.run(script(each_step=leaves), *HOSTS, "-p", protocol).completed()
    assert "host node-1 has left in good order" in run.err
    left = run.rows(
        "SELECT worker, json_extract(body, '$.reason') FROM facts WHERE kind = 'WorkerLeft' ORDER BY worker"
    )
    assert left == [(0, "finished"), (1, "finished"), (2, "drained"), (3, "drained")]
    assert run.summary["samples"] == 2 * 96
    sound(run)


@pytest.mark.long
def test_all_reduce_that_is_killed_on_several_hosts_and_resumed_ends_on_the_bits_of_one_run(launch: Launch) -> None:
    whole_run = launch.run(script(), *HOSTS, "-p", "all-reduce").completed()
    flags = (*HOSTS, "-p", "all-reduce", "--checkpoint", "3")
    stopped = killed_once_kept(launch.start(script(each_step="time.sleep(0.02)"), *flags), snapshots=2)
    assert newest(stopped.folder)[0] is not None
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["segments"] == 2
    assert resumed.summary["samples"] == 2 * 96
    assert same_bits(resumed, whole_run)
    sound(resumed)
