"""DiLoCo: rounds of own steps, and an outer optimizer that steps the parameters with what the workers moved.

Each worker's own (inner) optimizer steps its own parameters. After `every` steps the worker pushes the difference
Δ = θ_start − θ_now. The store takes the mean of all workers' differences as a gradient: its outer optimizer steps the
newest version with it. All workers begin the next round with the version that this makes. Inner states are never sent.

With `outer=nesterov`, as in the paper, m ← outer_momentum · m + Δ and θ ← θ − outer_lr · (Δ + outer_momentum · m).
With `momentum`, θ ← θ − outer_lr · m. With a constant inner rate this is SlowMo (arXiv 1910.00643). With `sgd`,
θ ← θ − outer_lr · Δ, which with outer_lr=1 averages the workers' parameters, as local-sgd does.

Source: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023 (arXiv 2311.08105), as
others restate its rule. Rounds of 50 steps, where others report 500 of the paper, and weights by samples are ours.

Counter convention: a version counts outer steps. A step is an own step of a worker.

Deviations: membership may change, as in local-sgd. The outer optimizer's momentum is kept in snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.core.choice import check_parameters, parameter
from paceline.core.local_rounds import INVARIANTS, REASONS, LocalRounds
from paceline.core.machine import Outer, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How long a round is, and the outer optimizer."""

    every: int = parameter(50, "own steps of each worker in a round", unit="steps", least=1)
    outer: Literal["nesterov", "momentum", "sgd"] = parameter(
        "nesterov", "the outer optimizer: SGD with Nesterov momentum, with momentum, or without"
    )
    outer_lr: float = parameter(0.7, "the outer learning rate", least=0, above=True)
    outer_momentum: float = parameter(0.9, "the outer momentum, unless outer=sgd", least=0, most=1)

    def __post_init__(self) -> None:
        check_parameters("diloco", self)


def outer_of(config: Config) -> Outer:
    """Return the outer optimizer that the parameters describe."""
    momentum = 0.0 if config.outer == "sgd" else config.outer_momentum
    return Outer(lr=config.outer_lr, momentum=momentum, nesterov=config.outer == "nesterov" and momentum > 0)


SPEC = Spec(
    name="diloco",
    title="DiLoCo: own steps, and an outer optimizer",
    does="an outer optimizer steps with what workers moved in several own steps",
    paper="Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023",
    config=Config,
    machine=LocalRounds,
    rounds=True,
    local_steps=True,
    pushes="difference",
    optimizer="outer",
    outer=outer_of,
    pushes_at_once=False,
    invariants=INVARIANTS,
    reasons=REASONS,
)
