"""Runs on several hosts that each make a range of every version, with workers or without."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from paceline.protocols import registry
from support.joins import Head, heard, joined, listens
from support.launch import Launch
from support.runs import Launcher, Run, ended
from support.shards import ADAMW, HOSTS, TWO_EACH, script
from support.sound import right, same_bits, sound
from support.suites import each

ALONE = ("-n", "3", "--threads", "1", "-p", "bsp")


def shards(run: Run) -> int:
    """How many hosts have made a range: as many as have fetched updates, or sums of them."""
    ((count,),) = run.rows("SELECT COUNT(DISTINCT host) FROM fetches WHERE kind IN ('sum', 'update')")
    return int(count)


def test_ranges_are_clipped_by_the_norm_of_the_whole_and_replayed_on_one_host_to_the_same_bits(launch: Launch) -> None:
    text = script().replace("epochs=2)", "epochs=2, clip_grad_norm=0.05)")
    run = launch.run(text, *TWO_EACH, "-p", "bsp").completed()
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


# --- hosts without workers: each makes a range of every version, and nothing else


STORED = sorted(name for name, spec in registry().items() if spec.state == "store")
TABLES = """
[[host]]
name = "head"
workers = 1
[[host]]
name = "server"
workers = 0
[[host]]
name = "b"
workers = 2
"""


@pytest.fixture
def tables(tmp_path: Path) -> tuple[str, ...]:
    """Flags of a run on three hosts, of which the one in the middle has no workers."""
    (tmp_path / "hosts.toml").write_text(TABLES)
    return "--scenario", str(tmp_path / "hosts.toml"), "--threads", "1"


def sources(run: Run) -> list[str]:
    """Which hosts have made a part of versions."""
    rows = run.rows("SELECT DISTINCT source FROM fetches WHERE kind = 'version' AND number > 0 ORDER BY 1")
    return [source for (source,) in rows]


NOTES = """
print('here is', paceline.worker(), flush=True)
if paceline.worker() == 3: (THERE / 'stands-in').write_text(str(os.getpid()))
"""
GONE = """
end, folder = time.monotonic() + 30, Path("/proc") / (THERE / "stands-in").read_text()
while paceline.worker() == 0 and folder.exists():
    assert time.monotonic() < end, "it is still there"
    time.sleep(0.01)
"""


@pytest.mark.parametrize("protocol", each(STORED, default=("bsp",)))
def test_a_run_with_a_host_that_only_makes_versions_is_checked_and_replayed_to_the_same_bits(
    protocol: str, launch: Launch, tables: tuple[str, ...]
) -> None:
    """What has run the script there ends while workers train. What it printed is in a log of that host."""
    run = launch.run(script(before=NOTES, end=GONE), *tables, "-p", protocol).completed()
    assert run.summary["samples"] == 2 * 64
    assert sources(run) == ["b", "head", "server"]
    (server,) = (row for row in run.summary["per_host"] if row["host"] == "server")
    assert (server["workers"], server["steps"]) == ([], 0)
    assert server["bytes_out"] > 0
    assert "host server had no workers, and made a part of every version" in run.out
    assert (run.folder / "host-server.log").read_text() == "here is 3\n"
    assert not (run.folder / "worker-3.log").exists()
    sound(run)


def test_all_of_each_version_may_be_made_where_no_worker_is(launch: Launch, tables: tuple[str, ...]) -> None:
    run = launch.run(script(), *tables, "-p", "asp", "--shards-on", "server").completed()
    assert sources(run) == ["server"]
    right(run)


def test_a_host_whose_script_fails_before_prepare_makes_nothing_and_the_others_train(
    launch: Launch, tables: tuple[str, ...]
) -> None:
    run = launch.run(script(before="assert paceline.worker() < 3, 'no'"), *tables, "-p", "bsp").completed()
    assert "host server is lost: its script has ended before prepare()" in run.err
    assert "AssertionError: no" in (run.folder / "host-server.log").read_text()
    assert run.summary["samples"] == 2 * 64
    right(run)


@pytest.mark.long
def test_a_model_of_one_piece_leaves_nothing_to_do_for_it_and_the_host_is_let_go(
    launch: Launch, tables: tuple[str, ...]
) -> None:
    own = "type('Own', (torch.optim.SGD,), {})(model.parameters(), lr=0.05)"
    run = launch.run(script(own), *tables, "-p", "bsp").completed()
    assert "host server takes no part: it has no workers, and the model has too few pieces" in run.err
    assert run.summary["samples"] == 2 * 64
    right(run)


KILLED = """
kept = list(THERE.glob("*/snapshots/*/state.json"))
if kept and paceline.worker() == 0 and not paceline.resumed():
    os.kill(int((THERE / "server").read_text()), signal.SIGKILL)
if kept and not paceline.resumed(): time.sleep(0.1)
""".strip().replace("\n", "\n        ")
NOTES_THE_AGENT = "if paceline.worker() == 3: (THERE / 'server').write_text(str(os.getppid()))"


@pytest.mark.parametrize("by_itself", each([False, True], long=(True,)))
def test_a_run_that_loses_a_host_that_only_made_versions_goes_on_from_its_snapshot(
    by_itself: bool, launch: Launch, tables: tuple[str, ...]
) -> None:
    flags = ("--restart", "1", "--shards-on", "all") if by_itself else ()
    run = launch.run(script(before=NOTES_THE_AGENT, each_step=KILLED, epochs=4), *tables, "-p", "asp", *flags)
    if by_itself:
        assert run.err.count("; going on after ") == 1
    else:
        assert run.code == 3, run.err
        assert "failed: host server made a part of every version, and it is lost" in run.out
        run = launch.resume(run.folder)
    assert run.completed().summary["samples"] == 4 * 64
    right(run)


def company(launch: Launch, text: str, *flags: str) -> tuple[Head, Launcher]:
    """A head with two workers, and a host without any that joins it over loopback."""
    head = heard(launch.start(text, *listens(workers=2), *flags))
    return head, joined(launch, head, "server", 0)


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("protocol", each(["bsp", "asp"], long=("asp",)))
def test_a_machine_without_workers_joins_and_makes_a_part_of_each_version(protocol: str, launch: Launch) -> None:
    prints = "print('here is', paceline.worker(), flush=True)"
    head, server = company(launch, script(before=prints), "-p", protocol, "--tee", "all")
    head.says("host server has come, without workers")
    run, joiner = head.ended().completed(), ended(server).completed()
    assert "joined as host server: no worker of 2" in joiner.err
    assert (run.folder / "host-server.log").read_text() == "here is 2\n"
    assert "here is 1" in run.out
    assert "here is 2" not in run.out
    assert run.rows("SELECT DISTINCT host FROM fetches WHERE kind IN ('update', 'sum') ORDER BY 1")[-1] == ("server",)
    sound(run)


@pytest.mark.usefixtures("token")
def test_a_machine_that_would_have_nothing_to_do_is_refused_in_one_line(launch: Launch) -> None:
    head, server = company(launch, script(), "-p", "bsp", "--shards-on", "head,other")
    joiner = ended(server)
    assert joiner.code == 2
    assert "host server has no workers, and would have no part of the store" in joiner.err
    os.kill(head.process.pid, signal.SIGTERM)
    head.ended()


@pytest.mark.usefixtures("token")
@pytest.mark.long
def test_a_run_that_a_machine_without_workers_has_joined_goes_on_on_one_machine_with_such_a_host(
    launch: Launch,
) -> None:
    head, server = company(launch, script(), "-p", "bsp", "--max-steps", "20", "--checkpoint", "3")
    again = launch.resume(head.ended().completed().folder).completed()
    ended(server).completed()
    assert again.summary["samples"] == 2 * 64
    assert {one["host"]: one["workers"] for one in again.summary["per_host"]} == {"head": [0, 1], "server": []}
    right(again)
