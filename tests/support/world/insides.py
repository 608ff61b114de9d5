"""What a world looks at inside of the code, and what it puts in the place of something there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from paceline.coordinator import agent as agents
from paceline.coordinator import host_registry as rest
from paceline.core import shards
from paceline.host import hash_seed, store_process
from paceline.host.machine import Machine
from paceline.host.orders.commit_queue import NEWEST
from paceline.host.orders.join_handover import BEGUN_AS
from paceline.host.replicas.host_replicas import _brought
from paceline.host.replicas.host_replicas import _kept as _kept_as
from paceline.host.replicas.transfers import _carries
from paceline.host.shards.migration import MOVING
from paceline.host.shards.range_maker import kept
from paceline.host.training_start import BEGINNING
from paceline.ipc import memory
from paceline.ipc.memory import Region
from paceline.transfer import data_connection

__all__ = ["BEGINNING", "BEGUN_AS", "MOVING", "NEWEST", "kept"]

Claim = Any
"""(owner, item, place). The first of an owner says what the claim is for."""

MACHINE = Machine(
    paceline="1.0.0",
    python="3.11.0",
    torch="2.6.0",
    numpy="1.26.0",
    isa="native",
    cpu_capability="AVX2",
    vendor="GenuineIntel",
    model="Processor",
    platform="Linux-6.1.0-x86_64-with-glibc2.36",
    cores=8,
    boot="00000000-0000-0000-0000-000000000000",
    devices=0,
    hash_seed=0,
)
"""What every machine of a world says that it has: the same on all machines that run the world."""

# --- the head ---------------------------------------------------------------------------------------


def claims_at_head(host: Any) -> list[Claim]:
    kept = [(owner, replica, None) for owner, replica in host.transfers.claims.owned()]
    return [*host.shelf.claims(), *kept]


def replicas_of_hosts(host: Any) -> Any:
    """What of the other hosts' replicas is needed or moves. None: there are none, or there is one host."""
    return host.transfers if host.owns_replicas and host.carrier is not None else None


def carried(host: Any) -> dict[int, Any]:
    """By number: replicas that are on their way."""
    return dict(replicas_of_hosts(host)._carried)


def carries(number: int, one: Any) -> list[Any]:
    """Who claims what is on its way with that number."""
    return [_carries(number), _brought(number), _kept_as(one.item)]


# --- the head and the other hosts -------------------------------------------------------------------


def incarnation(others: Any, host: str) -> int:
    """The host's last one, as the head has it. 0: none has come."""
    return int(others._incarnations.get(host, 0))


def asker(others: Any, number: int) -> str | None:
    """The host that asks the head for an item by that number. None: none does any more."""
    asked = others.carrier._plane._serves._offered.get(number)
    return None if asked is None else asked[0].host


def unacknowledged(others: Any, host: str) -> int:
    """Messages that wait for the host."""
    return int(others._link._end.unacknowledged(host))


# --- what stands in the place of something ----------------------------------------------------------


@contextmanager
def replaced(parts: int) -> Iterator[None]:
    """Have items sent in parts of so many bytes, and every machine be the same."""
    with (
        patch.object(data_connection, "PART", parts),
        patch.object(shards, "PIECE", parts // 2),
        patch.object(shards, "LEAVES_EARLY", 0),
        patch.object(rest, "machine", lambda: MACHINE),
        patch.object(agents, "machine", lambda: MACHINE),
        patch.object(hash_seed, "of_this_process", lambda: MACHINE.hash_seed),
        _regions_unmapped(),
    ):
        yield


@contextmanager
def ends_stores(ends: Callable[[int], None]) -> Iterator[None]:
    """Have this called with the number of a store's process that is told to end."""
    with patch.object(store_process, "end_in_time", ends):
        yield


@contextmanager
def _regions_unmapped() -> Iterator[None]:
    """Unmap the regions that are made meanwhile. A process has its own to its end, and thousands are made here."""
    made: list[Region] = []
    create = Region.create

    def created(size: int) -> Region:
        made.append(create(size))
        return made[-1]

    def discard(self: Region, start: int, stop: int) -> None:  # a world's places are smaller than pages
        self.memory[start:stop] = bytes(stop - start)

    with (
        patch.object(Region, "create", created),
        patch.object(Region, "free", lambda self: None),
        patch.object(Region, "discard", discard),
    ):
        try:
            yield
        finally:
            for region in made:
                memory._libc.munmap(region.address, region.size)
