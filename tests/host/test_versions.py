"""Versions that change by fragments, on a host that another one makes versions for."""

from __future__ import annotations

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.items import Version
from paceline.core.machine import Fragments
from paceline.core.shards import Shard
from paceline.host.contract import NotHere
from paceline.host.host_memory import HostMemory
from paceline.host.memory_plan import plan
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.protocols import registry
from support.run_state import OFFER

PARTS = [("a", 0, 64), ("a", 64, 192), ("a", 192, 256)]
"""Of three fragments."""


class Host:
    """Host b, which has version 0, and whose workers want the others one after another."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.plan = plan(choose("diloco:every=3,fragments=3", registry()), 2)
        self.memory = HostMemory(self.plan)
        self.memory.offered(msgspec.structs.replace(OFFER, cuts=[0, 128, 256], starts=[0, 64, 192]))
        self.memory.lay_out()
        self.versions = Versions(
            self.shelf,
            self.memory,
            self.plan,
            name="b",
            head="a",
            host_of=lambda worker: "b",
            of_replicas=lambda: False,
        )
        self.versions.change_by(Fragments(3))
        self.fetched: list[tuple[str, int, int]] = []

    def brings(self, number: int) -> bytes:
        """What lies there once the version is here. Each byte that comes is its number."""
        version = Version(number)
        self.shelf.claim(("step", 0), version)
        self.fetched = self.versions.ranges(version)
        there = self.versions.lay(version, number).memory
        for _, begin, end in self.fetched:
            there[begin:end] = bytes([number]) * (end - begin)
        assert self.versions.ranges(version) == self.fetched, "another worker that wants it waits for the same"
        self.versions.free(version, True)
        self.shelf.settled(number)
        return bytes(there[begin] for _, begin, _ in PARTS)


def test_only_what_has_changed_of_a_version_comes_and_the_rest_is_copied_from_the_one_before() -> None:
    host = Host()
    assert host.brings(4) == bytes([4, 4, 4])
    assert host.fetched == [("a", 0, 256)], "all of it, as there is none before"
    assert host.brings(5) == bytes([4, 5, 4])
    assert host.fetched == [PARTS[1]]
    assert host.brings(7) == bytes([7, 5, 7]), "also of a version that did not come here"
    assert host.fetched == [PARTS[0], PARTS[2]]
    assert host.brings(6) == bytes([6, 6, 6]), "an older one"


def test_the_version_before_stays_until_the_next_one_is_whole() -> None:
    host = Host()
    host.brings(1)
    host.shelf.release(("step", 0))
    host.versions.ranges(Version(2))
    assert host.shelf.place(Version(1)) is not None
    host.brings(2)
    with pytest.raises(NotHere):
        host.shelf.place(Version(1))


def test_nothing_comes_of_a_fragment_that_is_made_here() -> None:
    host = Host()
    host.versions.shards = [Shard("b", 0, 128), Shard("a", 128, 256)]
    host.brings(3)
    host.brings(4)
    assert host.fetched == []
    host.brings(5)
    assert host.fetched == [("a", 128, 192)]


def test_a_version_that_was_made_before_fragments_were_comes_as_a_whole() -> None:
    """A part of the protocol without fragments may have made it."""
    host = Host()
    host.brings(4)
    host.versions.newest = 5
    host.versions.change_by(Fragments(3))
    host.brings(6)
    assert host.fetched == [("a", 0, 256)]
    host.brings(7)
    assert host.fetched == [PARTS[0]]
