"""A run that was interrupted goes on from its newest snapshot, and comes to what it would have come to."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.records.snapshots import whole
from support.events import TELL
from support.launch import Launch
from support.runs import Run, ended, replayed
from support.scripts import script, that_resumes
from support.sound import right, same_bits
from support.suites import each

TWO = ("-n", "2", "--threads", "1")
SAMPLES = 2 * 240


INTERRUPTED = """
import threading
interrupted = os.path.join(os.path.dirname(__file__), "interrupted")
if not paceline.resumed() and paceline.worker() == 1 and step == 4:
    def interrupt():
        time.sleep(0.2)  # this one's update has arrived by then
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.3)
        open(interrupted, "w").close()
    threading.Thread(target=interrupt, daemon=True).start()
while not paceline.resumed() and paceline.worker() != 1 and step == 4 and not os.path.exists(interrupted):
    time.sleep(0.01)
"""


def that_follows(inside: str = "") -> str:
    """The script with a scheduler that follows the run, and is called after each step."""
    text = that_resumes(inside, keep="").replace("StepLR(optimizer, 1, 0.5)", "ExponentialLR(optimizer, 0.95)")
    text = text.replace("loader = paceline.prepare(model, optimizer, loader,", "LOADER, scheduler,")
    text = text.replace("LOADER,", "loader, scheduler = paceline.prepare(model, optimizer, loader,")
    return text.replace("    scheduler.step()", "").replace("step += 1", "step += 1; scheduler.step()")


@pytest.mark.parametrize("text", [that_resumes, that_follows])
def test_bsp_interrupted_in_a_round_and_resumed_ends_on_the_bits_of_a_run_that_was_not(
    text: Callable[..., str], launch: Launch
) -> None:
    """Some updates of the round have arrived by then. What is made of these alone is not in the last snapshot."""
    flags = ("-n", "3", "-p", "bsp", "--threads", "1")
    whole_run = launch.run(text(), *flags).completed()
    stopped = launch.run(text(INTERRUPTED), *flags)
    assert stopped.code == 130, stopped.err
    resumed = launch.resume(stopped.folder).completed()
    assert resumed.summary["samples"] == SAMPLES
    assert same_bits(resumed, whole_run)
    right(stopped)


def refused(run: Run, said: str) -> None:
    """It was, in one line."""
    assert run.code == 2
    assert said in run.err
    assert len(run.err.splitlines()) == 1


def test_a_complete_run_is_complete_also_if_its_script_is_named_again(launch: Launch) -> None:
    run = launch.run(that_resumes(), *TWO, "--epochs", "1").completed()
    (name,) = run.folder.parent.glob("train_*.py")
    for again in (), (str(name),):
        refused(launch.resume(run.folder, *again), "this run is complete")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was stopped after a few steps, whose script imports a module beside it."""
    launch = Launch(tmp_path_factory.mktemp("stopped"))
    (launch.tmp_path / "helper_of_this_test.py").write_text("RATE = 0.1\n")
    text = that_resumes().replace("import paceline\n", "import paceline\nimport helper_of_this_test\n", 1)
    run = launch.run(text, *TWO, "--max-steps", "9").completed()
    launch.close()
    return run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "all-reduce"], "it is a run of bsp, whose state all-reduce can't go on with"),
        (["-p", "balanced:unit=sample,max_batch=64"], "only one of the two cuts batches into pieces; leave -p out"),
        (["--out", "elsewhere"], "leave --out out"),
        (["-p", "ddp"], "-p ddp, which can't follow it"),
        (["--seed", "4"], "its batches are in the order of seed 0, not 4; leave --seed out"),
        (["--max-steps", "8"], "--max-steps is 8, and the run has trained for "),
        (["--isa", "common"], "it was made with --isa native, not common; leave --isa out"),
        ([__file__], "test_resume.py; leave the script out"),
    ],
)
def test_what_a_run_can_not_go_on_with_is_one_line(flags: list[str], said: str, launch: Launch, stopped: Run) -> None:
    refused(launch.resume(stopped.folder, *flags), said)


def test_where_no_run_is_it_says_so(launch: Launch) -> None:
    refused(launch.resume(launch.tmp_path / "nosuch"), "nosuch: there is no run (")


def test_a_run_that_can_not_go_on_is_left_as_it_was(launch: Launch, stopped: Run) -> None:
    """Without its snapshots, and with another script or module than it began with."""
    before = (stopped.folder / "summary.json").read_bytes()
    there = stopped.folder.parent
    (name,) = there.glob("train_*.py")
    for code in (name, there / "helper_of_this_test.py"):
        text = code.read_text()
        code.write_text("pass\n")
        for _ in range(2):  # what is refused leaves no trace
            run = launch.resume(stopped.folder)
            refused(run, f"{code.name} has changed since; a run goes on with the ")
        code.write_text(text)
    gone = shutil.copytree(stopped.folder, there / "gone")
    shutil.rmtree(gone / "snapshots")
    refused(launch.resume(gone), "no snapshot can be read")
    assert (stopped.folder / "summary.json").read_bytes() == (gone / "summary.json").read_bytes() == before


def test_a_run_with_replicas_does_not_go_on_under_another_protocol(launch: Launch) -> None:
    stopped = launch.run(that_resumes(), *TWO, "-p", "all-reduce", "--max-steps", "9").completed()
    other = launch.resume(stopped.folder, "-p", "ripples")
    refused(other, "it is a run of all-reduce, and each worker has a replica of its own; leave -p out")


METER = """
class Meter:
    total = 0
    def state_dict(self):
        return {"total": self.total}
    def load_state_dict(self, state):
        if os.path.exists(os.path.join(os.path.dirname(__file__), "gone")):
            raise OSError("the disk with it is not there")
        self.total = state["total"]
"""


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before_also_if_that_can_be_loaded_only_later(
    launch: Launch,
) -> None:
    """The ledger was cut already when the script came to say so. All that was undone is there, and counted once."""
    text = that_resumes(keep="'scheduler': scheduler, 'meter': Meter()")
    text = text.replace("import paceline\n", f"import paceline\n{METER}", 1)
    stopped = launch.run(text, *TWO, "--checkpoint", "4", "--max-steps", "40").completed()
    newest, before = whole(stopped.folder)
    (newest / "store.safetensors").write_bytes(b"nothing")
    (launch.tmp_path / "gone").touch()
    for attempt in range(2):
        failed = launch.resume(stopped.folder)
        assert failed.code == 2
        assert (f"{newest}: this snapshot can't be used (store.safetensors is damaged)" in failed.err) != attempt
        assert failed.err.splitlines()[-1].endswith(
            'the kept object "meter" can\'t be loaded from the snapshot: OSError: the disk with it is not there'
        )
    assert (stopped.folder / "undone-1.sqlite").exists()
    (launch.tmp_path / "gone").unlink()
    resumed = launch.resume(stopped.folder, quiet=False).completed()
    assert "going on after " in resumed.err
    assert f" samples, from {before}" in resumed.err
    assert (resumed.summary["samples"], resumed.summary["segments"]) == (SAMPLES, 2)
    assert resumed.summary["undone"]["versions"] > 0
    right(resumed)
    assert same_bits(resumed, launch.run(text, *TWO).completed())


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
"""


def test_a_snapshot_for_which_a_worker_can_not_pack_its_part_is_removed_and_the_next_is_taken(launch: Launch) -> None:
    text = that_resumes(keep="'scheduler': scheduler, 'fails': Fails()")
    text = text.replace("import paceline\n", f"import paceline\n{KEEPS_WHAT_FAILS}", 1)
    run = launch.run(text, "-n", "1", "--checkpoint", "4").completed()
    assert "can't be made: what the script keeps can't be had: RuntimeError: by the test" in run.err
    facts = run.rows("SELECT max(id) FROM facts")[0][0]
    assert next(int(path.name) for path in whole(run.folder)) == facts
    assert not list((run.folder / "snapshots").glob(".*"))


def test_a_snapshot_without_what_scripts_keep_is_none(launch: Launch) -> None:
    """Scripts that are ended in the middle of a step pack nothing: an earlier snapshot is worth more."""
    text = that_resumes(f"{TELL}\ntell('step')\ntime.sleep(60)")
    process = launch.start(text, "-n", "1", "--checkpoint", "4", "--drain", "0.2")
    launch.events.wait_for("step")
    process.send_signal(signal.SIGTERM)
    run = ended(process)
    assert run.code == 130
    assert not list(whole(run.folder))


def test_each_segment_is_checked_against_the_scenario_that_it_went_by(launch: Launch, tmp_path: Path) -> None:
    for nodes, link in ((1, "1Gbit/s"), (2, "1Mbit/s")):
        text = f'[cluster]\nnodes = {nodes}\n[network]\nbandwidth = "{link}"\n'
        (tmp_path / f"{nodes}.toml").write_text(text)
    one, two = (("--scenario", str(tmp_path / f"{nodes}.toml")) for nodes in (1, 2))
    run = launch.run(that_resumes(), *TWO, "-p", "ad-psgd", "--max-steps", "9", *one).completed()
    right(launch.resume(run.folder, *two, "--max-steps", "20").completed())


def test_replicas_that_stopped_before_a_mean_was_due_may_have_recorded_one_earlier(launch: Launch) -> None:
    stopped = launch.run(that_resumes(), *TWO, "-p", "all-reduce", "--record", "1", "--max-steps", "5").completed()
    right(launch.resume(stopped.folder).completed())


def test_a_run_whose_scripts_fail_before_they_train_on_is_checked_and_goes_on_later(launch: Launch) -> None:
    fails = launch.tmp_path / "fails"
    exits = f"if os.path.exists({str(fails)!r}): raise SystemExit(3)"
    text = that_resumes().replace("import torch\n", f"import torch\n{exits}\n", 1)
    stopped = launch.run(text, *TWO, "--max-steps", "40").completed()
    fails.touch()
    for _ in range(2):
        failed = launch.resume(stopped.folder, "-n", "3")
        assert failed.code == 3
        right(failed)
    fails.unlink()
    assert "the same bits" in replayed(failed.folder).completed().out
    resumed = launch.resume(stopped.folder, "-n", "3").completed()
    assert resumed.summary["samples"] == SAMPLES
    right(resumed)


# --- other data


OTHER_DATA = script("""
samples, size = map(int, sys.argv[1:])
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = DataLoader(TensorDataset(torch.arange(float(samples)).reshape(-1, 1)), batch_size=size, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
for epoch in paceline.epochs(2):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""")


def goes_on(launch: Launch, protocol: str, ends: tuple[str, str], samples: int, size: int) -> Run:
    """A run over 64 samples in batches of 8 that ended as this flag says, and goes on with 2 epochs otherwise."""
    script = launch.tmp_path / "train.py"
    script.write_text(OTHER_DATA)
    stopped = launch.run(script, *TWO, "-p", protocol, "--checkpoint", "2", *ends, args=("64", "8")).completed()
    return launch.resume(stopped.folder, "--epochs", "2", str(script), str(samples), str(size))


OTHERWISE = [(p, *other) for p in ("asp", "bsp", "all-reduce", "ad-psgd", "ps-plus") for other in ((96, 8), (48, 12))]


@pytest.mark.parametrize(("protocol", "samples", "size"), each(OTHERWISE, default=[("asp", 48, 12)]))
def test_a_run_goes_on_with_other_data_where_an_epoch_begins(
    protocol: str, samples: int, size: int, launch: Launch
) -> None:
    run = goes_on(launch, protocol, ("--epochs", "1"), samples, size).completed()
    counted = run.rows("SELECT epoch, count(*) FROM applied_samples GROUP BY epoch, sample")
    assert counted == [(0, 1)] * 64 + [(1, 1)] * samples
    right(run)


def test_within_an_epoch_the_line_names_what_has_changed(launch: Launch) -> None:
    run = goes_on(launch, "asp", ("--max-steps", "12"), 96, 8)
    assert run.code == 2
    assert re.search("the run goes on within epoch [01], which began with 64 samples in batches of 8", run.err)
    assert "the data, the batch size or the sampler has changed" in run.err
    again = launch.resume(run.folder, "--epochs", "2", str(launch.tmp_path / "train.py"), "64", "8").completed()
    assert again.summary["samples"] == 128
