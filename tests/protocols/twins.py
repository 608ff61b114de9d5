"""Slow, obvious versions of the machines: each answer is worked out anew from the whole history.

They share nothing with the real ones but the vocabulary, keep no state but the history, and take every fact for legal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.facts import (
    Fact,
    GradientReady,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.orders import ApplyUpdate, DropUpdate, Hold, Order, Release, StartPush


@dataclass
class Twin:
    """What all three do: begin, push at any time, drop what was half pushed."""

    facts: list[Fact] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        self.facts.append(fact)
        before = len(self.orders)
        for order in self.common(fact):
            self.orders.append(order)
        self.answer(fact)
        return tuple(self.orders[before:])

    def common(self, fact: Fact) -> list[Order]:
        match fact:
            case TrainingBegan(members=members, version=version):
                return [Release(worker=worker, step=step, version=version) for worker, _, step in members]
            case WorkerJoined(worker=worker, step=step):
                return [Release(worker=worker, step=step, version=self.version())]
            case WorkerResumed(worker=worker):
                return [Release(worker=worker, step=self.step(worker) + 1, version=self.version())]
            case GradientReady(worker=worker, step=step):
                return [StartPush(worker=worker, step=step)]
            case WorkerLeft(worker=worker):
                pushes = [one.step for one in self.facts if isinstance(one, GradientReady) and one.worker == worker]
                came = [one.step for one in self.facts if isinstance(one, UpdateArrived) and one.worker == worker]
                dropped = [one.step for one in self.orders if isinstance(one, DropUpdate) and one.worker == worker]
                lost = [step for step in pushes if step not in came and step not in dropped]
                return [DropUpdate(worker=worker, step=step, samples="return") for step in lost]
        return []

    def answer(self, fact: Fact) -> None:
        """Append what this protocol orders besides."""
        raise NotImplementedError

    def version(self) -> int:
        begun = next(fact.version for fact in self.facts if isinstance(fact, TrainingBegan))
        return begun + sum(isinstance(order, ApplyUpdate) for order in self.orders)

    def live(self) -> list[int]:
        here: list[int] = []
        for fact in self.facts:
            if isinstance(fact, TrainingBegan):
                here += [worker for worker, _, _ in fact.members]
            elif isinstance(fact, WorkerJoined):
                here.append(fact.worker)
            elif isinstance(fact, WorkerLeft):
                here.remove(fact.worker)
        return sorted(here)

    def step(self, worker: int) -> int:
        """The step that it was released for last."""
        return [order.step for order in self.orders if isinstance(order, Release) and order.worker == worker][-1]

    def came(self, worker: int, step: int) -> bool:
        return any(isinstance(one, UpdateArrived) and (one.worker, one.step) == (worker, step) for one in self.facts)

    def declined(self, worker: int) -> bool:
        step = self.step(worker)
        return any(isinstance(one, StepDeclined) and (one.worker, one.step) == (worker, step) for one in self.facts)

    def apply(self, *parts: tuple[int, int, float]) -> None:
        self.orders.append(ApplyUpdate(version=self.version() + 1, contributions=parts))

    def release(self, worker: int) -> None:
        self.orders.append(Release(worker=worker, step=self.step(worker) + 1, version=self.version()))


class Asp(Twin):
    def answer(self, fact: Fact) -> None:
        if isinstance(fact, UpdateArrived):
            self.apply((fact.worker, fact.step, 1.0))
            self.release(fact.worker)


class Bsp(Twin):
    def answer(self, fact: Fact) -> None:
        if not isinstance(fact, UpdateArrived | StepDeclined | WorkerLeft):
            return
        here = [worker for worker in self.live() if not self.declined(worker)]
        owing = [worker for worker in here if not self.came(worker, self.step(worker))]
        applied = [
            (worker, step)
            for order in self.orders
            if isinstance(order, ApplyUpdate)
            for worker, step, _ in order.contributions
        ]
        round_ = sorted(
            (one.worker, one.step, one.samples)
            for one in self.facts
            if isinstance(one, GradientReady)
            and self.came(one.worker, one.step)
            and (one.worker, one.step) not in applied
        )
        if owing or not round_:
            if isinstance(fact, UpdateArrived):
                self.orders.append(Hold(worker=fact.worker))
            return
        total = None if any(samples is None for _, _, samples in round_) else sum(samples for _, _, samples in round_)
        self.apply(*((worker, step, samples / total if total else 1 / len(round_)) for worker, step, samples in round_))
        for worker in here:
            self.release(worker)


@dataclass
class Ssp(Twin):
    bound: int = 3

    def answer(self, fact: Fact) -> None:
        if isinstance(fact, UpdateArrived):
            self.apply((fact.worker, fact.step, 1.0))
        finished = self.finished()
        waiting = [
            one.worker
            for one in self.facts
            if isinstance(one, UpdateArrived) and one.worker in finished and one.step == self.step(one.worker)
        ]
        if isinstance(fact, UpdateArrived):  # he is answered first
            waiting = [fact.worker, *(worker for worker in waiting if worker != fact.worker)]
        for worker in waiting:
            if finished[worker] - min(finished.values()) <= self.bound:
                self.release(worker)
            elif isinstance(fact, UpdateArrived) and worker == fact.worker:
                self.orders.append(Hold(worker=worker))

    def finished(self) -> dict[int, int]:
        """Steps whose updates have arrived, of everybody live who has not declined."""
        finished: dict[int, int] = {}
        least = 0
        for fact in self.facts:
            match fact:
                case TrainingBegan(members=members):
                    finished = {worker: 0 for worker, _, _ in members}
                case WorkerJoined(worker=worker) | WorkerResumed(worker=worker):
                    finished[worker] = least
                case UpdateArrived(worker=worker):
                    finished[worker] += 1
                case WorkerLeft(worker=worker) | StepDeclined(worker=worker):
                    finished.pop(worker, None)
            least = min(finished.values(), default=least)
        return finished
