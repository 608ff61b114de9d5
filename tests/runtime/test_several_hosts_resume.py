"""Runs on several hosts that are kept, stopped and resumed, on as many hosts or on others."""

from __future__ import annotations

import pytest

from paceline.records.snapshots import newest, read, whole
from support.launch import Launch
from support.scripts import that_draws, that_resumes
from support.sound import right, same_bits, sound

METER = """
class Meter:
    worker, steps = paceline.worker(), 0
    def state_dict(self):
        return {"worker": self.worker, "steps": globals().get("step", 0)}
    def load_state_dict(self, state):
        kept = os.path.join(os.path.dirname(__file__), f"kept-{paceline.worker()}")
        open(kept, "w").write("{worker} {steps}".format(**state))
"""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
SAMPLES = 2 * 240


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


CHANGES = """
torch.nn.init.constant_(model[1].weight, 0.25)
trained = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
full = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
for p in trained:
    p.grad = torch.ones_like(p)
full.step()
optimizer.load_state_dict(full.state_dict())
"""
THE_LAST_WRITES = """
from paceline.coordinator.adoption import Adoption
def to_write(self):
    free = self.adopted is None and self._writing is None
    return max(self._waiting) if free and len(self._waiting) == 3 else None
Adoption.to_write = to_write
"""


@pytest.mark.long
def test_a_worker_of_another_host_may_write_what_all_begin_with(launch: Launch) -> None:
    """The head fetches it from there, the optimizer's state included, and the other hosts fetch it from the head."""
    flags = ("--threads", "1", "-p", "bsp", "--epochs", "1")
    text = that_draws(before=CHANGES)
    run = launch.run(text, "--emulate-hosts", "3", "-n", "1", *flags, first=THE_LAST_WRITES).completed()
    assert same_bits(run, launch.run(text, "-n", "3", *flags).completed())


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
