"""Scenario files: their tables and keys, read into a `Scenario` and written back.

An error is one line, which names the file, the key, its value, and what to write instead.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.choice import nearest
from paceline.core.phrases import printable
from paceline.errors import ConfigError
from paceline.files import read_file
from paceline.scenario.quantities import MOST, as_duration, as_rate, as_size, duration, rate, shown, size
from paceline.scenario.scenario import MOST_WORKERS, HostTable, Kill, Network, Scenario, Slowdown

KEYS = {
    "cluster": ("workers", "nodes", "compute", "jitter"),
    "network": (
        *("bandwidth", "latency", "message", "incast", "servers", "worker_bandwidth"),
        *("commit", "within_nodes", "between_nodes", "mixed"),
    ),
    "host": ("name", "workers", "speed", "bandwidth", "latency"),
    "worker": ("index", "speed"),
    "event": ("worker", "at", "at_step", "for", "for_steps", "every", "slow", "kill", "rejoin_after"),
}
HEADERS = {
    "cluster": "[cluster]",
    "network": "[network]",
    "host": "[[host]]",
    "worker": "[[worker]]",
    "event": "[[event]]",
}
NOT_BESIDE_HOSTS = ("bandwidth", "latency", "incast", "servers", "worker_bandwidth")
"""Keys of `[network]` for the store's or a worker's link, which `[[host]]` replaces by hosts' links."""
LONGEST_NAME = 64
A_NAME = f"write 1 to {LONGEST_NAME} printable characters, no /"


def is_name(text: str) -> bool:
    """Return whether a host may have that name, which stands in records and in file names."""
    return text.isprintable() and "/" not in text and 0 < len(text) <= LONGEST_NAME


def load(path: str | os.PathLike[str]) -> Scenario:
    """Return the scenario that the file holds. Raises ConfigError, in one line, for any mistake."""
    name = os.fspath(path)
    file = printable(name)
    return from_plain(_toml(file, _text(name, file)), name)


def from_plain(top: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Return the scenario that a TOML document describes, as `to_plain` writes it. Messages call it `name`.

    Raises ConfigError, in one line, for any mistake.
    """
    file = printable(name)
    for key, value in top.items():
        if key not in KEYS:
            near, home = nearest(str(key), KEYS), _home(key)
            hint = (near or home) if isinstance(value, dict | list) else (home or near)  # [[workers]] is a table
            raise ConfigError(
                f"{file}: unknown {'table' if isinstance(value, dict | list) else 'key'} {shown(key)}"
                f"{hint}; known: {', '.join(HEADERS.values())}"
            )
    cluster, given = _single(file, top, "cluster"), _single(file, top, "network")
    network = _network(given) if "network" in top else None
    workers, nodes = cluster.whole("workers", least=1, most=MOST_WORKERS), cluster.whole("nodes", least=1) or 1
    if hosts := _hosts(_several(file, top, "host", "host table")):
        _check_beside(hosts, cluster, given, network)
        workers, nodes = hosts[-1].workers.stop, len(hosts)
    return Scenario(
        path=name,
        workers=workers,
        nodes=nodes,
        compute=cluster.duration("compute", above_zero=True),
        jitter=cluster.number("jitter", "from 0 to 10 (0.05 is 5 %)", least=0, most=10) or 0.0,
        network=network,
        speeds=_speeds(_several(file, top, "worker", "worker table")),
        events=tuple(_event(table) for table in _several(file, top, "event", "event")),
        host_tables=hosts,
    )


def to_plain(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as a TOML document that `load` reads back, with defaults written out."""
    plain: dict[str, Any] = {
        "cluster": _present(
            workers=scenario.workers,
            nodes=scenario.nodes,
            compute=as_duration(scenario.compute),
            jitter=scenario.jitter,
        )
    }
    if scenario.network is not None:
        link = scenario.network
        plain["network"] = _present(
            bandwidth=as_rate(link.bandwidth),
            latency=as_duration(link.latency),
            message=as_size(link.message),
            incast=link.incast,
            servers=link.servers,
            worker_bandwidth=as_rate(link.worker_bandwidth),
            commit=as_duration(link.commit) if link.commit else None,
            within_nodes=as_rate(link.within_nodes),
            between_nodes=as_rate(link.between_nodes),
            mixed=as_rate(link.mixed),
        )
    if scenario.host_tables:
        plain["host"] = [_plain_host(table) for table in scenario.host_tables]
    if scenario.speeds:
        plain["worker"] = [{"index": worker, "speed": speed} for worker, speed in scenario.speeds.items()]
    if scenario.events:
        plain["event"] = [_plain_event(event) for event in scenario.events]
    return plain


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, read key by key. Errors begin with `FILE: KEY is VALUE; …`."""

    where: str
    """Comes before a key's name in an error."""
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def wrong(self, key: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.where}{key} is {shown(self.values[key])}; {remedy}")

    def clash(self, key: str, other: str, remedy: str) -> ConfigError:
        return ConfigError(
            f"{self.where}{key} is {shown(self.values[key])} and {other} is {shown(self.values[other])}; {remedy}"
        )

    def missing(self, key: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.where}{key} is missing; {remedy}")

    def whole(self, key: str, *, least: int, most: int = int(MOST)) -> int | None:
        if key not in self:
            return None
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            limit = f" and at most {most}" if most < MOST else ""
            raise self.wrong(key, f"write a whole number, at least {least}{limit}")
        return value

    def number(
        self, key: str, allowed: str, *, least: float, most: float = math.inf, above: bool = False
    ) -> float | None:
        """Read a number from `least` to `most`, or above `least` with `above`. `allowed` says so in words."""
        if key not in self:
            return None
        value = self.values[key]
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not least <= value <= min(most, float(MOST)) or (above and value == least):
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


def _hosts(tables: list[_Table]) -> tuple[HostTable, ...]:
    hosts: list[HostTable] = []
    for number, table in enumerate(tables):
        first = hosts[-1].workers.stop if hosts else 0
        least = 1 if number == 0 else 0  # the head's own workers fork the store
        workers = table.whole("workers", least=least, most=max(least, MOST_WORKERS - first))
        if workers is None:
            raise table.missing("workers", "write how many it has, such as workers = 2")
        name = table.values.get("name", f"node-{number}")
        if not isinstance(name, str) or not is_name(name.replace("/", "-")):  # that one only names it
            raise table.wrong("name", f'write 1 to {LONGEST_NAME} printable characters, such as "big"')
        if name in (names := [host.name for host in hosts]):
            raise ConfigError(
                f'{table.where}name is "{name}", which host table {names.index(name) + 1} has already; give each host '
                "a name of its own"
            )
        hosts.append(
            HostTable(
                name=name,
                workers=range(first, first + workers),
                speed=table.number("speed", "above 0 (0.25 is four times slower)", least=0, above=True) or 1.0,
                bandwidth=table.rate("bandwidth"),
                latency=table.duration("latency") or 0.0,
            )
        )
    return tuple(hosts)


def _check_beside(hosts: tuple[HostTable, ...], cluster: _Table, given: _Table, network: Network | None) -> None:
    """Raise ConfigError for a key of another table that contradicts the hosts' tables."""
    for key, there in (("workers", hosts[-1].workers.stop), ("nodes", len(hosts))):
        if key in cluster and cluster.values[key] != there:
            raise cluster.wrong(key, f"the [[host]] tables make it {there}; leave it out")
    for key in NOT_BESIDE_HOSTS:
        if network is not None and getattr(network, key) != getattr(Network(), key):
            raise given.wrong(key, "beside [[host]] tables links belong to hosts; write bandwidth and latency there")


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
        told = f"line {line} is not valid TOML ({printable(message)})"
    except (ValueError, RecursionError):
        told = "not valid TOML (a number too long, or too much nesting)"
    raise ConfigError(f'{file}: {told}; correct it: text is written in quotes, as in compute = "400ms"')


def _single(file: str, top: Mapping[str, Any], name: str) -> _Table:
    values = top.get(name, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: {name} is {shown(values)}; write it as one table, [{name}]")
    return _known(file, f"{name}: ", f"{name}.", values, name)


def _several(file: str, top: Mapping[str, Any], name: str, label: str) -> list[_Table]:
    tables = top.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: {name} is {shown(tables)}; write it as [[{name}]], in double brackets")
    found = []
    for number, values in enumerate(tables, 1):
        here = f"{label} {number}: "
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {here}it is {shown(values)}; write each {name} as a table, [[{name}]]")
        found.append(_known(file, here, here, values, name))
    return found


def _known(file: str, here: str, where: str, values: Mapping[str, Any], name: str) -> _Table:
    for key in values:
        if key not in KEYS[name]:
            hint = nearest(str(key), KEYS[name]) or _home(key)
            raise ConfigError(f"{file}: {here}unknown key {shown(key)}{hint}; known: {', '.join(KEYS[name])}")
    return _Table(f"{file}: {where}", values)


def _home(key: str) -> str:
    """Return a hint at the table that a misplaced key belongs in; empty if there is none."""
    homes = [HEADERS[name] for name, keys in KEYS.items() if key in keys]
    return f"; it belongs in {homes[0]}" if homes else ""


def _plain_host(table: HostTable) -> dict[str, Any]:
    link = _present(bandwidth=as_rate(table.bandwidth), latency=as_duration(table.latency) if table.latency else None)
    return {"name": table.name, "workers": len(table.workers), "speed": table.speed, **link}


def _plain_event(event: Slowdown | Kill) -> dict[str, Any]:
    when = _present(worker=event.worker, at=as_duration(event.at), at_step=event.at_step)
    if isinstance(event, Kill):
        return when | {"kill": True} | _present(rejoin_after=as_duration(event.rejoin_after))
    length = {"for": as_duration(event.for_), "for_steps": event.for_steps, "every": as_duration(event.every)}
    return when | _present(**length) | {"slow": event.factor}


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
