"""Faults of the network between hosts, and of a host as a whole. See `support.world.faults`."""

from __future__ import annotations

from dataclasses import dataclass

Seconds = float


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
    back: Seconds | None = None
    """When it begins anew. In a world none does by itself."""
