"""A run that was interrupted goes on from its newest snapshot, and comes to what it would have come to."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable

import pytest
import torch

from paceline.protocols import registry
from paceline.records.snapshots import whole
from support.events import TELL
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, killed_once_kept, replayed
from support.suites import each

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = {optimizer}
{scheduler}
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers={loaders})
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={keep})
step = 0
for epoch in {epochs}:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        {each_step}
    {each_epoch}
paceline.finish()
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.01)"
PER_EPOCH = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)"
PER_STEP = "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)"


def script(
    optimizer: str = SGD,
    scheduler: str = "",
    per: str = "",
    keep: bool = True,
    epochs: str = "paceline.epochs(3)",
    loaders: int = 0,
) -> str:
    """A script that draws, normalizes over batches, and schedules its learning rate, if it does."""
    stepped = "scheduler.step()" if scheduler else "pass"
    return SCRIPT.format(
        optimizer=optimizer, scheduler=scheduler, epochs=epochs, loaders=loaders,
        keep="{'scheduler': scheduler}" if scheduler and keep else "None",
        each_step=stepped if per == "step" else "pass", each_epoch=stepped if per == "epoch" else "pass",
    )  # fmt: skip


KINDS = {
    "momentum": script(),
    "per epoch": script(ADAMW, PER_EPOCH, "epoch"),
    "per step": script(SGD, PER_STEP, "step"),
    "per step, range": script(ADAMW, PER_STEP, "step", epochs="range(3)"),
    "per epoch, range": script(SGD, PER_EPOCH, "epoch", epochs="range(3)"),
    "per epoch, range, not kept": script(SGD, PER_EPOCH, "epoch", keep=False, epochs="range(3)"),
    "loader processes": script(loaders=1),
}


def same_bits(one: Run, other: Run) -> bool:
    """Whether both have come to the same parameters and buffers."""
    a, b = one.final(), other.final()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


ALIKE = ("momentum", "per step", "per epoch, range")  # each of what they are made of is in another kind, too


@pytest.mark.parametrize("kind", each(KINDS, long=ALIKE))
def test_bsp_stopped_at_any_step_and_resumed_ends_on_the_bits_of_a_run_that_was_not(kind: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", "bsp", "--checkpoint", "3")
    whole_run = launch.run(KINDS[kind], *flags).completed()
    cut = random.Random(kind).randrange(1, 71)
    stopped = launch.run(KINDS[kind], *flags, "--max-steps", str(cut)).completed()
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["samples"] == 288
    assert resumed.summary["segments"] == 2
    assert same_bits(resumed, whole_run), f"stopped after {cut} steps"
    assert checked(stopped.folder).ok


INTERRUPTED = """
        step += 1
        if not paceline.resumed() and paceline.worker() == 1 and step == 4:
            def interrupt():
                time.sleep(0.2)  # this one's update has arrived by then
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(0.3)
                (there / "interrupted").touch()
            threading.Thread(target=interrupt, daemon=True).start()
        while not paceline.resumed() and paceline.worker() != 1 and step == 4 and not (there / "interrupted").exists():
            time.sleep(0.01)
"""


def test_bsp_interrupted_in_a_round_and_resumed_ends_on_the_bits_of_a_run_that_was_not(launch: Launch) -> None:
    """Some updates of the round have arrived by then. What is made of these alone is not in the last snapshot."""
    flags = ("-n", "3", "-p", "bsp")
    whole_run = launch.run(KINDS["momentum"], *flags).completed()
    text = KINDS["momentum"].replace("import os, signal, sys", "import os, pathlib, signal, threading, time")
    text = text.replace("step = 0", "step, there = 0, pathlib.Path(__file__).parent")
    stopped = launch.run(text.replace("        pass\n", INTERRUPTED, 1), *flags)
    assert stopped.code == 130, stopped.err
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["samples"] == 288
    assert same_bits(resumed, whole_run)
    assert checked(stopped.folder).ok


def killed_after_a_snapshot(launch: Launch, text: str, *flags: str) -> Run:
    """A run whose launcher is killed once a snapshot is whole."""
    return killed_once_kept(launch.start(text, "-n", "2", "--checkpoint", "4", *flags))


IN_VAIN = """
import pathlib, time
if (pathlib.Path(__file__).parent / "again").exists():
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
"""


def test_a_run_that_is_resumed_and_interrupted_before_it_trains_is_checked_and_goes_on(launch: Launch) -> None:
    """Its ledger ends at the snapshot, where workers still train."""
    text = KINDS["momentum"].replace("import paceline\n", f"import paceline\n{IN_VAIN}", 1)
    folder = killed_after_a_snapshot(launch, text, "-p", "asp").folder
    (launch.tmp_path / "again").touch()
    assert launch.resume(folder).code == 130
    assert (found := checked(folder)).ok, found.wrong
    (launch.tmp_path / "again").unlink()
    assert launch.resume(folder).completed().summary["samples"] == 288
    assert (found := checked(folder)).ok, found.wrong


DEFAULT = ("bsp", "ps-plus", "ripples")  # others of their kind run in the longer suites


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=DEFAULT))
def test_each_sample_is_used_once_in_each_epoch_over_all_segments(protocol: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", protocol, "--checkpoint", "2")
    stopped = launch.run(KINDS["per epoch"], *flags, "--max-steps", "31").completed()
    once_more = launch.resume(stopped.folder, "--max-steps", "50").completed()
    resumed = launch.resume(once_more.folder).completed()
    assert resumed.summary["samples"] == 288
    assert resumed.summary["samples_missed"] == 0
    assert resumed.summary["segments"] == 3
    times = resumed.rows("SELECT count(*) FROM applied_samples GROUP BY epoch, sample")
    assert times == [(1,)] * 288


@pytest.mark.parametrize("protocol", ["ad-psgd", pytest.param("all-reduce", marks=pytest.mark.long)])
def test_what_is_in_a_replica_is_used_up_where_scripts_go_on(protocol: str, launch: Launch) -> None:
    flags = ("-n", "1", "-p", protocol)
    whole_run = launch.run(KINDS["per epoch, range"], *flags).completed()
    stopped = launch.run(KINDS["per epoch, range"], *flags, "--max-steps", "48").completed()
    assert same_bits(launch.resume(stopped.folder).completed(), whole_run)


def test_a_killed_launcher_loses_what_came_after_the_newest_snapshot_and_no_more(launch: Launch) -> None:
    killed = killed_after_a_snapshot(launch, script())
    resumed = launch.resume(killed.folder).completed()
    assert resumed.summary["samples"] == 288
    assert resumed.summary["undone"]["versions"] >= 0
    assert not (killed.folder / "undone-1.sqlite").exists() or resumed.summary["undone"]["seconds"] >= 0


def test_a_complete_run_goes_on_if_it_is_asked_for_more(launch: Launch) -> None:
    run = launch.run(script(epochs="paceline.epochs(3)"), "-n", "2").completed()
    refused = launch.resume(run.folder)
    assert refused.code == 2
    assert "this run is complete" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert json.loads((run.folder / "summary.json").read_text())["outcome"] == "completed"


def stopped_soon(launch: Launch) -> Run:
    """A run that was stopped after a few steps."""
    return launch.run(script(), "-n", "2", "--max-steps", "9").completed()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One for all that leave it as it is."""
    launch = Launch(tmp_path_factory.mktemp("stopped"))
    run = stopped_soon(launch)
    launch.close()
    return run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "all-reduce"], "it is a run of bsp, whose state all-reduce can't go on with"),
        (["--out", "elsewhere"], "leave --out out"),
        (["-p", "ddp"], "-p ddp, which can't follow it"),
        (["--seed", "4"], "its batches are in the order of seed 0, not 4; leave --seed out"),
        (["--isa", "common"], "it was made with --isa native, not common; leave --isa out"),
        ([__file__], "test_resume.py; leave the script out"),
    ],
)
def test_what_a_run_can_not_go_on_with_is_one_line(flags: list[str], said: str, launch: Launch, stopped: Run) -> None:
    refused = launch.resume(stopped.folder, *flags)
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda run: shutil.rmtree(run.folder / "snapshots"), "no snapshot can be read"),
        (lambda run: [path.write_text("pass\n") for path in run.folder.parent.glob("train_*.py")], "has changed since"),
    ],
)
def test_a_run_that_can_not_go_on_is_left_as_it_was(harm: Callable[[Run], object], said: str, launch: Launch) -> None:
    stopped = stopped_soon(launch)
    before = (stopped.folder / "summary.json").read_bytes()
    harm(stopped)
    refused = launch.resume(stopped.folder)
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1
    assert (stopped.folder / "summary.json").read_bytes() == before


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before_and_says_so(launch: Launch) -> None:
    stopped = launch.run(script(), "-n", "2", "--checkpoint", "4", "--max-steps", "40").completed()
    newest, before = whole(stopped.folder)
    (newest / "store.safetensors").write_bytes(b"nothing")
    resumed = launch.resume(stopped.folder).completed()
    assert f"{newest}: this snapshot can't be used (store.safetensors is damaged)" in resumed.err
    assert resumed.summary["samples"] == 288
    assert resumed.summary["undone"]["versions"] > 0
    assert before.name < newest.name


METER = """
class Meter:
    total = 0
    def state_dict(self):
        return {"total": self.total}
    def load_state_dict(self, state):
        if os.path.exists("PLACE"):
            raise OSError("the disk with it is not there")
        self.total = state["total"]
meter = Meter()
"""


def test_a_run_whose_kept_object_can_not_be_loaded_is_resumed_as_well_when_it_can(launch: Launch) -> None:
    """Its ledger was cut already when the script came to say so. All that was undone is there, and counted once."""
    place = launch.tmp_path / "gone"
    text = script(scheduler=METER.replace("PLACE", str(place)), keep=False).replace(
        "keep=None", 'keep={"meter": meter}'
    )
    stopped = launch.run(text, "-n", "2", "--checkpoint", "4", "--max-steps", "40").completed()
    (next(whole(stopped.folder)) / "store.safetensors").write_bytes(b"nothing")
    place.touch()
    for _ in range(2):
        refused = launch.resume(stopped.folder)
        assert refused.code == 2
        assert refused.err.splitlines()[-1].endswith(
            'the kept object "meter" can\'t be loaded from the snapshot: OSError: the disk with it is not there'
        )
    assert (stopped.folder / "undone-1.sqlite").exists()
    place.unlink()
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["samples"] == 288
    assert resumed.summary["segments"] == 2
    assert resumed.summary["undone"]["versions"] > 0
    assert checked(resumed.folder).ok
    assert same_bits(resumed, launch.run(text, "-n", "2").completed())


BROKEN_LEDGER = """
import sqlite3
from paceline.records import ledger
batches = []
def write_batch(self, real=ledger.Ledger._write_batch):
    batches.append(None)
    if len(batches) > 2:
        raise sqlite3.OperationalError("database or disk is full")
    return real(self)
ledger.Ledger._write_batch = write_batch
"""


def test_a_run_whose_ledger_can_not_be_written_ends_without_another_snapshot(launch: Launch) -> None:
    failed = launch.run(script(), "-n", "2", "--checkpoint", "4", first=BROKEN_LEDGER)
    assert failed.code == 3
    assert "is the disk full" in failed.summary["error"]


KEEPS_WHAT_FAILS = """
class Fails:
    calls = 0
    def state_dict(self):
        self.calls += 1
        if self.calls == 2:  # the first is a try, in prepare; the last snapshot is another one in any case
            raise RuntimeError("by the test")
        return {}
    def load_state_dict(self, state):
        pass
scheduler = Fails()
"""


def test_a_snapshot_for_which_a_worker_can_not_pack_its_part_is_removed_and_the_next_is_taken(launch: Launch) -> None:
    run = launch.run(script(scheduler=KEEPS_WHAT_FAILS), "-n", "1", "--checkpoint", "4").completed()
    assert "can't be made: what the script keeps can't be had: RuntimeError: by the test" in run.err
    facts = run.rows("SELECT max(id) FROM facts")[0][0]
    assert next(int(path.name) for path in whole(run.folder)) == facts
    assert not list((run.folder / "snapshots").glob(".*"))


def test_a_complete_run_is_complete_when_its_script_is_named_again(launch: Launch) -> None:
    run = launch.run(script(), "-n", "2", "--epochs", "3").completed()
    (name,) = run.folder.parent.glob("train_*.py")
    refused = launch.resume(run.folder, str(name))
    assert refused.code == 2
    assert "this run is complete" in refused.err


def test_a_run_with_replicas_does_not_go_on_under_another_protocol(launch: Launch) -> None:
    stopped = launch.run(script(), "-n", "2", "-p", "all-reduce", "--max-steps", "9").completed()
    refused = launch.resume(stopped.folder, "-p", "ripples")
    assert refused.code == 2
    assert "it is a run of all-reduce, and each worker has a replica of its own; leave -p out" in refused.err


def test_where_no_run_is_it_says_so(launch: Launch) -> None:
    refused = launch.resume(launch.tmp_path / "nosuch")
    assert refused.code == 2
    assert "nosuch: there is no run (" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_resumed_run_says_where_it_goes_on(launch: Launch) -> None:
    stopped = launch.run(script(), "-n", "2", "--max-steps", "9").completed()
    newest = next(whole(stopped.folder))
    steps = stopped.summary["steps"]
    resumed = launch.resume(stopped.folder, quiet=False)
    assert f"going on after {steps} steps and {4 * steps} samples, from {newest}" in resumed.err


def test_a_run_goes_on_with_fewer_workers_and_then_with_more(launch: Launch) -> None:
    run = launch.run(script(), "-n", "3", "--max-steps", "9").completed()
    fewer = launch.resume(run.folder, "-n", "1", "--max-steps", "20").completed()
    more = launch.resume(fewer.folder, "-n", "3").completed()
    assert more.summary["samples"] == 288
    assert more.summary["segments"] == 3


def test_each_segment_is_checked_against_the_scenario_that_it_went_by(launch: Launch) -> None:
    for nodes, link in ((1, "1Gbit/s"), (2, "1Mbit/s")):
        text = f'[cluster]\nnodes = {nodes}\n[network]\nbandwidth = "{link}"\n'
        (launch.tmp_path / f"{nodes}.toml").write_text(text)
    one, two = (str(launch.tmp_path / f"{nodes}.toml") for nodes in (1, 2))
    run = launch.run(script(), "-n", "2", "-p", "ad-psgd", "--max-steps", "9", "--scenario", one).completed()
    on = launch.resume(run.folder, "--scenario", two, "--max-steps", "20").completed()
    assert (found := checked(on.folder)).ok, found.wrong


def test_a_snapshot_without_what_scripts_keep_is_none(launch: Launch) -> None:
    """Scripts that are ended in the middle of a step pack nothing: an earlier snapshot is worth more."""
    waits = "tell('step') or time.sleep(60); optimizer.zero_grad()"
    slow = KINDS["per step"].replace("optimizer.zero_grad()", waits).replace("import os,", "import time, os,")
    slow = slow.replace("import paceline\n", "import paceline\n" + TELL, 1)
    process = launch.start(slow, "-n", "1", "--checkpoint", "4", "--drain", "0.2")
    launch.events.wait_for("step")
    process.send_signal(signal.SIGTERM)
    run = ended(process)
    assert run.code == 130
    assert not list(whole(run.folder))


def test_replicas_that_stopped_before_a_mean_was_due_may_have_recorded_one_earlier(launch: Launch) -> None:
    stopped = launch.run(script(), "-n", "2", "-p", "all-reduce", "--record", "1", "--max-steps", "5").completed()
    launch.resume(stopped.folder).completed()
    assert checked(stopped.folder).ok


def test_code_below_the_script_that_has_changed_is_named_and_nothing_is_lost(launch: Launch) -> None:
    module = launch.tmp_path / "helper_of_this_test.py"
    module.write_text("RATE = 0.1\n")
    imports = script().replace("import paceline\n", "import paceline\nimport helper_of_this_test\n", 1)
    stopped = launch.run(imports, "-n", "2", "--max-steps", "9").completed()
    module.write_text("RATE = 0.2\n")
    for _ in range(2):  # what is refused leaves no trace
        refused = launch.resume(stopped.folder)
        assert refused.code == 2
        assert "helper_of_this_test.py has changed since; a run goes on with the code that it began with" in refused.err
    module.write_text("RATE = 0.1\n")
    assert launch.resume(stopped.folder).completed().summary["samples"] == 288


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_run_whose_scripts_fail_before_they_train_on_is_checked_and_goes_on_later(
    workers: int, launch: Launch
) -> None:
    fails = launch.tmp_path / "fails"
    text = script().replace("import torch\n", f"if os.path.exists({str(fails)!r}): sys.exit(3)\nimport torch\n", 1)
    stopped = launch.run(text, "-n", "2", "--max-steps", "40").completed()
    fails.touch()
    for _ in range(2):
        failed = launch.resume(stopped.folder, "-n", str(workers))
        assert failed.code == 3
        assert (found := checked(failed.folder)).ok, found.wrong
    fails.unlink()
    assert "the same bits" in replayed(failed.folder).completed().out
    resumed = launch.resume(stopped.folder, "-n", str(workers)).completed()
    assert resumed.summary["samples"] == 288
    assert (found := checked(resumed.folder)).ok, found.wrong
