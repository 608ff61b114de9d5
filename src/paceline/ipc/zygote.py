"""The zygote: a process that workers are forked from, at the start of a run and at any time later.

A fork takes no threads along, and what they have locked stays locked in the child. The launcher has threads once a run
goes on, such as the ledger's. So it forks the zygote before, when torch is imported, and while it has neither threads
nor a ledger nor channels. A worker has torch from there, and nothing of the run but what it is handed, and what the
zygote was told before: on a host that joins a run, nothing of the run is known when the zygote is forked.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from paceline.errors import PeerLost
from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from paceline.ipc.processes import NoProcess, fork_child, fork_orphans

AT_ONCE = 16
"""Workers that are forked together at most: their orders have to fit into a socket."""
PATIENCE = 60.0
"""Seconds that the zygote has for these: each takes some milliseconds. A stopped zygote is waited for no longer."""

Become = Callable[[int, list[int]], int]
"""What a forked process does: it is told which worker it is, and has these descriptors. Returns its exit code."""
Know = Callable[[bytes], None]
"""Takes note, in the zygote, of what all that is forked from then on knows."""


class Zygote:
    """The launcher's end. The zygote dies with the launcher. What is forked from it is the launcher's child."""

    def __init__(self, become: Become, know: Know = lambda known: None) -> None:
        """Fork the zygote. Call this in the main thread, while there is no other. Raises NoProcess."""
        ours, theirs = pair()
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()

        def body() -> int:
            ours.close()
            return _serve(Channel(theirs, messages.zygote.ToZygote, "the launcher"), become, know, launcher)

        try:
            self.process = fork_child(body)
        except NoProcess:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours, messages.zygote.FromZygote, "the zygote")

    def settle(self, known: bytes) -> None:
        """Have all that is forked from now on know this. A zygote that has ended is found so as it forks."""
        with suppress(PeerLost):
            self._channel.send(messages.zygote.Settle(known))

    def fork(self, workers: Sequence[tuple[int, tuple[int, ...]]]) -> list[int]:
        """Fork these workers' processes, and hand each its descriptors. Returns their ids; see `fork_orphans`.

        Up to `AT_ONCE` together take half as long as one by one. The descriptors may be closed then. This process must
        adopt orphans. Raises NoProcess, and then none is there.
        """
        try:
            for left, (worker, descriptors) in zip(reversed(range(len(workers))), workers, strict=True):
                self._channel.send(messages.zygote.Fork(worker, more=left > 0), descriptors)
            if not self._channel.ready(PATIENCE):
                os.kill(self.process, signal.SIGKILL)  # so that it forks nothing later
            answer, _ = self._channel.receive()
        except PeerLost:
            why = f"the process that workers are forked from ({self.process}) has ended, or did not answer"
            raise NoProcess(why) from None
        if isinstance(answer, messages.zygote.NotForked):
            raise NoProcess(answer.error)
        processes: list[int] = answer.processes
        return processes

    def let_go(self) -> None:
        """In a process that was forked: the zygote is not its business."""
        self._channel.close()

    def end(self) -> None:
        """End it. What was forked from it goes on."""
        self._channel.close()
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _serve(launcher: Channel, become: Become, know: Know, parent: int) -> int:
    """Fork what the launcher asks for, until it has gone."""
    gc.freeze()  # what is here by now is no worker's: neither to be looked through for garbage, nor to be written out
    with suppress(PeerLost):
        while True:
            first, descriptors = launcher.receive()
            if isinstance(first, messages.zygote.Settle):
                know(first.known)
                continue
            orders: list[tuple[messages.zygote.Fork, list[int]]] = [(first, descriptors)]
            while orders[-1][0].more:
                orders.append(launcher.receive())

            def begin(at: int, orders: list[tuple[messages.zygote.Fork, list[int]]] = orders) -> int:
                launcher.close()
                order, own = orders.pop(at)
                _close(orders)
                for descriptor in own:
                    os.set_inheritable(descriptor, False)  # one that comes through a socket goes on to programs
                return become(order.worker, own)

            answer: messages.zygote.Forked | messages.zygote.NotForked
            try:
                answer = messages.zygote.Forked(fork_orphans([partial(begin, at) for at in range(len(orders))], parent))
            except NoProcess as error:
                answer = messages.zygote.NotForked(str(error))
            _close(orders)
            launcher.send(answer)
    return 0


def _close(orders: list[tuple[messages.zygote.Fork, list[int]]]) -> None:
    """Close the descriptors that came along with these."""
    for _, descriptors in orders:
        for descriptor in descriptors:
            os.close(descriptor)
