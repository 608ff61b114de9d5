"""Machines that come to a run which has begun without them: `--hosts 2:3`, over loopback."""

from __future__ import annotations

import tomllib

import pytest

from paceline.protocols import registry
from support.joins import assert_sound, facts_of, heard, joined, listens
from support.launch import Launch
from support.runs import ended
from support.scripts import that_meets
from support.suites import each

pytestmark = pytest.mark.usefixtures("token")

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")
IN_GROUPS = sorted(name for name, spec in registry().items() if spec.in_groups)
SAMPLES = 2 * 240
LATE = """
touch(f"trains-{me}")
if me < 2 and step == 4:
    wait("prepared-LATE")
if me < 2 and step >= 4 and not there("trains-LATE"):
    time.sleep(0.05)
"""
"""The first workers wait in their fifth step until a later one has come, and then go slowly until it trains."""


def script(late: int = 2) -> str:
    return that_meets(LATE.replace("LATE", str(late)), prepared="touch(f'prepared-{me}')")


@pytest.mark.parametrize("protocol", each([*STORED, *IN_GROUPS], default=("bsp", "ripples")))
def test_a_host_that_comes_while_others_train_takes_part_and_one_for_which_there_is_no_room_is_refused(
    protocol: str, launch: Launch
) -> None:
    """Where each worker owns a replica, the host fetches the one that its worker shows before that has joined."""
    head = heard(launch.start(script(), *listens("2:3"), "-p", protocol))
    others = [joined(launch, head, "b")]
    head.says("the run begins with 2 hosts, and 1 more may come")
    refused = ended(joined(launch, head, "c", 2))
    assert refused.code == 2
    assert "there is room for 1 worker, and 2 would come; join with fewer (-n)" in refused.err
    others.append(joined(launch, head, "c"))
    head.says("host c has come, with 1 worker\n")
    refused = ended(joined(launch, head, "d"))
    assert refused.code == 2
    assert "this run has all of its 3 hosts" in refused.err
    run = head.ended().completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert "worker 2 takes part from step 0 on" in head.told + run.err
    assert facts_of(run, "WorkerJoined") == [2]
    assert [one["left"]["reason"] for one in run.summary["per_worker"]] == ["finished"] * 3
    assert [(one["host"], one["workers"]) for one in run.summary["per_host"]] == [("b", [1]), ("c", [2]), ("head", [0])]
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert [host["name"] for host in config["scenario"]["host"]] == ["head", "b", "c"]
    assert set(config["environment"]["hosts"]) == {"head", "b", "c"}
    shown = "SELECT count(*) FROM fetches WHERE kind = 'replica' AND host = 'c' AND worker <> 2"
    assert protocol not in IN_GROUPS or run.rows(shown) == [(1,)]
    assert_sound(run, SAMPLES)


def test_a_run_that_begins_alone_takes_hosts_with_several_workers_as_they_come(launch: Launch) -> None:
    head = heard(launch.start(script(3), *listens("1:2", 2), "-p", "asp"))
    assert head.told.startswith("paceline: other hosts may come at any time; on each other machine: ")
    other = joined(launch, head, "b", 2)
    run = head.ended().completed()
    assert ended(other).code == 0
    assert "host b has come, with 2 workers" in run.err
    assert sorted(facts_of(run, "WorkerJoined")) == [2, 3]
    assert_sound(run, SAMPLES)


@pytest.mark.long
def test_a_worker_that_comes_later_goes_on_with_its_own_steps_in_a_resumed_run(launch: Launch) -> None:
    head = heard(launch.start(script(), *listens("2:3"), "-p", "asp", "--max-steps", "40"))
    others = [joined(launch, head, "b")]
    head.says("1 more may come")
    others.append(joined(launch, head, "c"))
    first = head.ended().completed()
    steps = {one["worker"]: one["steps"] for one in first.summary["per_worker"]}
    assert [ended(other).code for other in others] == [0, 0]
    for name in ("prepared-2", "trains-2"):
        (launch.tmp_path / name).unlink()
    head = heard(launch.start_resumed(first.folder, "--max-steps", "10000", *listens("2:3")[:6], "--name", "head"))
    others = [joined(launch, head, "b")]
    head.says("1 more may come")
    others.append(joined(launch, head, "d"))
    run = head.ended().completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert f"worker 2 takes part from step {steps[2]} on" in run.err
    assert_sound(run, SAMPLES)
