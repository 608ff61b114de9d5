"""Runs on several hosts that each make a range of every version."""

from __future__ import annotations

import re

import pytest
import torch

from support.launch import Launch
from support.runs import Run
from support.shards import ADAMW, HOSTS, TWO_EACH, script
from support.sound import right, same_bits, sound
from support.suites import each

ALONE = ("-n", "3", "--threads", "1", "-p", "bsp")
ON_HEAD = (*TWO_EACH[:-1], "head")


def shards(run: Run) -> int:
    """How many hosts have made a range: as many as have fetched updates, or sums of them."""
    ((count,),) = run.rows("SELECT COUNT(DISTINCT host) FROM fetches WHERE kind IN ('sum', 'update')")
    return int(count)


@pytest.mark.parametrize("where", [TWO_EACH, ON_HEAD], ids=["all", "head"])
def test_a_round_moves_one_sum_of_each_host_to_every_other_that_makes_a_range(
    where: tuple[str, ...], launch: Launch
) -> None:
    run = launch.run(script(), *where, "-p", "bsp").completed()
    query = "SELECT json_extract(body, '$.worker'), json_extract(body, '$.sum') FROM facts WHERE kind = 'UpdateArrived'"
    arrived = run.rows(query)
    summed = sum(number is not None for _, number in arrived)
    elsewhere = sum(worker > 1 for worker, _ in arrived)
    moved = dict(run.rows("SELECT kind, COUNT(*) FROM fetches WHERE kind IN ('sum', 'update') GROUP BY kind"))
    assert summed > 0
    if where == TWO_EACH:  # to both other hosts, and each is of two updates
        assert (moved["sum"], moved.get("update", 0)) == (summed, (len(arrived) - summed) * 2)
    else:  # those of the head's own workers move nowhere
        assert (moved["sum"] * 2, moved.get("update", 0)) == (summed, elsewhere - summed)
    sound(run)


def clipped(text: str) -> str:
    return text.replace("epochs=2)", "epochs=2, clip_grad_norm=0.05)")


SPOILED = {
    "in a sum": ("bsp", TWO_EACH, 3, str),
    "in the last host's range": ("asp", HOSTS, 1, str),
    "spread by clipping": ("bsp", HOSTS, 2, clipped),
}


@pytest.mark.parametrize("name", each(SPOILED, long=("spread by clipping",)))
def test_a_nan_is_named_with_its_worker(name: str, launch: Launch) -> None:
    protocol, where, worker, changed = SPOILED[name]
    spoils = f"paceline.worker() == {worker}: model[4].bias.register_hook(lambda g: g * float('nan'))"
    run = launch.run(changed(script(each_step=f"if epoch == 1 and {spoils}")), *where, "-p", protocol)
    assert run.code == 4
    assert re.search(f'the gradient of "4.bias" is NaN or infinite in step [0-9]+ of worker {worker}', run.out)


CLIPPED = [("asp", HOSTS), ("bsp", TWO_EACH), ("hsp", HOSTS), ("sync-switch", HOSTS)]


@pytest.mark.parametrize(("protocol", "where"), each(CLIPPED, default=(CLIPPED[1],)))
def test_ranges_are_clipped_by_the_norm_of_the_whole_and_replayed_on_one_host_to_the_same_bits(
    protocol: str, where: tuple[str, ...], launch: Launch
) -> None:
    run = launch.run(clipped(script()), *where, "-p", protocol).completed()
    assert shards(run) == 3
    sound(run)


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
    several = launch.run(script(ADAMW, after=CHANGES), *HOSTS, "-p", "bsp").completed()
    assert same_bits(several, launch.run(script(ADAMW, after=CHANGES), *ALONE).completed())


def test_a_host_without_a_worker_in_prepare_makes_no_range(launch: Launch) -> None:
    dies = "if paceline.worker() == 1: os.kill(os.getpid(), signal.SIGKILL)"
    run = launch.run(script(before=dies), *HOSTS, "-p", "asp").completed()
    assert run.summary["samples"] == 2 * 64
    assert run.rows("SELECT DISTINCT host FROM fetches WHERE kind = 'update' ORDER BY 1") == [("node-0",), ("node-2",)]
    right(run)


KILLS_ITS_AGENT = """
        kept = paceline.worker() == 2 and any(THERE.glob("run*/snapshots/[0-9]*"))
        if kept and len(list(THERE.glob("killed-*"))) < 2:
            (THERE / f"killed-{os.getppid()}").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
""".strip()
"""Twice, once there is a snapshot to go on from."""


@pytest.mark.long
def test_a_run_goes_on_by_itself_no_more_often_than_it_may(launch: Launch) -> None:
    """Once. `test_join` has a run that goes on to its end."""
    run = launch.run(script(each_step=KILLS_ITS_AGENT, epochs=6), *HOSTS, "-p", "bsp", "--restart", "1")
    assert run.code == 3
    assert run.err.count("; going on after ") == 1
    assert "failed: host node-2 made a part of every version" in run.out


def test_a_run_that_fails_of_its_script_does_not_go_on_by_itself(launch: Launch) -> None:
    fails = "if epoch == 1 and paceline.worker() == 2: raise ValueError('no')"
    run = launch.run(script(each_step=fails), *HOSTS, "-p", "bsp", "--restart", "3")
    assert run.code == 3
    assert "going on after" not in run.err


def test_an_optimizer_that_may_look_across_elements_has_one_shard(launch: Launch) -> None:
    own = "type('Own', (torch.optim.SGD,), {})(model.parameters(), lr=0.05)"
    assert shards(launch.run(script(own), *HOSTS, "-p", "bsp").completed()) == 1


def test_gradients_that_a_script_changes_after_its_backward_are_those_of_the_versions(launch: Launch) -> None:
    again = "        nn.functional.cross_entropy(model(x), y).backward()\n"
    text = script(ADAMW).replace("        optimizer.step()", f"{again}        optimizer.step()")
    several = launch.run(text, *HOSTS, "-p", "bsp").completed()
    assert same_bits(several, launch.run(text, *ALONE).completed())
    right(several)
