"""The zygote: a process that workers are forked from, at the start of a run and at any time later.

A fork takes no threads along, and what they have locked stays locked in the child. The launcher has threads once a run
goes on, such as the ledger's. So it forks the zygote before, when torch is imported, and while it has neither threads
nor a ledger nor channels. A worker has torch from there, and nothing of the run but what it is handed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from paceline.errors import PeerLost
from paceline.fabric.unix import Channel, pair
from paceline.host import messages
from paceline.host.processes import NoProcess, fork_child, fork_orphan

PATIENCE = 60.0
"""Seconds that the zygote has for a fork, which takes some milliseconds. A stopped one is not waited for any longer."""

Become = Callable[[int, list[int]], int]
"""What a forked process does: it is told which worker it is, and has these descriptors. Returns its exit code."""


class Zygote:
    """The launcher's end. The zygote dies with the launcher. What is forked from it is the launcher's child."""

    def __init__(self, become: Become) -> None:
        """Fork the zygote. Call this in the main thread, while there is no other. Raises NoProcess."""
        ours, theirs = pair()
        launcher = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()

        def body() -> int:
            ours.close()
            return _serve(Channel(theirs, messages.Fork, "the launcher"), become, launcher)

        try:
            self.process = fork_child(body)
        except NoProcess:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours, messages.FromZygote, "the zygote")

    def fork(self, worker: int, descriptors: tuple[int, ...]) -> int:
        """Fork this worker's process, and hand it these descriptors. Returns its id; see `fork_orphan`.

        The descriptors may be closed then. This process must adopt orphans. Raises NoProcess.
        """
        try:
            self._channel.send(messages.Fork(worker), descriptors)
            if not self._channel.ready(PATIENCE):
                os.kill(self.process, signal.SIGKILL)  # so that it forks nothing later
            answer, _ = self._channel.receive()
        except PeerLost:
            why = f"the process that workers are forked from ({self.process}) has ended, or did not answer"
            raise NoProcess(why) from None
        if isinstance(answer, messages.NotForked):
            raise NoProcess(answer.error)
        process: int = answer.process
        return process

    def end(self) -> None:
        """End it. What was forked from it goes on."""
        self._channel.close()
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def _serve(launcher: Channel, become: Become, parent: int) -> int:
    """Fork what the launcher asks for, until it has gone."""
    with suppress(PeerLost):
        while True:
            order, descriptors = launcher.receive()

            def body(worker: int = order.worker, descriptors: list[int] = descriptors) -> int:
                launcher.close()
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)  # one that comes through a socket goes on to programs
                return become(worker, descriptors)

            answer: messages.Forked | messages.NotForked
            try:
                answer = messages.Forked(fork_orphan(body, parent))
            except NoProcess as error:
                answer = messages.NotForked(str(error))
            for descriptor in descriptors:
                os.close(descriptor)
            launcher.send(answer)
    return 0
