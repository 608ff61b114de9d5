"""What a Python program calls that trains nothing itself: `paceline.simulate`."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.summary import Summary
from paceline.scenario.scenario_file import from_plain, load
from paceline.sim.simulate import Simulation
from paceline.sim.simulate import simulate as carry_out
from paceline.sim.world import Limit


def simulate(
    cluster: str | os.PathLike[str] | Mapping[str, Any],
    protocol: str,
    *,
    workers: int | None = None,
    seconds: float = math.inf,
    steps: float = math.inf,
    versions: float = math.inf,
    batch: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> Summary:
    """What this protocol would give on that cluster, in virtual time: the summary of a run, as `--json` prints it.

    `cluster` is the path of a scenario file, or a mapping with the file's tables and keys; `protocol` is written as on
    the command line, such as `"ssp:bound=3"`. `workers`: how many (default: as the cluster says). It ends after so many
    virtual `seconds`, once so many `steps` are applied, or at version `versions`, whichever comes first; at least one
    of the three must be given. `batch`: samples in a step (default: they are not counted). `seed`: of all randomness;
    the same arguments give the same summary. `out`: a folder to be made, for the ledger, the summary and
    the configuration, as a real run's; without it nothing is written.

    In the summary all times are virtual seconds. Its `outcome` is `completed`, or `failed` with an `error`: if all
    workers died, for example. Raises `paceline.errors.ConfigError`, whose message is one line, for what can't be
    simulated.

    >>> import paceline
    >>> cluster = {"cluster": {"workers": 4, "compute": "250ms"}, "worker": [{"index": 3, "speed": 0.5}]}
    >>> for protocol in ("bsp", "asp", "ssp:bound=3"):
    ...     summary = paceline.simulate(cluster, protocol, seconds=60)
    ...     print(protocol, round(summary["steps_per_second"], 1), summary["staleness"]["max"])
    bsp 8.0 0
    asp 14.0 6
    ssp:bound=3 8.2 6
    """
    if isinstance(cluster, Mapping):
        scenario = from_plain(cluster, "cluster")
    elif isinstance(cluster, str | os.PathLike):
        scenario = load(cluster)
    else:
        raise ConfigError(
            f"cluster is {cluster!r}; it must be the path of a scenario file, or a mapping with the file's keys"
        )
    if not isinstance(protocol, str):
        raise ConfigError(f'protocol is {protocol!r}; write it as on the command line, such as "ssp:bound=3"')
    simulation = Simulation.on(
        scenario,
        choose(protocol, registry()),
        Limit(
            seconds=_seconds(seconds),
            steps=steps if steps == math.inf else _whole("steps", steps, 1),
            versions=versions if versions == math.inf else _whole("versions", versions, 1),
        ),
        workers=None if workers is None else _whole("workers", workers, 1),
        seed=_whole("seed", seed, 0),
        batch=None if batch is None else _whole("batch", batch, 1),
    )
    return carry_out(simulation, None if out is None else Path(out))


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be a whole number, {least} or more")
    return number


def _seconds(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0 or isinstance(value, str):
        raise ConfigError(f"seconds is {value!r}; it must be a number above 0")
    return number
