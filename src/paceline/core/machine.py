"""The contract that every protocol keeps, and the `Spec` that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from paceline.core.facts import Fact
from paceline.core.orders import Order

State = Literal["store", "replicas"]
"""Where the parameters are that others read: in a store, which makes a run's versions one after the other, or in a
replica of each worker's. Then the mean of all replicas is recorded as a version."""
Pushes = Literal["gradient", "difference", "nothing"]
"""What of a step goes into a worker's push area. The difference is what its own optimizer has subtracted."""
Steps = Literal["store", "worker", "outer"]
"""What makes a version: the script's optimizer in the store, or in the worker, or an outer optimizer in the store."""
Sums = Literal["workers", "hosts"]
"""The terms of a version on several hosts: each worker's update, or one sum of each host's updates."""


class Outer(NamedTuple):
    """An outer optimizer: `torch.optim.SGD` with these, on the sum of a version's weighted differences.

    With a delay above 1 it is `store.delayed_nesterov`.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    delay: int = 1
    """Versions after which their mean difference goes into the momentum."""
    activation: float = 0.0
    """The share of the momentum that the versions in between step with."""

    @property
    def buffers(self) -> int:
        """How many tensors it keeps for each parameter."""
        return (self.momentum > 0) + (self.delay > 1)


class Fragments(NamedTuple):
    """What of the parameters a version changes, and what workers take of that."""

    total: int = 1
    """Fragments of the parameters. The version after `v` changes only the fragment of the number `v % total`."""
    mix: float = 0.0
    """The share of its own parameters that a worker keeps as it takes a fragment."""
    overlap: int = 0
    """Steps that a worker makes while its update is pushed. They are in its next one."""

    def between(self, since: int, version: int) -> set[int]:
        """Return the numbers of the fragments that changed from version `since` to `version`."""
        return {one % self.total for one in range(max(since, version - self.total), version)}

    def bytes_taken(self, size: int, since: int | None, version: int) -> int:
        """Return how many bytes of a version's `size` are taken by who has the version `since`, if any."""
        parts = self.total if self.total == 1 or since is None else len(self.between(since, version))
        return size * parts // self.total


WHOLE = Fragments()
"""A version changes all parameters, and workers take all of it."""


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
    averages: bool
    """As in its `Spec`."""
    optimizer: Steps
    """As in its `Spec`."""
    machine: Machine
    state: State = "store"
    """As in its `Spec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A protocol's entry in the registry. Each file in `protocols/` has one, named `SPEC`."""

    name: str
    """As on the command line."""
    title: str
    does: str = ""
    """What it does, in one line, for the list of protocols."""
    paper: str
    """The paper that introduces or describes it."""
    config: type[Any]
    """A frozen dataclass of its parameters, all with defaults."""
    machine: Callable[..., Machine]
    """Makes the machine from a config, and from its parts if there are any."""
    rounds: bool
    """Whether workers go in rounds, each version the mean of one gradient from each worker. Batches are then dealt by
    (round, worker), whatever the timing."""
    waits_for_all: Callable[[Any], bool] = lambda config: True
    """In rounds: whether each waits for all workers. Else batches are dealt to whoever asks, as outside of rounds."""
    gradients: Callable[[Any, int], int] | None = None
    """Of how many gradients a version is the mean, with so many workers. By default of one from each in rounds, else
    of one. If a protocol says it, it waits for so many and not for all."""
    invariants: Mapping[str, Callable[[Any], bool]]
    """What is true of the machine after every fact: a sentence, and its test."""
    state: State = "store"
    """Where the parameters are that others read."""
    local_steps: bool = False
    """Whether each worker's optimizer steps parameters of its own, which the worker sees at once."""
    pushes: Pushes = "gradient"
    """What a worker puts into its push area. If groups average, they average gradients, or replicas if nothing."""
    optimizer: Steps = "store"
    """What makes a version."""
    outer: Callable[[Any, int], Outer] = lambda config, workers: Outer()
    """The outer optimizer, if there is one, where so many workers begin. By default it subtracts differences as they
    are."""
    fragments: Callable[[Any], Fragments] = lambda config: WHOLE
    """How updates of rounds are spread over fragments of the parameters. By default each has all parameters."""
    pieces: int = 1
    """Into how many pieces a script's batch is cut. They are dealt like batches, and a worker's loader makes one batch
    of as many as `Release.batches` says."""
    groups: bool = False
    """Whether workers average in groups, by `Reduce`."""
    sums: Sums = "workers"
    """With `hosts`, a host's updates may arrive together, added up. So the machine has to put all that have arrived
    into the same version, and weigh gradients by samples, as `core.roster.mean_of` does."""
    unapplied: Callable[[Any, int], int] = lambda config, workers: 2
    """With a store, and so many workers: the most steps of one worker that may be released, and neither applied nor
    dropped. The worker has a push area for each. So no step waits for an update that waits for that step."""
    pushes_at_once: bool = True
    """With a store: whether each step's update goes there as soon as it is computed. With local steps, else, one update
    has several steps: the worker makes it when its push is ordered."""
    parts: tuple[str, ...] = ()
    """Parameters that each name another protocol. `machine` gets a `Part` for each after the config, in this order.
    So a protocol that consists of others doesn't import them."""
    begins: Callable[[Any], int] = lambda config: 0
    """The number of the part that decides at first."""
    parts_misfit: Callable[[Any, Sequence[Spec]], str] | None = None
    """Says why this config can't consist of these parts. Empty: it can."""
    around: Callable[[Any, Any], Spec] | None = None
    """Where this adds something to its only part: returns the entry of the two together, which has no parts. It gets
    the config, and the part's `core.choice.Choice`."""
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
    def averages(self) -> bool:
        """Whether a version is the mean of several workers' gradients, or differences."""
        return self.rounds or self.gradients is not None

    @property
    def updates_of_rounds(self) -> bool:
        """Whether an update has several own steps of a worker, which makes it as its push is ordered."""
        return self.state == "store" and self.local_steps and not self.pushes_at_once

    @property
    def averages_early(self) -> bool:
        """Whether hosts may average gradients while workers still compute the rest."""
        return self.state == "replicas" and self.pushes == "gradient" and self.rounds

    @property
    def brings_early(self) -> bool:
        """Whether other hosts' stores may get gradients while workers still compute the rest."""
        return self.state == "store" and self.pushes == "gradient" and self.pushes_at_once
