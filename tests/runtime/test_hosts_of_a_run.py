"""Hosts of a run: their process that moves data fails, they come later, or they are lost and come back."""

from __future__ import annotations

import os
import signal
import tomllib

import pytest

from paceline.protocols import registry
from support.joins import Head, assert_sound, facts_of, heard, joined, listens
from support.launch import Launch
from support.moments import befalls
from support.runs import Launcher, ended
from support.scripts import that_meets, training
from support.suites import each

pytestmark = pytest.mark.usefixtures("token")

DIED = "the process that moves data between hosts died"
SILENT = "the process that moves data between hosts does not answer"
TRAIN = "hosts are told to train"


def two_hosts(
    launch: Launch, *flags: str, first: str = "", joiner: str = "", script: str = training("time.sleep(0.01)")
) -> tuple[Head, Launcher]:
    """Begin a run on host head and host b, with two workers each. `first` and `joiner`: see `support.moments`."""
    head = heard(launch.start(script, *listens(workers=2), "--trusted-network", *flags, first=first))
    assert "traffic between hosts is not encrypted" in head.told
    return head, joined(launch, head, "b", 2, "--trusted-network", first=joiner)


@pytest.mark.parametrize(
    ("protocol", "how", "moment"),
    each(
        [
            (protocol, how, moment)
            for protocol in ("asp", "bsp", "all-reduce", "ad-psgd", "ps-plus")
            for how in ("kill", "stop")
            for moment in (TRAIN, "a snapshot begins", "the run closes")
        ],
        default=[("asp", "kill", TRAIN), ("bsp", "stop", "a snapshot begins")],
    ),
)
def test_a_run_whose_head_moves_no_more_data_ends_everywhere_and_says_so(
    protocol: str, how: str, moment: str, launch: Launch
) -> None:
    befall = befalls("kill" if how == "kill" else "stop", moment)
    shards = [] if protocol in ("asp", "all-reduce", "ad-psgd") else ["--shards-on", "all"]
    waits = "--host-timeout", "2", "--report-waits", "1"
    head, joiner = two_hosts(launch, "-p", protocol, *waits, "--checkpoint", "2", *shards, first=befall)
    run, other, why = head.ended(), ended(joiner), DIED if how == "kill" else SILENT
    assert (run.code, other.code) == (3, 3), run.err
    assert run.summary["error"] == why
    assert f"the run has ended: failed: {why}" in other.err
    assert "is lost" not in run.err


def test_a_host_that_moves_no_more_data_is_lost_and_the_run_goes_on(launch: Launch) -> None:
    befall = befalls("kill", "this host fetches what training begins with")
    head, joiner = two_hosts(launch, "-p", "asp", "--on-loss", "continue", joiner=befall)
    assert f"this host is out of the run: {DIED}" in ended(joiner).err
    assert f"host b is lost: {DIED}" in head.ended().completed().err


WAITS = """
from paceline.host import other_hosts
def begin(self, workers, real=other_hosts.OtherHosts.begin):
    real(self, workers)
    os.write(2, b"they wait\\n")
other_hosts.OtherHosts.begin = begin
"""


def test_one_ctrl_c_ends_a_run_whose_hosts_wait_for_what_training_begins_with(launch: Launch) -> None:
    """The data process is stopped, which nobody finds for minutes. It is to go on for the end."""
    befall = befalls("stop", TRAIN) + WAITS
    head, joiner = two_hosts(launch, "-p", "asp", "--host-timeout", "300", "--report-waits", "1", first=befall)
    head.says("they wait\n")
    head.says(r"worker 2 has waited for \d+ s: host b has yet to get what training begins with")
    os.killpg(head.process.pid, signal.SIGINT)
    run, other = head.ended(), ended(joiner)
    assert run.code == other.code == 130
    assert run.summary["outcome"] == "interrupted"
    assert "in time" not in run.err


STORED = sorted(name for name, spec in registry().items() if spec.state == "store")
IN_GROUPS = sorted(name for name, spec in registry().items() if spec.groups)
SAMPLES = 2 * 240
LATE = """
touch(f"trains-{me}")
if me < 2 and step == 4:
    wait("prepared-LATE")
if me < 2 and step >= 4 and not there("trains-LATE"):
    time.sleep(0.05)
"""
"""The first workers wait in their fifth step until a later one has come, and then go slowly until it trains."""


def in_which_one_comes_late(late: int = 2) -> str:
    return that_meets(LATE.replace("LATE", str(late)), prepared="touch(f'prepared-{me}')")


@pytest.mark.parametrize("protocol", each([*STORED, *IN_GROUPS], default=("bsp", "ripples")))
def test_a_host_that_comes_while_others_train_takes_part_and_one_for_which_there_is_no_room_is_refused(
    protocol: str, launch: Launch
) -> None:
    """Where each worker owns a replica, the host fetches the one that its worker shows before that has joined."""
    head = heard(launch.start(in_which_one_comes_late(), *listens("2:3"), "-p", protocol))
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
    head = heard(launch.start(in_which_one_comes_late(3), *listens("1:2", 2), "-p", "asp"))
    assert head.told.startswith("paceline: other hosts may come at any time; on each other machine: ")
    other = joined(launch, head, "b", 2)
    run = head.ended().completed()
    assert ended(other).code == 0
    assert "host b has come, with 2 workers" in run.err
    assert sorted(facts_of(run, "WorkerJoined")) == [2, 3]
    assert_sound(run, SAMPLES)
