"""The contract that every protocol keeps, and the `Spec` that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.core.facts import Fact
from paceline.core.orders import Order

HolderKind = Literal["window", "own-step", "replica"]
"""How a worker's script sees parameters: versions in a window, parameters that the worker steps itself between
versions, or a replica of its own. See `training.holders`."""
Pushes = Literal["gradients", "updates", "nothing"]
"""What a worker puts into its push areas. An update is what its optimizer has subtracted."""
Sums = Literal["workers", "hosts"]
"""The terms of a version on several hosts: each worker's update, or one sum of each host's updates."""
Versions = Literal["stored", "means"]
"""A run's versions: a store makes each from the one before, or each is the mean of all replicas."""


class Machine(Protocol):
    """A protocol: facts in, orders out.

    A machine is a dataclass whose fields are plain data, so that it can be copied, compared and written as JSON. It
    reads no clock, draws no unseeded randomness, iterates no set, logs nothing, and touches no tensor. It is made from
    its `Config` alone. `TrainingBegan` tells it which workers take part.
    """

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """Return the orders that follow from this fact, in the order in which to carry them out.

        Costs O(log n) or better in the number of workers, amortized over the facts. Raises ProtocolViolation for a fact
        that can't be true now, and is then unchanged.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Part:
    """A protocol inside another one: its name and parameters, and its machine."""

    name: str
    parameters: tuple[tuple[str, str | int | float | bool | None], ...]
    """Their values, by name."""
    rounds: bool
    """As in its `Spec`."""
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A protocol's entry in the registry. Each file in `protocols/` has one, named `SPEC`."""

    name: str
    """As on the command line."""
    title: str
    does: str = ""
    """What it does, in one line, for the list of protocols."""
    family: Literal["parameter-server", "decentralized"]
    paper: str
    """The paper that introduces or describes it."""
    config: type[Any]
    """A frozen dataclass of its parameters, all with defaults."""
    machine: Callable[..., Machine]
    """Makes the machine from a config, and from its parts if there are any."""
    rounds: bool
    """Whether workers go in rounds, each version the mean of one gradient from each worker. Batches are then dealt by
    (round, worker), whatever the timing."""
    invariants: Mapping[str, Callable[[Any], bool]]
    """What is true of the machine after every fact: a sentence, and its test."""
    optimizer: Literal["store", "worker"] = "store"
    """Where the optimizer runs: in the store, on gradients, or in each worker, which pushes what it would subtract."""
    sums: Sums = "workers"
    """With `hosts`, a host's updates may arrive together, added up. So the machine has to put all that have arrived
    into the same version, and weigh gradients by samples, as `core.roster.mean_of` does."""
    unapplied: Callable[[Any], int] = lambda config: 2
    """In the parameter-server family: the most steps of one worker that may be released, and neither applied nor
    dropped. The worker has a push area for each. So no step waits for an update that waits for that step."""
    pushes_at_once: bool = True
    """In the parameter-server family: whether each update goes to the store as soon as it is computed."""
    averages: Literal["parameters", "gradients"] = "parameters"
    """What groups average, in the decentralized family."""
    parts: tuple[str, ...] = ()
    """Parameters that each name another protocol. `machine` gets a `Part` for each after the config, in this order.
    So a protocol that consists of others doesn't import them."""
    misfit: Callable[[Any, Sequence[str]], str] | None = None
    """Says why this config can't train on the workers' hosts. Empty: it can."""
    unfit: Callable[[Any, Sequence[Mapping[str, Any]]], str] | None = None
    """Says why this config can't train with these hyperparameters, by parameter group. Empty: it can."""
    remark: Callable[[Any, Sequence[str]], str] | None = None
    """Returns a note for the user at start-up on these hosts. Empty: there is none."""
    memory: Callable[[Any], Any] | None = None
    """Returns what a machine keeps for its successor in a resumed run, as plain data for JSON, which comes with
    `TrainingBegan`. All else begins anew. None: nothing is kept, as by all protocols that can be parts of others."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The sentence of each code of a `why`. See `core.reasons`."""

    @property
    def holder(self) -> HolderKind:
        """How each worker's script sees parameters."""
        if self.family == "decentralized":
            return "replica"
        return "window" if self.optimizer == "store" else "own-step"

    @property
    def pushes(self) -> Pushes:
        """What each worker pushes."""
        if self.family == "decentralized":
            return "gradients" if self.averages == "gradients" else "nothing"
        return "gradients" if self.optimizer == "store" else "updates"

    @property
    def brings_early(self) -> bool:
        """Whether other hosts' stores may get gradients while workers still compute the rest."""
        return self.pushes == "gradients" and self.versions == "stored" and self.pushes_at_once

    @property
    def in_groups(self) -> bool:
        """Whether workers average in groups."""
        return self.family == "decentralized"

    @property
    def versions(self) -> Versions:
        """What the run's versions are."""
        return "means" if self.family == "decentralized" else "stored"
