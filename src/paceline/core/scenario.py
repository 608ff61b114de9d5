"""Scenario files: how fast each worker is, when one slows down or dies, and what the network is like.

Real runs and the simulator read the same file and ask the same questions of it. The answers are pure. They
depend only on the file, the seed, and the worker, step and moment of the question.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import NormalDist
from typing import Any

from paceline.core.choice import nearest
from paceline.core.files import read_file
from paceline.core.listed import cut
from paceline.core.lots import Lots
from paceline.errors import ConfigError

_DURATIONS = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_SIZES = {"B": Decimal(1), "KB": Decimal("1e3"), "MB": Decimal("1e6"), "GB": Decimal("1e9"), "TB": Decimal("1e12")}
_RATES = {f"{unit[:-1]}bit/s": scale / 8 for unit, scale in _SIZES.items()} | {
    f"{unit}/s": scale for unit, scale in _SIZES.items()
}
_MOST = Decimal("1e18")
_SHORTEST = Decimal("1e-9")  # seconds: no clock counts anything shorter
MOST_WORKERS = 100_000
"""More workers than this are taken for a typing mistake."""

_NORMAL = NormalDist()

_KEYS = {
    "cluster": ("workers", "nodes", "compute", "jitter"),
    "network": (
        *("bandwidth", "latency", "message", "incast", "servers", "worker_bandwidth"),
        *("commit", "within_nodes", "between_nodes", "mixed"),
    ),
    "worker": ("index", "speed"),
    "event": ("worker", "at", "at_step", "for", "for_steps", "every", "slow", "kill", "rejoin_after"),
}
_HEADERS = {"cluster": "[cluster]", "network": "[network]", "worker": "[[worker]]", "event": "[[event]]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The parameter server's link, and what groups average over. Bandwidths: bytes a second; None is unlimited."""

    bandwidth: float | None = None
    """Of each server's link, each way."""
    latency: float = 0.0
    """Seconds."""
    message: int | None = None
    """Bytes of one push or pull, or of a replica; None is the model's size."""
    incast: float = 1.0
    """What is left of the goodput when more than one flow enters the server."""
    servers: int = 1
    """How many servers share the parameters. Every transfer is spread evenly over all their links."""
    worker_bandwidth: float | None = None
    """Of one worker's own link, each way."""
    commit: float = 0.0
    """Seconds that the store takes to make a version, one after another."""
    within_nodes: float | None = None
    """Of a group whose members are all in one node."""
    between_nodes: float | None = None
    """Of a group with one member of each of several nodes."""
    mixed: float | None = None
    """Of a group with several members of one node and others elsewhere; None is as `between_nodes`."""

    @property
    def narrow(self) -> bool:
        """Whether any link has a bandwidth, so that the number of bytes matters."""
        links = (self.bandwidth, self.worker_bandwidth, self.within_nodes, self.between_nodes, self.mixed)
        return any(bandwidth is not None for bandwidth in links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A worker's steps take `factor` times as long, for a while.

    It is given in time (`at`, `for_`, `every`; seconds) or in that worker's own steps (`at_step`, `for_steps`),
    never in both. How long a slowness has lasted that began at a step could be told only from memory.
    Without a length it lasts for ever.
    """

    worker: int
    at: float | None = None
    at_step: int | None = None
    for_: float | None = None
    for_steps: int | None = None
    every: float | None = None
    factor: float

    def active(self, step: int, at: float) -> bool:
        """Whether the step `step`, which starts at second `at`, is slowed. The whole step is slowed, or none of it."""
        if self.at_step is not None:
            return self.at_step <= step and (self.for_steps is None or step < self.at_step + self.for_steps)
        if self.at is None or at < self.at:
            return False
        since = at - self.at
        if self.every is not None:
            since %= self.every
        return self.for_ is None or since < self.for_


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker gets SIGKILL, at a second of the run or as it starts a step."""

    worker: int
    at: float | None = None
    at_step: int | None = None
    rejoin_after: float | None = None
    """Seconds after which the worker comes back; None: it stays away. Only in simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a run's machines are like. In `Scenario()` nothing is slow.

    Workers and steps count from 0: with `at_step = 50` a worker's first 50 steps are as usual.
    """

    path: str | None = field(default=None, compare=False)
    """The file that it was read from, for messages."""
    workers: int | None = None
    nodes: int = 1
    compute: float | None = None
    """Seconds that one step takes on a worker of speed 1; None: as long as it takes."""
    jitter: float = 0.0
    """Relative standard deviation of a step's length."""
    network: Network | None = None
    speeds: dict[int, float] = field(default_factory=dict, hash=False)
    """By worker; 1 for workers that are not named."""
    events: tuple[Slowdown | Kill, ...] = ()
    """In the file's order: `events[0]` is the one that messages call `event 1`."""

    def checked_for(self, workers: int) -> Scenario:
        """Return this scenario for a run of so many workers. Raises ConfigError if it names one beyond them."""
        named = [(f"worker table {n}: index", worker) for n, worker in enumerate(self.speeds, 1)]
        named += [(f"event {n}: worker", event.worker) for n, event in enumerate(self.events, 1)]
        for key, worker in named:
            if not 0 <= worker < workers:
                allowed = f"with {workers} workers it must be from 0 to {workers - 1}"
                if workers == 1:
                    allowed = "with 1 worker it must be 0"
                raise ConfigError(f"{self.name}: {key} is {worker}; {allowed}: change it, or ask for more workers")
        if self.nodes > workers:
            raise ConfigError(
                f"{self.name}: cluster.nodes is {self.nodes}, and there are {workers} workers; write at most so "
                "many nodes, or ask for more workers"
            )
        return replace(self, workers=workers)

    def hosts(self, workers: int) -> list[str]:
        """Each worker's node. Workers are dealt to the nodes in the order of their ranks."""
        return [f"node-{worker * self.nodes // workers}" for worker in range(workers)]

    def checked_for_real_run(self) -> Scenario:
        """Return this scenario. Raises ConfigError if it asks for what no real run can do.

        A real step can be made longer, never shorter. So speeds above 1 need `compute` as the length to pad to, and so
        does jitter, whose factors lie on both sides of 1. No worker rejoins, and an average takes its own time.
        """
        for number, event in enumerate(self.events, 1):
            if isinstance(event, Kill) and event.rejoin_after is not None:
                raise ConfigError(
                    f"{self.name}: event {number}: rejoin_after is {_seconds(event.rejoin_after)}; in a real run a "
                    "killed worker stays away: leave it out, or see what would come of it with paceline simulate"
                )
        for key in ("commit", "within_nodes", "between_nodes", "mixed"):
            if self.network is not None and getattr(self.network, key):
                raise ConfigError(
                    f"{self.name}: network.{key} is given; a real run's versions and averages take what they "
                    "take: leave it out, or see what would come of it with paceline simulate"
                )
        self.checked_to_count()
        if self.compute is None:
            remedy = "a real step can't be made shorter: set cluster.compute, so that a step can be padded"
            for worker, speed in self.speeds.items():
                if speed > 1:
                    raise ConfigError(
                        f"{self.name}: worker {worker}: speed is {speed}; {remedy}, or write at most 1 here"
                    )
            if self.jitter > 0:
                raise ConfigError(f"{self.name}: cluster.jitter is {self.jitter}; {remedy}, or leave jitter out")
        return self

    def checked_to_count(self) -> Scenario:
        """Return this scenario. Raises ConfigError if a key of its network would make no difference to anything."""
        link = self.network
        if link is not None:
            given = [f"message is {link.message} B"] if link.message is not None and not link.narrow else []
            if link.bandwidth is None:
                given += [f"incast is {link.incast}"] if link.incast != 1 else []
                given += [f"servers is {link.servers}"] if link.servers != 1 else []
            if given:
                raise ConfigError(
                    f"{self.name}: network: {given[0]}, and there is no bandwidth for it to count on; set "
                    'network.bandwidth, such as "1Gbit/s", or leave it out'
                )
        return self

    def checked_to_happen(self, seconds: float, steps: float) -> Scenario:
        """Return this scenario, for a run of so many seconds and steps. Raises ConfigError for an event beyond them.

        Such an event is known to come after the end. An event that kills a worker twice is refused, too.
        """
        deaths: dict[int, list[tuple[int, Kill]]] = {}
        for number, event in enumerate(self.events, 1):
            earliest = event.at
            if event.at_step is not None:
                earliest = event.at_step * self._fastest_step(event.worker)
                if earliest > seconds * (1 + 1e-9):
                    raise ConfigError(
                        f"{self.name}: event {number}: at_step is {event.at_step}, and worker {event.worker} can't "
                        f"begin it within {_seconds(seconds)}: make it earlier, or the run longer"
                    )
            if event.at is not None and event.at >= seconds:
                raise ConfigError(
                    f"{self.name}: event {number}: at is {_seconds(event.at)}, and all ends after "
                    f"{_seconds(seconds)}: make it earlier, or the run longer"
                )
            if event.at_step is not None and event.at_step >= steps:
                raise ConfigError(
                    f"{self.name}: event {number}: at_step is {event.at_step}, and all workers together make "
                    f"{steps:g} steps: make it earlier, or the run longer"
                )
            if isinstance(event, Kill):
                back = event.rejoin_after
                if back is not None and earliest is not None and earliest + back >= seconds:
                    raise ConfigError(
                        f"{self.name}: event {number}: rejoin_after is {_seconds(back)}, and all ends after "
                        f"{_seconds(seconds)}, before the worker is back: make it shorter, or the run longer"
                    )
                self._check_second_death(deaths.setdefault(event.worker, []), number, event)
        return self

    def _fastest_step(self, worker: int) -> float:
        """The least seconds that one of the worker's steps can take; 0 if that is not known."""
        if self.compute is None or self.jitter > 0:
            return 0.0
        return self.compute / self.speeds.get(worker, 1.0)

    def _check_second_death(self, before: list[tuple[int, Kill]], number: int, event: Kill) -> None:
        """Refuse a second final death of a worker, by time or by step. `before` has its deaths earlier in the file."""
        for first, other in before:
            for key in ("at", "at_step"):
                one, two = getattr(other, key), getattr(event, key)
                if one is None or two is None:
                    continue
                earlier, later = (first, number) if one <= two else (number, first)
                if (other if earlier == first else event).rejoin_after is None:
                    raise ConfigError(
                        f"{self.name}: event {later}: worker {event.worker} is killed, which event {earlier} has "
                        "done by then: leave it out, or let the worker come back with rejoin_after"
                    )
        before.append((number, event))

    def step_seconds(self, worker: int, step: int, at: float, measured: float, seed: int) -> float:
        """Return how many seconds this step, which starts at second `at` of the run, is to take.

        `compute`, or without it the `measured` seconds, × jitter factor × active slowdowns ÷ speed.
        """
        slow = math.prod(
            event.factor
            for event in self.events
            if isinstance(event, Slowdown) and event.worker == worker and event.active(step, at)
        )
        base = measured if self.compute is None else self.compute
        return base * self.jitter_factor(worker, step, seed) * slow / self.speeds.get(worker, 1.0)

    def jitter_factor(self, worker: int, step: int, seed: int) -> float:
        """Log-normal with mean 1 and relative standard deviation `jitter`; a function of its arguments alone."""
        if self.jitter == 0:
            return 1.0
        variance = math.log1p(self.jitter * self.jitter)
        return math.exp(math.sqrt(variance) * _normal(seed, worker, step) - variance / 2)

    def kills_at_step(self, worker: int, step: int) -> bool:
        """Whether the worker is to be killed as it starts this step."""
        return any(isinstance(e, Kill) and e.worker == worker and e.at_step == step for e in self.events)

    def kills_by_time(self) -> tuple[tuple[float, int], ...]:
        """(second of the run, worker) of each kill that is given in seconds, the earliest first."""
        return tuple(sorted((e.at, e.worker) for e in self.events if isinstance(e, Kill) and e.at is not None))

    def to_plain(self) -> dict[str, Any]:
        """Return the scenario as a TOML document that `load` reads back, with defaults written out."""
        plain: dict[str, Any] = {
            "cluster": _present(
                workers=self.workers, nodes=self.nodes, compute=_seconds(self.compute), jitter=self.jitter
            )
        }
        if self.network is not None:
            link = self.network
            plain["network"] = _present(
                bandwidth=_with_unit(link.bandwidth, "B", _SIZES, "/s"),
                latency=_seconds(link.latency),
                message=_with_unit(link.message, "B", _SIZES),
                incast=link.incast,
                servers=link.servers,
                worker_bandwidth=_with_unit(link.worker_bandwidth, "B", _SIZES, "/s"),
                commit=_seconds(link.commit) if link.commit else None,
                within_nodes=_with_unit(link.within_nodes, "B", _SIZES, "/s"),
                between_nodes=_with_unit(link.between_nodes, "B", _SIZES, "/s"),
                mixed=_with_unit(link.mixed, "B", _SIZES, "/s"),
            )
        if self.speeds:
            plain["worker"] = [{"index": worker, "speed": speed} for worker, speed in self.speeds.items()]
        if self.events:
            plain["event"] = [_plain_event(event) for event in self.events]
        return plain

    @property
    def name(self) -> str:
        """The file, as messages call it."""
        return "scenario" if self.path is None else _printable(self.path)


def load(path: str | os.PathLike[str]) -> Scenario:
    """Return the scenario that the file holds. Raises ConfigError, in one line, for any mistake."""
    name = os.fspath(path)
    file = _printable(name)
    return from_plain(_toml(file, _text(name, file)), name)


def from_plain(top: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Return the scenario that a TOML document describes, as `to_plain` writes it. Messages call it `name`.

    Raises ConfigError, in one line, for any mistake.
    """
    file = _printable(name)
    for key, value in top.items():
        if key not in _KEYS:
            near, home = nearest(str(key), _KEYS), _home(key)
            hint = (near or home) if isinstance(value, dict | list) else (home or near)  # [[workers]] is a table
            raise ConfigError(
                f"{file}: unknown {'table' if isinstance(value, dict | list) else 'key'} {_shown(key)}"
                f"{hint}; known: {', '.join(_HEADERS.values())}"
            )
    cluster = _single(file, top, "cluster")
    return Scenario(
        path=name,
        workers=cluster.whole("workers", least=1, most=MOST_WORKERS),
        nodes=cluster.whole("nodes", least=1) or 1,
        compute=cluster.duration("compute", above_zero=True),
        jitter=cluster.number("jitter", "from 0 to 10 (0.05 is 5 %)", least=0, most=10) or 0.0,
        network=_network(_single(file, top, "network")) if "network" in top else None,
        speeds=_speeds(_several(file, top, "worker", "worker table")),
        events=tuple(_event(table) for table in _several(file, top, "event", "event")),
    )


def duration(text: object, where: str = "duration") -> float:
    """Seconds. Raises ConfigError, which calls the value `where`.

    >>> duration("400ms"), duration("1.5s"), duration("2m")
    (0.4, 1.5, 120.0)
    """
    exact = _quantity(text, where, _DURATIONS, "400ms")
    if 0 < exact < _SHORTEST:
        raise ConfigError(f"{where} is {_shown(text)}; it must be 0, or 0.001us or more")
    return float(exact)


def rate(text: object, where: str = "rate") -> float:
    """Bytes a second. Raises ConfigError, which calls the value `where`.

    >>> rate("1Gbit/s"), rate("10MB/s")
    (125000000.0, 10000000.0)
    """
    return float(_quantity(text, where, _RATES, "1Gbit/s"))


def size(text: object, where: str = "size") -> int:
    """Bytes; KB = 1000 B. Raises ConfigError, which calls the value `where`.

    >>> size("25MB"), size("1.5KB")
    (25000000, 1500)
    """
    exact = _quantity(text, where, _SIZES, "25MB")
    if exact != exact.to_integral_value():
        raise ConfigError(f"{where} is {_shown(text)}; it must be a whole number of bytes; round it")
    return int(exact)


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, read key by key. A mistake is told as `FILE: KEY is VALUE; …`."""

    where: str
    """What comes before a key's name in a message."""
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def wrong(self, key: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.where}{key} is {_shown(self.values[key])}; {remedy}")

    def clash(self, key: str, other: str, remedy: str) -> ConfigError:
        return ConfigError(
            f"{self.where}{key} is {_shown(self.values[key])} and {other} is {_shown(self.values[other])}; {remedy}"
        )

    def missing(self, key: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.where}{key} is missing; {remedy}")

    def whole(self, key: str, *, least: int, most: int = int(_MOST)) -> int | None:
        if key not in self:
            return None
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            limit = f" and at most {most}" if most < _MOST else ""
            raise self.wrong(key, f"write a whole number, at least {least}{limit}")
        return value

    def number(
        self, key: str, allowed: str, *, least: float, most: float = math.inf, above: bool = False
    ) -> float | None:
        """A number from `least` (or, when `above`, from just above it) to `most`; `allowed` says so in words."""
        if key not in self:
            return None
        value = self.values[key]
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not least <= value <= min(most, float(_MOST)) or (above and value == least):
            raise self.wrong(key, f"write a number {allowed}")
        return float(value)

    def duration(self, key: str, *, above_zero: bool = False) -> float | None:
        if key not in self:
            return None
        seconds = duration(self.values[key], self.where + key)
        if above_zero and seconds == 0:
            raise self.wrong(key, 'it must be longer than nothing, such as "400ms"')
        return seconds

    def rate(self, key: str) -> float | None:
        if key not in self:
            return None
        given = rate(self.values[key], self.where + key)
        if given == 0:
            raise self.wrong(key, 'it must be more than 0, such as "1Gbit/s"; leave it out for no limit')
        return given


def _network(table: _Table) -> Network:
    return Network(
        bandwidth=table.rate("bandwidth"),
        servers=table.whole("servers", least=1) or 1,
        worker_bandwidth=table.rate("worker_bandwidth"),
        commit=table.duration("commit") or 0.0,
        within_nodes=table.rate("within_nodes"),
        between_nodes=table.rate("between_nodes"),
        mixed=table.rate("mixed"),
        latency=table.duration("latency") or 0.0,
        message=size(table.values["message"], table.where + "message") if "message" in table else None,
        incast=table.number("incast", "above 0, at most 1 (1 is lossless)", least=0, most=1, above=True) or 1.0,
    )


def _speeds(tables: list[_Table]) -> dict[int, float]:
    speeds: dict[int, float] = {}
    for table in tables:
        index = table.whole("index", least=0)
        if index is None:
            raise table.missing("index", "write which worker it is, from 0, such as index = 3")
        if index in speeds:
            first = list(speeds).index(index) + 1
            raise table.wrong("index", f"worker table {first} has that worker already; give each worker one table")
        speed = table.number("speed", "above 0 (0.25 is four times slower)", least=0, above=True)
        if speed is None:
            raise table.missing("speed", "write how fast it is, such as speed = 0.25 for four times slower")
        speeds[index] = speed
    return speeds


def _event(table: _Table) -> Slowdown | Kill:
    worker = table.whole("worker", least=0)
    if worker is None:
        raise table.missing("worker", "write which worker it happens to, from 0, such as worker = 2")
    for one, other, example in (
        ("at", "at_step", 'at = "10s" or at_step = 50'),
        ("slow", "kill", "slow = 4.0 or kill = true"),
    ):
        if one in table and other in table:
            raise table.clash(one, other, "write one of the two")
        if one not in table and other not in table:
            raise table.missing(f"{one} or {other}", f"write {example}")
    at = table.duration("at")
    at_step = table.whole("at_step", least=0)
    return _kill(table, worker, at, at_step) if "kill" in table else _slowdown(table, worker, at, at_step)


def _kill(table: _Table, worker: int, at: float | None, at_step: int | None) -> Kill:
    if table.values["kill"] is not True:
        raise table.wrong("kill", "write kill = true, or slow = 4.0 in its place")
    for key in ("for", "for_steps", "every"):
        if key in table:
            raise table.wrong(key, "a killed worker stays away; leave it out, or write slow in place of kill")
    return Kill(worker=worker, at=at, at_step=at_step, rejoin_after=table.duration("rejoin_after"))


def _slowdown(table: _Table, worker: int, at: float | None, at_step: int | None) -> Slowdown:
    factor = table.number("slow", "that is at least 1 (4.0 is four times slower)", least=1)
    assert factor is not None
    if "rejoin_after" in table:
        raise table.wrong("rejoin_after", "a slow worker never left; leave it out")
    if "for" in table and "for_steps" in table:
        raise table.clash("for", "for_steps", "write one of the two")
    if "at" in table and "for_steps" in table:
        raise table.clash("for_steps", "at", "write for with at, or for_steps with at_step")
    for key in ("for", "every"):
        if "at_step" in table and key in table:
            raise table.clash(key, "at_step", f"{key} goes only with at; for_steps is what goes with at_step")
    for_ = table.duration("for", above_zero=True)
    every = table.duration("every", above_zero=True)
    if every is not None and for_ is None:
        raise table.wrong("every", 'without for it never ends, so it can\'t repeat; write for = "5s" too')
    if every is not None and for_ is not None and every <= for_:
        raise table.clash("every", "for", "make every longer than for, or leave both out for a slowness without end")
    for_steps = table.whole("for_steps", least=1)
    return Slowdown(worker=worker, at=at, at_step=at_step, for_=for_, for_steps=for_steps, every=every, factor=factor)


def _text(name: str, file: str) -> str:
    hint = "give the path of a scenario file (TOML)"
    try:
        raw = read_file(name)
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file; {hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: this is a directory; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: it can't be read ({reason}); {hint}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ConfigError(f"{file}: line {line} holds the byte 0x{byte:02x}, not UTF-8; save it as UTF-8") from None


def _toml(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).rpartition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = found[1] if found else text.rstrip("\n").count("\n") + 1
        told = f"line {line} is not valid TOML ({_printable(message)})"
    except (ValueError, RecursionError):
        told = "not valid TOML (a number too long, or too much nesting)"
    raise ConfigError(f'{file}: {told}; correct it: text is written in quotes, as in compute = "400ms"')


def _single(file: str, top: Mapping[str, Any], name: str) -> _Table:
    values = top.get(name, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: {name} is {_shown(values)}; write it as one table, [{name}]")
    return _known(file, f"{name}: ", f"{name}.", values, name)


def _several(file: str, top: Mapping[str, Any], name: str, label: str) -> list[_Table]:
    tables = top.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: {name} is {_shown(tables)}; write it as [[{name}]], in double brackets")
    found = []
    for number, values in enumerate(tables, 1):
        here = f"{label} {number}: "
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {here}it is {_shown(values)}; write each {name} as a table, [[{name}]]")
        found.append(_known(file, here, here, values, name))
    return found


def _known(file: str, here: str, where: str, values: Mapping[str, Any], name: str) -> _Table:
    for key in values:
        if key not in _KEYS[name]:
            hint = nearest(str(key), _KEYS[name]) or _home(key)
            raise ConfigError(f"{file}: {here}unknown key {_shown(key)}{hint}; known: {', '.join(_KEYS[name])}")
    return _Table(f"{file}: {where}", values)


def _home(key: str) -> str:
    """The table that a misplaced key belongs in, if there is one."""
    homes = [_HEADERS[name] for name, keys in _KEYS.items() if key in keys]
    return f"; it belongs in {homes[0]}" if homes else ""


def _quantity(text: object, where: str, units: Mapping[str, Decimal], example: str) -> Decimal:
    """Read a quantity exactly, so that "400ms" is 0.4 to the last digit."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z/]+)", text) if isinstance(text, str) else None
    unit = re.sub("^k(?=B|bit)", "K", found[2]) if found else ""
    if found is None or unit not in units:
        allowed = ", ".join(units)
        raise ConfigError(
            f'{where} is {_shown(text)}; write a number and one of {allowed}, in quotes, such as "{example}"'
        )
    value = Decimal(found[1]) * units[unit]
    if value > _MOST:
        raise ConfigError(f'{where} is {_shown(text)}; that is too much; write something such as "{example}"')
    return value


def _with_unit(value: float | None, base: str, units: Mapping[str, Decimal], suffix: str = "") -> str | None:
    """`value` in the largest unit that it fills, in digits that read back as exactly it."""
    if value is None:
        return None
    exact = Decimal(repr(value))
    unit = max((unit for unit in units if units[unit] <= exact), key=lambda unit: units[unit], default=base)
    return f"{(exact / units[unit]).normalize():f}{unit}{suffix}"


def _seconds(value: float | None) -> str | None:
    """Write seconds without minutes and hours, in which some lengths have endless digits."""
    return _with_unit(value, "s", {unit: _DURATIONS[unit] for unit in ("us", "ms", "s")})


def _plain_event(event: Slowdown | Kill) -> dict[str, Any]:
    when = _present(worker=event.worker, at=_seconds(event.at), at_step=event.at_step)
    if isinstance(event, Kill):
        return when | {"kill": True} | _present(rejoin_after=_seconds(event.rejoin_after))
    length = {"for": _seconds(event.for_), "for_steps": event.for_steps, "every": _seconds(event.every)}
    return when | _present(**length) | {"slow": event.factor}


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _shown(value: object) -> str:
    """A TOML value as the user would write it, on one line, not too long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of over 60 digits"  # Python refuses to write out the longest
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
    return _printable(cut(text, 60))


def _normal(seed: int, worker: int, step: int) -> float:
    """A draw from the standard normal distribution: a function of its arguments alone."""
    lots = Lots(seed)
    for number in (worker, step):
        lots.state = lots.below(1 << 64) ^ number
    return _NORMAL.inv_cdf((lots.below(1 << 52) + 0.5) / (1 << 52))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
