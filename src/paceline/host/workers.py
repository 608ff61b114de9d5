"""The workers' processes: what they say and print, how they end, and how they are ended."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from paceline.core.phrases import workers_named
from paceline.errors import MessageUnreadable, PeerLost
from paceline.host.message_validation import MessageValidation
from paceline.ipc import messages
from paceline.ipc.channel import Channel
from paceline.ipc.loop import Loop
from paceline.ipc.processes import end_groups, has_handler
from paceline.ipc.send_queue import SendQueue

Hear = Callable[[int, messages.Message, list[int]], None]
"""Told what a worker says: the worker, the message, the descriptors that came along."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One worker's process, from its fork to its end."""

    worker: int
    process: int
    watch: int
    """A descriptor that becomes readable when the process has ended."""
    channel: Channel
    printed: int | None
    """The pipe with what it prints, until its end was read. None as well if the worker itself writes to its log."""
    turns: MessageValidation
    """What it may say."""
    outbox: SendQueue = field(init=False)
    """What it is told."""
    here: bool = True
    """Whether it has not ended. Its number may be another process's after that."""


class Prints(Protocol):
    """Who takes what workers print. See `WorkerOutput` and `LogForwarding`."""

    @property
    def full(self) -> bool:
        """Whether no more is to be read of that, for now."""

    def printed(self, worker: int, data: bytes) -> None:
        """The worker has printed this. Empty: it will print no more."""

    def say(self, line: str) -> None:
        """Print one line of our own."""


PIECE = 1 << 15
"""Bytes that are read at once of what a worker prints."""


Fork = Callable[[Sequence[int]], list[Process]]
"""Forks these workers' processes. Raises NoProcess, and then none is there."""


class Workers:
    """Listens to the workers' processes, tells them what others want said, and ends them on order."""

    def __init__(self, loop: Loop, output: Prints, fork: Fork) -> None:
        """`output` takes what they print, `fork` begins their processes."""
        self._processes: dict[int, Process] = {}
        self._loop = loop
        self._output = output
        self._fork = fork
        self._listens = False
        self._hear: Hear = _unheard
        self._gone: Callable[[int, int], None] = _unheard

    @property
    def processes(self) -> list[Process]:
        """All of them, ascending."""
        return list(self._processes.values())

    @property
    def numbers(self) -> list[int]:
        """The workers, ascending."""
        return list(self._processes)

    def start(self, workers: Sequence[int]) -> None:
        """Fork these workers' processes, at any time: the first ones, or others after those have gone.

        A worker can be told something before it is listened to: to stop, say. Raises NoProcess, and then none is there.
        """
        here = [worker for worker in workers if worker in self._processes and self._processes[worker].here]
        assert not here, f"{workers_named(here)} can't be started while there is a process"
        for one in self._fork(workers):
            self._processes[one.worker] = one
            one.outbox = SendQueue(one.channel, self._loop, partial(self.give_up, one.worker, "it has stopped reading"))
            if self._listens:
                self._listen(one)

    def open(self, hear: Hear, gone: Callable[[int, int], None]) -> None:
        """Listen to all of them. `gone(worker, status)` is called when a process has ended, as waitpid returned it."""
        self._hear, self._gone, self._listens = hear, gone, True
        for one in self._processes.values():
            if one.here:
                self._listen(one)

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell the worker, now or when it reads. The descriptors may be closed at once."""
        one = self._processes[worker]
        if not one.here:  # its end is being told
            return
        if isinstance(message, messages.worker.Signal):
            if has_handler(one.process, message.number):  # else it would end the process
                os.kill(one.process, message.number)
            return
        one.turns.told(message)
        if not one.outbox.send(message, descriptors):
            self.end(worker)

    def end(self, worker: int) -> None:
        """Kill the worker's process, if it has not ended."""
        one = self._processes[worker]
        if one.here:
            os.kill(one.process, signal.SIGKILL)

    def give_up(self, worker: int, why: str) -> None:
        """The worker can't go on, through no fault of the others: end it, and say why."""
        one = self._processes[worker]
        if not one.here:
            return
        if self._loop.watches(one.channel):  # what else it may say means nothing
            self._loop.unwatch(one.channel)
        self._output.say(f"worker {worker} is ended: {why}")
        self.end(worker)

    def read_on(self) -> None:
        """Read what workers print, if it was held up. Until then it stays in their pipes, and who fills one waits."""
        if not self._output.full:
            for one in self._processes.values():
                if one.here and one.printed is not None and not self._loop.watches(one.printed):
                    self._loop.watch(one.printed, partial(self._pass_on, one))

    def end_all(self) -> None:
        """Kill all of them, and whatever they have started."""
        end_groups({one.process for one in self._processes.values() if one.here})  # what others started ended with them

    def await_all(self) -> None:
        """Wait until all of them have ended. Nothing more is heard of them."""
        for one in self._processes.values():
            if one.here:
                self._let_go(one)

    def _listen(self, one: Process) -> None:
        self._loop.watch(one.channel, lambda: self._receive(one))
        self._loop.watch(one.watch, lambda: self._ended(one))
        if one.printed is not None:
            self._loop.watch(one.printed, partial(self._pass_on, one))

    def _receive(self, one: Process) -> None:
        try:
            message, descriptors = one.channel.receive()
        except PeerLost:
            self._loop.unwatch(one.channel)
            return
        except MessageUnreadable as why:
            self.give_up(one.worker, f"it sent a message that can't be read ({why})")
            return
        if strange := one.turns.heard(message):
            for descriptor in descriptors:
                os.close(descriptor)
            self.give_up(one.worker, strange)
            return
        self._hear(one.worker, message, descriptors)

    def _ended(self, one: Process) -> None:
        """The process has ended: hear what it had still said, then see how it ended."""
        end_groups({one.process})  # whatever it had started and left behind
        while self._loop.watches(one.channel) and one.channel.ready():
            self._receive(one)
        left = -1 if one.printed is None else fcntl.fcntl(one.printed, fcntl.F_GETPIPE_SZ)
        while left >= 0 and (size := self._pass_on(one)):  # a stranger that has the pipe, too, may print without end
            left -= size
        self._gone(one.worker, self._let_go(one))

    def _let_go(self, one: Process) -> int:
        """Wait for the process's end, and close what was there for it. Return how it ended, as waitpid does."""
        for source in (one.channel, one.printed, one.watch):  # a stranger may hold their other ends open
            if source is not None and self._loop.watches(source):
                self._loop.unwatch(source)
        os.close(one.watch)
        if one.printed is not None:
            os.close(one.printed)
        one.outbox.forget()
        one.channel.close()
        _, status = os.waitpid(one.process, 0)
        one.here = False
        return status

    def _pass_on(self, one: Process) -> int:
        """Pass on a piece of what it has printed. Return how many bytes that were."""
        assert one.printed is not None
        try:
            data = os.read(one.printed, PIECE)
        except BlockingIOError:
            return 0
        self._output.printed(one.worker, data)
        if not data:
            if self._loop.watches(one.printed):
                self._loop.unwatch(one.printed)
            os.close(one.printed)
            one.printed = None
        if self._output.full:
            self._hold()
        return len(data)

    def _hold(self) -> None:
        """Read nothing that workers print, until `read_on`."""
        for one in self._processes.values():
            if one.here and one.printed is not None and self._loop.watches(one.printed):
                self._loop.unwatch(one.printed)


def _unheard(*_: object) -> None:
    raise AssertionError("nothing is heard before `open`")
