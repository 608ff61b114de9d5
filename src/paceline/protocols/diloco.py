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

With `quorum=K` a round does not wait for all workers. Once K differences have arrived, the store steps the newest
version with their mean, and their workers go on with the next one. With `grace` the round stays open for so long after
the K-th difference, and waits for the workers that began with the newest version. A difference that comes later goes
into the next version. It is what its worker moved from the version that it began with. A difference weighs
samples · (samples / steps).

Sources: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023 (arXiv 2311.08105);
Douillard et al., Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512), as others restate their
rules; Decoupled DiLoCo, 2026 (arXiv 2604.21428), for the quorum, the time of grace, and the weights, as others restate
its rules. The order of fragments is torchft's. Ours are `every=50`, where others report 500 of the paper, weights by
samples, and where fragments are cut, by bytes: see `core.shards.fragments`. The paper takes every few layers.

Ours, too, is `grace=auto`. Decoupled DiLoCo gives what is left of the steps during which it exchanges a fragment. Here
workers make no step meanwhile. So a round that has got K differences in T seconds stays open for T/K more. And the
paper takes a late difference from the newest version, so it undoes what others did meanwhile. Public code drops it.

Counter convention: a version counts outer steps. A step is an own step of a worker.

Deviations: membership may change, as in local-sgd. With a quorum a worker that joins begins at once, and with fewer
than K workers a round waits for all of them. Snapshots have the outer optimizer's momentum, and each worker's own
parameters. With an overlap these have up to τ steps that a resumed run makes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.choice import check_parameters, parameter, written
from paceline.core.local_rounds import INVARIANTS, REASONS, LocalRounds
from paceline.core.machine import Fragments, Outer, Spec
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How long a round is, the outer optimizer, what is exchanged at once, and how many workers a version waits for."""

    every: int = parameter(50, "own steps of each worker until all parameters are exchanged", unit="steps", least=1)
    outer: Literal["nesterov", "momentum", "sgd"] = parameter(
        "nesterov", "the outer optimizer: SGD with Nesterov momentum, with momentum, or without"
    )
    outer_lr: float = parameter(0.7, "the outer learning rate", least=0, above=True)
    outer_momentum: float = parameter(0.9, "the outer momentum, unless outer=sgd", least=0, most=1)
    fragments: int = parameter(1, "fragments of the parameters, which are exchanged one after another", least=1)
    overlap: int = parameter(0, "steps that a worker makes while it exchanges a fragment", unit="steps", least=0)
    mix: float = parameter(0.0, "the share of its own value that a worker keeps as it takes one", least=0, most=1)
    quorum: int | None = parameter(
        None, "how many workers' differences make a version; none: those of all", unit="workers", least=1
    )
    grace: float | Literal["auto"] = parameter(
        "auto",
        "with a quorum, how long a round stays open for further differences; auto: as long as the quorum took for each",
        unit="seconds",
        least=0,
    )

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
        if self.quorum is not None and (self.fragments > 1 or self.overlap or self.mix):
            raise ConfigError(
                f"diloco: quorum is {self.quorum} workers, and with fragments, overlap or mix a round waits for all; "
                "leave out either"
            )
        if self.quorum is None and self.grace != "auto":
            raise ConfigError(
                f"diloco: grace is {written(self.grace)} seconds, and a round waits for all workers; choose quorum=K, "
                "too"
            )

    @property
    def round(self) -> int:
        """See `local_rounds.Rounds`."""
        return self.every // self.fragments


def outer_of(config: Config, workers: int) -> Outer:
    """Return the outer optimizer that the parameters describe."""
    momentum = 0.0 if config.outer == "sgd" else config.outer_momentum
    return Outer(lr=config.outer_lr, momentum=momentum, nesterov=config.outer == "nesterov" and momentum > 0)


def misfit(config: Config, hosts: Sequence[str]) -> str:
    """Why this config can't train with one worker on each of these hosts; empty if it can."""
    if config.quorum is None or config.quorum <= len(hosts):
        return ""
    return f"diloco: quorum is {config.quorum} workers, and there are {len(hosts)}; choose quorum={len(hosts)} or less"


SPEC = Spec(
    name="diloco",
    title="DiLoCo: own steps, and an outer optimizer",
    does="an outer optimizer steps with what workers moved in several own steps",
    paper="Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023",
    config=Config,
    machine=LocalRounds,
    rounds=True,
    waits_for_all=lambda config: config.quorum is None,
    local_steps=True,
    pushes="difference",
    optimizer="outer",
    outer=outer_of,
    fragments=lambda config: Fragments(config.fragments, config.mix, config.overlap),
    pushes_at_once=False,
    invariants=INVARIANTS,
    misfit=misfit,
    reasons=REASONS,
)
