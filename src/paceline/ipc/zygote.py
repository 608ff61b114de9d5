"""The zygote: the process that workers are forked from, at the start of a run and later.

A forked child has none of its parent's threads, and what these had locked stays locked. Once a run goes on, the
launcher has threads, such as the ledger's. So it forks the zygote before: once torch is imported, and while it has no
threads, no ledger and no channels. A worker gets torch from the zygote, and of the run only what it is handed. The
zygote itself is told of the run later: a host that joins forks it before it knows anything of the run.
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
"""The most workers that are forked together: their orders have to fit into a socket."""
PATIENCE = 60.0
"""Seconds that the zygote has to fork these, which takes some milliseconds each. It may have been stopped."""

Become = Callable[[int, list[int]], int]
"""What a forked process does as this worker, with these descriptors. Returns its exit code."""
Know = Callable[[bytes], None]
"""Notes, in the zygote, what workers forked from then on know."""


class Zygote:
    """The launcher's end. The zygote dies with the launcher. Processes forked from it are the launcher's children."""

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
        """Tell the zygote what workers forked from now on know. `fork` finds out if the zygote has ended."""
        with suppress(PeerLost):
            self._channel.send(messages.zygote.Settle(known))

    def fork(self, workers: Sequence[tuple[int, tuple[int, ...]]]) -> list[int]:
        """Fork these workers' processes with their descriptors. Return the processes' ids. See `fork_orphans`.

        Up to `AT_ONCE` together take half as long as one by one. The caller may close the descriptors then. This
        process must adopt orphans. Raises NoProcess, and then no process was forked.
        """
        try:
            for left, (worker, descriptors) in zip(reversed(range(len(workers))), workers, strict=True):
                self._channel.send(messages.zygote.Fork(worker, more=left > 0), descriptors)
            if not self._channel.ready(PATIENCE):
                os.kill(self.process, signal.SIGKILL)  # it must not fork anything later
            answer, _ = self._channel.receive()
        except PeerLost:
            why = f"the process that workers are forked from ({self.process}) has ended, or did not answer"
            raise NoProcess(why) from None
        if isinstance(answer, messages.zygote.NotForked):
            raise NoProcess(answer.error)
        processes: list[int] = answer.processes
        return processes

    def let_go(self) -> None:
        """Close this end in a forked process, which has nothing to do with the zygote."""
        self._channel.close()

    def end(self) -> None:
        """End the zygote. Processes forked from it go on."""
        self._channel.close()
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _serve(launcher: Channel, become: Become, know: Know, parent: int) -> int:
    """Fork what the launcher asks for, until it has gone."""
    gc.freeze()  # workers share these objects: collecting garbage would copy their pages
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
                    os.set_inheritable(descriptor, False)  # one that came through a socket would be inherited
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
    """Close these orders' descriptors."""
    for _, descriptors in orders:
        for descriptor in descriptors:
            os.close(descriptor)
