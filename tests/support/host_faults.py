"""Runs on several hosts, and all that befalls them, drawn from a seed: the same seed, the same schedule."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.protocols import registry
from paceline.records.snapshots import whole
from support.chaos import CODES, OURS, broken_books
from support.launch import Launch
from support.recorded import checked
from support.replays import broken_replay
from support.runs import Launcher, Run, ended

EPOCHS, SAMPLES = 2, 96
STEPS = EPOCHS * SAMPLES // 4
IN_TIME = 120.0
"""Seconds. An idle machine takes three."""
ENDED_LATE = "in time and (is|are) ended"
"""What is said of scripts that did not end by themselves. After Ctrl-C they have 30 seconds."""
WAITS = 60
"""Seconds that nobody may wait for anything."""
PATIENT, HASTY = "5", "0.3"
"""Seconds that workers have to end their steps, as `--drain` takes them: more than one takes, and maybe too few."""
LENIENT, STRICT = 15.0, 2.0
"""Timeouts of hosts: the usual one, and one that a stopped host outlasts."""

SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

comes_to = getattr(paceline, "comes_to", lambda place: None)  # nothing befalls a replay
comes_to("begin")
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = {optimizer}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
x, y = torch.randn({samples}, 6), torch.randint(0, 3, ({samples},))
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, num_workers={loaders})

def evaluate(model):
    comes_to("evaluate")
    model.eval()
    return {{"loss": nn.functional.cross_entropy(model(x), y).item()}}

comes_to("prepare")
keep = {keep}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs={epochs}, evaluate={evaluate}, keep=keep)
{change}
for epoch in {each}:
    for x_, y_ in loader:
        comes_to("batch")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x_), y_)
        loss.backward()
        comes_to("step")
        optimizer.step()
        comes_to("stepped")
        {each_step}
        time.sleep({pause} * (1 + paceline.worker()))
    comes_to("epoch")
    scheduler.step()
    {each_epoch}
{end}
comes_to("end")
"""

SPREAD = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

comes_to = getattr(paceline, "comes_to", lambda place: None)  # nothing befalls a replay
comes_to("begin")
torch.manual_seed(3)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.below = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh())
        self.frozen, self.seldom, self.above = nn.Linear(16, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.below(x)
        return self.above(torch.relu(self.frozen(x)) + x) + (self.seldom(x) if seldom or not self.training else 0.0)

model, seldom, batches = Net(), True, 0
groups = [{{"params": [*model.below.parameters(), *model.frozen.parameters()], "lr": {low}}},
          {{"params": [*model.seldom.parameters(), *model.above.parameters()]}}]
class Own(torch.optim.SGD): pass
optimizer = {optimizer}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
x, y = torch.randn({samples}, 6), torch.randint(0, 3, ({samples},))
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)

def evaluate(model):
    comes_to("evaluate")
    model.eval()
    return {{"loss": nn.functional.cross_entropy(model(x), y).item()}}

if {prior}:
    model(x).sum().backward()
    optimizer.step()
comes_to("prepare")
keep = {keep}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs={epochs}, evaluate={evaluate}, keep=keep)
{change}
for epoch in {each}:
    for x_, y_ in loader:
        comes_to("batch")
        batches += 1
        seldom = not {none} or (paceline.worker() + batches) % 3 > 0  # else some parameters have no gradient
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x_), y_)
        loss.backward()
        if (paceline.worker(), batches) == {spoils}:
            model.above.bias.grad.fill_(float("nan"))
        comes_to("step")
        optimizer.step()
        comes_to("stepped")
        {each_step}
        time.sleep({pause} * (1 + paceline.worker()))
    comes_to("epoch")
    scheduler.step()
    {each_epoch}
{end}
comes_to("end")
"""
"""Of several pieces, where these are small. Some parameters are frozen, and some have no gradient in some steps."""

FIRST = """
import os, signal, socket, subprocess, sys, time
import paceline
from paceline.coordinator import agent, emulated, host_registry
from paceline.ipc import zygote
from paceline.net import tcp
from paceline.store import process, store
from paceline.training import averages
from paceline.transfer import manager
from paceline.worker_process import worker

launcher, forks, who, seen, streams = os.getpid(), None, "head", {}, []
stores = "store"

def is_now(name):
    # this process is that from now on: a fork has the counts of the process before
    global who
    who = name
    seen.clear()
    streams.clear()

def comes_to(place):
    seen[place] = seen.get(place, 0) + 1
    for process, where, nth, what, seconds in FAULTS:
        if (process, where, nth) == (who, place, seen[place]):
            with open(BEFELL, "a") as file:
                file.write(f"{what}, in {who} at {place} {nth}\\n")
            befall(what, seconds)

def befall(what, seconds):
    whom = {"launcher": launcher, "agent": os.getppid(), "zygote": forks, "itself": os.getpid()}.get(what.split()[-1])
    if what.startswith("kill"):
        os.kill(whom, signal.SIGKILL)
    elif what.startswith("stop"):
        wakes = f"sleep {seconds}; while kill -CONT {whom}; do sleep 0.1; done"
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen(["sh", "-c", wakes], start_new_session=True, **nothing)
        os.kill(whom, signal.SIGSTOP)
    elif what.startswith("drain"):
        for number in range(what.count("drain")):
            time.sleep(0.02 * number)  # else the two signals are one
            os.kill(whom, signal.SIGTERM)
    elif what.startswith("terminate"):
        for _ in what.split():
            os.kill(launcher, signal.SIGTERM)
    elif what.startswith("interrupt"):
        for _ in what.split():
            os.killpg(launcher, signal.SIGINT)
    elif what.startswith("cut"):
        for stream in streams:
            if not stream.closed and (stream._drained is None) == (what == "cut control"):
                stream._end.shutdown(socket.SHUT_RDWR)
    elif what == "raise":
        raise RuntimeError("by the schedule")
    elif what == "exit":
        sys.exit(0)
    elif what == "exit with a code":
        sys.exit(5)

def around(owner, name, place):
    real = getattr(owner, name)
    def call(*arguments, **keys):
        comes_to(place(*arguments))
        return real(*arguments, **keys)
    setattr(owner, name, call)

def work(number, *arguments, real=worker.work):
    global stores
    is_now(f"worker {number}")
    stores = "store" if number < EACH else f"store of node-{number // EACH}"
    return real(number, *arguments)

def fork_store(*arguments, real=worker.fork_store):
    comes_to("fork")
    return real(*arguments)

def serve(*arguments, real=zygote._serve):
    global forks
    forks = os.getpid()
    return real(*arguments)

def begin(self, *arguments, real=zygote.Zygote.__init__):
    global forks
    real(self, *arguments)
    forks = self.process

def take_part(name, *arguments, real=agent.agent, **keys):
    is_now(name)
    return real(name, *arguments, **keys)

def open_stream(self, *arguments, real=tcp.Stream.__init__, **keys):
    real(self, *arguments, **keys)
    streams.append(self)

def commit(self, *arguments, real=store.Store.commit, **keys):
    global who
    who = stores
    comes_to("commit")
    return real(self, *arguments, **keys)

def share(self, *arguments, real=process._Recorder.share):
    global who
    who = stores
    comes_to("share")
    return real(self, *arguments)

paceline.comes_to = comes_to
worker.fork_store = fork_store
worker.work, zygote._serve, zygote.Zygote.__init__, emulated.agent = work, serve, begin, take_part
tcp.Stream.__init__, store.Store.commit, process._Recorder.share = open_stream, commit, share
around(agent._Agent, "delivered", lambda self, message: type(message).__name__)
around(host_registry.HostRegistry, "delivered", lambda self, host, incarnation, message: type(message).__name__)
around(manager.TransferManager, "fetch", lambda self, *arguments: "fetch")
around(averages.AreaAverages, "share", lambda self, *arguments: "average")
"""
"""What the run's first process executes before anything else. So it is in all processes, and not in the script."""
SMALL = """
from paceline.store import chunks as parts
parts.CHUNK = {elements}
"""
"""The same, of a replay too: how long a piece is. So a small model has several."""

HARMLESS = (
    *("cut control", "cut data", "kill zygote", "stop itself", "stop agent", "stop launcher"),
    *("drain itself", "drain agent"),
)
"""What changes nothing of what a run comes to, if nobody is stopped for long."""
IN_SCRIPT = ("kill itself", "kill itself", "kill itself", "stop itself", "raise", "exit", "exit with a code")
ON_AGENT = ("kill agent", "kill agent", "stop agent", "stop agent")
ON_RUN = ("kill zygote", "kill launcher", "stop launcher", "interrupt", "interrupt twice", "terminate again")
CUTS = ("cut control", "cut control", "cut data", "cut data")
IN_AGENT = (*CUTS, "kill itself", "kill itself", "stop itself", "kill zygote")
IN_HEAD = (*CUTS, "kill itself", "stop itself", "interrupt", "terminate")
DRAINS = ("drain", "drain", "drain", "drain", "drain", "drain and drain")
"""SIGTERM at an agent, or two."""
IN_STORE = ("kill itself", "stop itself", "kill launcher", "interrupt", "terminate")

SCRIPTS = {"begin": 1, "prepare": 1, "batch": 12, "step": 12, "stepped": 12, "epoch": 2, "evaluate": 2, "end": 1}
AGENTS = {
    "BeginScripts": 1,
    "Train": 1,
    "CarryOut": 60,
    "VersionMade": 30,
    "TellWorker": 20,
    "WorkerGone": 2,
    "ForgetWorker": 2,
    "EndRun": 1,
}
HEADS = {"WorkerSaid": 100, "Begun": 2, "Taken": 30, "Fetched": 30, "WorkerEnded": 2}
FETCHES = {"fetch": 20}
COMMITS = {"commit": 24}
SHARES = {"commit": 24, "share": 3}
RANGES = {"Bring": 20, "MakeRange": 24, "FreeVersion": 20, "PackState": 3, "Adopted": 1}
MAKERS = {"Stored": 30, "RangeMade": 24, "StatePacked": 3}
AVERAGERS = {"step": 12, "stepped": 12, "average": 20, "end": 1}
REPLICAS = {"AverageGroup": 30, "EndAverage": 30, "TakeStep": 24, "KeepItem": 8, "ReleaseItem": 8}
REPLICAS |= {"CopyItem": 1, "DropCopy": 1, "TakeReplica": 1, "HostLost": 1}
GROUPS = {"Averaged": 30, "GivenUp": 1, "ItemCopied": 1, "Reaches": 2}
"""By process: where something befalls it, and about how often it comes there."""

Fault = tuple[str, str, int, str, float]
"""Which process, where, the how manieth time, what, and for how many seconds if it is stopped."""
Resume = tuple[tuple[str, ...], tuple[Fault, ...]]
"""The flags of a run that goes on, and what befalls it then."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run, and all that befalls it."""

    seed: int
    flags: tuple[str, ...]
    timeout: float
    """Of hosts, in seconds."""
    script: str = field(repr=False)
    faults: tuple[Fault, ...]
    resumes: tuple[Resume, ...]
    """How it goes on if it ends before its work is done and has a snapshot. Nothing befalls the last one."""
    before: str = field(default="", repr=False)
    """What the run's first process executes before all that, and a replay's, too."""

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """The seed's."""
        chance = random.Random(seed)
        stored = sorted(name for name, spec in registry().items() if spec.versions == "stored")
        protocol = stored[seed % len(stored)]
        hosts, each = chance.choice([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)])
        flags = ["--emulate-hosts", str(hosts), "-n", str(each), "--threads", "1", "--report-waits", str(WAITS)]
        flags += ["-p", chance.choice([protocol, protocol + _parameters(chance, protocol)])]
        flags += ["--record", str(chance.choice([0, 1, 4]))]
        flags += ["--shards", "static"] if chance.random() < 0.3 else []
        flags += ["--start", "together"] if chance.random() < 0.2 else []
        flags += ["--on-loss", chance.choice(["continue", "stop"])] if chance.random() < 0.6 else []
        flags += ["--tee", chance.choice(["all", "none"])] if chance.random() < 0.4 else []
        flags += ["--saves", "all"] if chance.random() < 0.2 else []
        if chance.random() < 0.15:
            flags += ["--max-steps", str(chance.randint(1, STEPS))]
        elif chance.random() < 0.1:
            flags += ["--max-seconds", str(round(chance.uniform(0.1, 1.0), 2))]
        evaluates = chance.random() < 0.4
        if evaluates and chance.random() < 0.5:
            flags += ["--target", "loss<=1.0", "--stop-at-target"]
        faults = [_fault(chance, hosts, each) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
        more, drains = _with_drains(random.Random(f"drains {seed}"), hosts, each, 0.4)
        flags, faults = [*flags, *more], [*faults, *drains]
        script = _script(chance, evaluates)
        flags += ["--checkpoint", chance.choice("0113")]
        resumes = [_resume(chance, protocol, hosts, each, befalls) for befalls in (chance.random() < 0.5, False)]
        all_faults = [*faults, *(fault for _, more in resumes for fault in more)]
        timeout = STRICT if any(seconds > 1.0 for *_, seconds in all_faults) else LENIENT
        flags += ["--host-timeout", str(timeout)]
        return cls(seed, tuple(flags), timeout, script, tuple(faults), tuple(resumes))

    @classmethod
    def with_shards(cls, seed: int) -> Schedule:
        """The seed's, of a run whose versions several hosts make, or another one than the head."""
        chance = random.Random(f"shards {seed}")
        stored = sorted(name for name, spec in registry().items() if spec.versions == "stored")
        protocol = stored[seed % len(stored)]
        hosts, each = chance.choice([(2, 1), (2, 2), (3, 1), (3, 2), (4, 1)])
        flags = ["--emulate-hosts", str(hosts), "-n", str(each), "--threads", "1", "--report-waits", str(WAITS)]
        flags += ["-p", chance.choice([protocol, protocol + _parameters(chance, protocol)])]
        flags += ["--record", str(chance.choice([0, 1, 4])), "--checkpoint", chance.choice("0113")]
        flags += ["--start", "together"] if chance.random() < 0.2 else []
        flags += ["--on-loss", "stop"] if chance.random() < 0.2 else []
        if chance.random() < 0.2:
            flags += ["--max-steps", str(chance.randint(1, STEPS))]
        flags += _shards_on(chance, hosts)
        faults = [_fault_with_shards(chance, hosts, each) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
        more, drains = _with_drains(random.Random(f"drains of shards {seed}"), hosts, each, 0.8)
        flags, faults = [*flags, *more], [*faults, *drains]
        resumes = [_resume_with_shards(chance, protocol, hosts, each, more) for more in (chance.random() < 0.5, False)]
        all_faults = [*faults, *(fault for _, more in resumes for fault in more)]
        timeout = STRICT if any(seconds > 1.0 for *_, seconds in all_faults) else LENIENT
        flags += ["--host-timeout", str(timeout)]
        before = SMALL.format(elements=chance.choice([16, 32, 128]))
        script = _script_with_shards(chance, hosts * each)
        return cls(seed, tuple(flags), timeout, script, tuple(faults), tuple(resumes), before)

    @classmethod
    def in_groups(cls, seed: int) -> Schedule:
        """The seed's, of a run in which each worker owns a replica."""
        chance = random.Random(f"groups {seed}")
        protocols = sorted(name for name, spec in registry().items() if spec.in_groups)
        protocol = protocols[seed % len(protocols)]
        hosts, each = chance.choice([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)])
        flags = ["--emulate-hosts", str(hosts), "-n", str(each), "--threads", "1", "--report-waits", str(WAITS)]
        flags += ["-p", chance.choice([protocol, protocol + _parameters(chance, protocol)])]
        flags += ["--record", str(chance.choice([0, 1, 4])), "--checkpoint", chance.choice("0113")]
        flags += ["--start", "together"] if chance.random() < 0.2 else []
        flags += ["--on-loss", "stop"] if chance.random() < 0.2 else []
        flags += ["--max-steps", str(chance.randint(1, STEPS))] if chance.random() < 0.2 else []
        faults = [_fault_in_groups(chance, hosts, each) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
        more, drains = _with_drains(random.Random(f"drains of groups {seed}"), hosts, each, 0.4)
        flags, faults = [*flags, *more], [*faults, *drains]
        resumes = []
        for befalls in (chance.random() < 0.5, False):  # each worker goes on with its own replica
            where = chance.choice([("--emulate-hosts", str(hosts), "-n", str(each))] * 2 + [("-n", str(hosts * each))])
            alone = where[0] == "-n"
            where = ("--emulate-hosts", "1", *where) if alone else where
            resumes.append((where, (_fault_in_groups(chance, hosts, each),) if befalls and not alone else ()))
        all_faults = [*faults, *(fault for _, more in resumes for fault in more)]
        timeout = STRICT if any(seconds > 1.0 for *_, seconds in all_faults) else LENIENT
        flags += ["--host-timeout", str(timeout)]
        before = SMALL.format(elements=chance.choice([16, 32, 128]))
        script = _script_with_shards(chance, hosts * each)
        return cls(seed, tuple(flags), timeout, script, tuple(faults), tuple(resumes), before)


def _fault_in_groups(chance: random.Random, hosts: int, each: int) -> Fault:
    worker = chance.randrange(hosts * each)
    whats = ("kill itself", "kill itself", "stop itself") + (ON_AGENT if worker >= each else ())
    process, places, whats = chance.choice(
        [
            *[(f"worker {worker}", AVERAGERS, whats)] * 4,
            *[(f"node-{chance.randrange(1, hosts)}", AGENTS | FETCHES | REPLICAS, IN_AGENT)] * 4,
            *[("head", HEADS | FETCHES | GROUPS, IN_HEAD)] * 2,
        ]
    )
    if chance.random() < 0.2:
        return _fault(chance, hosts, each)
    place = chance.choice(list(places))
    seconds = chance.choice([0.1, 0.4, STRICT + 1.0])
    what = chance.choice(whats)
    return process, place, chance.randint(1, places[place]), what, seconds if what.startswith("stop") else 0.0


def _parameters(chance: random.Random, protocol: str) -> str:
    upper = chance.randint(1, 4)
    values: dict[str, dict[str, object]] = {
        "ssp": {"bound": chance.choice([0, 1, 4])},
        "dssp": {"lower": upper - 1, "upper": upper},
        "hsp": {
            "idle": chance.choice(["guarded", "always"]),
            "stale": chance.choice(["next", "accumulate", "discard"]),
        },
        "ps-plus": {
            "modulation": chance.choice(["off", "sqrt", "progress"]),
            "pull": chance.choice(["free", "after-push"]),
        },
        "ad-psgd": {"topology": "bipartite-complete"},
        "ripples": {"schedule": chance.choice(["static", "random"]), "group_size": chance.choice([2, 3])},
        "sync-switch": {
            "switch_at": chance.choice([0.3, 0.6]),
            "stragglers": chance.choice(["none", "greedy", "elastic"]),
        },
    }
    given = ",".join(f"{name}={value}" for name, value in values.get(protocol, {}).items())
    return f":{given}" if given else ""


def _fault(chance: random.Random, hosts: int, each: int) -> Fault:
    worker = chance.randrange(hosts * each)
    process, places, whats = chance.choice(
        [
            *[(f"worker {worker}", SCRIPTS, IN_SCRIPT + (ON_AGENT if worker >= each else ()))] * 4,
            (f"worker {worker}", SCRIPTS, ON_RUN),
            *[(f"node-{chance.randrange(1, hosts)}", AGENTS | FETCHES, IN_AGENT)] * 4,
            *[("head", HEADS | FETCHES, IN_HEAD)] * 2,
            ("store", COMMITS, IN_STORE),
        ]
    )
    place = chance.choice(list(places))
    seconds = chance.choice([0.1, 0.4, STRICT + 1.0])
    what = chance.choice(whats)
    return process, place, chance.randint(1, places[place]), what, seconds if what.startswith("stop") else 0.0


def _resume(chance: random.Random, protocol: str, hosts: int, each: int, befalls: bool) -> Resume:
    """On as many hosts, or on others. `befalls`: whether something does."""
    others = [(1, hosts * each)] if protocol == "ps-plus" else [(1, 2), (2, 1), (2, 2), (3, 1)]  # as many workers there
    hosts, each = chance.choice([(hosts, each), *others])
    flags = ("--emulate-hosts", str(hosts), "-n", str(each))
    return flags, (_fault(chance, hosts, each),) if befalls and hosts > 1 else ()


def _script(chance: random.Random, evaluates: bool) -> str:
    saves = "torch.save(model.state_dict(), __file__ + '.pt')"
    looks = ("pass", "pass", "model.state_dict()", "optimizer.state_dict()", saves)
    return SCRIPT.format(
        optimizer=chance.choice(
            [
                "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
                "torch.optim.AdamW(model.parameters(), lr=0.01)",
            ]
        ),
        samples=SAMPLES,
        epochs=EPOCHS,
        loaders=int(chance.random() < 0.15),
        evaluate="evaluate" if evaluates else "None",
        each_step=chance.choice(["pass", "paceline.log(loss=loss.item())", "model.state_dict()"]),
        each_epoch=chance.choice(looks),
        end=chance.choice(["", "paceline.finish()", "optimizer.state_dict()", "print('the end')"]),
        pause=chance.choice([0, 0.002, 0.01]),
        keep=chance.choice(["None", "{'scheduler': scheduler}"]),
        each=chance.choice([f"range({EPOCHS})", f"paceline.epochs({EPOCHS})"]),
        change=chance.choice(["", "", "torch.nn.init.constant_(model[0].weight, 0.25)"]),
    )


def _with_drains(chance: random.Random, hosts: int, each: int, often: float) -> tuple[list[str], list[Fault]]:
    """Flags that have to do with hosts that leave, and SIGTERM at one or two of them. `often`: how often there is any.

    A chance of its own, so that a seed's other faults are the same with and without.
    """
    flags = ["--drain", chance.choice([PATIENT, PATIENT, PATIENT, HASTY])]
    flags += ["--restart", str(chance.choice([1, 1, 2]))] if chance.random() < 0.3 else []
    if chance.random() >= often:
        return flags, []
    leave = chance.sample(range(1, hosts), min(hosts - 1, chance.choice([1, 1, 1, 2])))
    return flags, [_drain(chance, host, each) for host in leave]


def _drain(chance: random.Random, host: int, each: int) -> Fault:
    process, places, whom = chance.choice(
        [
            *[(f"worker {host * each + chance.randrange(each)}", SCRIPTS, "agent")] * 2,
            (f"node-{host}", AGENTS | FETCHES | RANGES, "itself"),
            (f"store of node-{host}", SHARES, "agent"),
        ]
    )
    place = chance.choice(list(places))
    return process, place, chance.randint(1, places[place]), f"{chance.choice(DRAINS)} {whom}", 0.0


def _shards_on(chance: random.Random, hosts: int) -> list[str]:
    names = chance.sample([f"node-{host}" for host in range(hosts)], chance.randint(1, hosts))
    return chance.choice([[], ["--shards-on", "all"], ["--shards-on", "all"], ["--shards-on", ",".join(names)]])


def _fault_with_shards(chance: random.Random, hosts: int, each: int) -> Fault:
    host = chance.randrange(hosts)
    whats = (*IN_STORE[:2], *IN_STORE) + ((*ON_AGENT, *ON_AGENT[:2]) if host else ())
    process, places, whats = chance.choice(
        [
            *[(f"store of node-{host}" if host else "store", SHARES, whats)] * 3,
            *[(f"node-{chance.randrange(1, hosts)}", AGENTS | FETCHES | RANGES, IN_AGENT)] * 3,
            ("head", HEADS | FETCHES | MAKERS, IN_HEAD),
        ]
    )
    if chance.random() < 0.4:
        return _fault(chance, hosts, each)
    place = chance.choice(list(places))
    seconds = chance.choice([0.1, 0.4, STRICT + 1.0])
    what = chance.choice(whats)
    return process, place, chance.randint(1, places[place]), what, seconds if what.startswith("stop") else 0.0


def _resume_with_shards(chance: random.Random, protocol: str, hosts: int, each: int, befalls: bool) -> Resume:
    others = [(1, hosts * each)] if protocol == "ps-plus" else [(1, 2), (2, 1), (2, 2), (3, 1)]  # as many workers there
    hosts, each = chance.choice([(hosts, each), *others])
    flags = ["--emulate-hosts", str(hosts), "-n", str(each)]
    if hosts == 1:
        return tuple(flags), ()
    flags += chance.choice([["--shards-on", "all"], ["--shards-on", "head"], ["--shards-on", "node-1"]])
    return tuple(flags), (_fault_with_shards(chance, hosts, each),) if befalls else ()


def _script_with_shards(chance: random.Random, workers: int) -> str:
    saves = "torch.save([model.state_dict(), optimizer.state_dict()], __file__ + f'.{paceline.worker()}.pt')"
    changes = "torch.nn.init.constant_(model.above.weight, 0.25)"
    loads = "optimizer.load_state_dict(optimizer.state_dict())"
    spoils = (chance.randrange(workers), chance.randint(1, 10)) if chance.random() < 0.08 else None
    some = ("pass", "pass", "model.state_dict()", "optimizer.state_dict()", saves)
    return SPREAD.format(
        optimizer=chance.choice(
            [
                "torch.optim.SGD(groups, lr=0.1, momentum=0.9)",
                "torch.optim.SGD(model.parameters(), lr=0.1)",
                "torch.optim.AdamW(groups, lr=0.01)",
                "torch.optim.AdamW(model.parameters(), lr=0.01)",
                "Own(groups, lr=0.05)" if chance.random() < 0.3 else "torch.optim.Adam(groups, lr=0.01, amsgrad=True)",
            ]
        ),
        low=chance.choice([0.05, 0.001]),
        samples=SAMPLES,
        epochs=EPOCHS,
        evaluate="evaluate" if chance.random() < 0.4 else "None",
        prior=chance.random() < 0.3,
        none=chance.random() < 0.5,
        spoils=spoils,
        each_step=chance.choice(["pass", "pass", "pass", "if batches % 7 == 0: optimizer.state_dict()"]),
        each_epoch=chance.choice(some),
        end=chance.choice(["", "paceline.finish()", "optimizer.state_dict()", "print('the end')"]),
        pause=chance.choice([0, 0.002, 0.01]),
        keep=chance.choice(["None", "{'scheduler': scheduler}"]),
        each=chance.choice([f"range({EPOCHS})", f"paceline.epochs({EPOCHS})"]),
        change=chance.choice(["", "", changes, f"{changes}; {loads}"]),
    )


def carry_out(schedule: Schedule, launch: Launch) -> list[str]:
    """Make the run, and go on with it, to its end. Return what has befallen it, and what no run may do, a line each."""
    process = launch.start(
        schedule.script, *schedule.flags, first=_first(schedule, schedule.flags, schedule.faults, launch)
    )
    run, befell = _ended(process, launch)
    said = broken_promises(schedule, run, befell, schedule.flags)
    everything = list(befell)
    for flags, faults in schedule.resumes:
        if said or run.code in (0, 4) or not list(whole(run.folder)):
            break
        first = _first(schedule, flags, faults, launch)
        run, befell = _ended(launch.start_resumed(run.folder, *flags, first=first), launch)
        everything += ["resumed", *befell]
        said = broken_promises(schedule, run, befell, flags)
    scripts_end = any(line.startswith("exit, ") for line in everything)  # which they don't in the replay
    killed = run.code == -signal.SIGKILL
    if not said and not killed and not scripts_end and _has_begun(run) and run.rows("SELECT 1 FROM facts LIMIT 1"):
        said = broken_replay(run, first=schedule.before)
    return [*everything, *(f"BROKEN: {line}" for line in said), *([run.err[-3000:]] * bool(said))]


def _first(schedule: Schedule, flags: Sequence[str], faults: Sequence[Fault], launch: Launch) -> str:
    """What the run's first process executes, so that this befalls a run with these flags."""
    each = int(flags[flags.index("-n") + 1])
    names = {"FAULTS": faults, "BEFELL": str(launch.tmp_path / "befell"), "EACH": each}
    return schedule.before + "".join(f"{name} = {value!r}\n" for name, value in names.items()) + FIRST


def _ended(process: Launcher, launch: Launch) -> tuple[Run, list[str]]:
    """Wait for the end. Return the run, and what has befallen it."""
    began, befell, over = time.monotonic(), launch.tmp_path / "befell", threading.Event()
    wakes = threading.Thread(target=_wake, args=(process.pid, befell, over))
    wakes.start()
    try:
        run = ended(process, IN_TIME)
    finally:
        over.set()
        wakes.join()
    launch.assert_nothing_left()
    lines = befell.read_text().splitlines() if befell.exists() else []
    befell.unlink(missing_ok=True)
    if time.monotonic() > began + 28.0 and re.search(ENDED_LATE, run.err):
        raise AssertionError(f"{lines}: scripts did not end:\n{run.err}")
    return run, lines


def _wake(launcher: int, befell: Path, over: threading.Event) -> None:
    """Wake a launcher that was stopped. What would do so may have ended with a host that has waited for it too long."""
    while not over.wait(0.2):
        if befell.exists() and "stop launcher" in befell.read_text() and not over.wait(STRICT + 1.5):
            with suppress(ProcessLookupError):
                os.kill(launcher, signal.SIGCONT)


def broken_promises(schedule: Schedule, run: Run, befell: list[str], flags: Sequence[str]) -> list[str]:
    """What the run did that no run may do, a line each. `flags` are those of its last segment."""
    said, asked_to_end = [], any("interrupt" in line or "terminate" in line for line in befell)
    if frames := OURS.findall(run.err):
        said.append(f"our frames are shown: {frames[0].strip()}")
    if "paceline bug" in run.err or "has waited" in run.err:
        said.append("a bug, or a wait")
    killed = run.code == -signal.SIGKILL
    if killed and not any("kill" in line and ("launcher" in line or "in head" in line) for line in befell):
        said.append("the launcher was killed by nobody that we know of")
    if not killed and run.code not in CODES.values():
        said.append(f"exit code {run.code}")
    if killed or not (run.folder / "summary.json").exists():  # a run that was resumed has the summary before
        if not killed and not (asked_to_end and run.code == 130):
            said.append(f"no summary, exit code {run.code}")
        if _has_begun(run) and (wrong := checked(run.folder).wrong) is not None:
            said.append(f"check: {wrong}")
        return said
    said += broken_books(run)
    outcome, error = run.summary["outcome"], run.summary["error"]
    if outcome in ("failed", "interrupted") and list(whole(run.folder)) and f"--resume {run.folder}" not in run.err:
        said.append("it says not how it goes on")
    if outcome == "failed" and not error:
        said.append("it failed for no reason")
    if outcome == "interrupted" and not asked_to_end:
        said.append("it was interrupted by nobody")
    lenient = schedule.timeout == LENIENT and "--max-seconds" not in flags  # which may be over before training begins
    if HASTY in schedule.flags and any("drain" in line for line in befell):
        lenient = False  # a worker that has not ended its step by then is lost
    if run.code == 4 and schedule.before:
        return said  # its script has spoiled a gradient
    if not befell or (lenient and all(line.split(", ")[0] in HARMLESS for line in befell)):
        said += _unharmed(run, flags)
    return said


def _has_begun(run: Run) -> bool:
    """Whether the launcher came so far that its ledger says what the run is."""
    return (run.folder / "ledger.sqlite").exists() and bool(run.rows("SELECT 1 FROM run LIMIT 1"))


def _unharmed(run: Run, flags: Sequence[str]) -> list[str]:
    """What is wrong with a run whose last segment has come to no harm. It comes to its end as if nothing befell it."""
    said = []
    outcome, error = run.summary["outcome"], run.summary["error"]
    too_soon = error is not None and "before training began" in error  # --max-seconds
    if outcome != "completed" and not too_soon:
        said.append(f"nothing that does harm befell it, and it was {outcome}: {error}")
    began = "(SELECT max(id) FROM facts WHERE kind = 'TrainingBegan')"
    died = f"kind = 'WorkerLeft' AND json_extract(body, '$.reason') = 'died' AND id > {began}"
    if left := run.rows(f"SELECT body FROM facts WHERE {died}"):
        said.append(f"nothing that does harm befell it, and these died: {left}")
    ends_early = {"--max-steps", "--max-seconds", "--stop-at-target"} & set(flags)
    if outcome == "completed" and not ends_early and run.summary["samples"] != EPOCHS * SAMPLES:
        said.append(f"{run.summary['samples']} samples are applied, of {EPOCHS * SAMPLES}")
    return said
