"""Random histories of real machines, with leased batches, for the tests of the records."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from paceline.core.choice import choose
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.leases import Batch, Leases
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPush
from paceline.protocols import registry
from paceline.records.waits import Waits, WorkerWait

PROTOCOLS = ["asp", "bsp", "ssp:bound=0", "ssp:bound=2"]


def batch_order(seed: int, samples: int = 50, size: int = 4) -> list[list[int]]:
    """A shuffled epoch, whose last batch is short."""
    ids = list(range(samples))
    random.Random(seed).shuffle(ids)
    return [ids[start : start + size] for start in range(0, samples, size)]


def waits(history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> Iterator[WorkerWait]:
    """Yield every wait of a whole run, in the order in which they ended."""
    found = Waits()
    for fact, orders in history:
        yield from found.record(fact, orders)
    yield from found.rest()


@dataclass
class History:
    """Workers that die, come back, pause, and work until every sample of two epochs is applied."""

    protocol: str
    seed: int
    workers: int = 4
    deaths: float = 0.05
    """Probability that the next thing to happen is a death."""
    pauses: float = 0.0
    """Probability that a worker pauses in the place of a step."""
    counted: bool = True
    on_record: Callable[[Fact, tuple[Order, ...]], None] = lambda fact, orders: None
    on_batch: Callable[[int, int, int, int], None] = lambda worker, step, epoch, batch: None

    epochs: list[list[list[int]]] = field(init=False)
    pairs: list[tuple[Fact, tuple[Order, ...]]] = field(default_factory=list)
    releases: dict[int, Release] = field(default_factory=dict)
    settled: int = 0
    """Samples in applied updates."""

    def run(self) -> History:
        self.rng = random.Random(self.seed)
        self.machine = choose(self.protocol, registry()).machine()
        self.epochs = [batch_order(self.seed), batch_order(self.seed + 1)]
        self.leases = Leases("queue", list(range(self.workers)))
        for epoch, order in enumerate(self.epochs):
            self.leases.open(epoch, [len(batch) for batch in order], "")
        self.at = 0.5
        self.doing: dict[int, deque[Release | StartPush | str]] = {w: deque() for w in range(self.workers)}
        self.used = dict.fromkeys(range(self.workers), 0)
        members = tuple((worker, "node-0", 0) for worker in range(self.workers))
        self.tell(TrainingBegan(members=members, version=0, at=self.at, seed=self.seed))
        while self.doing or self.settled < 100:
            assert len(self.pairs) < 2000, "an update is lost: its samples are neither applied nor returned"
            self.next()
        return self

    def next(self) -> None:
        self.at += self.rng.random() / 8
        gone = [worker for worker in self.used if worker not in self.doing]
        if gone and (not self.doing or self.rng.random() < 0.1):
            worker = self.rng.choice(gone)
            self.doing[worker] = deque()
            self.leases.join(worker)
            self.tell(WorkerJoined(worker=worker, host="node-0", step=self.used[worker], at=self.at))
        elif self.rng.random() < self.deaths:
            self.leave(self.rng.choice(list(self.doing)), "died")
        else:
            worker = self.rng.choice([worker for worker, todo in self.doing.items() if todo])
            self.go_on(worker, self.doing[worker].popleft())

    def go_on(self, worker: int, order: Release | StartPush | str) -> None:
        todo = self.doing[worker]
        match order:
            case Release(step=step, version=version, parameters="pull"):
                todo.append("compute")
                self.releases[worker] = order
                self.tell(ParametersTaken(worker=worker, version=version, at=self.at))
            case "compute":
                step, version = self.releases[worker].step, self.releases[worker].version
                if self.pauses and self.rng.random() < self.pauses:
                    todo.append("resume")
                    self.tell(StepDeclined(worker=worker, step=step, at=self.at, paused=True))
                    return
                taken = [batch for _ in range(self.rng.choice([1, 1, 2])) if (batch := self.take(worker))]
                if not taken:
                    todo.append("leave")
                    self.tell(StepDeclined(worker=worker, step=step, at=self.at))
                    return
                samples = self.leases.bind(worker, step, tuple(taken))
                for batch in taken:
                    self.on_batch(worker, step, batch.epoch, batch.index)
                known = samples if self.counted else None
                self.tell(GradientReady(worker=worker, step=step, version=version, samples=known, at=self.at))
            case StartPush(step=step):
                self.tell(UpdateArrived(worker=worker, step=step, at=self.at))
            case "resume":
                self.tell(WorkerResumed(worker=worker, at=self.at))
            case "leave":
                self.leave(worker, "finished")

    def take(self, worker: int) -> Batch | None:
        return self.leases.take(worker, 0, "") or self.leases.take(worker, 1, "")

    def leave(self, worker: int, reason: str) -> None:
        del self.doing[worker]
        self.leases.leave(worker, died=reason == "died")
        self.tell(WorkerLeft(worker=worker, reason=reason, at=self.at))

    def tell(self, fact: Fact) -> None:
        orders = self.machine.handle(fact)
        self.pairs.append((fact, orders))
        self.on_record(fact, orders)
        for order in orders:
            match order:
                case Release(worker=worker, step=step):
                    self.used[worker] = step + 1
                    self.doing[worker].append(order)
                case StartPush(worker=worker):
                    self.doing[worker].append(order)
                case ApplyUpdate(contributions=contributions):
                    for worker, step, _ in contributions:
                        self.settled += self.leases.settle(worker, step)
                case DropUpdate(worker=worker, step=step, samples=samples):
                    self.leases.drop(worker, step, samples)
