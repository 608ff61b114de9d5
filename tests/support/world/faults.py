"""What may go wrong in a world, and a history drawn from one seed: hosts, workers, protocol, script, and faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from paceline.core.choice import Choice, choose, declared, written
from paceline.core.machine import Spec
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.scenario.scenario import HostTable, Scenario
from support.settings import values_of
from support.world.clock import Seconds
from support.world.processes import Script

PROTOCOLS = ("asp", "bsp", "dssp", "hsp", "local-sgd", "ps-plus", "ssp", "sync-switch")
"""Those with a store."""
IN_GROUPS = ("ad-psgd", "all-reduce", "ripples")
"""Those in which each worker owns a replica."""
HEAD = "node-0"


@dataclass(frozen=True, slots=True)
class Cut:
    """Connections between two hosts break. Bytes on their way are lost. Each end hears of it after a time, or never."""

    at: Seconds
    one: str
    other: str
    heard: tuple[Seconds | None, Seconds | None]


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing gets from one host to the other for a while. It comes later, if the connection lives so long."""

    at: Seconds
    until: Seconds
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True)
class Slow:
    at: Seconds
    until: Seconds
    sender: str
    receiver: str
    by: Seconds


@dataclass(frozen=True, slots=True)
class Killed:
    at: Seconds
    node: str
    silently: bool
    """Whether its machine goes too, so that nobody hears of it."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A host's process is stopped for a while. Its kernel still takes bytes and connections."""

    at: Seconds
    until: Seconds
    node: str
    sleeps: bool
    """Whether its machine sleeps, so that one of its two clocks stands still."""


@dataclass(frozen=True, slots=True)
class WorkerKilled:
    at: Seconds
    worker: int


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker's process is stopped for a while."""

    at: Seconds
    worker: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class ScriptFails:
    """A worker's script raises, in the place of saying this message, counted from 1."""

    worker: int
    message: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A host can't dial, for a while."""

    at: Seconds
    until: Seconds
    node: str


@dataclass(frozen=True, slots=True)
class NoDescriptor:
    """The head can't accept a connection, for a while."""

    at: Seconds
    until: Seconds


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A signal asks the head for the run's end."""

    at: Seconds
    times: int
    keyboard: bool


@dataclass(frozen=True, slots=True)
class StoreKilled:
    """The process of a host is killed that makes versions."""

    at: Seconds
    node: str


@dataclass(frozen=True, slots=True)
class StoreStopped:
    """That process is stopped for a while."""

    at: Seconds
    node: str
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Diverges:
    """That process finds a NaN in its range of that version."""

    node: str
    version: int


@dataclass(frozen=True, slots=True)
class Drained:
    """A host is asked to leave in good order. One that takes no part yet, or any more, is not."""

    at: Seconds
    node: str


Fault = (
    Cut
    | Blocked
    | Slow
    | Stopped
    | Killed
    | WorkerKilled
    | WorkerStopped
    | ScriptFails
    | Unreachable
    | NoDescriptor
    | Interrupted
    | StoreKilled
    | StoreStopped
    | Diverges
    | Drained
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is drawn before a world begins. What takes how long is drawn from the seed as it goes."""

    seed: int
    hosts: int
    each: int
    """Workers of each host that has some."""
    servers: tuple[str, ...] = ()
    """Hosts without workers, which make versions."""
    protocol: str
    script: Script
    commits: Seconds
    """What making a version takes at most."""
    timeout: Seconds
    """The hosts'."""
    on_loss: str
    restart: int
    """How often each worker begins again that has died."""
    max_steps: int | None
    max_seconds: Seconds | None
    shards_on: str | None
    """As `--shards-on` has it."""
    on_divergence: Literal["stop", "continue"]
    parts: int
    """Bytes of the parts in which items are sent."""
    end: Seconds
    """When faults are over."""
    lost: tuple[tuple[str, str], ...]
    """Hosts that don't work any more once faults are over, and what is wrong with each."""
    faults: tuple[Fault, ...]

    @property
    def names(self) -> list[str]:
        return [f"node-{host}" for host in range(self.hosts)]

    @property
    def workers(self) -> int:
        """How many there are."""
        return (self.hosts - len(self.servers)) * self.each

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """The hosts and their workers, if some have none."""
        tables: list[HostTable] = []
        for name in self.names if self.servers else ():
            first = tables[-1].workers.stop if tables else 0
            after = first + (0 if name in self.servers else self.each)
            tables.append(HostTable(name=name, workers=range(first, after)))
        return tuple(tables)

    @property
    def choice(self) -> Choice:
        return choose(self.protocol, registry())

    @property
    def spread(self) -> bool:
        """Whether hosts besides the head's make versions or averages, so that all are connected with each other."""
        return self.choice.spec.groups or (not self.restart and self.shards_on != "head")

    @property
    def limited(self) -> bool:
        """Whether the run may end before its work is done."""
        return self.max_steps is not None or self.max_seconds is not None

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong: hosts leave in good order at most."""
        return not self.lost and all(isinstance(fault, Drained) for fault in self.faults)

    @property
    def touched(self) -> set[str]:
        """The hosts that may be lost, by what is drawn."""
        touched = {name for name, _ in self.lost}
        for fault in self.faults:
            match fault:
                case Stopped(node=node) | Killed(node=node) if node == HEAD:
                    return set(self.names)
                case NoDescriptor():
                    return set(self.names)
                case Unreachable() if self.spread:  # another one is given up of two that can't reach each other
                    return set(self.names)
                case Cut(one=one, other=other):
                    touched |= {one, other}
                case Stopped(node=node) | Killed(node=node) | Unreachable(node=node):
                    touched.add(node)
                case Blocked(sender=sender, receiver=receiver) | Slow(sender=sender, receiver=receiver):
                    touched |= {sender, receiver}
        return touched

    @property
    def bound(self) -> Seconds:
        """Seconds after the last fault in which the run must be over."""
        steps = self.script.epochs * self.script.batches * (1 if self.script.loads else self.workers)
        work = 3 * self.script.computes + self.commits + 2.0
        return 300.0 + 6 * self.timeout + 10 * self.script.starts + work * (steps + 5)


def drawn(seed: int) -> History:
    lots = random.Random(f"history {seed}")
    hosts = lots.choice([2, 2, 2, 3, 3, 4])
    each = lots.choice([1, 1, 2, 2, 3]) if hosts < 4 else lots.choice([1, 1, 2])
    loads = lots.random() < 0.7
    per_worker = lots.choice([1, 2, 4, 7])
    script = Script(
        loads=loads,
        epochs=lots.choice([1, 1, 2]),
        batches=max(1, per_worker * (hosts * each if loads else 1) - lots.randint(0, 1)),
        starts=lots.choice([0.01, 1.0, 8.0]),
        computes=lots.choice([0.001, 0.02, 0.05, 0.2, 1.0, 4.0]),
        finishes=lots.random() < 0.5,
        looks=lots.choice([0.0, 0.0, 0.1, 0.3]),
    )
    timeout = lots.choice([2.0, 5.0, 15.0])
    protocol = _protocol(lots, hosts, hosts * each)
    max_steps = script.epochs * script.batches * hosts * each
    history = History(
        seed=seed,
        hosts=hosts,
        each=each,
        protocol=protocol,
        script=script,
        commits=lots.choice([0.0, 0.01, 0.5]),
        timeout=timeout,
        on_loss=lots.choice(["auto", "continue", "continue", "continue", "stop"]),
        restart=lots.choice([0, 0, 1, 3]),
        max_steps=max_steps if not loads else lots.choice([None, None, None, max(1, max_steps // 2)]),
        max_seconds=None,
        shards_on=None,
        on_divergence="stop",
        parts=lots.choice([40, 100, 1 << 20]),
        end=0.0,
        lost=(),
        faults=(),
    )
    history = _with_faults(_with_shards(history, random.Random(f"shards {seed}")), lots)
    return _with_drains(history, random.Random(f"drains {seed}"))


def _with_drains(history: History, lots: random.Random) -> History:
    """Have some hosts leave in good order, in some histories."""
    leave = lots.sample(history.names[1:], lots.choice([0, 0, 0, 1, 1, min(2, history.hosts - 1)]))
    drains = [Drained(lots.uniform(0, history.end) * lots.choice([1.0, 0.5]), name) for name in leave]
    return replace(history, faults=(*history.faults, *drains))


def leaving(seed: int) -> History:
    """Draw a history whose hosts all make versions, and some of which leave in good order while they do.

    Nothing else goes wrong in every other one.
    """
    history, lots = drawn(seed), random.Random(f"leaving {seed}")
    script = history.script
    script = replace(script, pieces=4, batches=3 * script.batches, starts=min(1.0, script.starts))
    steps = script.epochs * script.batches / (history.workers if script.loads else 1)
    length = script.starts + steps * (0.6 * script.computes + 0.5 * history.commits) + 0.3
    leave = lots.sample(history.names[1:], lots.randint(1, history.hosts - 1))
    others = [fault for fault in history.faults if not isinstance(fault, Drained) and seed % 2]
    drains = [Drained(lots.uniform(0.1, 1.0) * length, name) for name in leave]
    return replace(
        history,
        script=script,
        restart=0,
        shards_on="all",
        max_steps=None if history.max_steps is None else 3 * history.max_steps,
        max_seconds=None,
        end=max(history.end, length),
        lost=history.lost if seed % 4 == 1 else (),
        faults=(*others, *drains),
    )


def serving(seed: int) -> History:
    """Draw a history in which some hosts make versions and have no workers. In every other one hosts leave."""
    history, lots = leaving(seed) if seed % 2 else drawn(seed), random.Random(f"serving {seed}")
    servers = tuple(sorted(lots.sample(history.names[1:], lots.randint(1, history.hosts - 1))))
    shards_on = "all" if history.restart else lots.choice([None, "all", ",".join(servers)])
    history = replace(history, servers=servers, shards_on=shards_on, max_steps=history.max_steps)
    faults = [fault for fault in history.faults if getattr(fault, "worker", 0) < history.workers]
    script = replace(history.script, pieces=lots.choice([2, 4, 4, 4]))
    return replace(history, script=script, faults=tuple(faults))


def switching(seed: int) -> History:
    """Draw a history of two parts, of which workers' own optimizers step in one or in both."""
    history, lots = (leaving if seed % 3 == 2 else drawn)(seed), random.Random(f"switching {seed}")
    own = ("ps-plus", "local-sgd:every=2", "diloco:every=3", "local-sgd:every=1")
    first, then = lots.choice(own), lots.choice([*own, "bsp", "asp", "hsp", "ssp:bound=1"])
    if lots.random() < 0.5:
        first, then = then, first
    point, script = lots.choice(["0.2", "0.5", "0.8"]), history.script
    script = replace(script, computes=min(script.computes, 1.0))  # a round ends before a host that leaves is ended
    return replace(history, protocol=f"sync-switch:switch_at={point},first={first},then={then}", script=script)


def grouped(seed: int) -> History:
    """Draw a history in which each worker owns a replica, and groups average. In some of them many workers die."""
    history, lots = drawn(seed), random.Random(f"groups {seed}")
    protocol = _protocol(lots, history.hosts, history.workers, IN_GROUPS)
    script = replace(history.script, starts=lots.choice([0.01, 0.3, 1.0]), pieces=lots.choice([1, 2, 4, 4, 4]))
    history = replace(history, protocol=protocol, script=script, shards_on=None, max_seconds=None, faults=(), lost=())
    history = _with_drains(_with_faults(history, lots), lots)
    deaths = (lots.uniform(0, history.end) for _ in range(lots.choice([0, 0, 0, 1, 3])))
    dies = tuple(WorkerKilled(at, lots.randrange(history.workers)) for at in deaths)
    return replace(history, faults=(*history.faults, *dies))


def encoding(seed: int) -> History:
    """Draw a history in which a group averages what workers have encoded."""
    history = grouped(seed)
    return replace(history, protocol="all-reduce", script=replace(history.script, encodes=True))


def beginning(seed: int) -> History:
    """Draw a history of rounds whose versions hosts begin before they are ordered. In every third one hosts leave."""
    history, lots = (leaving if seed % 3 == 0 else drawn)(seed), random.Random(f"beginning {seed}")
    script = replace(history.script, loads=True, pieces=4, batches=history.hosts * lots.choice([3, 6, 12]))
    faults = [fault for fault in history.faults if getattr(fault, "worker", 0) < history.hosts]
    return replace(
        history,
        protocol="bsp",
        each=1,
        script=script,
        shards_on="all",
        restart=0,
        max_steps=lots.choice([None, None, script.batches // 2]),
        faults=tuple(faults),
    )


def alone(seed: int) -> History:
    """Draw a history of a run on one host, of any protocol."""
    history, lots = drawn(seed), random.Random(f"alone {seed}")
    each = lots.choice([1, 2, 2, 3, 4, 6])
    script, loads = history.script, history.script.loads
    per_worker = lots.choice([1, 2, 4, 7])
    script = replace(
        script, batches=max(1, per_worker * (each if loads else 1) - lots.randint(0, 1)), pieces=lots.choice([1, 2, 4])
    )
    max_steps = script.epochs * script.batches * each
    history = replace(
        history,
        hosts=1,
        each=each,
        protocol=_protocol(lots, 1, each, (*PROTOCOLS, *IN_GROUPS)),
        script=script,
        max_steps=max_steps if not loads else lots.choice([None, None, None, max(1, max_steps // 2)]),
        max_seconds=None,
        shards_on=None,
        on_divergence=lots.choice(["stop", "continue"]),
        lost=(),
        faults=(),
    )
    return _with_faults(history, lots, OF_ONE_HOST)


def any_of(seed: int) -> History:
    return grouped(seed) if seed % 4 == 3 else drawn(seed)


def _with_shards(history: History, lots: random.Random) -> History:
    """Have other hosts make versions, too, where they stay, unless the model is small."""
    pieces = lots.choice([1, 2, 4, 4])
    shards_on: str | None = lots.choice([None, "head"])
    if not history.restart:
        some = [name for name in history.names if lots.random() < 0.5] or history.names[-1:]
        shards_on = lots.choice([None, None, "all", "head", ",".join(some)])
    return replace(
        history,
        script=replace(history.script, pieces=pieces),
        shards_on=shards_on,
        on_divergence=lots.choice(["stop", "continue"]),
    )


def _protocol(lots: random.Random, hosts: int, workers: int, among: Sequence[str] = PROTOCOLS) -> str:
    """A protocol that can train on these hosts, and a value for some of its parameters."""
    spec = registry()[lots.choice(among)]
    names = Scenario(nodes=hosts).hosts(workers)
    while True:
        text = _settings(lots, spec)
        try:
            choice = choose(text, registry())
        except ConfigError:
            continue
        if choice.spec.misfit is None or not choice.spec.misfit(choice.config, names):
            return text


def _settings(lots: random.Random, spec: Spec) -> str:
    given = []
    for name, parameter in declared(spec.config).items():
        values: list[Any] = values_of(parameter, spec)
        if parameter.kind is int and parameter.most is None:
            values += [1, 2, 5]
        if lots.random() < 0.6:
            given.append(f"{name}={written(lots.choice(values))}")
    return f"{spec.name}:{','.join(given)}" if given else spec.name


OF_ONE_HOST = {
    "stopped": 1,
    "worker killed": 2,
    "worker stopped": 1,
    "script fails": 1,
    "interrupted": 1,
    "store killed": 0.2,
    "store stopped": 1,
    "diverges": 0.5,
    "head killed": 0.1,
}
"""How often what happens to a run on one host."""


def _with_faults(history: History, lots: random.Random, of: dict[str, float] | None = None) -> History:
    """`of`: by kind of fault, how often. None: it is drawn."""
    script, names = history.script, history.names
    steps = script.epochs * script.batches / (history.workers if script.loads else 1)
    length = 2 * script.starts + steps * (script.computes + history.commits) + 0.5
    end = length * lots.choice([0.5, 1.0, 1.5]) + lots.choice([0.0, history.timeout])
    if lots.random() < 0.15:
        history = replace(history, max_seconds=lots.uniform(0, length))
    others = names[1:]
    if lots.random() < 0.1:
        return replace(history, end=end)
    kinds = of or {
        "cut": lots.choice([0, 1, 3]),
        "blocked": lots.choice([0, 1, 3]),
        "slow": lots.choice([0, 1]),
        "stopped": lots.choice([0, 1, 2]),
        "killed": lots.choice([0, 0, 1]),
        "worker killed": lots.choice([0, 0, 1]),
        "worker stopped": lots.choice([0, 1]),
        "script fails": lots.choice([0, 0, 0, 1]),
        "unreachable": lots.choice([0, 0, 1]),
        "no descriptor": lots.choice([0, 0, 0.5]),
        "interrupted": lots.choice([0, 0, 1]),
        "store killed": lots.choice([0, 0, 0.1]),
        "store stopped": lots.choice([0, 0, 1]),
        "diverges": lots.choice([0, 0, 0.3]),
        "head killed": lots.choice([0, 0, 0.1]),
    }
    if not any(kinds.values()):
        return replace(history, end=end)
    faults = [
        _fault(kind, end, history, lots)
        for kind in lots.choices(list(kinds), list(kinds.values()), k=lots.choice([1, 1, 2, 4, 8]))
    ]
    lost = [name for name in others if lots.random() < 0.15]
    return replace(
        history,
        end=end,
        faults=tuple(faults),
        lost=tuple((name, lots.choice(["killed", "stopped", "deaf", "mute", "cut off"])) for name in lost),
    )


def _fault(kind: str, end: Seconds, history: History, lots: random.Random) -> Fault:
    names, others = history.names, history.names[1:]
    pairs = tuple(combinations(names, 2)) if history.spread else tuple((HEAD, name) for name in others)

    def lasts() -> tuple[Seconds, Seconds]:
        """From when to when: often less than a fifth of the timeout, and sometimes more than all of it."""
        at = lots.uniform(0, end)
        length = lots.choice([0.05, 0.2, 0.2, 0.7, 1.0, 1.5]) * history.timeout * lots.uniform(0.5, 1.5)
        return at, min(at + length, end)

    def way() -> tuple[str, str]:
        one, other = lots.choice(pairs)
        return (one, other) if lots.random() < 0.5 else (other, one)

    at = lots.uniform(0, end) * lots.choice([1.0, 1.0, 0.2])
    _, until = lasts()
    match kind:
        case "cut":
            one, other = lots.choice(pairs)
            heard = [lots.choice([0.0, lots.uniform(0, 0.1), lots.uniform(0, history.timeout), None]) for _ in "12"]
            return Cut(lots.uniform(0, end), one, other, (heard[0], heard[1]))
        case "blocked":
            return Blocked(*lasts(), *way())
        case "slow":
            return Slow(*lasts(), *way(), lots.choice([0.05, 0.5, 4.0]))
        case "stopped":
            return Stopped(*lasts(), lots.choice(names), lots.random() < 0.3)
        case "killed":
            return Killed(at, lots.choice(others), lots.random() < 0.5)
        case "head killed":
            return Killed(at, HEAD, lots.random() < 0.5)
        case "worker killed":
            return WorkerKilled(at, lots.randrange(history.workers))
        case "worker stopped":
            return WorkerStopped(at, lots.randrange(history.workers), lots.uniform(0, 2 * history.timeout))
        case "script fails":
            return ScriptFails(lots.randrange(history.workers), lots.randint(1, 12))
        case "unreachable":
            return Unreachable(at, max(at, until), lots.choice(others))
        case "no descriptor":
            return NoDescriptor(at, max(at, until))
        case "interrupted":
            return Interrupted(at, lots.choice([1, 1, 1, 2]), lots.random() < 0.5)
        case "store killed":
            return StoreKilled(at, lots.choice(names))
        case "store stopped":
            return StoreStopped(at, lots.choice(names), lots.uniform(0, 2 * history.timeout))
        case "diverges":
            return Diverges(lots.choice(names), lots.randint(1, 8))
    raise AssertionError(kind)


def told(faults: Sequence[Fault]) -> str:
    return "\n".join(f"  {fault}" for fault in faults) or "  none"
