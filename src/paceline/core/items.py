"""Items: the names of what a run moves. An item never changes once it is made. See `Former` for the one exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """The parameters after so many updates: made by the store, or the mean of all replicas."""

    version: int


@dataclass(frozen=True, slots=True)
class Update:
    """What one step of a worker came to: its gradient, or what its own optimizer would subtract."""

    worker: int
    step: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A worker's replica after so many changes, which are steps and averages."""

    worker: int
    change: int


@dataclass(frozen=True, slots=True)
class Mean:
    """What a group averages to."""

    group: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a worker's script has changed the first version to, before its first step."""

    worker: int


@dataclass(frozen=True, slots=True)
class Former:
    """An item as it was before its name was given to something else: the first version, if a script changes that."""

    item: Item


Item = Version | Update | Replica | Mean | Beginning | Former
