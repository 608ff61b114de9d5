"""A process beside the workers that evaluates recorded versions while they train.

The worker that forks the store forks it, in `prepare`: it thereby has the model, and what `evaluate` needs, without a
byte of it being sent (decision 0001).
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import MessageUnreadable, PeerLost
from paceline.host.attachments import recorded_file
from paceline.host.events import EvaluatorLost, Report
from paceline.ipc import messages
from paceline.ipc.channel import Channel, End, path_of
from paceline.ipc.loop import Loop
from paceline.ipc.processes import fork_orphan
from paceline.ipc.send_queue import SendQueue

if TYPE_CHECKING:
    from paceline.training.link import Measure

THREADS = 1
"""The worker may have computed with more before the fork, and libgomp's threads don't survive one."""


Show = Callable[[BaseException], None]
"""Prints what the script raised, as a worker does it."""


def fork_evaluator(measure: Measure, end: socket.socket, worker: Channel, launcher: int, show: Show) -> None:
    """Fork it from this worker, whose channel is `worker`. The launcher becomes its parent."""
    fork_orphan(lambda: _serve(measure, end, worker, show), launcher)
    end.close()


def _serve(measure: Measure, end: socket.socket, worker: Channel, show: Show) -> int:
    import torch

    worker.close()  # else it would seem open after the worker has died
    torch.set_num_threads(THREADS)
    channel = Channel(end, messages.worker.ToEvaluator, "the coordinator")
    try:
        while True:
            order, (descriptor,) = channel.receive()
            with path_of(descriptor) as file:
                measured = _measured(measure, order.version, file, show)
            channel.send(measured)
    except PeerLost:
        return 1


def _measured(
    measure: Measure, version: int, file: Path, show: Show
) -> messages.worker.Evaluated | messages.worker.EvaluationFailed:
    try:
        return messages.worker.Evaluated(version, measure(version, file))
    except Exception as error:
        show(error)
        return messages.worker.EvaluationFailed(version, f"{type(error).__name__}: {error}")


class Evaluator:
    """The coordinator's end: one version at a time, in the order in which they are recorded."""

    def __init__(self, loop: Loop, report: Report) -> None:
        self._loop = loop
        self._report = report
        self._channel: Channel | None = None
        self._outbox: SendQueue | None = None
        self._versions: deque[tuple[int, str]] = deque()
        self._busy: int | None = None
        """The version that it evaluates now."""

    @property
    def idle(self) -> bool:
        """Whether it has evaluated all that it ever will of what is recorded so far."""
        return self._channel is None or not (self._busy is not None or self._versions)

    def connect(self) -> End:
        """Open a channel to the process that is to be forked. Return its other end, to be passed on and closed."""
        self.end()  # of a worker that died before it had forked the process
        self._channel, theirs = self._loop.connect(messages.worker.FromEvaluator, "the process that evaluates")
        self._outbox = SendQueue(self._channel, self._loop, self._give_up)
        self._loop.watch(self._channel, self._hear)
        return theirs

    def recorded(self, version: int, file: str) -> None:
        """This version is on disk."""
        self._versions.append((version, file))
        self._go_on()

    def end(self) -> None:
        """Let the process go: nothing more is evaluated. Said again, it changes nothing."""
        if self._channel is not None and self._outbox is not None:
            self._outbox.forget()
            self._loop.unwatch(self._channel)
            self._channel.close()  # which ends it
            self._channel = self._outbox = None

    def _give_up(self) -> None:
        self.end()
        self._report(EvaluatorLost())

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive()
        except (PeerLost, MessageUnreadable):
            self._give_up()
            return
        if message.version != self._busy:  # it was not asked
            self._give_up()
            return
        self._busy = None
        if isinstance(message, messages.worker.EvaluationFailed):
            self._versions.clear()
        self._report(message)
        self._go_on()

    def _go_on(self) -> None:
        if self._busy is not None or not self._versions or self._outbox is None:
            return
        self._busy, path = self._versions.popleft()
        with recorded_file(path) as file:
            self._outbox.send(messages.worker.Evaluate(self._busy), (file,))
