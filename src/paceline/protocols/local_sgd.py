"""Local SGD: workers make `every` own steps, then the parameters of all become their mean.

Each worker's own optimizer steps its own parameters. After `every` steps the worker pushes what it has subtracted since
it took the newest version. The mean of these differences, weighted by samples, is subtracted from that version. So the
next version is the mean of all workers' parameters, and all begin the next round with it.

Source: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019 (arXiv 1805.09767), as others restate its
rule. Weights by samples are ours. Optimizers' states are not averaged: each worker keeps its own.

Counter convention: a version counts rounds. A step is an own step of a worker.

Deviations: membership may change. A joiner enters the next round. If a worker leaves in the middle of a round, its
steps since the last version are dropped, and their samples return. Out of data in the middle of a round, it pushes what
it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.choice import check_parameters, parameter
from paceline.core.local_rounds import INVARIANTS, REASONS, LocalRounds
from paceline.core.machine import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How long a round is."""

    every: int = parameter(16, "own steps of each worker in a round", unit="steps", least=1)

    def __post_init__(self) -> None:
        check_parameters("local-sgd", self)

    @property
    def round(self) -> int:
        """See `local_rounds.Rounds`."""
        return self.every

    @property
    def overlap(self) -> int:
        """See `local_rounds.Rounds`."""
        return 0

    @property
    def quorum(self) -> None:
        """See `local_rounds.Rounds`."""

    @property
    def grace(self) -> float:
        """See `local_rounds.Rounds`."""
        return 0.0


SPEC = Spec(
    name="local-sgd",
    title="Local SGD: own steps, averaged in rounds",
    does="workers average their parameters after several own steps",
    paper="Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019",
    config=Config,
    machine=LocalRounds,
    rounds=True,
    local_steps=True,
    pushes="difference",
    optimizer="outer",
    pushes_at_once=False,
    invariants=INVARIANTS,
    reasons=REASONS,
)
