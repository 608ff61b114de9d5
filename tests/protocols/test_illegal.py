"""Every kind of fact that cannot be true: each registered protocol refuses it, and is then as it was."""

from __future__ import annotations

import pytest

from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact
from paceline.core.machine import Machine
from paceline.core.orders import StartPull
from paceline.protocols import registry
from support.tables import (
    arrived,
    averaged,
    began,
    copied,
    declined,
    failed,
    joined,
    left,
    ready,
    refuses,
    resumed,
    taken,
)

CHOICES = [choose(name, registry()) for name in registry()]
SERVED = [choice for choice in CHOICES if choice.spec.family == "parameter-server"]
REPLICATED = [choice for choice in CHOICES if choice.spec.family == "decentralized"]


def at_work(choice: Choice) -> Machine:
    """0 computes, 1 pushes, 2 has arrived, 3 has declined, 4 died computing, 5 died pushing."""
    machine = choice.machine()
    for fact in (
        began(0, 1, 2, 3, 4, 5, version=3, steps={0: 7}),
        taken(0, 3),
        ready(2, 0, 3),
        arrived(2, 0),
        ready(1, 0, 3),
        declined(3, 0),
        left(4),
        ready(5, 0, 3),
        left(5),
    ):
        for order in machine.handle(fact):
            if isinstance(order, StartPull):
                machine.handle(taken(order.worker, order.version))
    return machine


def with_replicas(choice: Choice) -> Machine:
    """0 and 2 compute, 1 has had its gradient ready, 3 has declined, 4 died computing."""
    machine = choice.machine()
    for fact in (began(0, 1, 2, 3, 4, steps={0: 7}), ready(1, 0, 0), declined(3, 0), left(4)):
        machine.handle(fact)
    return machine


AT_WORK: dict[str, Fact] = {
    "training begins twice": began(0, 1),
    "a worker joins that is here": joined(0, 9),
    "a declined worker joins": joined(3, 9),
    "a worker comes back with a used number": joined(4, 0),
    "a stranger leaves": left(9),
    "a worker leaves twice": left(4),
    "a gradient of a stranger": ready(9, 0, 3),
    "a gradient of a step not released yet": ready(0, 8, 3),
    "a gradient of a step before": ready(0, 6, 3),
    "a gradient on another version": ready(0, 7, 2),
    "a gradient twice": ready(1, 0, 3),
    "a gradient of a step that has arrived": ready(2, 0, 3),
    "a gradient of a declined step": ready(3, 0, 3),
    "a gradient of one that left": ready(4, 0, 3),
    "a stranger declines": declined(9, 0),
    "a step not released yet is declined": declined(0, 8),
    "a step is declined that is being pushed": declined(1, 0),
    "a step is declined that has arrived": declined(2, 0),
    "a step is declined twice": declined(3, 0),
    "one that left declines": declined(4, 0),
    "a stranger resumes": resumed(9),
    "a worker resumes that computes": resumed(0),
    "a worker resumes that pushes": resumed(1),
    "a worker resumes whose update has arrived": resumed(2),
    "one that left resumes": resumed(4),
    "an update of a stranger": arrived(9, 0),
    "an update whose gradient was never ready": arrived(0, 7),
    "an update of another step": arrived(1, 1),
    "an update twice": arrived(2, 0),
    "an update of a declined step": arrived(3, 0),
    "an update of one that died computing": arrived(4, 0),
    "an update of one that died pushing": arrived(5, 0),
    "a pull of a stranger": taken(9, 3),
    "a pull of another version": taken(1, 2),
    "a pull twice": taken(0, 3),
    "a pull of one that left": taken(4, 3),
    "a group averages": averaged(0),
    "a group fails": failed(0, 4),
    "a replica is copied": copied(0, 1),
}

WITH_REPLICAS: dict[str, Fact] = {
    "training begins twice": began(0, 1),
    "a worker joins that is here": joined(0, 9),
    "a declined worker joins": joined(3, 9),
    "a worker comes back with a used number": joined(4, 0),
    "a replica is copied to one that has its own": copied(0, 1),
    "a replica is copied to a stranger": copied(0, 9),
    "a replica is copied to one that left": copied(0, 4),
    "a stranger leaves": left(9),
    "a worker leaves twice": left(4),
    "a gradient of a stranger": ready(9, 0, 0),
    "a gradient of a step not released yet": ready(0, 8, 0),
    "a gradient of a step before": ready(0, 6, 0),
    "a gradient on another version": ready(0, 7, 1),
    "a gradient twice": ready(1, 0, 0),
    "a gradient of a declined step": ready(3, 0, 0),
    "a gradient of one that left": ready(4, 0, 0),
    "a stranger declines": declined(9, 0),
    "a step not released yet is declined": declined(0, 8),
    "a step is declined whose gradient was ready": declined(1, 0),
    "a step is declined twice": declined(3, 0),
    "a stranger resumes": resumed(9),
    "a worker resumes that computes": resumed(0),
    "a worker resumes whose gradient was ready": resumed(1),
    "one that left resumes": resumed(4),
    "an update arrives": arrived(1, 0),
    "a pull ends": taken(0, 0),
    "a group averages that never was": averaged(99),
    "a group fails that never was": failed(99, 4),
}

BEFORE_TRAINING: dict[str, Fact] = {
    "a join": joined(0),
    "a departure": left(0),
    "a gradient": ready(0, 0, 0),
    "a declined step": declined(0, 0),
    "a worker resumes": resumed(0),
    "an update": arrived(0, 0),
    "a pull": taken(0, 0),
    "an average": averaged(0),
    "a failed average": failed(0, 0),
    "a copy": copied(0, 1),
    "members out of order": began(1, 0),
    "a member twice": began(0, 0),
}


@pytest.mark.parametrize("choice", SERVED, ids=str)
@pytest.mark.parametrize("fact", AT_WORK.values(), ids=AT_WORK)
def test_it_is_refused_and_changes_nothing(choice: Choice, fact: Fact) -> None:
    refuses(at_work(choice), fact)


@pytest.mark.parametrize("choice", REPLICATED, ids=str)
@pytest.mark.parametrize("fact", WITH_REPLICAS.values(), ids=WITH_REPLICAS)
def test_it_is_refused_where_every_worker_owns_a_replica(choice: Choice, fact: Fact) -> None:
    """What cannot be true of groups at work is told to them in every reachable state, by the walks."""
    refuses(with_replicas(choice), fact)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("fact", BEFORE_TRAINING.values(), ids=BEFORE_TRAINING)
def test_nothing_happens_before_training_has_begun(choice: Choice, fact: Fact) -> None:
    machine = choice.machine()
    refuses(machine, fact)
    assert machine.handle(began(0, 1))
