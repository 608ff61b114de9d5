"""The contract that every protocol keeps, and the `Spec` that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.core.facts import Fact
from paceline.core.orders import Order, Why

HolderKind = Literal["window", "own-step", "replica"]
"""What shows parameters to a worker's script: versions in a window, parameters that the worker steps itself between
versions, or a replica of its own. See `training.holders`."""
Pushes = Literal["gradients", "updates", "nothing"]
"""What a worker puts into its push areas. An update is what its optimizer has subtracted."""
Sums = Literal["workers", "hosts"]
"""What a version is summed of, on several hosts: each worker's update, or one sum of each host's updates."""
Versions = Literal["stored", "means"]
"""What a run's versions are: a store makes each from the one before, or each is the mean of all replicas."""


class Machine(Protocol):
    """A protocol: one way in, values out.

    A machine is a dataclass whose fields are plain data, so that it can be copied, compared and
    written as JSON. It reads no clock, draws no unseeded randomness, iterates no
    set, logs nothing, and touches no tensor. It is made from its `Config` alone. `TrainingBegan`
    tells it which workers take part.
    """

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """Return the orders that follow from this fact, in the order in which to carry them out.

        Costs O(log n) or better in the number of workers, amortized over its facts. Raises
        ProtocolViolation for a fact that cannot be true now, and is then unchanged.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Part:
    """A protocol inside another one: its name, what its `Spec` says, and a machine of it."""

    name: str
    parameters: tuple[tuple[str, str | int | float | bool | None], ...]
    """Their values, by name."""
    rounds: bool
    """As in its `Spec`."""
    machine: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the registry knows of a protocol. Each file in `protocols/` has one, named `SPEC`."""

    name: str
    """As on the command line."""
    title: str
    does: str = ""
    """What it does, in one line, as the list of protocols says it."""
    family: Literal["parameter-server", "decentralized"]
    paper: str
    """The paper that it comes from, or one that describes it."""
    config: type[Any]
    """A frozen dataclass of its parameters, all with defaults."""
    machine: Callable[..., Machine]
    """Makes the machine from a config, and from its parts if it has any."""
    rounds: bool
    """Whether workers go in rounds, each version the mean of one gradient from each worker. Batches are then dealt by
    (round, worker), whatever the timing."""
    invariants: Mapping[str, Callable[[Any], bool]]
    """What is true of the machine after every fact: a sentence, and the test of it."""
    optimizer: Literal["store", "worker"] = "store"
    """Where the optimizer runs: in the store, on gradients; or in each worker, which pushes what it would subtract."""
    sums: Sums = "workers"
    """With `hosts`, updates of a host may arrive together, added up. So the machine has to put all that have arrived
    into the same version, and weigh gradients by samples, as `core.roster.mean_of` does."""
    unapplied: Callable[[Any], int] = lambda config: 2
    """In the parameter-server family: how many steps of one worker may be released at once, and neither applied nor
    dropped. The worker has a push area for each. So no step waits for an update that waits for this very step."""
    pushes_at_once: bool = True
    """In the parameter-server family: whether each update goes to the store as soon as it is computed."""
    averages: Literal["parameters", "gradients"] = "parameters"
    """What groups average, in the decentralized family."""
    parts: tuple[str, ...] = ()
    """Parameters that each name another protocol. `machine` gets a `Part` for each after the config, in this order.
    So a protocol that is composed of others gets them as arguments, and imports none."""
    misfit: Callable[[Any, Sequence[str]], str] | None = None
    """Why this config can't train on these hosts, one for each worker in their order; empty if it can."""
    unfit: Callable[[Any, Sequence[Mapping[str, Any]]], str] | None = None
    """Why this config can't train with an optimizer that has these hyperparameters, by parameter group; empty if it
    can."""
    remark: Callable[[Any, Sequence[str]], str] | None = None
    """A note for the user at start-up on these hosts; empty if there is none."""
    memory: Callable[[Any], Any] | None = None
    """What a machine keeps for a machine that goes on in its place when the run is resumed: plain data, which JSON can
    hold. `TrainingBegan` brings it. All else begins anew. None: nothing is kept, as of every protocol that can be a
    part of another one."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Code of a `why` to its sentence, with {0}, {1}, … for the arguments."""

    @property
    def holder(self) -> HolderKind:
        """What shows parameters to each worker's script."""
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
        """Whether a store on other hosts may be brought gradients while workers still compute the rest."""
        return self.pushes == "gradients" and self.versions == "stored" and self.pushes_at_once

    @property
    def in_groups(self) -> bool:
        """Whether workers average in groups."""
        return self.family == "decentralized"

    @property
    def versions(self) -> Versions:
        """What the versions of a run are that are recorded."""
        return "means" if self.family == "decentralized" else "stored"

    def sentence(self, why: Why) -> str:
        """Write `why` out as a sentence."""
        code, *arguments = why
        template = self.reasons.get(str(code))
        if template is None:
            return " ".join(str(part) for part in why)
        return template.format(*arguments)
