"""A host that is not the head: a test stands in for the head, for its workers' processes and for its store process."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from paceline.core.choice import choose
from paceline.core.facts import ParametersTaken
from paceline.core.orders import Release
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.host import Host
from paceline.host.memory_plan import plan
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from support.planes import plane_of
from support.reports import Reports
from support.run_state import OFFER, Clockwork

HEAD = Peer("node-0", 1)
STORE = "the store"


class OneHost:
    """Host node-1 with the workers `own` of so many, who wait in `prepare`."""

    def __init__(
        self,
        own: tuple[int, ...],
        of: int,
        protocol: str = "asp",
        *,
        offer: messages.worker.Offered = OFFER,
        threads: int = 1,
    ) -> None:
        choice = choose(protocol, registry())
        self.own = own
        self.workers, self.reports, self.loop = Mock(numbers=[*own]), Reports(), Clockwork()
        self.carrier = TransferManager("node-1", lambda: 0.0)
        self.carrier.meet(*HEAD)
        loop: Any = self.loop
        self.host = Host(
            plan(choice, of),
            choice,
            self.workers,
            self.carrier,
            self.reports,
            loop,
            name="node-1",
            host_of=lambda worker: "node-1" if worker in own else HEAD.host,
            head=HEAD.host,
            threads=threads,
            now=lambda: 0.0,
        )
        self.carrier.begins(0, self.host.items)
        plane_of(self.carrier).connected(HEAD)
        self.host.tell(host_messages.BeginScripts())
        self._hear, _ = self.workers.open.call_args.args
        for worker in own:
            self.says(worker, offer)

    def trains(self, workers: tuple[int, ...], *shards: Shard, sums: bool = False) -> None:
        """The head says that these train, and which hosts make ranges of versions."""
        self.host.tell(host_messages.Train(dict.fromkeys(workers), 0, 0.0, shards, sums=sums))

    def store_is_ready(self) -> None:
        """The store process is there, and so is what training begins with: requests 1 and 2."""
        self.loop.hear(STORE, messages.store.StoreReady(7, "beginning"))
        self.comes(1)
        self.comes(2)

    def says(self, worker: int, message: messages.Message) -> None:
        """The worker says this."""
        self._hear(worker, message, [])

    def finished(self, worker: int, step: int, version: int = 0) -> None:
        """The worker has computed that step."""
        self.says(worker, messages.worker.StepFinished(step, version, None, [], None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))

    def pulls(self, worker: int, version: int = 1) -> None:
        """The worker's first step is to be on that version."""
        self.host.carry_out(Release(worker=worker, step=1, version=version))

    def comes(self, request: int, count: int | None = None) -> None:
        """So many bytes of the request come, or the rest. All are the request's number."""
        there = plane_of(self.carrier).memory(HEAD, request)
        assert there is not None
        count = there.nbytes if count is None else count
        there.memory[:count] = bytes([request]) * count
        plane_of(self.carrier).came(HEAD, request, count)

    def refused(self, request: int, why: str = "why") -> None:
        """The head's host does not give what was asked for."""
        plane_of(self.carrier).refused(HEAD, request, why)

    def taken(self) -> list[tuple[int, int]]:
        """Which workers have which versions."""
        return [(fact.worker, fact.version) for fact in self.reports.of(ParametersTaken)]

    def told(self, kind: type[messages.Message]) -> list[int]:
        """Workers that were told something of that kind."""
        calls = [call.args[:2] for call in self.workers.send.call_args_list]
        return [worker for worker, message in calls if isinstance(message, kind)]
