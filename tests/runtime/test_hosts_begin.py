"""Processes of a run on two hosts die or stop as it begins and as it ends: it ends or goes on, and says why."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from paceline.net.token import Token, write
from support.events import said
from support.launch import Launch
from support.moments import befalls
from support.runs import Launcher, ended
from support.scripts import training
from support.suites import each

DIED = "the process that moves data between hosts died"
SILENT = "the process that moves data between hosts does not answer"
SCRIPT = training("time.sleep(0.01)")


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both hosts have."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(tmp_path / "token"))


def two_hosts(
    launch: Launch, *flags: str, first: str = "", joiner: str = "", script: str = SCRIPT
) -> tuple[Launcher, Launcher]:
    """Begin a run on host a and host b, with two workers each. `first` and `joiner`: see `support.moments`."""
    both = "--trusted-network", "-n", "2"
    listens = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "a", "--threads", "1"
    head = launch.start(script, *listens, *both, *flags, first=first)
    found = re.search(r"paceline join (\S+) -n", said(head, "paceline join .*\n"))
    assert found is not None
    return head, launch.start_joining(found[1], "--name", "b", *both, first=joiner)


@pytest.mark.parametrize(
    ("protocol", "how", "moment"),
    each(
        [
            (protocol, how, moment)
            for protocol in ("asp", "bsp", "all-reduce", "ad-psgd", "ps-plus")
            for how in ("kill", "stop")
            for moment in ("hosts are told to train", "a snapshot begins", "the run closes")
        ],
        default=[
            ("asp", "kill", "hosts are told to train"),
            ("bsp", "stop", "a snapshot begins"),
        ],
    ),
)
def test_a_run_whose_head_moves_no_more_data_ends_everywhere_and_says_so(
    protocol: str, how: str, moment: str, launch: Launch
) -> None:
    befall = befalls("data", "kill" if how == "kill" else "stop", moment)
    shards = [] if protocol in ("asp", "all-reduce", "ad-psgd") else ["--shards-on", "all"]
    head, joiner = two_hosts(launch, "-p", protocol, "--host-timeout", "2", "--checkpoint", "2", *shards, first=befall)
    run, other, why = ended(head, 60), ended(joiner, 60), DIED if how == "kill" else SILENT
    assert (run.code, other.code) == (3, 3), run.err
    assert run.summary["error"] == why
    assert f"the run has ended: failed: {why}" in other.err
    assert "is lost" not in run.err


def test_one_ctrl_c_ends_a_run_whose_hosts_wait_for_what_training_begins_with(launch: Launch) -> None:
    """The data process is stopped, which nobody finds for minutes. It is to go on for the end."""
    befall = befalls("data", "stop", "hosts are told to train") + WAITS
    head, joiner = two_hosts(launch, "-p", "asp", "--host-timeout", "300", first=befall)
    said(head, "they wait\n")
    began = time.monotonic()
    os.killpg(head.pid, signal.SIGINT)
    run, other = ended(head, 60), ended(joiner, 60)
    assert run.code == other.code == 130
    assert run.summary["outcome"] == "interrupted"
    assert time.monotonic() - began < 20.0, run.err
    assert "in time" not in run.err


WAITS = """
from paceline.host import other_hosts
def begin(self, workers, real=other_hosts.OtherHosts.begin):
    real(self, workers)
    os.write(2, b"they wait\\n")
other_hosts.OtherHosts.begin = begin
"""


def test_a_wait_for_the_beginning_names_the_host_that_lacks_it(launch: Launch) -> None:
    befall = befalls("data", "stop", "hosts are told to train")
    head, joiner = two_hosts(launch, "-p", "asp", "--host-timeout", "2", "--report-waits", "1", first=befall)
    run, _ = ended(head, 60), ended(joiner, 60)
    assert re.search(r"worker 2 has waited for \d s: host b has yet to get what training begins with", run.err)


@pytest.mark.parametrize(
    ("protocol", "shards"),
    each([("asp", "all"), ("bsp", "all"), ("bsp", "head"), ("ps-plus", "all")], default=[("bsp", "all")]),
)
def test_the_next_worker_forks_a_hosts_process_where_the_lowest_dies_as_it_is_told_to(
    protocol: str, shards: str, launch: Launch
) -> None:
    befall = befalls("worker", "kill", "a worker is told to fork")
    head, joiner = two_hosts(launch, "-p", protocol, "--shards-on", shards, joiner=befall)
    run, other = ended(head, 60).completed(), ended(joiner, 60)
    assert other.code == 0
    assert "worker 2 died (killed by SIGKILL)" in run.err
    assert run.summary["samples"] == 2 * 64
    assert "adds up its workers' updates no more" not in run.err


@pytest.mark.parametrize("protocol", each(("asp", "all-reduce"), default=("asp",)))
def test_one_ctrl_c_ends_a_run_whose_store_is_stopped_and_its_last_version_is_written(
    protocol: str, launch: Launch
) -> None:
    befall = befalls("store", "stop", "hosts are told to train") + WAITS
    head, joiner = two_hosts(launch, "-p", protocol, first=befall, script=training(epochs=10_000))
    said(head, "they wait\n")
    os.killpg(head.pid, signal.SIGINT)
    run, other = ended(head, 60), ended(joiner, 60)
    assert run.code == other.code == 130
    assert run.final()


@pytest.mark.parametrize(
    ("protocol", "process"),
    each(
        [
            ("all-reduce", "the process that records versions"),
            ("ad-psgd", "the process that records versions"),
            ("asp", "the parameter store's process"),
        ],
        default=[("all-reduce", "the process that records versions")],
    ),
)
def test_the_end_of_the_process_that_computes_for_the_head_is_told_by_what_that_does(
    protocol: str, process: str, launch: Launch
) -> None:
    befall = befalls("store", "kill", "hosts are told to train")
    head, joiner = two_hosts(launch, "-p", protocol, first=befall)
    run, other = ended(head, 60), ended(joiner, 60)
    assert run.code == other.code == 3
    assert run.summary["error"] == f"{process} died; the files in versions/ are whole"
