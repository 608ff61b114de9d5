"""Checks before a run of a script begins, under a protocol or under DDP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from paceline.core.choice import Choice, check_fit, choose
from paceline.core.phrases import count, listed
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.runs import baseline
from paceline.scenario.scenario import Scenario
from paceline.terminal import say

STARTS: Final = ("staggered", "together")
"""When the workers' scripts begin; the first is the default."""

MOST_THREADS = 1024
"""The most threads of a worker."""
CROWD = 8
"""Workers for each core beyond which the user is warned, unless the scenario says how long a step takes."""


def chosen(protocol: str) -> Choice | None:
    """Return the protocol of this name; None for the baseline."""
    return None if protocol == baseline.NAME else choose(protocol, registry())


def settled(scenario: Scenario, workers: int | None, hosts: int | None = None) -> tuple[Scenario, int, int]:
    """Return the scenario, checked for a real run, all its workers, and its hosts.

    The numbers are those asked for, or the scenario's, or 2 workers and 1 host. `workers` is for each host.
    """
    if scenario.host_tables:
        _check_agrees(scenario, workers, hosts)
        hosts, workers = scenario.nodes, scenario.workers
    else:
        hosts = hosts or 1
        scenario = replace(scenario, nodes=hosts) if hosts > 1 else scenario
        workers = hosts * workers if workers else scenario.workers
    workers = workers or 2 * hosts
    if workers % hosts and not scenario.host_tables:
        raise ConfigError(
            f"{scenario.name}: its {count(workers, 'worker')} can't be shared out evenly to {hosts} hosts; "
            "give -n, the workers of each host"
        )
    return scenario.checked_for(workers).checked_for_real_run(), workers, hosts


def whose_workers(scenario: Scenario, workers: int | None) -> str:
    """Return a note if -n and the scenario differ in how many workers there are; else an empty string."""
    if workers is None or scenario.workers in (None, workers) or scenario.host_tables:
        return ""
    return f"-n is {workers}, and {scenario.name} says {count(scenario.workers, 'worker')}: -n counts"


@dataclass(frozen=True, slots=True)
class HowMany:
    """How many hosts a run has that machines join, the head included."""

    least: int
    """Training begins with this many."""
    most: int
    """More may join during training, up to this many in all."""

    def __str__(self) -> str:
        return f"{self.least}" if self.most == self.least else f"{self.least}:{self.most}"


def joined(
    choice: Choice | None,
    scenario: Scenario,
    workers: int | None,
    hosts: HowMany | None,
    emulated: int | None,
    flag: str,
) -> tuple[Scenario, int, int]:
    """Return the scenario, the workers of this host, and the most hosts, of a run that machines join.

    `flag` is the flag that lets them join. Raises ConfigError.
    """
    if emulated is not None:
        raise ConfigError(f"--emulate-hosts is {emulated}, and {flag} has machines join: give one of the two")
    if hosts is None:
        raise ConfigError("--listen waits for other hosts: say how many there are, this one included, with --hosts")
    if scenario.host_tables or scenario.nodes > 1:
        hosts_of = "[[host]] tables" if scenario.host_tables else f"{count(scenario.nodes, 'node')}"
        raise ConfigError(f"{scenario.name}: it has {hosts_of}, and with {flag} the machines that join are the hosts")
    _check_several(choice, scenario, flag)
    return replace(scenario.checked_for_real_run(), workers=None), workers or 2, hosts.most


def _check_agrees(scenario: Scenario, workers: int | None, hosts: int | None) -> None:
    """Raise ConfigError, in one line, if these workers of each host or these hosts contradict the scenario's tables."""
    there = [len(table.workers) for table in scenario.host_tables]
    if hosts is not None and hosts != len(there):
        has = f"{scenario.name} has {count(len(there), '[[host]] table')}"
        raise ConfigError(f"--emulate-hosts is {hosts}, and {has}: leave it out")
    if workers is not None and any(workers != one for one in there):
        has = listed([str(one) for one in there])
        raise ConfigError(
            f"-n is {workers}, and the [[host]] tables of {scenario.name} have {has} workers: leave -n out"
        )


def check_fits(choice: Choice | None, scenario: Scenario, workers: int, flags: Mapping[str, object]) -> None:
    """Raise ConfigError, in one line, if the protocol or the baseline can't follow the scenario or the flags."""
    if choice is None:
        baseline.check(flags, scenario)
    else:
        check_fit(choice, scenario.hosts(workers))
        if len(scenario.host_tables) > 1:
            check_hosts(choice, scenario)


def check_room(choice: Choice, workers: int, room: int) -> None:
    """Raise ConfigError if the outer optimizer depends on how many of the workers begin that there is room for."""
    for part in choice.parts or (choice,):
        if part.outer(workers) != part.outer(room):
            raise ConfigError(
                f"--hosts leaves open how many of {room} workers begin, and {part.spec.name} makes its outer step "
                f"after as many differences: say after how many, as in {part.spec.name}:delay={workers}"
            )


def check_hosts(choice: Choice | None, scenario: Scenario) -> None:
    """Raise ConfigError, in one line, for what several hosts can't do yet."""
    _check_several(choice, scenario, f"{scenario.name}: [[host]]" if scenario.host_tables else "--emulate-hosts")


def _check_several(choice: Choice | None, scenario: Scenario, named: str) -> None:
    if choice is None:
        raise ConfigError(f"{named}: {baseline.NAME} runs on one host only so far; name a protocol")
    if scenario.network is not None and not scenario.host_tables:
        raise ConfigError(
            f"{named}: {scenario.name} has a [network], which is modelled on one host; write [[host]] tables, with "
            "bandwidth and latency, in its place"
        )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def asked_threads(environment: Mapping[str, str]) -> int | None:
    """Return the threads that OMP_NUM_THREADS asks for, as torch itself follows it; None: it asks for none.

    OpenMP allows a list, such as `2,1`: the first number is that of the outermost level.
    """
    text = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_THREADS:
        return int(text)
    say(f'OMP_NUM_THREADS is "{text[:40]}", which is no number from 1 to {MOST_THREADS}: it is not followed')
    return None


def crowd(scenario: Scenario, workers: int) -> str:
    """Return a warning if there are too many workers for this machine's cores; else an empty string."""
    if workers <= CROWD * cores() or scenario.compute is not None:
        return ""
    shared = "1 core" if cores() == 1 else f"{cores()} cores"
    return (
        f"{workers} workers share {shared}: they take turns, and the run is no faster than with one worker for each "
        "core"
    )
