"""The contract that every protocol keeps, and the card that it is known by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.core.facts import Fact
from paceline.core.orders import Order, Why


class Machine(Protocol):
    """A protocol: one way in, values out.

    A machine is a dataclass whose fields are plain data, so that it can be copied, compared and
    written as JSON (`core.state`). It reads no clock, draws no unseeded randomness, iterates no
    set, logs nothing, and touches no tensor. It is made from its `Config` alone; `TrainingBegan`
    tells it who takes part.
    """

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """The orders that follow from this fact, in the order in which to carry them out.

        Costs O(log n) or better in the number of workers, amortized over its facts. Raises
        ProtocolViolation for a fact that cannot be true now, and is then unchanged.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Part:
    """A protocol inside another one: its name, what its card says, and a machine of it."""

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
    family: Literal["parameter-server", "decentralized"]
    paper: str
    """Where it comes from, or "folklore" and who describes it."""
    config: type[Any]
    """A frozen dataclass of its parameters, all with defaults."""
    machine: Callable[..., Machine]
    """Makes the machine from a config, and from its parts if it has any."""
    rounds: bool
    """Whether workers go in rounds, each version the mean of one gradient from each: batches are then dealt by
    (round, worker), whatever the timing."""
    invariants: Mapping[str, Callable[[Any], bool]]
    """What holds of the machine after every fact: a sentence, and the test of it."""
    optimizer: Literal["store", "worker"] = "store"
    """Who runs the optimizer: the store, on gradients; or each worker, who pushes what it would subtract."""
    averages: Literal["parameters", "gradients"] = "parameters"
    """What groups average, in the decentralized family."""
    parts: tuple[str, ...] = ()
    """Parameters that each name another protocol. A `Part` for each is handed to `machine` after the config, in this
    order: a protocol that is composed of others gets them as arguments, and imports none."""
    misfit: Callable[[Any, Sequence[str]], str] | None = None
    """Why this config can't train on these hosts, one for each worker in their order; empty if it can."""
    unfit: Callable[[Any, Sequence[Mapping[str, Any]]], str] | None = None
    """Why this config can't train with an optimizer that has these hyperparameters, by parameter group; empty if it
    can."""
    remark: Callable[[Any, Sequence[str]], str] | None = None
    """What its user should know as it begins on these hosts; empty if nothing."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Code of a `why` to its sentence, with {0}, {1}, … for the arguments."""

    def sentence(self, why: Why) -> str:
        """`why` written out."""
        code, *arguments = why
        template = self.reasons.get(str(code))
        if template is None:
            return " ".join(str(part) for part in why)
        return template.format(*arguments)
