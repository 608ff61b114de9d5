"""Workers that died come back in real runs: what they begin with, and what of theirs counts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import safetensors.torch
import torch

from paceline.core.facts import Fact, ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.protocols import registry
from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended
from support.suites import each

pytestmark = pytest.mark.real_run

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import paceline

THERE = Path(__file__).parent
HERE = THERE / "here"  # while it is a folder: of each worker that is to come back, its process

def touch(name):
    (THERE / name).touch()

def wait(name):
    while not (THERE / name).exists():
        time.sleep(0.002)

def linger(until):
    # a worker that joins gets what it begins with between two steps
    if not (THERE / until).exists():
        time.sleep(0.02)

def away(worker):
    try:
        os.kill(int(worker.read_text()), 0)
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # it has made its last step, and has gone since the folder was listed
        pass
    return False

def come():
    if HERE.is_dir():
        (THERE / f"comes-{paceline.worker()}").write_text(str(os.getpid()))
        os.replace(THERE / f"comes-{paceline.worker()}", HERE / str(paceline.worker()))

def meet():
    while HERE.is_dir() and any(away(worker) for worker in HERE.iterdir()):
        time.sleep(0.002)

def go():
    (HERE / str(paceline.worker())).unlink(missing_ok=True)

def now():
    return {
        "rate": optimizer.param_groups[0]["lr"],
        "momentum": [one["momentum_buffer"].clone() for one in optimizer.state.values()],
        "buffers": [one.clone() for one in model.buffers()],
        "parameters": [one.detach().clone() for one in model.parameters()],
    }

class Data(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, index):
        return x[index], int(x[index].sum() > 0)

torch.manual_seed(0)
x = torch.randn(192, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(Data(), 4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={"scheduler": scheduler})
batches, loops, seen = 0, [], []
BEFORE
for epoch in EPOCHS:
    batches = 0
    if paceline.resumed():
        touch("back")
    for a, b in loader:
        batches += 1
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        AFTER
    loops.append((epoch, batches))
    scheduler.step()
go()
if seen:
    torch.save(seen, THERE / "seen.pt")
paceline.finish()
"""


def script(before: str = "", each_step: str = "pass", after: str = "pass", epochs: str = "paceline.epochs(3)") -> str:
    """`before`: what it does before its loops; `each_step`, `after`: before and after each step."""
    text = SCRIPT.replace("BEFORE", before).replace("EPOCHS", epochs)
    return text.replace("EACH_STEP", indent(each_step, " " * 8).strip()).replace(
        "AFTER", indent(after, " " * 8).strip()
    )


def scenario(launch: Launch, *events: Mapping[str, Any], workers: int = 3, compute: str = "5ms") -> tuple[str, ...]:
    """Flags of a run in which these workers are killed."""
    lines = ["[cluster]", f"workers = {workers}", f'compute = "{compute}"']
    for event in events:
        lines += ["[[event]]", "kill = true", *(f"{key} = {json.dumps(value)}" for key, value in event.items())]
    file = launch.tmp_path / "scenario.toml"
    file.write_text("\n".join(lines))
    return ("--scenario", str(file), "--threads", "1", "--saves", "all")


def killed(worker: int, step: int, rejoin_after: str | None = "10ms") -> dict[str, Any]:
    back = {} if rejoin_after is None else {"rejoin_after": rejoin_after}
    return {"worker": worker, "at_step": step, **back}


def facts(run: Run, *kinds: type[Fact]) -> list[str]:
    """Kinds and bodies of the facts of these kinds, in order."""
    return [
        kind for (kind,) in run.rows("SELECT kind FROM facts ORDER BY id") if kind in {one.__name__ for one in kinds}
    ]


def replayed(run: Run, first: str = "") -> Run:
    """`first`: see `nursery.Process`."""
    folder = run.folder.parent / f"again-{len(list(run.folder.parent.glob('again-*')))}"
    process = nursery.Process(["replay", str(run.folder), "--out", str(folder)], first=first)
    out, err = process.communicate(timeout=120)
    return Run(code=process.returncode, out=out, err=err, folder=folder)


def joined(launch: Launch, name: str = "joined.pt") -> dict[str, Any]:
    """What a worker noted of itself."""
    noted: dict[str, Any] = torch.load(launch.tmp_path / name, weights_only=True)
    return noted


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


TWICE = (killed(1, 3), killed(2, 4), killed(1, 6), killed(2, 8))
LONG = ("asp", "dssp", "hsp", "ripples", "ssp")  # others of their kind are tried by default


@pytest.mark.parametrize("protocol", each(sorted(registry()), long=LONG))
def test_workers_that_die_twice_come_back_twice_and_the_run_is_whole(protocol: str, launch: Launch) -> None:
    """Nobody makes a step while one is away, however long it takes to come back."""
    (launch.tmp_path / "here").mkdir()
    text = script("come()", "meet()").replace("192", "96")
    run = launch.run(text, "-p", protocol, *scenario(launch, *TWICE)).completed()
    assert facts(run, WorkerJoined) == ["WorkerJoined"] * 4
    times = run.rows("SELECT count(*) FROM applied_samples GROUP BY epoch, sample")
    assert set(times) == {(1,)}
    assert len(times) + run.summary["samples_missed"] == 3 * 96
    assert run.summary["samples"] == len(times)
    found = checked(run.folder)
    assert found.ok, found.wrong
    (launch.tmp_path / "here").rmdir()  # a replay has an order of its own
    again = replayed(run)
    assert again.code == 0, again.out + again.err
    assert again.summary["final_parameters_sha256"] == run.summary["final_parameters_sha256"]
    query = "SELECT version, checksum FROM checksums ORDER BY version"
    assert again.rows(query) == run.rows(query)


IN_EPOCH_1 = script(
    before="""
if paceline.resumed():
    with torch.no_grad():
        for one in [*model.parameters(), *(one for one in model.buffers() if one.is_floating_point())]:
            one.fill_(1e6)
    scheduler.step()
""",
    each_step="""
if paceline.worker() == 0 and epoch == batches == 1:
    touch("in epoch 1")
    wait("back")
if paceline.worker() == 0 and epoch == 1:
    linger("joined.pt")
if paceline.worker() == 1 and epoch == 1 and not paceline.resumed():
    wait("in epoch 1")
    os.kill(os.getpid(), signal.SIGKILL)
if paceline.resumed() and not seen:
    torch.save({**now(), "loops": loops}, THERE / "joined.pt")
    seen.append(None)
""",
    after="if paceline.worker() == 0: seen.append(now())",
    epochs="range(3)",
).replace("if seen:", "if paceline.worker() == 0:")
"""Worker 1 dies in epoch 1, and comes back before worker 0 has made its second step there."""


@pytest.fixture(scope="module", params=["asp", "all-reduce", "ps-plus"])
def back(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Run, Launch]]:
    """A run in which a worker comes back that spoils all that it has before its first step: of which protocol."""
    launch = Launch(tmp_path_factory.mktemp("back"))
    flags = ("-n", "2", "-p", request.param, "--restart", "1", "--threads", "1", "--saves", "all")
    yield request.param, launch.run(IN_EPOCH_1, *flags).completed(), launch
    launch.close()


Back = tuple[str, Run, Launch]


class TestJoiner:
    """A worker that comes back begins with what the others have by then."""

    def test_it_is_told_that_the_run_has_begun_and_past_epochs_end_at_once(self, back: Back) -> None:
        _, run, launch = back
        assert joined(launch)["loops"] == [(0, 0)]
        assert checked(run.folder).ok

    def test_its_rate_is_that_of_the_others_scheduler_and_not_a_new_one_s(self, back: Back) -> None:
        _, run, launch = back
        assert joined(launch)["rate"] == 0.05
        since = "SELECT min(step) FROM facts WHERE kind = 'WorkerJoined'"
        rates = f"SELECT DISTINCT learning_rates FROM pushes WHERE worker = 1 AND step >= ({since})"
        assert {json.loads(rate)[0] for (rate,) in run.rows(rates)} <= {0.05, 0.025}

    def test_its_buffers_are_another_s(self, back: Back) -> None:
        _, _, launch = back
        assert any(same(joined(launch)["buffers"], one["buffers"]) for one in torch.load(launch.tmp_path / "seen.pt"))

    def test_its_optimizer_has_another_s_momentum_where_workers_step_and_shows_the_store_s_elsewhere(
        self, back: Back
    ) -> None:
        protocol, _, launch = back
        momentum = joined(launch)["momentum"]
        assert momentum
        if protocol != "asp":  # each worker is shown the newest version's as it asks
            assert any(same(momentum, one["momentum"]) for one in torch.load(launch.tmp_path / "seen.pt"))

    def test_what_its_script_changed_before_its_first_step_is_gone(self, back: Back) -> None:
        _, _, launch = back
        there = joined(launch)
        assert all(bool((one.abs() < 1e5).all()) for one in [*there["parameters"], *there["buffers"][:2]])

    def test_a_replica_begins_as_another_s(self, back: Back) -> None:
        protocol, run, launch = back
        assert facts(run, ReplicaCopied) == ["ReplicaCopied"] * (protocol == "all-reduce")
        if protocol == "all-reduce":
            seen = torch.load(launch.tmp_path / "seen.pt")
            assert any(same(joined(launch)["parameters"], one["parameters"]) for one in seen)


DIES_EACH_TIME = script(
    each_step="""
if paceline.worker() == 1:
    touch("second" if paceline.resumed() else "first")
    os.kill(os.getpid(), signal.SIGKILL)
if batches == 1:
    wait("back")
linger("second")
"""
)


def test_restart_1_starts_a_worker_again_once_and_not_twice(launch: Launch) -> None:
    run = launch.run(DIES_EACH_TIME, "-n", "2", "-p", "asp", "--restart", "1", "--threads", "1").completed()
    assert facts(run, WorkerJoined, WorkerLeft)[:3] == ["WorkerLeft", "WorkerJoined", "WorkerLeft"]
    assert run.err.count("it comes back") == 1
    assert run.summary["samples"] == 3 * 192
    assert checked(run.folder).ok


def test_a_script_that_fails_is_not_started_again(launch: Launch) -> None:
    failing = script(each_step="if paceline.worker() == 1: raise SystemExit('by the test')")
    run = launch.run(failing, "-n", "2", "-p", "asp", "--restart", "3", "--threads", "1")
    assert run.code == 3
    assert "its script failed" in run.out
    assert "comes back" not in run.err


ALONE = script(
    before="""
begun = now()
if paceline.resumed():
    with torch.no_grad():
        for one in [*model.parameters(), *model.buffers()]:
            one.fill_(1e6)
else:
    torch.save(begun, THERE / "begun.pt")
""",
    each_step="""
if paceline.resumed() and not seen:
    torch.save(now(), THERE / "joined.pt")
    seen.append(0)
if batches == 9 and not paceline.resumed():
    os.kill(os.getpid(), signal.SIGKILL)
""",
)


def alone(protocol: str) -> tuple[str, ...]:
    """Flags of a run of one worker, which may come back once. It would have all cores to itself otherwise."""
    return ("-n", "1", "-p", protocol, "--restart", "1", "--threads", "1")


@pytest.mark.parametrize("protocol", ["asp", "ad-psgd", "all-reduce"])
def test_a_worker_that_is_alone_goes_on_with_what_was_made_or_as_training_began(protocol: str, launch: Launch) -> None:
    """No replica is left. Its samples since are missed, as the replica was lost with them."""
    run = launch.run(ALONE, *alone(protocol)).completed()
    assert facts(run, WorkerJoined) == ["WorkerJoined"]
    assert run.summary["samples"] + run.summary["samples_missed"] == 3 * 192
    assert same(joined(launch)["parameters"], joined(launch, "begun.pt")["parameters"]) == (protocol != "asp")
    assert same(joined(launch)["buffers"], joined(launch, "begun.pt")["buffers"])
    assert checked(run.folder).ok


@pytest.mark.parametrize("protocol", ["ad-psgd", "all-reduce"])
def test_if_nobody_is_left_a_worker_begins_with_a_recorded_mean(protocol: str, launch: Launch) -> None:
    recorded = ALONE.replace(
        "if batches == 9 and", 'if batches > 2 and list(THERE.glob("run_*/versions/0*")) and epoch and'
    )
    run = launch.run(
        recorded, "-n", "1", "-p", protocol, "--restart", "1", "--threads", "1", "--record", "4"
    ).completed()
    files = [
        safetensors.torch.load_file(run.folder / name)
        for (name,) in run.rows("SELECT file FROM versions WHERE version")
    ]
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]
    assert any(same(joined(launch)["parameters"], [one[name] for name in names]) for one in files)
    assert checked(run.folder).ok


DIES_AT_THE_END = script().replace(
    "go()\n", "if not paceline.resumed():\n    os.kill(os.getpid(), signal.SIGKILL)\n", 1
)


LATE = """
import time
from paceline.ipc.loop import Loop

wait = Loop.wait

def late(loop, most=None):
    time.sleep(0.03)
    wait(loop, most)

Loop.wait = late
"""
"""The launcher hears late, as on a loaded machine: of a worker's last words and of its death at once."""


@pytest.mark.long
def test_a_run_whose_workers_all_died_after_the_last_step_is_completed_by_one_that_comes_back(launch: Launch) -> None:
    flags = ("-n", "1", "-p", "asp", "--restart", "1", "--threads", "1")
    run = launch.run(DIES_AT_THE_END.replace("192", "24"), *flags).completed()
    assert facts(run, WorkerJoined, WorkerLeft) == ["WorkerLeft"]
    assert run.summary["samples"] == 3 * 24
    found = checked(run.folder)
    assert found.ok, found.wrong
    for first in "", LATE:
        again = replayed(run, first)
        assert again.code == 0, again.out + again.err
        assert checked(again.folder).ok


def test_a_run_that_is_interrupted_while_all_its_workers_are_away_can_be_made_again(launch: Launch) -> None:
    text = script(each_step="if batches == 6: (THERE / 'sixth').write_text(str(os.getpid()))")
    process = launch.start(text, "-p", "asp", *scenario(launch, killed(0, 5, "1h"), workers=1))
    await_death(launch.tmp_path / "sixth")
    process.send_signal(signal.SIGINT)
    run = ended(process)
    assert run.summary["outcome"] == "interrupted"
    assert facts(run, WorkerLeft) == ["WorkerLeft"]
    assert checked(run.folder).ok
    again = replayed(run)
    assert again.code == 0, again.out + again.err


def await_death(named: Path) -> None:
    """Wait until the process whose number the file has is gone, and its launcher knows that."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(int(named.read_text()), 0)
        except ProcessLookupError:
            return
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.005)
    raise AssertionError("it lives")


DRAWS = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
import paceline

there = Path(__file__).parent
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = paceline.prepare(model, optimizer)
for step in range(60):
    if paceline.worker() == 1 and step == 3 and not paceline.resumed():
        os.kill(os.getpid(), signal.SIGKILL)
    if paceline.resumed() and step < 2:
        (there / ("back", "joined")[step]).touch()
    while paceline.worker() == 0 and step == 5 and not (there / "back").exists():
        time.sleep(0.002)
    if paceline.worker() == 0 and step > 5 and not (there / "joined").exists():
        time.sleep(0.02)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    paceline.log(step=step)
paceline.finish()
"""


def test_a_joiner_without_a_loader_takes_part_from_its_first_step_whose_gradient_is_thrown_away(launch: Launch) -> None:
    run = launch.run(DRAWS, "-n", "2", "-p", "asp", "--restart", "1", "--threads", "1").completed()
    since = "(SELECT id FROM facts WHERE kind = 'WorkerJoined')"
    made = run.rows(f"SELECT count(*) FROM facts WHERE kind = 'GradientReady' AND worker = 1 AND id > {since}")
    assert made == [(59,)]
    ((first,),) = run.rows("SELECT step FROM facts WHERE kind = 'WorkerJoined'")
    logged = run.rows(f"SELECT value FROM scalars WHERE worker = 1 AND step >= {first} ORDER BY rowid")
    assert logged[0] == (1.0,), "what it logged of the step whose gradient is thrown away"
    assert checked(run.folder).ok


def test_a_kill_by_time_is_of_the_run_s_time_and_does_not_come_again_where_the_run_goes_on(launch: Launch) -> None:
    flags = scenario(launch, {"worker": 1, "at": "1ms"}, {"worker": 0, "at": "1h"}, workers=2)
    stopped = launch.run(script(), "-p", "asp", *flags, "--max-steps", "40").completed()
    assert len(stopped.rows("SELECT 1 FROM facts WHERE kind = 'WorkerLeft' AND body LIKE '%died%'")) == 1
    resumed = launch.resume(stopped.folder).completed()
    assert len(resumed.rows("SELECT 1 FROM facts WHERE kind = 'WorkerLeft' AND body LIKE '%died%'")) == 1
    assert resumed.rows("SELECT 1 FROM facts WHERE kind = 'GradientReady' AND worker = 1")
    assert resumed.summary["samples"] == 3 * 192
