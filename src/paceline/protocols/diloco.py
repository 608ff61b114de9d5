"""DiLoCo: rounds of own steps, and an outer optimizer that steps the parameters with what the workers moved.

Each worker's own (inner) optimizer steps its own parameters. After `every` steps the worker pushes the difference
Δ = θ_start − θ_now. The store takes the mean of all workers' differences as a gradient: its outer optimizer steps the
newest version with it. All workers begin the next round with the version that this makes. Inner states are never sent.

With `outer=nesterov`, as in the paper, m ← outer_momentum · m + Δ and θ ← θ − outer_lr · (Δ + outer_momentum · m).
With `momentum`, θ ← θ − outer_lr · m. With a constant inner rate this is SlowMo (arXiv 1910.00643). With `sgd`,
θ ← θ − outer_lr · Δ, which with outer_lr=1 averages the workers' parameters, as local-sgd does.

With `fragments=F` (Streaming DiLoCo) the parameters are cut into F fragments. After every `every`/F steps the workers
push, and take, one fragment, and go on with the others as they are. The k-th version changes fragment (k − 1) mod F. A
worker takes it as θ ← mix · θ + (1 − mix) · θ_version. With `overlap=τ` a worker pushes τ steps before that point, and
makes these steps meanwhile. They are in its next push.

Sources: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023 (arXiv 2311.08105);
Douillard et al., Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512), as others restate their
rules. The order of fragments is torchft's. Ours are `every=50`, where others report 500 of the paper, weights by
samples, and where fragments are cut, by bytes: see `core.shards.fragments`. The paper takes every few layers.

Counter convention: a version counts outer steps. A step is an own step of a worker.

Deviations: membership may change, as in local-sgd. Snapshots have the outer optimizer's momentum, and each worker's own
parameters. With an overlap these have up to τ steps that a resumed run makes again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.core.choice import check_parameters, parameter
from paceline.core.local_rounds import INVARIANTS, REASONS, LocalRounds
from paceline.core.machine import Fragments, Outer, Spec
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How long a round is, the outer optimizer, and what is exchanged at once."""

    every: int = parameter(50, "own steps of each worker until all parameters are exchanged", unit="steps", least=1)
    outer: Literal["nesterov", "momentum", "sgd"] = parameter(
        "nesterov", "the outer optimizer: SGD with Nesterov momentum, with momentum, or without"
    )
    outer_lr: float = parameter(0.7, "the outer learning rate", least=0, above=True)
    outer_momentum: float = parameter(0.9, "the outer momentum, unless outer=sgd", least=0, most=1)
    fragments: int = parameter(1, "fragments of the parameters, which are exchanged one after another", least=1)
    overlap: int = parameter(0, "steps that a worker makes while it exchanges a fragment", unit="steps", least=0)
    mix: float = parameter(0.0, "the share of its own value that a worker keeps as it takes one", least=0, most=1)

    def __post_init__(self) -> None:
        check_parameters("diloco", self)
        if self.every % self.fragments:
            raise ConfigError(
                f"diloco: every is {self.every} steps; it must be a multiple of fragments, which is {self.fragments}"
            )
        if self.overlap >= self.round:
            raise ConfigError(
                f"diloco: overlap is {self.overlap} steps; it must be below every/fragments, which is {self.round}"
            )

    @property
    def round(self) -> int:
        """See `local_rounds.Rounds`."""
        return self.every // self.fragments


def outer_of(config: Config, workers: int) -> Outer:
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
    fragments=lambda config: Fragments(config.fragments, config.mix, config.overlap),
    pushes_at_once=False,
    invariants=INVARIANTS,
    reasons=REASONS,
)
