"""The hosts of a world: the real head and the real agents, on virtual machines, with virtual workers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.coordinator.agent import LET_IN, PAUSE, _Agent
from paceline.host.message_validation import MessageValidation
from paceline.host.workers import Process, Workers
from paceline.ipc import messages
from paceline.job.received_folder import ReceivedFolder
from paceline.net.handshake import Keys
from paceline.transfer.movers import InLoop
from support.world.clock import VirtualLoop
from support.world.lines import lines, named_by
from support.world.network import Address, Machine
from support.world.processes import KILLED, Worker

Begins = Callable[[int, Any], Worker]
"""Begins that worker's process, with its end of the channel."""


class VirtualWorkers(Workers):
    """Workers whose processes are the world's."""

    def __init__(self, loop: VirtualLoop, output: Any, begins: Begins) -> None:
        self.programs: dict[int, Worker] = {}
        """By worker: the last process."""
        self._begins = begins
        real: Any = loop
        super().__init__(real, output, self._forks)

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        program = self.programs[worker]
        if isinstance(message, messages.worker.ForkStore):
            program.forks = named_by(descriptors[1])
            if program.status is not None:
                program.drops_fork()
        super().send(worker, message, descriptors)

    def end(self, worker: int) -> None:
        if self._processes[worker].here:
            self.programs[worker].end(KILLED)

    def end_all(self) -> None:
        for program in self.programs.values():
            program.end(KILLED)

    def await_all(self) -> None:
        for one in self._processes.values():
            if one.here:
                self._let_go(one)

    def _forks(self, workers: Sequence[int]) -> list[Process]:
        made = []
        for worker in workers:
            ours, theirs = lines(messages.worker.FromWorker, f"worker {worker}", messages.worker.ToWorker)
            program = self.programs[worker] = self._begins(worker, theirs)
            channel: Any = ours
            made.append(
                Process(
                    worker=worker,
                    process=program.number,
                    watch=-1,
                    channel=channel,
                    printed=None,
                    turns=MessageValidation(stored=True),
                )
            )
        return made

    def _listen(self, one: Process) -> None:
        self._loop.watch(one.channel, lambda: self._receive(one))
        self._loop.await_end(one.process, lambda: self._ended(one))

    def _ended(self, one: Process) -> None:
        while self._loop.watches(one.channel) and one.channel.ready():
            self._receive(one)
        self._gone(one.worker, self._let_go(one))

    def _let_go(self, one: Process) -> int:
        program = self.programs[one.worker]
        for source in (one.channel, program.machine.processes[program.number]):
            if self._loop.watches(source):
                self._loop.unwatch(source)
        one.outbox.forget()
        one.channel.close()
        one.here = False
        assert program.status is not None
        return program.status


class Said:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def passes_on(self, who: str, line: str) -> None:
        self.say(line)

    def died(self, worker: int, how: str, at: str) -> None:
        self.say(f"worker {worker} died ({how}){at}")


class Signals:
    """Stands in for `Interrupts`: signals that ask the head for an end."""

    def __init__(self) -> None:
        self.pending = 0
        self.last = signal.SIGTERM
        self.changed: Callable[[], object] = lambda: None

    def send(self, times: int, keyboard: bool) -> None:
        self.pending, self.last = self.pending + times, signal.SIGINT if keyboard else signal.SIGTERM
        self.changed()

    def take(self) -> int:
        taken, self.pending = self.pending, 0
        return taken

    def readable(self) -> bool:
        return self.pending > 0

    def writable(self) -> bool:
        return False


class WorldAgent(_Agent):
    """An agent whose lines are kept."""

    def __init__(self, *given: Any, say: Callable[[str], None], patience: float) -> None:
        self._say = say
        super().__init__(*given, patience=patience)

    def show(self, line: str) -> None:
        self._say(line)


class Agent:
    """A host besides the head's: what `coordinator.agent.agent` does."""

    def __init__(
        self,
        name: str,
        workers: int,
        machine: Machine,
        loop: VirtualLoop,
        begins: Begins,
        ends_store: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        """`ends_store(host)`: ends the store process there, if there is one."""
        self.name = name
        self.machine = machine
        self.loop = loop
        self.process = machine.begins()
        self.alive = True
        self.agent: WorldAgent | None = None
        """Its present incarnation. None: it has not come so far, or comes again."""
        self.ended: list[WorldAgent] = []
        """Its incarnations that are over."""
        self._brings = workers
        self._begins = begins
        self._ends_store = ends_store
        self._say = say
        self._meets: tuple[Address, Keys] | None = None
        self._companies: list[VirtualWorkers] = []
        """Its workers, of all incarnations, and what stood in for some."""
        loop.turned = self._see

    def begin(self, address: Address, keys: Keys) -> None:
        """Its process has come so far that it dials."""
        if self.alive:
            self._meets = address, keys
            self._take_part(LET_IN)

    def die(self, silently: bool = False) -> None:
        """The process is killed, or its machine is switched off."""
        if self.alive:
            self.alive = False
            self.loop.die()
            self.machine.lets_go(silently)
            self._end_all()
            self._ends_store(self.name)
            if not silently:
                self.machine.ended(self.process)

    def drain(self) -> None:
        if self.alive and self.agent is not None and self.agent.takes_part and self.agent.over is None:
            self.agent.drain()

    @property
    def programs(self) -> dict[int, Worker]:
        """By worker: its last process."""
        return {worker: program for company in self._companies for worker, program in company.programs.items()}

    @property
    def drained(self) -> bool:
        return any(one.over is not None and one.over.outcome == "drained" for one in self.ended)

    @property
    def incarnation(self) -> int:
        """The incarnation that it takes itself for; 0: none, or its process has ended."""
        return int(self.agent._link._end.incarnation) if self.alive and self.agent is not None else 0

    @property
    def takes_part(self) -> bool:
        """Whether the head has let it in, or it comes again. One that was never told the run dials on for a while."""
        return self.alive and (self.incarnation > 0 or any(one.takes_part for one in self.ended))

    def _see(self) -> None:
        agent = self.agent
        if agent is None or agent.over is None:
            return
        agent.end_workers()
        agent.close()
        self._end_all()
        self.ended.append(agent)
        self.agent = None
        if agent.may_come_again:
            self.loop.after(PAUSE, partial(self._take_part, agent.patience))
        else:
            self.die()

    def _take_part(self, patience: float) -> None:
        assert self._meets is not None
        mover = InLoop(self.loop, self._meets[1], self._say)
        told = self._company, ReceivedFolder(Path("nowhere")), self.loop, mover
        self.agent = WorldAgent(self.name, self._brings, *self._meets, *told, say=self._say, patience=patience)

    def _company(self, *_: object) -> Workers:
        output: Any = Said(self._say)
        self._companies.append(VirtualWorkers(self.loop, output, self._begins))
        return self._companies[-1]

    def _end_all(self) -> None:
        for company in self._companies:
            company.end_all()
            company.await_all()
