"""Runs on several hosts of one machine: each has an agent. How they begin, what is seen, and how they are resumed."""

from __future__ import annotations

import re

import pytest

from paceline.net.listener import MOST_STRANGERS
from paceline.records.snapshots import newest, read, whole
from paceline.worker_process.forking import DESCRIPTORS, DESCRIPTORS_EACH
from support.launch import Launch
from support.runs import Run
from support.scripts import that_draws, that_resumes
from support.sound import right, same_bits, sound

HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
SAMPLES = 2 * 240


SAYS = """
import socket

def listens(descriptor):
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as end:
            return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False

print("agent", os.getppid(), "listens", sum(map(listens, os.listdir("/proc/self/fd"))), flush=True)
"""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of rounds by the configuration of an earlier run, of which workers say what they are and hold."""
    launch = Launch(tmp_path_factory.mktemp("rounds"))
    run = launch.run(that_draws(), *HOSTS, "-p", "bsp", "--host-timeout", "9").completed()
    flags = "--config", str(run.folder / "config.toml"), "--tee", "all", "--json"
    again = launch.run(that_draws(before=SAYS), *flags).completed()
    launch.close()
    return again


@pytest.mark.real_run
def test_a_run_on_several_hosts_is_made_again_on_as_many(rounds: Run) -> None:
    """Each has a process of its own that has its workers as children. What all print is shown in one place."""
    assert "host_timeout = 9.0" in (rounds.folder / "config.toml").read_text()
    agents = [re.findall(rf"^\[worker {worker}\] agent (\d+) ", rounds.err, re.M) for worker in range(4)]
    assert agents[0] == agents[1] != agents[2] == agents[3]


@pytest.mark.real_run
def test_no_worker_listens_where_hosts_do(rounds: Run) -> None:
    """What a script starts may live on, and would hold the port."""
    assert all(" listens 0\n" in rounds.log(worker) for worker in range(4))


PRINTS_MUCH = """
if paceline.worker() == 3 and epoch == 1:
    for line in range(100_000):
        print("line", line)
    print("without an end", end="", flush=True)
    raise ValueError("the last word")
"""


def test_all_that_a_worker_of_another_host_had_printed_is_in_its_log_before_its_death_is_told(launch: Launch) -> None:
    """A megabyte of it, while its host's beats are to be heard in time."""
    flags = ("-p", "asp", "--on-loss", "continue", "--host-timeout", "5", "--tee", "none")
    run = launch.run(that_draws(PRINTS_MUCH), *HOSTS, *flags).completed()
    printed = run.log(3)
    assert printed.startswith("".join(f"line {line}\n" for line in range(100_000)) + "without an end")
    assert printed.endswith("ValueError: the last word\n")
    said = run.err.splitlines()
    assert said[0].startswith("paceline: worker 3 died (exit code 1)")
    assert said[1] == f"paceline:   its last lines, of {run.folder}/worker-3.log:"
    assert said[-1] == "  | ValueError: the last word"
    assert "line" not in run.out


NEVER_COMES = """
import time
from paceline.coordinator import emulated
emulated.agent = lambda *_, **keys: time.sleep(300)
"""
ENDS_BEFORE = """
from paceline.coordinator import emulated
emulated.agent = lambda *_, **keys: 1
"""


def test_a_host_that_ends_before_it_has_come_fails_the_run_at_once(launch: Launch) -> None:
    run = launch.run(that_draws(), *HOSTS, "-p", "bsp", first=ENDS_BEFORE)
    assert run.code == 3
    assert run.err == "paceline: host node-1 ended before training could begin\n"
    assert not run.folder.exists()


def test_a_host_that_does_not_come_is_named_while_it_is_awaited_and_then_fails_the_run(launch: Launch) -> None:
    soon = NEVER_COMES + "from paceline.coordinator import emulated; emulated.GATHERING = 1.5"
    run = launch.run(that_draws(), *HOSTS, "-p", "bsp", "--report-waits", "1", first=soon)
    assert run.code == 3
    assert "the start has waited for 1 s for host node-1 to come" in run.err
    assert "host node-1 did not come within 2 s" in run.err
    assert not run.folder.exists()


HAS_NO_MEMORY = """
from paceline.host import host_memory
from paceline.host.training_start import TrainingStart
class Region:
    @staticmethod
    def create(size):
        raise OSError(12, "Cannot allocate memory")
def begin(self, order, begin=TrainingStart.train):
    host_memory.Region = Region
    begin(self, order)
TrainingStart.train = begin
"""


def test_a_host_that_can_not_go_on_says_why_in_one_line_and_the_others_go_on(launch: Launch) -> None:
    run = launch.run(that_draws(), *HOSTS, "-p", "asp", "--on-loss", "continue", first=HAS_NO_MEMORY)
    assert "Traceback" not in run.err
    assert "paceline: host node-1: an error in Paceline that should not be: OSError: [Errno 12]" in run.err
    assert f", traceback in {run.folder}/internal-error-host-node-1.txt; please report it" in run.err
    assert "host.py" in (run.folder / "internal-error-host-node-1.txt").read_text()
    assert "host node-1 is lost: its agent has ended" in run.err
    assert run.summary["samples"] == SAMPLES
    right(run)


def test_more_workers_than_open_files_allow_are_refused_and_strangers_never_take_those(launch: Launch) -> None:
    """A door keeps so many connections that have said nothing."""
    allowed = DESCRIPTORS + 4 * DESCRIPTORS_EACH + MOST_STRANGERS
    few = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({allowed}, {allowed}))"
    run = launch.run(that_draws(), *HOSTS, "-p", "asp", first=few)
    assert run.code == 2
    assert run.err.startswith("paceline: 4 workers take ")
    assert f"open files, and {allowed} are allowed; raise that limit" in run.err
    assert not run.folder.exists()


# --- runs that are kept, stopped and resumed, on as many hosts or on others


METER = """
class Meter:
    worker, steps = paceline.worker(), 0
    def state_dict(self):
        return {"worker": self.worker, "steps": globals().get("step", 0)}
    def load_state_dict(self, state):
        kept = os.path.join(os.path.dirname(__file__), f"kept-{paceline.worker()}")
        open(kept, "w").write("{worker} {steps}".format(**state))
"""


def metered() -> str:
    text = that_resumes(keep="'scheduler': scheduler, 'meter': Meter()")
    return text.replace("torch.manual_seed(3)\n", f"torch.manual_seed(3)\n{METER}", 1)


def test_rounds_on_several_hosts_that_are_stopped_and_resumed_end_on_the_bits_of_one_run(launch: Launch) -> None:
    """Of each worker, wherever it is, what its script keeps is there again."""
    flags = (*HOSTS, "-p", "bsp")
    whole_run = launch.run(metered(), *flags).completed()
    stopped = launch.run(metered(), *flags, "--max-steps", "31").completed()
    kept = newest(stopped.folder)[0]
    assert kept is not None
    resumed = launch.resume(stopped.folder).completed()
    assert (resumed.summary["samples"], resumed.summary["segments"]) == (SAMPLES, 2)
    assert same_bits(resumed, whole_run)
    for worker, step in kept.state.next_steps.items():
        assert (launch.tmp_path / f"kept-{worker}").read_text() == f"{worker} {step}"
    right(resumed)


def test_a_run_goes_on_on_any_number_of_hosts_and_is_replayed_on_one(launch: Launch) -> None:
    run = launch.run(that_resumes(), "-n", "2", "--threads", "1", "-p", "asp", "--max-steps", "15").completed()
    launch.resume(run.folder, "--emulate-hosts", "3", "-n", "1", "--shards-on", "head", "--max-steps", "30").completed()
    launch.resume(run.folder, "--emulate-hosts", "2", "--max-steps", "45").completed()
    resumed = launch.resume(run.folder, "--emulate-hosts", "1", "-n", "3").completed()
    noted = resumed.rows("SELECT json_extract(notes, '$.shards_on') FROM segments ORDER BY segment")
    assert noted == [(None,), ("head",), ("head",), (None,)]  # what holds now is in the configuration
    assert resumed.rows("SELECT value FROM run WHERE key = 'shards_on'") == [('""',)]
    assert (resumed.summary["samples"], resumed.summary["segments"]) == (SAMPLES, 4)
    hosts = "SELECT group_concat(json_extract(value, '$[1]')) FROM facts, json_each(facts.body, '$.members')"
    assert resumed.rows(f"{hosts} WHERE facts.kind = 'TrainingBegan' GROUP BY facts.id ORDER BY facts.id") == [
        ("node-0,node-0",), ("node-0,node-1,node-2",), ("node-0,node-1",), ("node-0,node-0,node-0",)
    ]  # fmt: skip
    sound(resumed)


def test_workers_with_the_optimizers_state_go_on_with_their_own_on_each_host(launch: Launch) -> None:
    run = launch.run(that_resumes(), *HOSTS, "-p", "ps-plus", "--max-steps", "31").completed()
    refused = launch.resume(run.folder, "--emulate-hosts", "3")
    assert refused.code == 2
    assert "it has 4 workers, and under ps-plus each worker keeps the optimizer's state" in refused.err
    resumed = launch.resume(run.folder).completed()
    assert resumed.summary["samples"] == SAMPLES
    sound(resumed)


DIES_AS_IT_IS_FETCHED = """
import os, signal
from paceline.host.attachments import Attachments
look = Attachments.look
def dies(self, item, *asked):
    if item.name.startswith("attached by worker"):
        os.kill(os.getpid(), signal.SIGKILL)
    return look(self, item, *asked)
Attachments.look = dies
"""


def test_a_snapshot_does_without_what_a_host_had_not_handed_over_when_it_died(launch: Launch) -> None:
    flags = (*HOSTS, "-p", "asp", "--checkpoint", "3", "--on-loss", "continue", "--max-steps", "25")
    run = launch.run(that_resumes(), *flags, first=DIES_AS_IT_IS_FETCHED).completed()
    assert "host node-1 is lost" in run.err
    assert "can't be made" not in run.err
    *_, first_snapshot = whole(run.folder)
    assert sorted(read(first_snapshot).state.files) == [
        "store.safetensors", "worker-0.safetensors", "worker-1.safetensors"
    ]  # fmt: skip
    resumed = launch.resume(run.folder).completed()
    assert resumed.summary["samples"] == SAMPLES
    right(resumed)
