"""Which hosts make the versions of a run: those that have a shard of its store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from paceline.core.choice import Choice
from paceline.core.phrases import cut, listed
from paceline.errors import ConfigError

ALL, HEAD = "all", "head"
LONGEST = 41


class How(TypedDict):
    """Reasons for the head alone to have the store, unless the flag says otherwise. See `hosts_with_shards`."""

    restart: bool
    later: bool


def hosts_with_shards(
    said: str | None, hosts: Sequence[str], choice: Choice, *, restart: bool, later: bool
) -> list[str]:
    """Return the hosts that have shards, in the order of `hosts`; none if the protocol has no store.

    Raises ConfigError, in one line, if the run can't have shards on the hosts in `said`.

    Args:
        said: The value of `--shards-on`. None: all hosts, or the head alone if one of the last two arguments is true.
        hosts: The names of all hosts, the head's first.
        choice: The protocol.
        restart: Whether lost hosts may come back. Losing one with a shard ends the run, which then resumes by itself.
        later: Whether hosts may come while others train.
    """
    check_shards_on(said, len(hosts), choice, later=later)
    if choice.has_replicas:
        return []
    said = usual(said, restart=restart, later=later)
    if said == ALL:
        return list(hosts)
    if said == HEAD:
        return list(hosts[:1])
    named = said.split(",")
    if unknown := [name for name in named if name not in hosts]:
        raise ConfigError(
            f'--shards-on names "{cut(unknown[0], LONGEST)}", and the hosts are {listed(hosts)}: name some of these, '
            f"or say {ALL} or {HEAD}"
        )
    return [name for name in hosts if name in named]


def why_idle(host: str, said: str | None, choice: Choice, *, restart: bool, later: bool) -> str:
    """Say in one sentence why that host, without workers, would have nothing to do. Empty: it has a shard.

    For the others see `hosts_with_shards`.
    """
    said = usual(said, restart=restart, later=later)
    if not choice.has_replicas and (said == ALL or (said != HEAD and host in said.split(","))):
        return ""
    if choice.has_replicas:
        what = "has replicas in a part" if choice.has_store else "has no store"
        return f"host {host} has no workers, and {choice.spec.name} {what}: give it workers, or leave it out"
    return (
        f"host {host} has no workers, and would have no part of the store: it would have nothing to do; give it "
        "workers, or have --shards-on name it at the head"
    )


def usual(said: str | None, *, restart: bool, later: bool) -> str:
    """Return the value of `--shards-on`, or its default. See `hosts_with_shards`."""
    return said if said is not None else HEAD if restart or later else ALL


def check_shards_on(said: str | None, hosts: int, choice: Choice, *, later: bool) -> None:
    """Raise ConfigError for what is wrong whatever the hosts' names are. See `hosts_with_shards`.

    `hosts`: the most hosts.
    """
    if said is None:
        return
    flag = f"--shards-on is {cut(said, LONGEST)}"
    if hosts == 1:
        raise ConfigError(f"{flag}, and the run has one host, whose store is whole: leave it out")
    if choice.has_replicas:
        whose = (
            "has replicas in a part, so the head's store makes whole versions" if choice.has_store else "has no store"
        )
        raise ConfigError(f"{flag}, and {choice.spec.name} {whose}: leave it out, or name a protocol with a store")
    if said == HEAD:
        return
    if later:
        raise ConfigError(
            f"{flag}, and --hosts lets hosts come later, while a host with a shard has to stay: say {HEAD}, or say how "
            "many hosts there are"
        )
