"""Runs on several hosts that each make a range of every version."""

from __future__ import annotations

import re

import pytest
import torch

from paceline.protocols import registry
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, replayed
from support.shards import ADAMW, HOSTS, SGD, TWO_EACH, script
from support.suites import each

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")


def shards(run: Run) -> int:
    """How many hosts have made a range: as many as have fetched updates, or sums of them."""
    ((count,),) = run.rows("SELECT COUNT(DISTINCT host) FROM fetches WHERE kind IN ('sum', 'update')")
    return int(count)


@pytest.mark.parametrize("protocol", each(STORED, default=()))  # tests/journeys has asp
def test_a_run_whose_versions_are_made_in_ranges_is_replayed_on_one_host_to_the_same_bits(
    protocol: str, launch: Launch
) -> None:
    run = launch.run(script(), *HOSTS, "-p", protocol).completed()
    assert run.summary["samples"] == 2 * 64
    assert shards(run) == 3
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


def exact(optimizer: str) -> str:
    """In float64: AdamW makes a step of a rounding error, where a gradient is nothing else."""
    return script(optimizer).replace(
        "torch.manual_seed(3)", "torch.manual_seed(3); torch.set_default_dtype(torch.float64)"
    )


def sums(run: Run) -> tuple[int, int]:
    """How many updates have arrived, and how many of them in a sum."""
    query = "SELECT COUNT(*), COUNT(json_extract(body, '$.sum')) FROM facts WHERE kind = 'UpdateArrived'"
    ((arrived, summed),) = run.rows(query)
    return int(arrived), int(summed)


@pytest.mark.parametrize("optimizer", [SGD, pytest.param(ADAMW, marks=pytest.mark.long)])
def test_a_round_moves_one_sum_a_host_to_the_result_of_one_host_and_to_the_bits_of_its_replay(
    optimizer: str, launch: Launch
) -> None:
    run = launch.run(exact(optimizer), *TWO_EACH, "-p", "bsp").completed()
    alone = launch.run(exact(optimizer), "-n", "6", "--threads", "1", "-p", "bsp").completed()
    arrived, summed = sums(run)
    assert 0 < summed <= arrived
    moved = dict(run.rows("SELECT kind, COUNT(*) FROM fetches WHERE kind IN ('sum', 'update') GROUP BY kind"))
    assert moved["sum"] * 2 == summed * 2  # by both other hosts, of two updates each
    assert moved.get("update", 0) == (arrived - summed) * 2
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out
    with_sums, without = run.final(), alone.final()
    for name, value in without.items():
        assert torch.allclose(with_sums[name], value, rtol=1e-4, atol=1e-5), name


ON_HEAD = (*TWO_EACH[:-1], "head")


@pytest.mark.parametrize("optimizer", [SGD, pytest.param(ADAMW, marks=pytest.mark.long)])
def test_with_the_store_on_the_head_one_sum_of_each_other_host_crosses_its_link(optimizer: str, launch: Launch) -> None:
    run = launch.run(exact(optimizer), *ON_HEAD, "-p", "bsp").completed()
    alone = launch.run(exact(optimizer), "-n", "6", "--threads", "1", "-p", "bsp").completed()
    moved = dict(run.rows("SELECT kind, COUNT(*) FROM fetches WHERE kind IN ('sum', 'update') GROUP BY kind"))
    _, summed = sums(run)
    ((elsewhere,),) = run.rows(
        "SELECT COUNT(*) FROM facts WHERE kind = 'UpdateArrived' AND json_extract(body, '$.worker') > 1"
    )
    assert 0 < summed == moved["sum"] * 2, "of two updates each"
    assert moved.get("update", 0) == elsewhere - summed, "those of the head's own workers move nowhere"
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out
    with_sums, without = run.final(), alone.final()
    for name, value in without.items():
        assert torch.allclose(with_sums[name], value, rtol=1e-4, atol=1e-5), name


LOSES_THE_PROCESS = """
import os, signal
from paceline.host.host import Host
from paceline.host.messages import SumUp
obey = Host._obey
def dies(self, order):
    if isinstance(order, SumUp) and order.number == 6:
        os.kill(self.store.process, signal.SIGKILL)
    obey(self, order)
Host._obey = dies
"""


def test_without_the_process_that_adds_up_a_host_s_updates_come_one_by_one(launch: Launch) -> None:
    run = launch.run(script(), *ON_HEAD, "-p", "bsp", first=LOSES_THE_PROCESS).completed()
    found = re.search(r"host (node-\d) adds up its workers' updates no more, .* the process that adds up died", run.err)
    assert found is not None, run.err
    single = run.rows(f"SELECT COUNT(*) FROM fetches WHERE kind = 'update' AND source = '{found[1]}'")
    assert single[0][0] > 0
    assert run.summary["samples"] == 2 * 64
    assert (judged := checked(run.folder)).ok, judged.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.parametrize("where", [TWO_EACH, pytest.param(ON_HEAD, marks=pytest.mark.long)], ids=["all", "head"])
def test_a_worker_that_dies_is_in_no_later_sum(where: tuple[str, ...], launch: Launch) -> None:
    dies = "if epoch == 1 and paceline.worker() == 3: os.kill(os.getpid(), signal.SIGKILL)"
    run = launch.run(script(each_step=dies), *where, "-p", "bsp", "--on-loss", "continue").completed()
    died = "SELECT worker FROM facts WHERE kind = 'WorkerLeft' AND json_extract(body, '$.reason') = 'died'"
    assert run.rows(died) == [(3,)]
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err


@pytest.mark.parametrize("where", [TWO_EACH, ON_HEAD], ids=["all", "head"])
def test_a_nan_in_a_sum_is_named_with_its_worker(where: tuple[str, ...], launch: Launch) -> None:
    spoils = "if epoch == 1 and paceline.worker() == 3: model[4].bias.register_hook(lambda g: g * float('nan'))"
    run = launch.run(script(each_step=spoils), *where, "-p", "bsp")
    assert run.code == 4
    assert re.search('the gradient of "4.bias" is NaN or infinite in step [0-9]+ of worker 3', run.out)


def clipped(text: str, option: str = "clip_grad_norm=0.05") -> str:
    return text.replace("epochs=2)", f"epochs=2, {option})")


CLIPPED = [("asp", HOSTS), ("bsp", TWO_EACH), ("hsp", HOSTS), ("sync-switch", HOSTS)]


@pytest.mark.parametrize(("protocol", "where"), each(CLIPPED, default=(CLIPPED[1],)))
def test_ranges_are_clipped_by_the_norm_of_the_whole_and_replayed_on_one_host_to_the_same_bits(
    protocol: str, where: tuple[str, ...], launch: Launch
) -> None:
    run = launch.run(clipped(script()), *where, "-p", protocol).completed()
    assert shards(run) == 3
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.long
@pytest.mark.parametrize("option", ["clip_grad_norm=0.05", "clip_grad_value=0.01"])
def test_clipped_rounds_end_on_the_bits_of_rounds_on_one_host(option: str, launch: Launch) -> None:
    several = launch.run(clipped(script(), option), *HOSTS, "-p", "bsp").completed().final()
    one = launch.run(clipped(script(), option), "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    free = launch.run(script(), "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    assert all(torch.equal(several[name], one[name]) for name in one)
    assert not torch.equal(free["0.weight"], one["0.weight"])


@pytest.mark.long
def test_a_nan_is_named_with_its_worker_though_clipping_spreads_it_to_all_ranges(launch: Launch) -> None:
    spoils = "if epoch == 1 and paceline.worker() == 2: model[4].bias.register_hook(lambda g: g * float('nan'))"
    run = launch.run(clipped(script(each_step=spoils)), *HOSTS, "-p", "bsp")
    assert run.code == 4
    assert re.search('the gradient of "4.bias" is NaN or infinite in step [0-9]+ of worker 2', run.out)


@pytest.mark.long
def test_a_range_that_is_clipped_moves_when_its_host_leaves(launch: Launch) -> None:
    leaves = """
if epoch == 1 and paceline.worker() == 2 and not (THERE / "left").exists():
            (THERE / "left").touch()
            os.kill(os.getppid(), signal.SIGTERM)
"""
    run = launch.run(clipped(script(each_step=leaves.strip())), *HOSTS, "-p", "asp").completed()
    assert run.rows("SELECT worker FROM facts WHERE kind = 'WorkerLeft' AND body LIKE '%drained%'") == [(2,)]
    assert run.summary["samples"] == 2 * 64
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.long
@pytest.mark.parametrize("named", [pytest.param("node-1", marks=pytest.mark.long), "node-1,node-2"])
def test_hosts_besides_the_head_make_all_of_each_version(named: str, launch: Launch) -> None:
    run = launch.run(script(), *HOSTS[:-1], named, "-p", "bsp").completed()
    assert run.rows("SELECT DISTINCT source FROM fetches WHERE kind = 'version' AND number > 0 ORDER BY 1") == [
        (name,) for name in named.split(",")
    ]
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.long
def test_rounds_end_on_the_bits_of_rounds_on_one_host(launch: Launch) -> None:
    several = launch.run(script(ADAMW), *HOSTS, "-p", "bsp").completed().final()
    one = launch.run(script(ADAMW), "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    assert several.keys() == one.keys()
    assert all(torch.equal(several[name], one[name]) for name in one)


PRIOR = """
model(data.tensors[0]).sum().backward()
optimizer.step()
"""
"""Before `prepare` the optimizer has stepped, by other gradients in each worker."""


@pytest.mark.long
def test_what_the_lowest_workers_optimizer_has_done_before_counts_in_all_ranges(launch: Launch) -> None:
    text = script(ADAMW, before="torch.manual_seed(paceline.worker())\n" + PRIOR)
    several = launch.run(text, *HOSTS, "-p", "bsp").completed().final()
    one = launch.run(text, "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    assert all(torch.equal(several[name], one[name]) for name in one)


CHANGES = """
with torch.no_grad():
    for parameter in model.parameters(): parameter.mul_(0.5)
optimizer.load_state_dict(torch.load(THERE / "state"))
"""
SAVED = """
if paceline.worker() == 0: torch.save(optimizer.state_dict(), THERE / "state")
"""


def test_the_whole_state_is_gathered_and_an_adopted_one_goes_to_all_ranges(launch: Launch) -> None:
    """One run saves its optimizer's state, and others begin with that: after `prepare`."""
    launch.run(script(ADAMW, end=SAVED), *HOSTS, "-p", "bsp").completed()
    state = torch.load(launch.tmp_path / "state")
    assert [tuple(one["exp_avg"].shape) for one in state["state"].values()][:3] == [(1024, 6), (1024,), (1536, 1024)]
    several = launch.run(script(ADAMW, after=CHANGES), *HOSTS, "-p", "bsp").completed().final()
    one = launch.run(script(ADAMW, after=CHANGES), "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    assert all(torch.equal(several[name], one[name]) for name in one)


def test_a_run_goes_on_from_a_snapshot_of_ranges_to_the_same_bits(launch: Launch) -> None:
    whole = launch.run(script(ADAMW), *HOSTS, "-p", "bsp").completed()
    cut = launch.run(script(ADAMW), *HOSTS, "-p", "bsp", "--max-steps", "20", "--checkpoint", "3").completed()
    again = launch.resume(cut.folder).completed()
    a, b = whole.final(), again.final()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_lost_host_that_made_ranges_ends_the_run_which_goes_on_from_its_snapshot(launch: Launch) -> None:
    dies = """
kept = list(THERE.glob("*/snapshots/*/state.json"))
if kept and paceline.worker() == 2 and not paceline.resumed(): os.kill(os.getppid(), signal.SIGKILL)
if not kept and epoch == 1: time.sleep(0.1)
"""
    run = launch.run(script(each_step=dies.strip().replace("\n", "\n        ")), *HOSTS, "-p", "asp")
    assert run.code == 3, run.err
    assert "failed: host node-2 made a part of every version, and it is lost" in run.out
    assert f"go on with: paceline run --resume {run.folder}" in run.err
    launch.resume(run.folder).completed()


@pytest.mark.parametrize("victim", ["os.getpid()", pytest.param("os.getppid()", marks=pytest.mark.long)])
def test_a_host_without_a_worker_in_prepare_makes_no_range(victim: str, launch: Launch) -> None:
    dies = f"if paceline.worker() == 1: os.kill({victim}, signal.SIGKILL)"
    run = launch.run(script(before=dies), *HOSTS, "-p", "asp").completed()
    assert run.summary["samples"] == 2 * 64
    assert run.rows("SELECT DISTINCT host FROM fetches WHERE kind = 'update' ORDER BY 1") == [("node-0",), ("node-2",)]
    assert (found := checked(run.folder)).ok, found.wrong


AS_IT_FORKS = """
import os, signal, time
from pathlib import Path
from paceline.worker_process import worker
FOLDER = Path(PATH)
def fork_store(*arguments, real=worker.fork_store):
    if not (FOLDER / "killed").exists():
        (FOLDER / "killed").touch()
        os.kill(int((FOLDER / "victim").read_text()), signal.SIGKILL)
        while not (FOLDER / "gone").exists():
            time.sleep(0.002)
    return real(*arguments)
worker.fork_store = fork_store
from paceline.coordinator import host_registry as others
def delivered(self, host, incarnation, message, real=others.HostRegistry.delivered):
    real(self, host, incarnation, message)
    if type(message).__name__ == "WorkerEnded":
        (FOLDER / "gone").touch()
others.HostRegistry.delivered = delivered
def ended(self, host, incarnation, why, real=others.HostRegistry.ended):
    real(self, host, incarnation, why)
    (FOLDER / "gone").touch()
others.HostRegistry.ended = ended
"""
"""A process ends while the head's store is being set up, and the head has heard of that before the store is there."""


@pytest.mark.parametrize(
    ("victim", "why"),
    [
        ("os.getpid()", "none of its workers has come to prepare()"),
        ("os.getppid()", "it is lost (its agent has ended)"),
    ],
)
def test_a_host_that_was_to_make_a_range_and_is_lost_before_training_ends_the_run(
    victim: str, why: str, launch: Launch
) -> None:
    writes = f"if paceline.worker() == 1: (THERE / 'victim').write_text(str({victim}))"
    run = launch.run(script(before=writes), *HOSTS, "-p", "asp", first=f"PATH = {str(launch.tmp_path)!r}" + AS_IT_FORKS)
    assert run.code == 3, run.err
    assert f"failed: host node-1 made a part of every version, and {why}" in run.out


KILLS_ITS_AGENT = """
        kept = paceline.worker() == 2 and any(THERE.glob("run*/snapshots/[0-9]*"))
        if kept and len(list(THERE.glob("killed-*"))) < 2:
            (THERE / f"killed-{os.getppid()}").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
""".strip()
"""Twice, once there is a snapshot to go on from."""


@pytest.mark.long
def test_a_run_goes_on_by_itself_from_its_snapshot_to_the_bits_of_one_that_lost_no_host(launch: Launch) -> None:
    flags = (*HOSTS, "-p", "bsp", "--restart", "2")
    run = launch.run(script(ADAMW, each_step=KILLS_ITS_AGENT, epochs=6), *flags).completed()
    whole = launch.run(script(ADAMW, epochs=6), *flags).completed()
    assert run.err.count("; going on after ") == 2
    assert run.summary["samples"] == whole.summary["samples"]
    assert run.summary["final_parameters_sha256"] == whole.summary["final_parameters_sha256"]
    assert (found := checked(run.folder)).ok, found.wrong


@pytest.mark.long
def test_a_run_goes_on_by_itself_no_more_often_than_it_may(launch: Launch) -> None:
    run = launch.run(script(each_step=KILLS_ITS_AGENT, epochs=6), *HOSTS, "-p", "bsp", "--restart", "1")
    assert run.code == 3
    assert run.err.count("; going on after ") == 1
    assert "failed: host node-2 made a part of every version" in run.out
    assert f"go on with: paceline run --resume {run.folder}" in run.err


def test_a_run_that_fails_of_its_script_does_not_go_on_by_itself(launch: Launch) -> None:
    fails = "if epoch == 1 and paceline.worker() == 2: raise ValueError('no')"
    run = launch.run(script(each_step=fails), *HOSTS, "-p", "bsp", "--restart", "3")
    assert run.code == 3
    assert "going on after" not in run.err


def test_a_nan_in_any_range_is_named_with_its_worker(launch: Launch) -> None:
    """The last bias lies in the last host's range."""
    spoils = "if epoch == 1 and paceline.worker() == 1: model[4].bias.register_hook(lambda g: g * float('nan'))"
    run = launch.run(script(each_step=spoils), *HOSTS, "-p", "asp")
    assert run.code == 4
    assert re.search('the gradient of "4.bias" is NaN or infinite in step [0-9]+ of worker 1', run.out)


def test_an_optimizer_that_may_look_across_elements_has_one_shard(launch: Launch) -> None:
    own = "type('Own', (torch.optim.SGD,), {})(model.parameters(), lr=0.05)"
    assert shards(launch.run(script(own), *HOSTS, "-p", "bsp").completed()) == 1


EARLY = """
import time
from pathlib import Path
import torch
import paceline

THERE = Path(__file__).parent
model = torch.nn.ParameterList([torch.ones(100), torch.ones(1_500_000), torch.ones(1_500_000)])
first, second, third = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = paceline.prepare(model, optimizer)
places = paceline.training.prepare.ScriptProcess.session.context.places

def until(so):
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)

if paceline.worker() == 1:  # its host makes the range in which the third parameter is
    until(lambda: any(places.push_area(area).gradients[2].any() for area in (0, 2)))
    (THERE / "seen").touch()
else:
    second.register_hook(lambda _: until((THERE / "seen").exists))
for step in range(3):
    optimizer.zero_grad()
    ((first.sum().tanh() + second.sum()).tanh() + third.sum()).backward()
    optimizer.step()
"""
"""Worker 0 goes on with its backward once another host has what was made before."""


def test_a_gradient_is_on_another_host_while_its_worker_computes_the_rest(launch: Launch) -> None:
    flags = ("--emulate-hosts", "2", "-n", "1", "--threads", "1", "--shards-on", "all", "-p", "bsp")
    run = launch.run(EARLY, *flags).completed()
    assert shards(run) == 2
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


CHANGED = {
    "clipped": "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)",
    "past autograd": "[parameter.grad.data.mul_(0.5) for parameter in model.parameters()]",
    "accumulated": "nn.functional.cross_entropy(model(x), y).backward()",
}


@pytest.mark.parametrize("change", each(CHANGED, long=("clipped", "past autograd")))
def test_gradients_that_a_script_changes_after_its_backward_are_those_of_the_versions(
    change: str, launch: Launch
) -> None:
    text = script(ADAMW).replace("        optimizer.step()", f"        {CHANGED[change]}\n        optimizer.step()")
    several = launch.run(text, *HOSTS, "-p", "bsp").completed()
    one = launch.run(text, "-n", "3", "--threads", "1", "-p", "bsp").completed().final()
    assert all(torch.equal(several.final()[name], one[name]) for name in one)
    assert (found := checked(several.folder)).ok, found.wrong
