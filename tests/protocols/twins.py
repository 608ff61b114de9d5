"""Slow, obvious versions of the machines: each answer is worked out anew from the whole history.

They share nothing with the real ones but the vocabulary, keep no state but the history, and take every fact for legal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.core.facts import (
    AlarmRang,
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
from paceline.core.orders import ApplyUpdate, DropUpdate, Hold, Order, Release, SetAlarm, StartPush, steps_of


@dataclass
class Twin:
    """What all of them do: begin, push at any time, drop what was half pushed."""

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

    def computes_on(self, worker: int) -> int:
        """The version that it was released on last."""
        return [order.version for order in self.orders if isinstance(order, Release) and order.worker == worker][-1]

    def drop(self, worker: int, step: int) -> None:
        self.orders.append(DropUpdate(worker=worker, step=step, samples="return"))

    def apply(self, *parts: tuple[int, int, float]) -> None:
        self.orders.append(ApplyUpdate(version=self.version() + 1, contributions=parts))

    def release(self, worker: int, parameters: Literal["pull", "held"] = "pull") -> None:
        step, version = self.step(worker) + 1, self.version()
        self.orders.append(Release(worker=worker, step=step, version=version, parameters=parameters))


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
class Ringmaster(Twin):
    max_delay: int = 1

    def common(self, fact: Fact) -> list[Order]:
        if isinstance(fact, GradientReady) and self.is_late(fact.worker):
            return []
        return super().common(fact)

    def answer(self, fact: Fact) -> None:
        if not isinstance(fact, GradientReady | UpdateArrived):
            return
        if self.is_late(fact.worker):
            self.drop(fact.worker, fact.step)
            self.release(fact.worker)
        elif isinstance(fact, UpdateArrived):
            self.apply((fact.worker, fact.step, 1.0))
            self.release(fact.worker)

    def is_late(self, worker: int) -> bool:
        return self.version() - self.computes_on(worker) >= self.max_delay


@dataclass
class Quorum(Ringmaster):
    """With a fixed m. As in `Ringmaster`, a gradient of an older version is too late."""

    m: int = 2
    grace: float = 0.0

    def answer(self, fact: Fact) -> None:
        if isinstance(fact, AlarmRang) and fact.number != self.version() + 1:
            return
        if isinstance(fact, GradientReady | UpdateArrived) and self.is_late(fact.worker):
            self.drop(fact.worker, fact.step)
            self.release(fact.worker)
            return
        if not isinstance(fact, UpdateArrived | StepDeclined | WorkerLeft | AlarmRang):
            return
        settled = [
            (worker, step)
            for order in self.orders
            if isinstance(order, ApplyUpdate)
            for worker, step, _ in order.contributions
        ]
        settled += [(order.worker, order.step) for order in self.orders if isinstance(order, DropUpdate)]
        round_ = sorted(
            (one.worker, one.step, one.samples)
            for one in self.facts
            if isinstance(one, GradientReady)
            and self.came(one.worker, one.step)
            and (one.worker, one.step) not in settled
        )
        brought = [(worker, step) for worker, step, _ in round_]
        here = [worker for worker in self.live() if not self.declined(worker)]
        others = [worker for worker in here if (worker, self.step(worker)) not in brought]
        if not round_ or (others and len(round_) < self.m):
            if isinstance(fact, UpdateArrived):
                self.orders.append(Hold(worker=fact.worker))
            return
        alarm = SetAlarm(number=self.version() + 1, seconds=self.grace)
        awaited = any(self.computes_on(worker) == self.version() for worker in others)
        if self.grace and awaited and not isinstance(fact, AlarmRang):
            waiting = [worker for worker in here if worker not in others]
            if alarm in self.orders:
                waiting = [fact.worker] if isinstance(fact, UpdateArrived) else []
            else:
                self.orders.append(alarm)
            self.orders += [Hold(worker=worker) for worker in waiting]
            return
        total = None if any(samples is None for _, _, samples in round_) else sum(samples for _, _, samples in round_)
        self.apply(*((worker, step, samples / total if total else 1 / len(round_)) for worker, step, samples in round_))
        for worker in here:
            if worker not in others:
                self.release(worker)


@dataclass
class Rennala(Ringmaster):
    """With a fixed batch, which no worker brings alone."""

    batch: int = 2

    def answer(self, fact: Fact) -> None:
        if isinstance(fact, GradientReady | UpdateArrived) and self.is_late(fact.worker):
            self.drop(fact.worker, fact.step)
            self.release(fact.worker)
            return
        if not isinstance(fact, UpdateArrived | StepDeclined | WorkerLeft):
            return
        collected = sorted(
            (one.worker, one.step, one.samples)
            for one in self.facts
            if isinstance(one, GradientReady) and one.version == self.version() and self.came(one.worker, one.step)
        )
        here = [worker for worker in self.live() if not self.declined(worker)]
        busy = [worker for worker in here if not self.came(worker, self.step(worker))]
        if collected and (len(collected) >= self.batch or not (busy or isinstance(fact, UpdateArrived))):
            known = all(samples is not None for _, _, samples in collected)
            total = sum(samples or 0 for _, _, samples in collected) if known else len(collected)
            self.apply(*((worker, step, (samples if known else 1) / total) for worker, step, samples in collected))
        if isinstance(fact, UpdateArrived):
            self.release(fact.worker, "pull" if self.computes_on(fact.worker) < self.version() else "held")


@dataclass
class Rounds(Twin):
    """Rounds of own steps, as local-sgd and diloco have them."""

    every: int = 3
    log: list[Fact | Order] = field(default_factory=list)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        self.log.append(fact)
        orders = self.answers(fact)
        self.log += orders
        self.orders += orders
        return tuple(orders)

    def answers(self, fact: Fact) -> list[Order]:
        match fact:
            case TrainingBegan(members=members, version=version):
                return [
                    Release(worker=worker, step=step, version=version, steps=self.every) for worker, _, step in members
                ]
            case GradientReady(worker=worker):
                return [self.push(worker)] if len(self.own(worker)) == self.every else []
            case StepDeclined(worker=worker) if self.own(worker):
                return [self.push(worker)]
            case WorkerLeft(worker=worker):
                return [*self.lost(worker), *self.closed()]
            case UpdateArrived(worker=worker) if not self.waits(worker):
                return self.closed()
            case WorkerResumed(worker=worker) if self.is_young():
                step = self.last(worker) + 1
                return [Release(worker=worker, step=step, version=self.newest(), steps=self.every)]
            case WorkerJoined(worker=worker) | WorkerResumed(worker=worker) | UpdateArrived(worker=worker):
                return self.closed() or [Hold(worker=worker)]
            case _:
                return self.closed()

    def is_young(self) -> bool:
        """Whether there is an open round in which no worker has ended its steps."""
        begun = [one for one in self.log if isinstance(one, ApplyUpdate | TrainingBegan)][-1]
        if any(isinstance(one, UpdateArrived) for one in self.log[self.log.index(begun) :]):
            return False
        open_ = [worker for worker in self.here() if self.awaited(worker)]
        return bool(open_) and not any(self.has(worker, StartPush) for worker in open_)

    def since_pull(self, worker: int) -> list[Fact | Order]:
        """All about the worker since it was last released by a pull, or came."""
        mine = [one for one in self.log if getattr(one, "worker", None) == worker]
        begins = [place for place, one in enumerate(mine) if isinstance(one, WorkerJoined | Release)]
        return mine[begins[-1] :] if begins else []

    def own(self, worker: int) -> list[GradientReady]:
        return [one for one in self.since_pull(worker) if isinstance(one, GradientReady)]

    def has(self, worker: int, kind: type) -> bool:
        return any(isinstance(one, kind) for one in self.since_pull(worker))

    def push(self, worker: int) -> StartPush:
        steps = [one.step for one in self.own(worker)]
        return StartPush(worker=worker, step=steps[-1], since=steps[0] if len(steps) > 1 else None)

    def lost(self, worker: int) -> list[Order]:
        steps = [one.step for one in self.own(worker)]
        if not steps or self.has(worker, UpdateArrived):
            return []
        since = steps[0] if len(steps) > 1 else None
        return [DropUpdate(worker=worker, step=steps[-1], since=since, samples="return")]

    def awaited(self, worker: int) -> bool:
        """Whether its difference is still to come in this round."""
        if not self.has(worker, Release) or self.has(worker, UpdateArrived):
            return False
        return bool(self.own(worker)) or not self.has(worker, StepDeclined)

    def waits(self, worker: int) -> bool:
        """Whether it waits for the next round."""
        if not self.has(worker, Release) or self.has(worker, WorkerResumed):
            return True
        return self.has(worker, UpdateArrived) and not self.has(worker, StepDeclined)

    def here(self) -> list[int]:
        live: dict[int, None] = {}
        for one in self.log:
            match one:
                case TrainingBegan(members=members):
                    live |= {worker: None for worker, _, _ in members}
                case WorkerJoined(worker=worker):
                    live[worker] = None
                case WorkerLeft(worker=worker):
                    del live[worker]
        return sorted(live)

    def newest(self) -> int:
        begun = next(one.version for one in self.log if isinstance(one, TrainingBegan))
        return begun + sum(isinstance(one, ApplyUpdate) for one in self.log)

    def closed(self) -> list[Order]:
        if any(self.awaited(worker) for worker in self.here()):
            return []
        applied = [part[:2] for one in self.log if isinstance(one, ApplyUpdate) for part in one.contributions]
        came = sorted(
            (one.worker, one.step)
            for one in self.log
            if isinstance(one, UpdateArrived) and (one.worker, one.step) not in applied
        )
        pushes = {(one.worker, one.step): one for one in self.log if isinstance(one, StartPush)}
        samples = {(one.worker, one.step): one.samples for one in self.log if isinstance(one, GradientReady)}
        parts = {key: [samples[key[0], step] for step in steps_of(pushes[key])] for key in came}
        version = self.newest() + bool(came)
        orders: list[Order] = []
        if came:
            known = all(None not in sizes for sizes in parts.values())
            weights = {key: sum(size or 0 for size in sizes) if known else 1 for key, sizes in parts.items()}
            total = sum(weights.values())
            contributions = tuple((worker, step, weights[worker, step] / total) for worker, step in came)
            orders.append(ApplyUpdate(version=version, contributions=contributions))
        return orders + [
            Release(worker=worker, step=self.last(worker) + 1, version=version, steps=self.every)
            for worker in self.here()
            if self.waits(worker)
        ]

    def last(self, worker: int) -> int:
        """Its last step, or the one before its first."""
        of = [one for one in self.log if getattr(one, "worker", None) == worker]
        numbered = (Release, WorkerJoined, GradientReady, StepDeclined)
        return max(one.step - isinstance(one, WorkerJoined) for one in of if isinstance(one, numbered))


@dataclass
class AsyncRounds(Rounds):
    """Rounds of own steps without a barrier, as async-diloco has them."""

    by_speed: bool = True

    def answers(self, fact: Fact) -> list[Order]:
        match fact:
            case TrainingBegan():
                return super().answers(fact)
            case GradientReady(worker=worker) if len(self.own(worker)) == self.released(worker).steps:
                return [self.push(worker), *self.let_in()]
            case StepDeclined(worker=worker):
                return [*([self.push(worker)] if self.own(worker) else []), *self.let_in()]
            case WorkerLeft(worker=worker):
                return [*self.lost(worker), *self.let_in()]
            case WorkerResumed(worker=worker) if self.own(worker) and not self.has(worker, UpdateArrived):
                return [Hold(worker=worker)]
            case WorkerResumed(worker=worker):
                return [self.begin(worker, self.newest())]
            case WorkerJoined(worker=worker):
                return self.let_in() or [Hold(worker=worker)]
            case UpdateArrived(worker=worker, step=step):
                version = self.newest() + 1
                apply = ApplyUpdate(version=version, contributions=((worker, step, 1.0),))
                goes_on = self.has(worker, WorkerResumed) or not self.has(worker, StepDeclined)
                return [apply, self.begin(worker, version)] if goes_on else [apply]
            case _:
                return []

    def let_in(self) -> list[Order]:
        """Who has joined, and is not released, goes as no round is open that was open then."""
        joined = [
            (place, one.worker)
            for place, one in enumerate(self.log)
            if isinstance(one, WorkerJoined) and self.since_pull(one.worker)[:1] == [one] and one.worker in self.here()
        ]
        return [
            self.begin(worker, self.newest())
            for place, worker in joined
            if not any(
                self.is_open(other, self.log[:place])
                and self.is_open(other, self.log)
                and self.rounds_of(other, self.log[:place]) == self.rounds_of(other, self.log)
                for other in self.here()
            )
        ]

    @staticmethod
    def rounds_of(worker: int, log: list[Fact | Order]) -> int:
        return sum(isinstance(one, Release) and one.worker == worker for one in log)

    def is_open(self, worker: int, log: list[Fact | Order]) -> bool:
        """Whether its last round had not ended by then."""
        mine = [one for one in log if getattr(one, "worker", None) == worker]
        begins = [place for place, one in enumerate(mine) if isinstance(one, Release)]
        since = mine[begins[-1] :] if begins else []
        made = sum(isinstance(one, GradientReady) for one in since)
        ended = any(isinstance(one, StepDeclined | WorkerLeft) for one in since)
        return bool(begins) and made < mine[begins[-1]].steps and not ended  # type: ignore[union-attr]

    def released(self, worker: int) -> Release:
        return [one for one in self.log if isinstance(one, Release) and one.worker == worker][-1]

    def begin(self, worker: int, version: int) -> Release:
        speeds = {one: speed for one in self.here() if (speed := self.speed(one)) is not None}
        steps = self.every
        if self.by_speed and worker in speeds:
            steps = max(1, int(self.every * (speeds[worker] / max(speeds.values())) + 1e-6))
        return Release(worker=worker, step=self.last(worker) + 1, version=version, steps=steps)

    def speed(self, worker: int) -> float | None:
        """Own steps in a second of its last round with all of its steps, since it came last."""
        speed, begun, made, permitted, now = None, 0.0, 0, 0, 0.0
        for one in self.log:
            now = getattr(one, "at", now)
            if getattr(one, "worker", None) != worker:
                continue
            match one:
                case WorkerJoined():
                    speed = None
                case Release(steps=steps):
                    begun, made, permitted = now, 0, steps
                case ParametersTaken() if not made:
                    begun = now
                case GradientReady():
                    made += 1
                    if made == permitted:
                        speed = made / (now - begun)
        return speed


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
