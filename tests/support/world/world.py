"""A run on several hosts, in one process and in virtual time: all code of a run, between what is outside of it.

Real are the coordinator with its run state, the hosts, their links and streams, agents, and the protocol's machine.
Virtual are clocks, sockets and processes. `support.world.histories` tries many.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.coordinator.coordinator import Coordinator
from paceline.coordinator.emulated import GATHERING, ForkedAgent
from paceline.coordinator.host_registry import HostRegistry
from paceline.coordinator.rendezvous import Rendezvous
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.run_state import RunState
from paceline.core.drive import drive
from paceline.core.facts import Fact
from paceline.core.orders import Order
from paceline.errors import NotGathered
from paceline.ipc import messages
from paceline.job.settings import Settings
from paceline.net.handshake import Keys
from paceline.net.token import Token
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.scenario.scenario import Scenario
from support.run_state import SETTINGS
from support.world import insides
from support.world.clock import Scheduler, VirtualLoop
from support.world.contents import Contents
from support.world.faults import (
    HEAD,
    Blocked,
    Cut,
    Diverges,
    Drained,
    Fault,
    History,
    Interrupted,
    Killed,
    NoDescriptor,
    ScriptFails,
    Slow,
    Stopped,
    StoreKilled,
    StoreStopped,
    Unreachable,
    WorkerKilled,
    WorkerStopped,
)
from support.world.hosts import Agent, Said, Signals, VirtualWorkers
from support.world.judge import Judge
from support.world.lines import Line
from support.world.network import Network
from support.world.processes import CUTS, KILLED, Store, Worker
from support.world.replicas import Replicas


class HeadKilled(BaseException):
    """The head's process is killed: nothing of it goes on."""


class World:
    """One history, from the first process to the last."""

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self.scheduler = Scheduler()
        self.scheduler.deadline, self.scheduler.pending = history.end + history.bound, self.pending
        self.network = Network(self.scheduler, self._lots("network"), history.timeout / 50)
        self.contents = Contents(history.workers)
        self.replicas: Replicas | None = None
        """None where no workers own one."""
        if history.choice.spec.groups:
            self.replicas = Replicas(self.contents, lambda worker: self.run_state.members.hosts[worker])  # type: ignore[union-attr]
        self.judge = Judge(self)
        self.said: list[str] = []
        """All lines, with their times."""
        self.stores: dict[str, Store] = {}
        """By host: its store process."""
        self.signals = Signals()
        self.run_state: RunState | None = None
        self.others: HostRegistry | None = None
        self.over = False
        """Whether the head has ended."""
        self.listening: Any = None
        """Where the head lets other hosts in."""
        self.settings = _settings(history, folder)
        head = self.network.machine(HEAD)
        self.loop = VirtualLoop(self.scheduler, self._lots(HEAD), head)
        self.head = head
        self.workers = VirtualWorkers(self.loop, self._output(HEAD), partial(self._begin_worker, HEAD))
        self.agents = {name: self._agent(name) for name in history.names[1:]}
        self._faults_on = True
        self._lives: Counter[int] = Counter()
        """By worker: how many processes have begun."""

    def run(self) -> None:
        for fault in self.history.faults:
            if not isinstance(fault, ScriptFails | Diverges):
                self.scheduler.at(fault.at, partial(self._fault, fault))
        self.scheduler.at(self.history.end, self._faults_end)
        with suppress(HeadKilled):
            self._run_head()
        killed, self.over = not self.over, True
        end = self.scheduler.now + 4 * self.history.timeout + self.history.script.starts + 10.0
        self.scheduler.deadline = max(self.scheduler.deadline, end) + 1.0
        self.scheduler.run(lambda: not self._agents_left(), max(self.history.end, end))
        self.judge.ended(killed)
        assert not (left := self._agents_left()), f"{left} live on after the head's end"

    def clean(self) -> None:
        for agent in self.agents.values():
            agent.die()
        self.workers.end_all()
        self.workers.await_all()
        for host in self.stores:
            self._end_store(host)

    # --- the head -----------------------------------------------------------------------------------

    def _run_head(self) -> None:
        settings, loop, output = self.settings, self.loop, self._output(HEAD)
        stand_in: Any = loop
        if settings.hosts > 1 and not self._gather(output):
            return
        others = self.others
        self.workers.start(settings.head_workers)
        journal = Journal(NoLedger())
        run_state = self.run_state = RunState(
            settings, self.workers, journal, output, stand_in, RunPolicy(loop.now), others
        )
        coordinator, shutdown = Coordinator(run_state, lambda _: None), run_state.shutdown
        if self.replicas is not None:
            self.replicas.follow(run_state.cluster)
        loop.watch(self.signals, lambda: shutdown.interrupt(self.signals.take(), self.signals.last))
        shutdown.interrupt(self.signals.take(), signal.SIGTERM)

        def record(fact: Fact, orders: tuple[Order, ...]) -> None:
            journal.record(fact, orders)
            self.judge.record(fact, orders)

        self.machine = settings.choice.machine()
        drive(self.machine, coordinator.facts(), coordinator.carry_out, record)
        self.judge.head_ended()
        self.workers.end_all()
        run_state.close()
        if others is not None:
            others.ended_with(run_state.shutdown, coordinator.parser_ended is not None)
        self._head_ends()

    def _gather(self, output: Any) -> bool:
        """Wait for the other hosts. Return whether the run begins."""
        settings, loop = self.settings, self.loop
        stand_in: Any = loop
        self.listening, keys = self.head.listen(), Keys.plain(Token(bytes(32)))
        lots = self._lots("agents")
        for agent in self.agents.values():
            at = lots.uniform(0, self.history.script.starts)
            self.scheduler.at(at, partial(agent.begin, self.listening.address, keys))
        listener: Any = self.listening
        meeting = Rendezvous(
            head=HEAD,
            listener=listener,
            keys=keys,
            settle=lambda came: settings,
            least=settings.hosts,
            threads=settings.threads,
            agents={name: ForkedAgent(name, agent.process, quiet=True) for name, agent in self.agents.items()},
            patience=GATHERING,
        )
        others = self.others = HostRegistry(settings, meeting, stand_in, output)
        loop.watch(self.signals, lambda: None)
        try:
            begins = others.gather(lambda: bool(self.signals.pending)) is not None
        except NotGathered as error:
            output.say(str(error))
            begins = False
        loop.unwatch(self.signals)
        if not begins:
            assert self.history.faults or self.history.lost, f"without a fault the run did not begin: {self.said}"
            self._head_ends()
        return begins

    def _head_ends(self) -> None:
        self.over = True
        if self.others is not None:
            self.others.close()
        self.head.lets_go(silently=False)
        self.loop.die()

    def _agents_left(self) -> list[str]:
        """Agents that take part, and that could know that they are to end. One that never came dials on."""
        return [name for name, agent in self.agents.items() if agent.takes_part and not agent.loop.paused]

    # --- processes ----------------------------------------------------------------------------------

    def _agent(self, name: str) -> Agent:
        machine = self.network.machine(name)
        loop = VirtualLoop(self.scheduler, self._lots(name), machine)
        workers = self.settings.scenario.placed(self.settings.workers)[name]
        begins = partial(self._begin_worker, name)
        return Agent(name, len(workers), machine, loop, begins, self._end_store, self._output(name).say)

    def _begin_worker(self, host: str, worker: int, line: Line) -> Worker:
        program = Worker(
            worker,
            self.history.script,
            self.contents,
            partial(self._fork_store, host),
            self.scheduler,
            self.network.machines[host],
            line,
            self._lots(f"worker {worker} {self._lives[worker]}"),
            host=host,
            replicas=self.replicas,
            averages=self.history.commits,
        )
        self._lives[worker] += 1
        for fault in self.history.faults:
            if isinstance(fault, ScriptFails) and fault.worker == worker and self._lives[worker] == 1:
                program.fails_at = fault.message
        return program

    def _fork_store(self, host: str, line: Line, file: int, order: messages.worker.ForkStore) -> None:
        line.expects(messages.store.ToStore)
        store = self.stores[host] = Store(
            host,
            host == HEAD,
            file,
            order,
            self.contents,
            CUTS[self.history.script.pieces],
            self.history.commits,
            self.scheduler,
            self.network.machines[host],
            line,
            self._lots(f"store of {host}"),
        )
        store.replicas = self.replicas
        store.not_finite = lambda version: Diverges(host, version) in self.history.faults

    def _end_store(self, host: str) -> None:
        if host in self.stores:
            self.stores[host].end(KILLED)

    def store_ends(self, process: int) -> None:
        """That process was told to end, and does."""
        for store in self.stores.values():
            if store.number == process:
                store.end(KILLED)

    def _program(self, worker: int) -> Worker | None:
        for programs in (self.workers.programs, *(agent.programs for agent in self.agents.values())):
            if worker in programs:
                return programs[worker]
        return None

    def _output(self, host: str) -> Any:
        def say(line: str) -> None:
            self.said.append(f"{self.scheduler.now:.3f} {host}: {line}")
            self.judge.said(host, line)

        return Said(say)

    def _lots(self, what: str) -> random.Random:
        return random.Random(f"{self.history.seed} {what}")

    # --- faults -------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        if not self._faults_on:
            return
        network, after = self.network, self.scheduler.at
        match fault:
            case Cut(one=one, other=other, heard=heard):
                network.cut(one, other, heard)
            case Blocked(sender=sender, receiver=receiver, until=until):
                network.block(sender, receiver)
                after(until, partial(network.unblock, sender, receiver))
            case Slow(sender=sender, receiver=receiver, by=by, until=until):
                network.slow(sender, receiver, by)
                after(until, partial(network.fast, sender, receiver, by))
            case Stopped(node=node, until=until, sleeps=sleeps):
                if not self._loop_of(node).paused:
                    self._loop_of(node).pause()
                    after(until, partial(self._goes_on, node, until - fault.at if sleeps else 0.0))
            case Killed(node=node, silently=silently) if node == HEAD:
                self._kill_head(silently)
            case Killed(node=node, silently=silently):
                self.agents[node].die(silently)
            case WorkerKilled(worker=worker):
                if (program := self._program(worker)) is not None:
                    program.end(KILLED)
            case WorkerStopped(worker=worker, seconds=seconds):
                if (program := self._program(worker)) is not None:
                    program.slow = seconds
            case Unreachable(node=node, until=until):
                network.refuses.add(node)
                after(until, lambda: network.refuses.discard(node))
            case NoDescriptor(until=until):
                self._full(True)
                after(until, lambda: self._full(False))
            case Interrupted(times=times, keyboard=keyboard):
                self.signals.send(times, keyboard)
            case Drained(node=node):
                self.agents[node].drain()
            case StoreKilled(node=node):
                self._end_store(node)
            case StoreStopped(node=node, seconds=seconds):
                if node in self.stores:
                    self.stores[node].slow = seconds

    def _faults_end(self) -> None:
        self._faults_on = False
        lost = dict(self.history.lost)
        for name in self.history.names:
            if name not in lost:
                self._goes_on(name, 0.0)
        self.network.heal({name for name in self.history.names if name not in lost})
        self._full(False)
        for name, how in lost.items():
            match how:
                case "killed":
                    self.agents[name].die(silently=True)
                case "stopped":
                    self.agents[name].loop.pause()
                case "deaf":
                    self.network.block(HEAD, name)
                case "mute":
                    self.network.block(name, HEAD)
                case "cut off":
                    self.network.block(HEAD, name)
                    self.network.block(name, HEAD)

    def _loop_of(self, name: str) -> VirtualLoop:
        return self.loop if name == HEAD else self.agents[name].loop

    def _goes_on(self, name: str, slept: float) -> None:
        if self._faults_on or name not in dict(self.history.lost):
            self._loop_of(name).go_on(slept)

    def _full(self, full: bool) -> None:
        if self.listening is not None:
            self.listening.full = full

    def _kill_head(self, silently: bool) -> None:
        if self.over:
            return
        self.loop.die()
        self.head.lets_go(silently)
        self.workers.end_all()
        self._end_store(HEAD)
        raise HeadKilled

    # --- what is pending ----------------------------------------------------------------------------

    def pending(self) -> str:
        lines = [f"virtual time {self.scheduler.now:.3f} s, faults were over at {self.history.end:.3f} s"]
        if (run_state := self.run_state) is not None:
            lines += [
                f"worker {one.worker}: {one.stage}, in step {one.step}; {one.waits}"
                for one in run_state.members.values()
            ]
            lines += [
                f"{run_state.cluster.progress}",
                f"outcome {run_state.shutdown.outcome}: {run_state.shutdown.error}",
            ]
            lines += [f"claimed at the head: {claim}" for claim in insides.claims_at_head(run_state.cluster)]
        for name, agent in self.agents.items():
            lines.append(f"{name}: alive {agent.alive}, paused {agent.loop.paused}, incarnation {agent.incarnation}")
            if agent.agent is not None and agent.agent.takes_part:
                lines += [f"claimed at {name}: {claim}" for claim in agent.agent._host.shelf.claims()]
        return "\n".join([*lines, *self.said[-30:]])


def _settings(history: History, folder: Path) -> Settings:
    return replace(
        SETTINGS,
        script=folder / "train.py",
        choice=history.choice,
        workers=history.workers,
        scenario=Scenario(nodes=history.hosts, host_tables=history.tables),
        seed=history.seed,
        folder=folder,
        epochs=history.script.epochs,
        on_loss=history.on_loss,
        on_divergence=history.on_divergence,
        shards_on=history.shards_on,
        restart=history.restart,
        max_steps=history.max_steps,
        max_seconds=history.max_seconds,
        report_waits=30.0,
        quiet=True,
        checkpoint=0,
        hosts=history.hosts,
        host_timeout=history.timeout,
    )


def run(history: History) -> World:
    with built(history) as world:
        world.run()
    return world


@contextmanager
def built(history: History) -> Iterator[World]:
    """Yield a world in which nothing has happened yet, and clean it up."""
    with (
        tempfile.TemporaryDirectory(prefix="world-") as folder,
        chdir(folder),  # so that no path depends on the machine
        insides.replaced(history.parts),
    ):
        Path("versions").mkdir()
        Path("train.py").touch()
        world = World(history, Path())
        with insides.ends_stores(world.store_ends):
            try:
                yield world
            finally:
                world.clean()
