"""Processes of a run on two hosts die or stop as it begins and as it ends, or one host lies: it ends or goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from support.joins import Head, heard, joined, listens
from support.launch import Launch
from support.moments import befalls
from support.recorded import checked
from support.runs import Launcher, ended
from support.scripts import training
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
    befall = befalls("data", "kill" if how == "kill" else "stop", moment)
    shards = [] if protocol in ("asp", "all-reduce", "ad-psgd") else ["--shards-on", "all"]
    waits = "--host-timeout", "2", "--report-waits", "1"
    head, joiner = two_hosts(launch, "-p", protocol, *waits, "--checkpoint", "2", *shards, first=befall)
    run, other, why = head.ended(), ended(joiner), DIED if how == "kill" else SILENT
    assert (run.code, other.code) == (3, 3), run.err
    assert run.summary["error"] == why
    assert f"the run has ended: failed: {why}" in other.err
    assert "is lost" not in run.err


def test_a_host_that_moves_no_more_data_is_lost_and_the_run_goes_on(launch: Launch) -> None:
    befall = befalls("data", "kill", "this host fetches what training begins with")
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
    befall = befalls("data", "stop", TRAIN) + WAITS
    head, joiner = two_hosts(launch, "-p", "asp", "--host-timeout", "300", "--report-waits", "1", first=befall)
    head.says("they wait\n")
    head.says(r"worker 2 has waited for \d+ s: host b has yet to get what training begins with")
    os.killpg(head.process.pid, signal.SIGINT)
    run, other = head.ended(), ended(joiner)
    assert run.code == other.code == 130
    assert run.summary["outcome"] == "interrupted"
    assert "in time" not in run.err


@pytest.mark.parametrize(
    ("protocol", "shards"),
    each([("asp", "all"), ("bsp", "all"), ("bsp", "head"), ("ps-plus", "all")], default=[("bsp", "all")]),
)
def test_the_next_worker_forks_a_hosts_process_where_the_lowest_dies_as_it_is_told_to(
    protocol: str, shards: str, launch: Launch
) -> None:
    befall = befalls("worker", "kill", "a worker is told to fork")
    head, joiner = two_hosts(launch, "-p", protocol, "--shards-on", shards, joiner=befall)
    run = head.ended().completed()
    assert ended(joiner).code == 0
    assert "worker 2 died (killed by SIGKILL)" in run.err
    assert run.summary["samples"] == 2 * 64
    assert "adds up its workers' updates no more" not in run.err


@pytest.mark.parametrize("protocol", each(("asp", "all-reduce"), default=("asp",)))
def test_one_ctrl_c_ends_a_run_whose_store_is_stopped_and_its_last_version_is_written(
    protocol: str, launch: Launch
) -> None:
    befall = befalls("store", "stop", TRAIN) + WAITS
    head, joiner = two_hosts(launch, "-p", protocol, first=befall, script=training(epochs=10_000))
    head.says("they wait\n")
    os.killpg(head.process.pid, signal.SIGINT)
    run, other = head.ended(), ended(joiner)
    assert run.code == other.code == 130
    assert run.final()


@pytest.mark.parametrize(
    ("protocol", "process"),
    each(
        [("all-reduce", "the process that records versions"), ("asp", "the parameter store's process")],
        default=[("all-reduce", "the process that records versions")],
    ),
)
def test_the_end_of_the_process_that_computes_for_the_head_is_told_by_what_that_does(
    protocol: str, process: str, launch: Launch
) -> None:
    head, joiner = two_hosts(launch, "-p", protocol, first=befalls("store", "kill", TRAIN))
    run = head.ended()
    assert run.code == ended(joiner).code == 3
    assert run.summary["error"] == f"{process} died; the files in versions/ are whole"


LIES = """
import math
from msgspec import structs
from paceline.host.events import WorkerSaid
from paceline.ipc import messages
from paceline.coordinator.agent import _Agent

def report(self, event, real=_Agent._report):
    said = event.message if isinstance(event, WorkerSaid) else None
    if isinstance(said, messages.worker.StepFinished) and said.step == 2:
        for _ in range(100):
            real(self, WorkerSaid(event.worker, messages.worker.Remarked("\\x1b[2J" + "x" * 9000)))
        real(self, WorkerSaid(event.worker, messages.worker.ScalarsLogged(2, 0, {"x": math.inf, "y": math.nan})))
        event = WorkerSaid(event.worker, structs.replace(said, TIMES))
    real(self, event)

_Agent._report = report
"""
"""What a host executes that has joined: its workers say more and other things than they do."""
BEYOND_MEASURE = "compute=1e8, push=0.0, other=1e9, waited=1e9, began=-1e9"


@pytest.mark.parametrize(
    ("protocol", "times", "why"),
    each(
        [
            ("bsp", BEYOND_MEASURE, None),
            ("all-reduce", BEYOND_MEASURE, None),
            ("asp", "compute=math.nan", "has sent what can't be read: Expected `float` >= 0"),
        ],
        default=[("bsp", BEYOND_MEASURE, None)],
    ),
)
def test_a_run_goes_on_beside_a_host_that_lies_and_all_its_readers_read_it(
    protocol: str, times: str, why: str | None, launch: Launch
) -> None:
    lies = LIES.replace("TIMES", times)
    flags = "-p", protocol, "--on-loss", "continue", "--restart", "0"
    head, joiner = two_hosts(launch, *flags, joiner=lies, script=training("time.sleep(0.02)"))
    run = head.ended().completed()
    ended(joiner)
    assert "\x1b" not in run.err
    assert "Traceback" not in run.err
    assert "more lines of worker 2 are left out" in run.err
    lost = re.findall("host b is lost: .*", run.err)
    assert len(lost) == (why is not None), run.err
    assert why is None or why in lost[0]
    assert (result := checked(run.folder)).ok, result.wrong
    for command in ("explain", "check", "report"):
        read = [sys.executable, "-m", "paceline", command, str(run.folder), "--json"]
        told = subprocess.run(read, capture_output=True, text=True, check=False, cwd=launch.tmp_path)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout)
