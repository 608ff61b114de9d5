"""Runs on one host or several, and all that befalls them, drawn from a seed: the same seed, the same schedule."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.protocols import registry
from paceline.records.check import check
from paceline.records.reading import open_run
from paceline.records.snapshots import whole
from support.launch import Launch
from support.recorded import checked
from support.replays import broken_replay
from support.runs import Launcher, Run, ended

CODES = {"completed": 0, "failed": 3, "diverged": 4, "interrupted": 130}
OURS = re.compile(r'^\s*File ".*/paceline/(?!training/).*", line', re.MULTILINE)
"""A frame of ours in what is printed; `training` has frames between those of a script."""
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
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, num_workers={loaders})

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
import errno, os, posix, signal, socket, subprocess, sys, threading, time
import paceline
from paceline.coordinator import agent, emulated, host_registry, snapshots
from paceline.ipc import zygote
from paceline.net import tcp
from paceline.records import ledger, truncate
from paceline.store import process, store
from paceline.training import averages
from paceline.transfer import manager
from paceline.worker_process import worker

launcher, forks, who, seen, streams = os.getpid(), None, "head", {}, []
stores, full = "store", False

def is_now(name):
    # this process is that from now on: a fork has the counts of the process before
    global who
    who = name
    seen.clear()
    streams.clear()

def comes_to(place):
    seen[place] = seen.get(place, 0) + 1
    if full and place in ("fsync", "rename", "mkdir"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for process, where, nth, what, seconds in FAULTS:
        if (process, where, nth) == (who, place, seen[place]):
            with open(BEFELL, "a+") as file:
                file.seek(0)
                line = f"{what}, in {who} at {place} {nth}\\n"
                if line in file:
                    continue  # it was in an earlier life
                file.write(line)
            befall(what, seconds)

def befall(what, seconds):
    global full
    whom = {"launcher": launcher, "agent": os.getppid(), "zygote": forks, "itself": os.getpid()}.get(what.split()[-1])
    if what == "kill later":
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif what.startswith("kill"):
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
    elif what == "end":
        os._exit(0)
    elif what == "end with a code":
        os._exit(7)
    elif what.startswith("full disk"):
        full = what == "full disk"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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

def in_store(owner, name):
    real = getattr(owner, name)
    def call(*arguments, **keys):
        global who
        who = stores
        comes_to(name)
        return real(*arguments, **keys)
    setattr(owner, name, call)

def on_disk(name, path_of):
    real = getattr(os, name)
    def call(path, *more, **keys):
        if "/snapshots" in str(path_of(path)):
            comes_to(name)
        return real(path, *more, **keys)
    setattr(os, name, call)
    setattr(posix, name, call)  # which the store has again

paceline.comes_to = comes_to
worker.fork_store = fork_store
worker.work, zygote._serve, zygote.Zygote.__init__, emulated.agent = work, serve, begin, take_part
tcp.Stream.__init__ = open_stream
ledger.GATHER, snapshots.LOOK_AGAIN = 0.005, 0.002  # short runs have time for many snapshots
in_store(process._Recorder, "share")
for name in ("commit", "keep", "restore"):
    in_store(store.Store, name)
on_disk("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
on_disk("rename", str)
on_disk("mkdir", str)
for name in ("_write_aside", "_take_away", "_move_versions"):
    around(truncate, name, lambda *arguments: "cut")
around(ledger.Ledger, "_write_batch", lambda self: "ledger")
around(agent._Agent, "delivered", lambda self, message: type(message).__name__)
around(host_registry.HostRegistry, "delivered", lambda self, host, incarnation, message: type(message).__name__)
around(manager.TransferManager, "fetch", lambda self, *arguments: "fetch")
around(averages.AreaAverages, "share", lambda self, *arguments: "average")
"""
"""What the run's first process executes before anything else. So it is in all processes, and not in the script. A fault
befalls a worker in one of its lives only."""
SMALL = """
from paceline.store import chunks as parts
parts.CHUNK = {elements}
"""
"""The same, of a replay too: how long a piece is. So a small model has several."""

HARMLESS = (
    *("cut control", "cut data", "kill zygote", "stop itself", "stop agent", "stop launcher"),
    *("drain itself", "drain agent", "full disk", "full disk once"),
)
"""What changes nothing of what a run comes to, if nobody is stopped for long."""
IN_SCRIPT = ("kill itself", "kill itself", "kill itself", "stop itself", "raise", "exit", "exit with a code")
ALONE = (*IN_SCRIPT, "kill later", "kill later", "end", "end with a code")
ON_AGENT = ("kill agent", "kill agent", "stop agent", "stop agent")
ON_RUN = ("kill zygote", "kill launcher", "stop launcher", "interrupt", "interrupt twice", "terminate again")
CUTS = ("cut control", "cut control", "cut data", "cut data")
IN_AGENT = (*CUTS, "kill itself", "kill itself", "stop itself", "kill zygote")
IN_HEAD = (*CUTS, "kill itself", "stop itself", "interrupt", "terminate")
DRAINS = ("drain", "drain", "drain", "drain", "drain", "drain and drain")
"""SIGTERM at an agent, or two."""
IN_STORE = ("kill itself", "stop itself", "kill launcher", "interrupt", "terminate")
FULL = ("full disk", "full disk once", "kill launcher")

SCRIPTS = {"begin": 1, "prepare": 1, "batch": 12, "step": 12, "stepped": 12, "epoch": 2, "evaluate": 2, "end": 1}
AGENTS = {
    "BeginScripts": 1,
    "Train": 1,
    "CarryOut": 30,
    "CarryOutReleases": 30,
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
DISK = {"keep": 6, "restore": 1, "fsync": 20, "rename": 6, "mkdir": 12}
BOOKS = {"ledger": 30, "cut": 6}
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

    kind: str
    seed: int
    flags: tuple[str, ...]
    timeout: float
    """Of hosts, in seconds."""
    script: str = field(repr=False)
    faults: tuple[Fault, ...]
    resumes: tuple[Resume, ...]
    """How it goes on if it ends before its work is done and has a snapshot. Nothing befalls the last one."""
    scenario: str
    """Workers that die and come back by a scenario; empty if none do."""
    spoils: bool
    """Whether a worker's script spoils a gradient."""
    before: str = field(repr=False)
    """What the run's first process executes before all that, and a replay's, too."""

    @classmethod
    def of(cls, kind: str, seed: int) -> Schedule:
        """The seed's: of `any` run on several hosts, of one whose versions several hosts make (`shards`), in which each
        worker owns a replica (`groups`), or of a run on one host (`alone`).
        """
        chance = random.Random(f"{kind} {seed}")
        specs = {name: "groups" if spec.groups else "any" for name, spec in registry().items()}
        protocols = sorted(
            name for name, of in specs.items() if kind == "alone" or (of == "groups") == (kind == "groups")
        )
        protocol = protocols[seed % len(protocols)]
        hosts, each = chance.choice([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)])
        if kind == "alone":
            hosts, each = 1, chance.randint(1, 4)
        flags = ["--threads", "1", "--report-waits", str(WAITS)]
        flags += ["-p", chance.choice([protocol, protocol + _parameters(chance, protocol)])]
        flags += ["--record", str(chance.choice([0, 1, 4])), "--checkpoint", chance.choice("0113")]
        flags += ["--start", "together"] if chance.random() < 0.2 else []
        on_loss = ["continue", "continue" if kind == "alone" else "stop"]  # the replay of one worker ends otherwise
        flags += ["--on-loss", chance.choice(on_loss)] if chance.random() < 0.5 else []
        flags += ["--tee", chance.choice(["all", "none"])] if chance.random() < 0.3 else []
        flags += ["--drain", chance.choice([PATIENT, PATIENT, PATIENT, HASTY])]
        flags += ["--restart", str(chance.randint(1, 3))] if chance.random() < (0.6 if kind == "alone" else 0.3) else []
        if chance.random() < 0.15:
            flags += ["--max-steps", str(chance.randint(1, STEPS))]
        elif chance.random() < 0.1:
            flags += ["--max-seconds", str(round(chance.uniform(0.1, 1.0), 2))]
        evaluates, targets = chance.random() < 0.4, False
        if kind in ("any", "alone"):
            flags += ["--shards", "static"] if chance.random() < 0.3 else []
            targets = evaluates and chance.random() < 0.5
            flags += ["--target", "loss<=1.0", "--stop-at-target"] if targets else []
        elif kind == "shards":
            names = chance.sample([f"node-{host}" for host in range(hosts)], chance.randint(1, hosts))
            flags += chance.choice(
                [[], ["--shards-on", "all"], ["--shards-on", "all"], ["--shards-on", ",".join(names)]]
            )
        faults = [_fault(chance, kind, hosts, each) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
        if chance.random() < (0.8 if kind == "shards" else 0.4):
            leave = chance.sample(range(1, hosts), min(hosts - 1, chance.choice([1, 1, 1, 2])))
            faults += [_drain(chance, host, each) for host in leave]
        scenario = _scenario(chance, each) if kind == "alone" and chance.random() < 0.3 else ""
        fixed = scenario or kind == "groups" or protocol == "ps-plus"  # as many workers go on
        resumes = [
            _resume(chance, kind, hosts, each, bool(fixed), befalls) for befalls in (chance.random() < 0.5, False)
        ]
        all_faults = [*faults, *(fault for _, more in resumes for fault in more)]
        timeout = STRICT if any(seconds > 1.0 for *_, seconds in all_faults) else LENIENT
        flags += ["--host-timeout", str(timeout)]
        spoils = kind in ("shards", "groups") and chance.random() < 0.08
        stays = not scenario and "--restart" not in flags  # one that comes back before the first step changes nothing
        script = _script(chance, hosts * each, evaluates, spoils, changes=stays)
        before = SMALL.format(elements=chance.choice([16, 32, 128, 1 << 20]))
        given = *_on(hosts, each), *flags
        return cls(kind, seed, given, timeout, script, tuple(faults), tuple(resumes), scenario, spoils, before)


def _on(hosts: int, each: int) -> tuple[str, ...]:
    return "--emulate-hosts", str(hosts), "-n", str(each)


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


def _fault(chance: random.Random, kind: str, hosts: int, each: int) -> Fault:
    worker, host = chance.randrange(hosts * each), chance.randrange(1, max(2, hosts))
    of_worker, on_agent = f"worker {worker}", ON_AGENT if worker >= each else ()
    makes = chance.randrange(hosts)
    of_store = f"store of node-{makes}" if makes else "store"
    anywhere = [
        *[(of_worker, SCRIPTS, IN_SCRIPT + on_agent)] * 4,
        (of_worker, SCRIPTS, ON_RUN),
        *[(f"node-{host}", AGENTS | FETCHES, IN_AGENT)] * 4,
        *[("head", HEADS | FETCHES, IN_HEAD)] * 2,
        ("store", COMMITS, IN_STORE),
    ]
    special = {
        "any": anywhere,
        "shards": [
            *[(of_store, SHARES, (*IN_STORE[:2], *IN_STORE, *(ON_AGENT if makes else ())))] * 3,
            *[(f"node-{host}", AGENTS | FETCHES | RANGES, IN_AGENT)] * 3,
            ("head", HEADS | FETCHES | MAKERS, IN_HEAD),
        ],
        "groups": [
            *[(of_worker, AVERAGERS, ("kill itself", "kill itself", "stop itself", *on_agent))] * 4,
            *[(f"node-{host}", AGENTS | FETCHES | REPLICAS, IN_AGENT)] * 4,
            *[("head", HEADS | FETCHES | GROUPS, IN_HEAD)] * 2,
        ],
        "alone": [
            *[(of_worker, SCRIPTS, ALONE)] * 4,
            (of_worker, SCRIPTS, ON_RUN),
            ("store", COMMITS | DISK, IN_STORE),
            *[("store", DISK, FULL)] * 2,
            ("head", BOOKS, ("kill itself",)),
        ],
    }[kind]
    process, places, whats = chance.choice(special if hosts == 1 or chance.random() < 0.7 else anywhere)
    place = chance.choice(list(places))
    what, seconds = chance.choice(whats), chance.choice([0.1, 0.4, STRICT + 1.0])
    lasts = what.startswith("stop") or what == "kill later"
    return process, place, chance.randint(1, places[place]), what, seconds if lasts else 0.0


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


def _resume(chance: random.Random, kind: str, hosts: int, each: int, fixed: bool, befalls: bool) -> Resume:
    """On as many hosts, or on others. `fixed`: with as many workers. `befalls`: whether something does."""
    others = [(1, hosts * each)] if fixed else [(1, 2), (2, 1), (2, 2), (3, 1)]
    hosts, each = chance.choice([(hosts, each), *others])
    flags = list(_on(hosts, each))
    if kind == "shards" and hosts > 1:
        flags += chance.choice([["--shards-on", "all"], ["--shards-on", "head"], ["--shards-on", "node-1"]])
    kind = "alone" if hosts == 1 else "any" if kind == "alone" else kind
    return tuple(flags), (_fault(chance, kind, hosts, each),) if befalls else ()


def _scenario(chance: random.Random, workers: int) -> str:
    text = [f"[cluster]\nworkers = {workers}\ncompute = '{chance.choice([2, 5, 10])}ms'\n"]
    for worker in chance.sample(range(workers), chance.randint(1, workers)):
        when = chance.choice([f"at_step = {chance.randint(0, 25)}", f"at = '{chance.randint(10, 1200)}ms'"])
        after = chance.choice([0, 1, 20, 100, 400, 10_000, None])
        text.append(f"[[event]]\nworker = {worker}\n{when}\nkill = true\n")
        text.append("" if after is None else f"rejoin_after = '{after}ms'\n")
    return "".join(text)


def _script(chance: random.Random, workers: int, evaluates: bool, spoils: bool, changes: bool) -> str:
    saves = "torch.save([model.state_dict(), optimizer.state_dict()], __file__ + f'.{paceline.worker()}.pt')"
    change = "torch.nn.init.constant_(model.above.weight, 0.25)"
    loads = "optimizer.load_state_dict(optimizer.state_dict())"
    return SCRIPT.format(
        optimizer=chance.choice(
            [
                "torch.optim.SGD(groups, lr=0.1, momentum=0.9)",
                "torch.optim.SGD(model.parameters(), lr=0.1)",
                "torch.optim.AdamW(groups, lr=0.01)",
                "torch.optim.Adam(groups, lr=0.01, amsgrad=True)",
                "Own(groups, lr=0.05)",
            ]
        ),
        low=chance.choice([0.05, 0.001]),
        samples=SAMPLES,
        epochs=EPOCHS,
        loaders=int(chance.random() < 0.1),
        evaluate="evaluate" if evaluates else "None",
        prior=chance.random() < 0.3,
        none=chance.random() < 0.5,
        spoils=(chance.randrange(workers), chance.randint(1, 10)) if spoils else None,
        each_step=chance.choice(
            ["pass", "paceline.log(loss=loss.item())", "if batches % 7 == 0: optimizer.state_dict()"]
        ),
        each_epoch=chance.choice(["pass", "pass", "model.state_dict()", "optimizer.state_dict()", saves]),
        end=chance.choice(["", "paceline.finish()", "optimizer.state_dict()", "print('the end')"]),
        pause=chance.choice([0, 0.002, 0.01]),
        keep=chance.choice(["None", "{'scheduler': scheduler}"]),
        each=chance.choice([f"range({EPOCHS})", f"paceline.epochs({EPOCHS})"]),
        change=chance.choice(["", "", change, f"{change}; {loads}"] if changes else [""]),
    )


def carry_out(schedule: Schedule, launch: Launch) -> list[str]:
    """Make the run, and go on with it, to its end. Return what has befallen it, and what no run may do, a line each."""
    flags = schedule.flags
    if schedule.scenario:
        file = launch.tmp_path / "scenario.toml"
        file.write_text(schedule.scenario)
        flags = (*flags, "--scenario", str(file))
    first = _first(schedule, flags, schedule.faults, launch)
    run, befell = _ended(launch.start(schedule.script, *flags, first=first), launch)
    said = broken_promises(schedule, run, befell, schedule.flags)
    everything = list(befell)
    for flags, faults in schedule.resumes:
        if said or run.code in (0, 4) or not list(whole(run.folder)):
            break
        first = _first(schedule, flags, faults, launch)
        run, befell = _ended(launch.start_resumed(run.folder, *flags, first=first), launch)
        everything += ["resumed", *befell]
        said = broken_promises(schedule, run, befell, flags)
    scripts_end = any(line.startswith(("exit, ", "end, ")) for line in everything)  # which they don't in the replay
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
    if (run.code == 4 and schedule.spoils) or schedule.scenario:
        return said
    if not befell or (lenient and all(line.split(", ")[0] in HARMLESS for line in befell)):
        said += _unharmed(run, flags)
    return said


def broken_books(run: Run) -> list[str]:
    """What is wrong with how the run ended and with what it wrote, a line each. It has a summary."""
    said = []
    if run.code != CODES.get(run.summary["outcome"]):
        said.append(f"exit code {run.code} of a run that was {run.summary['outcome']}")
    recorded = open_run(Path(run.folder), registry())
    with closing(recorded.ledger):
        if (wrong := check(recorded).wrong) is not None:
            said.append(f"check: {wrong}")
    query = "SELECT count(*), count(DISTINCT epoch || ' ' || sample) FROM applied_samples"
    ((applied, different),) = run.rows(query)
    if applied != different:
        said.append(f"{applied - different} samples are applied more than once")
    if run.summary["samples"] != applied:
        said.append(f"{applied} samples are applied, and the summary says {run.summary['samples']}")
    opened = run.rows("SELECT coalesce(sum(samples), 0) FROM epochs")[0][0]
    used = run.summary["samples"] + run.summary["samples_missed"]
    if used > opened:
        said.append(f"{used} samples are applied or missed, of {opened}")
    if left := [path.name for path in (run.folder / "versions").iterdir() if path.suffix != ".safetensors"]:
        said.append(f"left in versions/: {left}")
    if run.code == 0 and (left := [path.name for path in run.folder.rglob("*") if path.suffix == ".part"]):
        said.append(f"left: {left}")
    return said


def _has_begun(run: Run) -> bool:
    """Whether the launcher came so far that its ledger says what the run is."""
    return (run.folder / "ledger.sqlite").exists() and bool(run.rows("SELECT 1 FROM run LIMIT 1"))


def _unharmed(run: Run, flags: Sequence[str]) -> list[str]:
    """What is wrong with a run whose last segment has come to no harm. It comes to its end as if nothing befell it."""
    said = []
    outcome, error = run.summary["outcome"], run.summary["error"]
    too_soon = error is not None and "training had not begun" in error  # --max-seconds
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
