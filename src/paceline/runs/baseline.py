"""`-p ddp`: the flags of a run under plain DistributedDataParallel, which is none of our protocols."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import ConfigError
from paceline.scenario.scenario import Kill, Scenario

NAME = "ddp"
"""Its name in `run` and `compare`."""
WITHOUT = ("max_steps", "max_seconds", "stop_at_target", "shards", "shards_on", "compress", "ui")
"""Flags that DDP can't follow: its workers can't be stopped or seen between steps, and share out data by themselves."""


def check(options: Mapping[str, object], scenario: Scenario) -> None:
    """Raise ConfigError, in one line, for a flag or a scenario that a run under DDP can't follow."""
    for name in WITHOUT:
        value = options.get(name)
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is given, and -p {NAME}, which can't follow it: leave one of them out")
    if scenario.host_tables:
        raise ConfigError(
            f"{scenario.name}: -p {NAME} runs on one host, whose workers are all as fast; leave [[host]] out, or {NAME}"
        )
    if scenario.network is not None:
        raise ConfigError(
            f"{scenario.name}: -p {NAME} sends gradients by gloo, which a scenario's network does not pace; leave "
            f"network out, or {NAME}"
        )
    if any(isinstance(event, Kill) for event in scenario.events):
        raise ConfigError(
            f"{scenario.name}: a worker that is killed ends a run under -p {NAME}; leave the event out, or {NAME}"
        )
