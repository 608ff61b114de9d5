"""What a head bears: its processor time, and how long steps wait for it, by the number of hosts and workers.

    python benchmarks/scale.py --json scale.json --markdown      # as root; about half an hour
    python benchmarks/scale.py --quick
    python benchmarks/scale.py --limit --markdown                # steps of no length: how much a head can do
    python benchmarks/scale.py --real --hosts 8 --markdown       # every worker a process with torch
    python benchmarks/scale.py --simulate 600 --markdown         # to 1,000 hosts, if the head takes 600 µs for a step

The head is a real one, with workers of its own, a store, a ledger, and a process that moves data. Each other host is a
real agent, which joins over loopback with TLS, as a machine does. Its workers are *stand-ins* unless `--real` is given:
they say to the agent what a worker says, wait in place of computing, and push a gradient of zeros. They need no process
and no torch. The agents of all hosts share one process, since 64 that take turns on a few cores would mostly wait for
each other. With `--real`, each agent and each worker has a process of its own.

Steps take `--step` seconds, a tenth more or less. A worker asks the head for a batch, computes, pushes its gradient,
and waits for its next release. What it waits for the head is then: from its question to the batch, and from its push to
the release with the version in place. Under bsp the release counts from the last push of all workers.

    head        processor time of the head's process, in cores: coordinator, agent, ledger
    data        of the process that moves data on the head
    machine     of everything, as a share of all cores: above 90 % waits are the machine's, not the head's
    facts/s     what the machine of the protocol was told, and what is in the ledger
    told        head delay: from the arrival of the message that frees a worker to the sending of its permission
    wait        for a release; *batch*: for a batch

All hosts share the cores. Run as root, the head goes before the other hosts, as if it had a core of its own, and all of
them before what else runs.

A simulation has the head tell one worker after another, each in that time, when the worker's release is ordered. It
has no cores, links or stores.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

from step import Failed, machine, print_table

from paceline.coordinator.agent import _Agent, agent
from paceline.coordinator.emulated import ForkedAgent
from paceline.coordinator.rendezvous import AgentProcess, Listen
from paceline.core.choice import choose
from paceline.core.drive import drive
from paceline.core.facts import Fact
from paceline.core.machine import Machine
from paceline.core.orders import Order, Release
from paceline.core.placement import HEAD as ON_HEAD
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region
from paceline.ipc.processes import allow_descriptors, end_in_time, fork_child
from paceline.job.interrupts import Interrupts
from paceline.job.received_folder import ReceivedFolder
from paceline.job.settings import Settings
from paceline.net.handshake import Keys
from paceline.net.link import HeadLink
from paceline.net.tcp import Address
from paceline.net.token import Token
from paceline.protocols import registry
from paceline.scenario.scenario import HostTable, Scenario
from paceline.sim.costs import ScenarioCosts
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from paceline.transfer.movers import InLoop

WORKLOAD = Path(__file__).parent / "workloads" / "small.py"
HEAD = "head"
JITTER = 0.1
FIRST, NEXT = -15, -10
"""The priorities of the head and of the other hosts."""
WARMUP, QUICK_WARMUP = 5.0, 2.0
"""Seconds of training that are not counted."""
SEEN_EVERY = 0.25
"""Seconds between two looks at processor times."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured."""

    protocol: str
    hosts: int
    """The head's included."""
    workers: int
    """Of each host; in a run to the limit the head has one."""
    step: float
    """Seconds."""
    seconds: float
    """How long it is measured."""
    warmup: float
    real: bool
    processes: int
    """That the other hosts' agents share."""
    repeat: int

    @property
    def own(self) -> int:
        """The head's workers."""
        return self.workers if self.step or self.hosts == 1 else 1

    @property
    def everywhere(self) -> int:
        """The workers of all hosts."""
        return self.own + (self.hosts - 1) * self.workers


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of it. Times in seconds, processor time in cores."""

    setup: Setup
    steps: float
    """Each second."""
    facts: float
    """Each second."""
    head: float
    data: float
    machine: float
    """A share of all cores."""
    tells: list[float]
    """The head's own part of a wait for a release: the median, the 95th and the 99th percentile, and the longest."""
    waits: list[float]
    """For a release, alike."""
    batches: list[float]
    """For a batch, alike."""


# --- workers that stand in --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Script:
    """What the workload's worker brings, and the order of its batches."""

    offered: messages.worker.Offered
    drawn: messages.worker.OrderDrawn
    flags: tuple[int, int]
    """Where a push area says which parameters have a gradient, and how many there are."""


def script(batches: int, seed: int) -> Script:
    """What `workloads/small.py` comes to, with so many batches of one sample each."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from paceline.store.chunks import cuts_of
    from paceline.store.store import scalars_of
    from paceline.training.data.orders import Orders
    from paceline.training.layout import Layout

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    layout = Layout.of(model, optimizer)
    loader = DataLoader(TensorDataset(torch.empty(batches, 1)), batch_size=1, shuffle=True)
    block = Orders(loader.batch_sampler, seed).block(0, 0)
    offered = messages.worker.Offered(
        forms=layout.forms,
        fixed_bytes=layout.fixed_bytes,
        slot_bytes=layout.slot_bytes,
        push_bytes=layout.push_bytes,
        flags_bytes=len(layout.moving),
        buffers_bytes=layout.buffers_bytes,
        cuts=cuts_of(layout, optimizer),
        state_bytes=0,
        model_bytes=sum(entry.count * entry.dtype.itemsize for entry in layout.moving),
        optimizer="SGD",
        scalars=scalars_of(optimizer),
        loads=True,
        epoch_samples=None,
        data=batches,
        streams=False,
        epochs=1,
        buffers=None,
        shards=None,
        evaluates=False,
        keeps=False,
        metrics=None,
        code={},
    )
    drawn = messages.worker.OrderDrawn(0, 0, block.digest, block.order, block.last, batches)
    return Script(offered, drawn, (layout.flags_offset, len(layout.moving)))


@dataclass(slots=True)
class _StandIn:
    """One worker."""

    worker: int
    step: int = 0
    version: int = 0
    asked: float = 0.0
    """When it asked for its batch."""
    sent: float | None = None
    """When it pushed its last gradient."""
    released: float = 0.0
    """When it was last told to compute."""
    waited: float = 0.0
    """For its batch."""
    over: bool = False
    steps: list[tuple[int, float, float, float]] = field(default_factory=list)
    """See `StandIns.steps`."""


class StandIns:
    """The workers of a host, in its agent's process. See `host.workers.Workers`, whose place they take."""

    def __init__(self, loop: Loop, settings: Settings, script: Script) -> None:
        self._loop = loop
        self._settings = settings
        self._script = script
        self._crew: dict[int, _StandIn] = {}
        self._hear: Callable[..., None]
        self._gone: Callable[[int, int], None]
        self._region: Region | None = None
        self._slots = 0
        self._flagged: set[int] = set()
        self._began = 0.0

    @property
    def numbers(self) -> list[int]:
        return list(self._crew)

    @property
    def steps(self) -> dict[int, list[tuple[int, float, float, float]]]:
        """By worker, of each step that was released after another one: its version, when the one before was pushed,
        when it was released, and how long its batch was waited for."""
        return {one.worker: one.steps for one in self._crew.values()}

    def start(self, workers: Sequence[int]) -> None:
        self._crew.update((worker, _StandIn(worker)) for worker in workers)

    def open(self, hear: Callable[..., None], gone: Callable[[int, int], None]) -> None:
        self._hear, self._gone = hear, gone

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        one, now = self._crew[worker], time.monotonic()
        match message:
            case messages.worker.Start():
                self._says(one, self._script.offered)
            case messages.worker.Begin(slots=slots, at=at):
                self._slots, self._began = slots, now - at
                self._region = self._region or Region.attach(os.dup(descriptors[0]))
            case messages.worker.Compute(step=step, version=version, area=area):
                if one.sent is not None:
                    one.steps.append((version, one.sent, now, one.waited))
                one.step, one.version, one.released, one.asked = step, version, now, now
                self._flag(area)
                self._ask(one)
            case messages.worker.OrderWanted():
                self._says(one, self._script.drawn)
                self._ask(one)
            case messages.worker.Leased(epoch=epoch, index=index):
                one.waited = now - one.asked
                started = now - self._began
                scenario, seed = self._settings.scenario, self._settings.seed
                seconds = scenario.step_seconds(worker, one.step, started, 0.0, seed)
                if one.sent is None:  # they all begin at once, and are not to stay in step
                    seconds *= random.random()
                self._loop.after(seconds, lambda: self._finish(one, (epoch, index)))
            case messages.worker.EpochOver() | messages.worker.StopTraining():
                if not one.over:
                    one.over = True
                    self._says(one, messages.worker.ScriptEnded())
            case messages.worker.Exit():
                self._loop.after(0.0, lambda: self._gone(worker, 0))

    def end(self, worker: int) -> None:
        self._loop.after(0.0, lambda: self._gone(worker, signal.SIGKILL))

    def give_up(self, worker: int, why: str) -> None:
        raise SystemExit(f"worker {worker}: {why}")

    def read_on(self) -> None: ...

    def end_all(self) -> None: ...

    def await_all(self) -> None: ...

    def _says(self, one: _StandIn, message: messages.Message) -> None:
        """Say that in a turn of its own, as a process does."""
        self._loop.after(0.0, lambda: self._hear(one.worker, message, []))

    def _ask(self, one: _StandIn) -> None:
        self._says(one, messages.worker.LeaseWanted(0, 1, self._script.drawn.digest))

    def _finish(self, one: _StandIn, batch: tuple[int, int]) -> None:
        if one.over:
            return
        waited = one.released - (one.released if one.sent is None else one.sent)
        one.sent = time.monotonic()
        done = messages.worker.StepFinished(
            step=one.step,
            version=one.version,
            batches=[batch],
            skipped=[],
            scalars=None,
            began=one.released,
            compute=one.sent - one.released,
            push=0.0,
            other=0.0,
            waited=waited,
            pulled=0.0,
        )
        self._hear(one.worker, done, [])

    def _flag(self, area: int) -> None:
        """Say that every parameter has a gradient."""
        if area not in self._flagged:
            assert self._region is not None
            self._flagged.add(area)
            offset, count = self._script.flags
            offered = self._script.offered
            start = self._slots * offered.slot_bytes + area * offered.push_bytes + offset
            self._region.memory[start : start + count] = b"\1" * count


def stand_in_hosts(
    names: Sequence[str], workers: int, address: Address, token: Token, script: Script, folder: Path
) -> int:
    """An agent for each of these hosts, and its workers beside it, until the run is over."""
    keys, loop = Keys.encrypted(token), Loop()
    crews: dict[str, StandIns] = {}

    def agent_of(name: str) -> _Agent:
        def company(settings: Settings, *_: object) -> Any:
            crews[name] = StandIns(loop, settings, script)
            return crews[name]

        return _Agent(
            name, workers, address, keys, company, ReceivedFolder(folder / name), loop, InLoop(loop, keys, _show)
        )

    agents = {name: agent_of(name) for name in names}
    gc.disable()  # what takes its time is not the hosts
    while any(one.over is None for one in agents.values()):
        loop.wait()
    for name, one in agents.items():
        one.end_workers()
        one.close()
        if one.over is None or one.over.outcome != "interrupted":
            _show(f"host {name}: {one.over}")
        (folder / f"{name}.json").write_text(json.dumps(crews[name].steps if name in crews else {}))
    return 0


def _show(line: str) -> None:
    print(line, file=sys.stderr)


# --- the head ---------------------------------------------------------------------------------------


class Tells:
    """Notes when the head hears of what releases follow from, and when they have been written for other hosts."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, float]] = []
        """By release: when it was written and its fact was handled, in this process's clock, and the fact's time."""
        self._handled, self._at = 0.0, 0.0
        self._ordered: list[tuple[float, float]] = []

    def drive(
        self,
        machine: Machine,
        facts: Iterable[Fact],
        carry_out: Callable[[Order], None],
        record: Callable[[Fact, tuple[Order, ...]], None],
    ) -> None:
        """See `core.drive`."""

        def noted() -> Iterator[Fact]:
            for fact in facts:
                self._handled, self._at = time.monotonic(), fact.at
                yield fact

        def carried_out(order: Order) -> None:
            carry_out(order)
            if isinstance(order, Release):
                self._ordered.append((self._handled, self._at))

        drive(machine, noted(), carried_out, record)

    def written(self, write: Callable[[HeadLink], None], link: HeadLink) -> None:
        """All that was ordered is on its way then."""
        write(link)
        now = time.monotonic()
        self.seen += [(now, *ordered) for ordered in self._ordered]
        self._ordered.clear()


def head(setup: Setup, folder: Path) -> int:
    """Make the run in this process."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        Path("/proc/self/autogroup").write_text(str(FIRST))  # of all of them: priorities count within a session
    allow_descriptors(4096, setup.everywhere)
    interrupts, seed = Interrupts(), 0
    rate = setup.everywhere / setup.step if setup.step else 1500.0
    steps = int(rate * (setup.warmup + setup.seconds + 1.0))
    scenario = Scenario(compute=setup.step or None, jitter=JITTER if setup.step else 0.0)
    settings = Settings(
        script=WORKLOAD,
        source=WORKLOAD.read_bytes(),
        arguments=("--samples", str(2 * steps), "--batch", "1"),
        choice=choose(setup.protocol, registry()),
        workers=setup.own,
        scenario=scenario,
        seed=seed,
        threads=1,
        folder=folder / "run",
        shards=None,
        epochs=None,
        record=0,
        targets=(),
        on_loss="stop",
        on_divergence="stop",
        tee="none",
        max_steps=None,
        max_seconds=None,
        report_waits=60.0,
        json=False,
        quiet=True,
        checkpoint=0,
        hosts=setup.hosts,
        shards_on=ON_HEAD,  # with shards on all, 2,016 pairs of hosts would be connected on this machine
        host_timeout=60.0,
    )

    def with_hosts(tables: tuple[HostTable, ...], room: int | None) -> Scenario:
        return replace(scenario, nodes=len(tables), host_tables=tables).checked_for(tables[-1].workers.stop)

    @contextmanager
    def launch(address: Address, token: Token) -> Iterator[Mapping[str, AgentProcess]]:
        told = None if setup.real else script(2 * steps, seed)
        gc.freeze()

        def body(names: Sequence[str]) -> int:
            interrupts.let_go()
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, NEXT)
            if told is not None:
                return stand_in_hosts(names, setup.workers, address, token, told, folder)
            (name,) = names
            agent(name, setup.workers, address, Keys.encrypted(token))
            return 0

        names = [f"host-{number:02}" for number in range(1, setup.hosts)]
        several = min(setup.processes, len(names))
        together = [names[first::several] for first in range(several)] if told is not None else [[one] for one in names]
        processes = {fork_child(partial(body, tuple(some))): some for some in together}
        try:
            yield {name: ForkedAgent(name, process, quiet=True) for process, some in processes.items() for name in some}
        finally:
            for process in processes:
                end_in_time(process)

    listening = None
    if setup.hosts > 1:
        listening = Listen(
            address=("127.0.0.1", 0),
            name=HEAD,
            trusted=False,
            threads=1,
            scenario=with_hosts,
            least=setup.hosts,
            room=None,
            launch=launch,
        )
    from paceline.coordinator import run

    tells, write = Tells(), HeadLink._write
    with (
        patch.object(run, "drive", tells.drive),
        patch.object(HeadLink, "_write", lambda link: tells.written(write, link)),
    ):
        summary = run.run(settings, interrupts, listening=listening)
    (folder / "tells.json").write_text(json.dumps(tells.seen))
    return 0 if summary["outcome"] == "interrupted" else 1


# --- measuring --------------------------------------------------------------------------------------


class Watch(Thread):
    """Looks at processor times while a run goes on."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._over = Event()
        self.seen: list[tuple[float, float, float, float]] = []
        """When, and by then: seconds of the head, of its process that moves data, and of all processes."""

    def run(self) -> None:
        mover = None
        while not self._over.wait(SEEN_EVERY):
            mover = mover or _child(self._process, "paceline-data")
            with suppress(OSError, TypeError):
                head, data = _cpu(self._process), 0.0 if mover is None else _cpu(mover)
                self.seen.append((time.monotonic(), head, data, _busy()))

    def stop(self) -> None:
        self._over.set()
        self.join()

    def between(self, begin: float, end: float) -> tuple[float, float, float]:
        """Processor time in that time: cores of the head, of its process that moves data, and of all processes."""
        seen = [one for one in self.seen if begin <= one[0] <= end]
        if len(seen) < 2:
            raise Failed("nothing was seen of the processes")
        first, last = seen[0], seen[-1]
        took = last[0] - first[0]
        head, data, busy = ((after - before) / took for before, after in zip(first[1:], last[1:], strict=True))
        return head, data, busy


TICK = os.sysconf("SC_CLK_TCK")


def _cpu(process: int) -> float:
    columns = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / TICK


def _busy() -> float:
    """Seconds that the cores have worked, by now."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split(maxsplit=10)[1:10])
    return (user + nice + system + irq + soft) / TICK


def _child(process: int, name: str) -> int | None:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            before, _, after = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            if before.endswith(f"({name}") and int(after.split()[1]) == process:
                return int(entry)
    return None


def measure(setup: Setup, timeout: float, profile: Path | None = None) -> Measurement:
    """Make one run. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="paceline-scale-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        command = [sys.executable, __file__, "--one", json.dumps(asdict(setup)), str(folder)]
        if profile is not None:
            command += ["--profile", str(profile)]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        watch = Watch(process.pid)
        watch.start()
        try:
            began = _training_began(folder / "run" / "ledger.sqlite", process, timeout)
            time.sleep(setup.warmup)
            begin = time.monotonic()
            time.sleep(setup.seconds)
            end = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout)
        except (Failed, subprocess.TimeoutExpired) as error:
            said = (folder / "output").read_text(errors="replace").strip().splitlines()[-8:]
            raise Failed("\n    ".join([str(error), *said])) from None
        finally:
            watch.stop()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            said = (folder / "output").read_text(errors="replace").strip().splitlines()[-8:]
            raise Failed("\n    ".join([f"exit code {process.returncode}", *said]))
        first, last = begin - began, end - began
        with closing(sqlite3.connect(folder / "run" / "ledger.sqlite")) as database:
            within = "at BETWEEN ? AND ?"
            facts = _one(database, f"SELECT count(*) FROM facts WHERE {within}", first, last)
            ready = f"SELECT count(*) FROM facts WHERE kind = 'GradientReady' AND {within}"
            steps = _one(database, ready, first, last)
        waits, batches = _waits(folder, begin, end, rounds=setup.protocol.startswith("bsp"))
        if not steps:
            raise Failed("no step was made")
        head, data, busy = watch.between(begin, end)
        return Measurement(
            setup=setup,
            steps=steps / setup.seconds,
            facts=facts / setup.seconds,
            head=head,
            data=data,
            machine=busy / len(os.sched_getaffinity(0)),
            tells=_spread(_tells(folder, begin, end)),
            waits=_spread(waits),
            batches=_spread(batches),
        )


def _training_began(ledger: Path, process: subprocess.Popen[bytes], timeout: float) -> float:
    """Wait until training begins. Return that moment: the run's time counts from it."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if process.poll() is not None:
            raise Failed(f"it ended before training began, with exit code {process.returncode}")
        with suppress(sqlite3.Error):
            if ledger.exists():
                with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
                    if latest := _one(database, "SELECT max(at) FROM facts"):
                        return time.monotonic() - float(latest)
        time.sleep(0.2)
    raise Failed(f"training had not begun after {timeout:g} s")


def _one(database: sqlite3.Connection, query: str, *values: float) -> Any:
    (found,) = database.execute(query, values).fetchone()
    return found


def _waits(folder: Path, begin: float, end: float, rounds: bool) -> tuple[list[float], list[float]]:
    """What stand-ins waited for releases, and for batches."""
    steps = [
        step for file in folder.glob("host-*.json") for told in json.loads(file.read_text()).values() for step in told
    ]
    steps = [step for step in steps if begin <= step[1] and step[2] <= end]
    last: dict[int, float] = {}
    for version, sent, _, _ in steps:
        last[version] = max(sent, last.get(version, 0.0))
    waits = [released - (last[version] if rounds else sent) for version, sent, released, _ in steps]
    return waits, [batch for *_, batch in steps]


def _tells(folder: Path, begin: float, end: float) -> list[float]:
    """How long the head took to tell of releases, of those that it wrote in that time."""
    seen = json.loads((folder / "tells.json").read_text())
    began = min((handled - at for _, handled, at in seen), default=0.0)  # some fact is handled at once
    return [written - began - at for written, _, at in seen if begin <= written <= end]


def _spread(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    ordered = sorted(values)
    return [median(ordered), *(ordered[int(len(ordered) * share)] for share in (0.95, 0.99)), ordered[-1]]


def rows_of(measurements: Sequence[Measurement]) -> list[list[str]]:
    """One row for each setup: medians over the repeats."""
    rows = [["protocol", "hosts", "workers", "steps/s", "facts/s", "head, cores", "min–max", "data, cores", "machine"]]
    rows[0] += ["told, ms", "longest", "wait, ms", "95th", "99th", "longest", "batch, ms", "99th"]
    for key in dict.fromkeys(replace(one.setup, repeat=0) for one in measurements):
        same = [one for one in measurements if replace(one.setup, repeat=0) == key]
        heads = [one.head for one in same]
        rows.append(
            [
                key.protocol,
                str(key.hosts),
                str(key.everywhere),
                f"{median(one.steps for one in same):.0f}",
                f"{median(one.facts for one in same):,.0f}",
                f"{median(heads):.2f}",
                f"{min(heads):.2f}–{max(heads):.2f}",
                f"{median(one.data for one in same):.2f}",
                f"{median(one.machine for one in same):.0%}",
                *(_middle([one.tells[place] for one in same if one.tells]) for place in (0, 3)),
                *(_middle([one.waits[place] for one in same if one.waits]) for place in range(4)),
                *(_middle([one.batches[place] for one in same if one.batches]) for place in (0, 2)),
            ]
        )
    return rows


# --- simulations ------------------------------------------------------------------------------------


class HeadCosts(ScenarioCosts):
    """Steps as the scenario has them, and a head that takes so long for each."""

    def __init__(self, scenario: Scenario, workers: int, seed: int, told: float) -> None:
        super().__init__(scenario, workers, seed)
        self._told = told
        self.steps: dict[int, list[tuple[int, float, float]]] = {}
        """By worker: its steps, each with its number, and when it began and ended."""

    def release(self, worker: int, step: int) -> float:
        return self._told

    def compute(self, worker: int, step: int, at: float) -> float:
        seconds = super().compute(worker, step, at)
        if step == 0:  # they all begin at once, and are not to stay in step
            seconds *= random.random()
        self.steps.setdefault(worker, []).append((step, at, at + seconds))
        return seconds


def simulated(protocol: str, hosts: int, workers: int, step: float, told: float, seconds: float) -> list[str]:
    """One row: a run of so many hosts in virtual time."""
    everywhere, warmup = hosts * workers, seconds / 3
    scenario = Scenario(compute=step, jitter=JITTER)
    costs, choice = HeadCosts(scenario, everywhere, 0, told), choose(protocol, registry())
    began = time.process_time()
    simulate(
        Simulation(
            choice=choice, scenario=scenario, workers=everywhere, limit=Limit(seconds=warmup + seconds), costs=costs
        )
    )
    took = time.process_time() - began
    last: dict[int, float] = {}
    if protocol.startswith("bsp"):
        for steps in costs.steps.values():
            for number, _, ended in steps:
                last[number] = max(ended, last.get(number, 0.0))
    waits = [
        after[1] - last.get(before[0], before[2])
        for steps in costs.steps.values()
        for before, after in pairwise(steps)
        if after[1] >= warmup
    ]
    rows = [protocol, f"{hosts:,}", f"{everywhere:,}", f"{len(waits) / seconds:,.0f}"]
    rows += [f"{min(1.0, told * len(waits) / seconds):.2f}"]
    return [*rows, *(f"{one * 1000:,.1f}" for one in _spread(waits)), f"{took:.1f}"]


SIMULATED = 8, 64, 125, 250, 500, 1000
HEADINGS = ["protocol", "hosts", "workers", "steps/s", "head, cores", "wait, ms", "95th", "99th", "longest", "took, s"]


def _middle(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1000:.1f}" if seconds else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", default=("asp", "bsp"), metavar="P", help="default: asp and bsp")
    parser.add_argument("--hosts", nargs="+", type=int, metavar="H", help="default: 2, 8, 16, 32 and 64")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="of each host (default: 8)")
    parser.add_argument("--step", type=float, default=1.0, metavar="S", help="seconds of a step (default: 1)")
    parser.add_argument("--limit", action="store_true", help="steps of no length")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long each run is measured (default: 20)")
    parser.add_argument("--repeats", type=int, help="rounds (default: 3; with --quick, 1)")
    parser.add_argument("--real", action="store_true", help="processes in place of stand-ins; waits are not measured")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="that agents share (default: 1)")
    parser.add_argument("--simulate", type=float, metavar="US", help="in virtual time, with so many µs for a step")
    parser.add_argument("--quick", action="store_true", help="few hosts, short, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="for a start or an end (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write what cProfile says of the head there")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        setup, folder = Setup(**json.loads(args.one[0])), Path(args.one[1])
        if args.profile is None:
            return head(setup, folder)
        import cProfile

        profile = cProfile.Profile(time.thread_time)
        code = profile.runcall(head, setup, folder)
        profile.dump_stats(args.profile)
        return code

    if args.processes < 1:
        parser.error("--processes is the number of processes that agents share: 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left behind
    about, measurements, failures = machine(), list[Measurement](), list[str]()
    repeats = args.repeats or (1 if args.quick else 3)
    seconds = args.seconds or (5.0 if args.quick else 20.0)
    if args.simulate is not None:
        sizes = args.hosts or ((8, 64) if args.quick else SIMULATED)
        many = [(protocol, hosts) for protocol in args.protocols for hosts in sizes]
        rows = [simulated(*one, args.workers, args.step, args.simulate / 1e6, seconds) for one in many]
        print_table([HEADINGS, *rows], args.markdown)
        return 0
    for repeat in range(repeats):
        for protocol in args.protocols:
            for hosts in args.hosts or ((2, 4) if args.quick else (2, 8, 16, 32, 64)):
                setup = Setup(
                    protocol=protocol,
                    hosts=hosts,
                    workers=args.workers,
                    step=0.0 if args.limit else args.step,
                    seconds=seconds,
                    warmup=QUICK_WARMUP if args.quick or args.limit else WARMUP,
                    real=args.real,
                    processes=args.processes,
                    repeat=repeat,
                )
                what = f"round {repeat + 1} of {repeats}: {protocol}, {hosts} hosts; load {os.getloadavg()[0]:.1f}"
                try:
                    one = measure(setup, args.timeout, args.profile)
                except Failed as failure:
                    failures.append(f"{what}: {failure}")
                    print(failures[-1], file=sys.stderr)
                    continue
                measurements.append(one)
                print(f"{what}: {one.head:.2f} cores, {one.facts:,.0f} facts/s", file=sys.stderr)
                if args.json:
                    plain = {"machine": about, "runs": [asdict(one) for one in measurements], "failures": failures}
                    args.json.write_text(json.dumps(plain, indent=1) + "\n")
    print(f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; {repeats} rounds\n")
    print_table(rows_of(measurements), args.markdown)
    if failures:
        print(f"\n{len(failures)} runs failed", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
