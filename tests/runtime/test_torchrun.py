"""One `paceline run` a host, started by torchrun itself, on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from paceline.errors import ConfigError
from paceline.launch import torchrun
from paceline.launch.announced import Announcement
from paceline.launch.environment import Placement, placement
from paceline.net.token import Token, write
from paceline.records.ledger import connect
from paceline.runs import engine
from support import engines
from support.engines import Torchruns, await_snapshot, summary, well
from support.leftovers import Traces
from support.runs import Run
from support.scripts import that_resumes
from support.sound import right

EACH_STEP = """
if "killed" in sys.argv and paceline.worker() == 3 and step == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if "slow" in sys.argv and not paceline.resumed():
    time.sleep(0.1)
"""
FINDS = """
import sys
names = ("MASTER_", "TORCHELASTIC_")
print("found", [name for name in os.environ if name.startswith(names) or name.endswith("RANK")])
"""
SAMPLES = 2 * 240
C10D = "--rdzv-id", "digits"
RUN = "runs/bsp-digits"
FLAGS = "-n", "2", "--threads", "1", "--quiet"


@pytest.fixture
def torchruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torchruns]:
    """Both torchruns, with a token and a script. What they leave behind fails the test."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", "token")
    (tmp_path / "train.py").write_text(that_resumes(EACH_STEP, before=FINDS))
    traces = Traces(tmp_path / "temporary")
    both = Torchruns(tmp_path, traces)
    yield both
    both.close()
    traces.assert_nothing_left()


def placed(host: int, head: str, **changed: str) -> Placement:
    """Where torchrun has placed that one of two hosts."""
    found = placement(engines.torchrun(host, 2, head) | changed)
    assert found is not None
    return found


def only_run(folder: Path) -> Path:
    (run,) = (path for path in (folder / "runs").iterdir() if "-aside-" not in path.name)
    return run


@pytest.mark.real_run
def test_a_run_over_two_hosts_bears_the_death_of_a_worker(torchruns: Torchruns) -> None:
    said = well(torchruns.run(C10D, "-p", "asp", *FLAGS, "train.py", "killed"))
    run = only_run(torchruns.folder)
    assert "which torchrun starts" in said
    assert summary(run)["outcome"] == "completed"
    assert summary(run)["samples"] == SAMPLES
    ((facts,),) = connect(run / "ledger.sqlite").execute("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host[0] for _, host, _ in json.loads(facts)["members"]] == ["0", "0", "1", "1"]
    assert [(run / f"worker-{worker}.log").read_text().splitlines()[0] for worker in (0, 2)] == ["found []"] * 2
    right(Run(0, "", "", run))


def test_a_head_whose_names_lead_to_loopback_listens_there_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert ip_address(engine.leading_address(placed(0, "localhost"))).is_loopback


def test_a_host_that_loopback_does_not_lead_to_the_head_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = placed(1, "127.0.0.1", MASTER_PORT=str(store.port))
    Announcement(found, 1, "127.0.0.1").publish(("127.0.0.1", 7117))
    monkeypatch.setattr(engine, "leading_to", lambda hosts: "10.0.0.2")
    with pytest.raises(ConfigError, match=r"listens at 127\.0\.0\.1:7117, and that is loopback of its own machine"):
        engine.await_head(found, lambda: ("", 0), lambda: False, print)


@pytest.mark.real_run
@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_where_a_launcher_is_killed_all_begin_again_and_the_run_goes_on(host: int, torchruns: Torchruns) -> None:
    words = "-p", "bsp", *FLAGS, "--checkpoint", "4", "--host-timeout", "3", "train.py", "slow"
    torchruns.start([*C10D, "--max-restarts", "1"], *words)
    await_snapshot(torchruns.folder / RUN, torchruns.processes)
    os.kill(torchruns.launcher(host), signal.SIGKILL)
    well(torchruns.ended())
    run = torchruns.folder / RUN
    assert (summary(run)["outcome"], summary(run)["segments"]) == ("completed", 2)
    assert summary(run)["samples"] == SAMPLES
    right(Run(0, "", "", run))
    said = well(torchruns.run(C10D, *words))  # as an engine does that does not know that all is done
    assert "it is complete: torchrun has nothing to begin anew" in said
    assert summary(run)["segments"] == 2


def test_a_host_hears_in_torchruns_store_of_the_newest_attempt_and_then_of_the_end(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = placed(1, "127.0.0.1", MASTER_PORT=str(store.port))
    waits = partial(engine.await_head, found, lambda: ("", 0), lambda: False, print)
    with pytest.raises(ConfigError, match="it has not said where"):
        waits(within=0.0)
    for attempt in (1, 2):
        assert torchrun.begin(found) == attempt
        announcement = Announcement(found, attempt, "127.0.0.1")
        with socket.create_server(("0.0.0.0", 0)) as end:
            announcement.publish(("0.0.0.0", end.getsockname()[1]))
            assert waits(within=0.0) == engine.Head(("127.0.0.1", end.getsockname()[1]), attempt)
        with pytest.raises(ConfigError, match="refused"):  # nobody listens there any more
            waits(within=0.0)
    announcement.complete()
    assert waits(within=0.0) is None


def test_a_host_that_waits_hears_in_one_line_that_torchrun_has_ended_on_the_first_host(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = placed(1, "127.0.0.1", MASTER_PORT=str(store.port))
    published = torchrun.Published(found)
    assert published.head() is None
    del store
    for asks in published.head, published.is_complete:
        with pytest.raises(ConfigError, match="store does not answer at") as raised:
            asks()
        assert "\n" not in str(raised.value)


@pytest.mark.real_run
@pytest.mark.long
def test_where_torchrun_is_killed_nothing_goes_on_without_it(torchruns: Torchruns) -> None:
    torchruns.start(C10D, "-p", "bsp", *FLAGS, "--host-timeout", "3", "--checkpoint", "4", "train.py", "slow")
    await_snapshot(torchruns.folder / RUN, torchruns.processes)
    for process in torchruns.processes:
        process.kill()
    torchruns.ended()
    torchruns.traces.assert_nothing_left(within=20.0)
    assert summary(torchruns.folder / RUN)["outcome"] == "interrupted"
