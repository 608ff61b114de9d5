"""Runs that are stopped at odd moments and go on, drawn from a seed: the same seed, the same schedule."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from paceline.protocols import registry
from paceline.records.snapshots import SNAPSHOTS, whole
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended

EPOCHS, SAMPLES, STEPS = 3, 48, 36
EXACT = ("all-reduce", "bsp")
"""Protocols under which a run that was stopped ends on the bits of one that was not."""

SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = {optimizer}
{scheduler}
data = TensorDataset(torch.randn({samples}, 6), torch.randint(0, 3, ({samples},)))
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers={loaders})
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={keep})
for epoch in {epochs}:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(0.004)
        {each_step}
    {each_epoch}
{end}
"""

FIRST = """
import errno, os, posix, signal, sqlite3
from paceline.ipc import zygote
from paceline.records import ledger, truncate as cut
from paceline.coordinator import snapshots
from paceline.store import store
from paceline.training import session
from paceline.worker_process import worker

launcher, parent, me, seen = os.getpid(), None, None, 0
where, nth, what, whose = {stop!r}

def comes_to(place):
    # count how often this process has come to that place, and let happen what is to happen there
    global seen
    if place == where and (place != "step" or me == whose):
        seen += 1
        if seen == nth:
            befall()
        return seen >= nth
    return False

def befall():
    if what == "kill launcher":
        os.kill(launcher, signal.SIGKILL)
    elif what == "kill zygote" and parent is not None:
        os.kill(parent, signal.SIGKILL)
    elif what == "kill itself":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "terminate":
        os.kill(launcher, signal.SIGTERM)
    elif what in ("interrupt", "interrupt twice"):
        for _ in range(1 + (what == "interrupt twice")):
            os.killpg(launcher, signal.SIGINT)

def on_disk(module, name, path_of):
    real = getattr(module, name)
    def call(first, *more, **keys):
        path = path_of(first)
        if "/snapshots" in str(path):
            over = comes_to(name)
            if over and (what == "full disk" or what == "full disk once" and seen == nth):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(first, *more, **keys)
    setattr(module, name, call)
    setattr(os, name, call)

def around(owner, name, place):
    real = getattr(owner, name)
    def call(*arguments, **keys):
        comes_to(place)
        result = real(*arguments, **keys)
        comes_to(place)
        return result
    setattr(owner, name, call)

def serve(*arguments, real=zygote._serve):
    global parent
    parent = os.getpid()
    return real(*arguments)

def work(number, *arguments, real=worker.work):
    global me
    me = number
    return real(number, *arguments)

def write_batch(self, real=ledger.Ledger._write_batch):
    if comes_to("ledger") and what == "full disk":
        raise sqlite3.OperationalError("database or disk is full")
    return real(self)

zygote._serve, worker.work, ledger.Ledger._write_batch = serve, work, write_batch
ledger.GATHER, snapshots.LOOK_AGAIN = 0.005, 0.002  # short runs have time for many snapshots
on_disk(os, "fsync", lambda descriptor: os.readlink("/proc/self/fd/%d" % descriptor))
on_disk(os, "rename", str)
on_disk(posix, "mkdir", str)  # which the store has again
for name in ("_write_aside", "_take_away", "_move_versions"):
    around(cut, name, "cut")
for name in ("commit", "keep", "restore"):
    around(store.Store, name, name)
around(store.NamedVersion, "record", "record")
around(session.Session, "step", "step")
around(session.Session, "begin", "begin")
"""

DEATHS = ("kill launcher", "kill launcher", "kill itself", "kill zygote")
ENDS = ("terminate", "interrupt", "interrupt twice")
FULL = ("full disk", "full disk once")
PLACES = {
    "step": (lambda workers, snapshots: 2 * STEPS // workers, (*DEATHS, *ENDS)),
    "commit": (lambda workers, snapshots: 2 * STEPS // workers, (*DEATHS, "terminate")),
    "keep": (lambda workers, snapshots: 2 * snapshots, (*DEATHS, "terminate")),
    "fsync": (lambda workers, snapshots: (4 + workers) * snapshots, (*DEATHS, *ENDS, *FULL, *FULL)),
    "rename": (lambda workers, snapshots: snapshots, (*DEATHS, *FULL)),
    "mkdir": (lambda workers, snapshots: (1 + workers) * snapshots, ("kill launcher", *FULL)),
    "ledger": (lambda workers, snapshots: 30, ("kill launcher", "kill zygote", "full disk")),
    "record": (lambda workers, snapshots: 2, ("kill launcher", "kill itself")),
}
"""Where a run is stopped: about how often a process comes there with so many workers and snapshots, and what happens.

A worker begins and ends a step; the store commits, writes files of snapshots (with an fsync each) and renames; the
launcher makes folders.
"""
RESUMING = PLACES | {
    "cut": (lambda workers, snapshots: 6, ("kill launcher",)),
    "restore": (lambda workers, snapshots: 2, ("kill launcher", "kill itself")),
    "begin": (lambda workers, snapshots: 2, ("kill launcher", "kill zygote", "kill itself", "terminate")),
}
"""The same of a run that goes on."""

Stop = tuple[str, int, str, int]
"""Where, the how manieth time, what, and of which worker if it is in a step."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run, how it is stopped, and how each segment after that is."""

    seed: int
    protocol: str
    workers: int
    flags: tuple[str, ...]
    script: str = field(repr=False)
    stops: tuple[Stop, ...] = ()

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """The seed's."""
        chance = random.Random(seed)
        protocols = sorted(registry())
        protocol = protocols[seed % len(protocols)]
        workers, snapshots = chance.randint(1, 3), chance.choice([1, 2, 3, 4, 6])
        flags = ["-n", str(workers), "-p", protocol, "--checkpoint", str(snapshots)]
        flags += ["--drain", "5"] if chance.random() < 0.3 else []
        flags += ["--record", "0"] if chance.random() < 0.3 else []
        flags += ["--on-loss", "stop"] if chance.random() < 0.4 else []
        flags += ["--shards", "static"] if chance.random() < 0.2 else []
        stops: list[Stop] = []
        for number in range(chance.randint(1, 3)):
            places = RESUMING if number else PLACES
            where = chance.choice(list(places))
            comes, whats = places[where]
            often = comes(workers, EPOCHS * snapshots)
            nth = chance.randint(1, max(1, often // 2)) if number else chance.randint(often // 3 + 1, often)
            stops.append((where, nth, chance.choice(whats), chance.randrange(workers)))
        return cls(seed, protocol, workers, tuple(flags), _script(chance), tuple(stops))

    @property
    def exact(self) -> bool:
        """Whether it ends on the bits of a run that is not stopped, if no worker is lost."""
        return self.protocol in EXACT or self.workers == 1


def _script(chance: random.Random) -> str:
    kind = chance.choice(["", "epoch", "step"])
    scheduler = {
        "": "",
        "epoch": "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
        "step": "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)",
    }[kind]
    return SCRIPT.format(
        optimizer=chance.choice(
            [
                "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
                "torch.optim.AdamW(model.parameters(), lr=0.01)",
            ]
        ),
        scheduler=scheduler,
        samples=SAMPLES,
        loaders=int(chance.random() < 0.15),
        keep="{'scheduler': scheduler}" if scheduler else "None",
        epochs=chance.choice(["range(3)", "paceline.epochs(3)"]),
        each_step="scheduler.step()" if kind == "step" else "pass",
        each_epoch="scheduler.step()" if kind == "epoch" else "pass",
        end=chance.choice(["", "paceline.finish()"]),
    )


class Broken(AssertionError):
    """A rule is broken."""


def carry_out(schedule: Schedule, launch: Launch) -> list[Run]:
    """Make the run and go on with it until it is complete. Return how each segment ended.

    Raises Broken for what no run may do on its way.
    """
    runs = [_ended(launch.start(schedule.script, *schedule.flags, first=_first(schedule.stops[0])), launch)]
    stops = [*schedule.stops[1:], None]
    while not _complete(runs[-1]):
        stop = stops.pop(0) if stops else None
        if stop is None and len(runs) > len(schedule.stops) + 1:
            raise Broken(f"it is not complete after {len(runs)} segments, though nothing befell the last one")
        before = [path.name for path in whole(runs[0].folder)]
        first = "" if stop is None else _first(stop)
        runs.append(_ended(launch.start_resumed(runs[0].folder, first=first), launch))
        if not before:
            err = runs[-1].err.splitlines()
            if runs[-1].code != 2 or len(err) != 1 or "no snapshot can be read" not in err[0]:
                raise Broken(f"without a snapshot, it ends with {runs[-1].code}")
            return runs
        if runs[-1].code == 2:
            raise Broken(f"it has the snapshots {before}, and does not go on: {runs[-1].err}")
        if stop is None and runs[-1].code:
            raise Broken(f"nothing befell it, and it ends with {runs[-1].code}: {runs[-1].err}")
    return runs


def broken_promises(schedule: Schedule, run: Run, unstopped: Run | None) -> list[str]:
    """What the complete run did that no run may do, a line each."""
    said = []
    if (wrong := checked(run.folder).wrong) is not None:
        said.append(f"check: {wrong}")
    times = run.rows("SELECT count(*), count(DISTINCT epoch || ' ' || sample) FROM applied_samples")
    if times != [(EPOCHS * SAMPLES, EPOCHS * SAMPLES)]:
        said.append(f"samples applied, and different ones: {times[0]}, of {EPOCHS * SAMPLES}")
    if run.summary["samples"] != EPOCHS * SAMPLES:
        said.append(f"the summary has {run.summary['samples']} samples")
    for folder in (run.folder, run.folder / SNAPSHOTS, run.folder / "versions"):
        if left := [path.name for path in folder.iterdir() if path.name.startswith(".") or path.suffix == ".part"]:
            said.append(f"left in {folder}: {left}")
    lost = run.rows("SELECT 1 FROM facts WHERE kind = 'WorkerLeft' AND json_extract(body, '$.reason') = 'died'")
    if unstopped is not None and not lost:
        one, other = run.final(), unstopped.final()
        if differs := [name for name in one if not torch.equal(one[name], other[name])]:
            said.append(f"{differs} differ from a run that was not stopped")
    return said


def _first(stop: Stop) -> str:
    return FIRST.replace("{stop!r}", repr(stop))


def _ended(process: object, launch: Launch) -> Run:
    run = ended(process, 60)  # type: ignore[arg-type]
    launch.assert_nothing_left()
    if "Traceback" in run.err or "paceline bug" in run.err:
        raise Broken(run.err)
    return run


def _complete(run: Run) -> bool:
    return run.code == 0
