"""Where a run goes on that was cut: what begins its next segment, as the facts of the one before say."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.choice import Choice
from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerJoined
from paceline.core.orders import ApplyUpdate
from paceline.records.update_outcomes import Applied, UpdateOutcomes


def following(choice: Choice, facts: Iterable[Fact], *, version: int | None = None) -> TrainingBegan:
    """What begins the segment after these facts: all workers are there, and what was outstanding is undone.

    `version`: of the recorded mean, where workers own replicas; else the last that was ordered counts.
    """
    machine = choice.machine()
    steps: dict[int, tuple[str, int]] = {}
    fates = UpdateOutcomes()
    began, newest, done, at = None, 0, 0, 0.0
    for fact in facts:
        at = fact.at
        if isinstance(fact, TrainingBegan):
            machine, began, newest = choice.machine(), fact, fact.version
            done = fact.done
            steps |= {worker: (host, step) for worker, host, step in fact.members}
        elif isinstance(fact, WorkerJoined):
            _, step = steps.get(fact.worker, ("", fact.step))
            steps[fact.worker] = fact.host, step
        elif isinstance(fact, GradientReady):
            host, _ = steps[fact.worker]
            steps[fact.worker] = host, fact.step + 1
        fates.fact(fact)
        for order in machine.handle(fact):
            newest = order.version if isinstance(order, ApplyUpdate) else newest
            for fate in fates.order(order):
                if isinstance(fate, Applied):
                    done += _work(fate)
                elif fate.lost is not None:
                    done -= _work(fate.lost)
    assert began is not None
    memory = choice.spec.memory
    return TrainingBegan(
        members=tuple((worker, host, step) for worker, (host, step) in sorted(steps.items())),
        version=newest if version is None else version,
        at=at,
        work=began.work,
        seed=began.seed,
        done=done,
        memory=None if memory is None else memory(machine),
    )


def _work(applied: Applied) -> int:
    return 1 if applied.samples is None else applied.samples
