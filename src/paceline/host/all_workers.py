"""The workers of all hosts, for whoever tells them what is not about items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from paceline.host import messages as host_messages
from paceline.host.other_hosts import Other
from paceline.host.workers import Workers
from paceline.ipc import messages


class AllWorkers:
    """Those of the head's host, and those of others by way of their hosts."""

    def __init__(self, here: Workers, others: Sequence[Other]) -> None:
        self._here = here
        self._by_worker = {worker: other for other in others for worker in other.workers}

    def adds(self, other: Other) -> None:
        """That host takes part from now on."""
        self._by_worker |= dict.fromkeys(other.workers, other)

    @property
    def numbers(self) -> list[int]:
        """See `Workers`."""
        return sorted([*self._here.numbers, *self._by_worker])

    def start(self, workers: Sequence[int]) -> None:
        """See `Workers`."""
        for worker in workers:
            if (other := self._by_worker.get(worker)) is not None:
                other.tell(host_messages.StartWorker(worker))
            else:
                self._here.start([worker])

    def send(self, worker: int, message: messages.Message) -> None:
        """See `Workers`."""
        if (other := self._by_worker.get(worker)) is not None:
            other.tell_of(worker, host_messages.TellWorker(worker, cast(messages.worker.ToWorker, message)))
        else:
            self._here.send(worker, message)

    def end(self, worker: int) -> None:
        """See `Workers`."""
        if (other := self._by_worker.get(worker)) is not None:
            other.tell_of(worker, host_messages.EndWorker(worker, None))
        else:
            self._here.end(worker)

    def give_up(self, worker: int, why: str) -> None:
        """See `Workers`."""
        if (other := self._by_worker.get(worker)) is not None:
            other.tell_of(worker, host_messages.EndWorker(worker, why))
        else:
            self._here.give_up(worker, why)
