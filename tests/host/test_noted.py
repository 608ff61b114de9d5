"""What a host has fetched is told: what, from where, how large, and how long it took."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.items import Blob, Item, Update, Version
from paceline.host import between
from paceline.host.noted import Noted
from paceline.records.times import Fetch


class Carries:
    """A carrier whose fetches end when a test says so."""

    def __init__(self) -> None:
        self.under_way: dict[Item, tuple[Callable[[], None], Callable[[str], None]]] = {}

    def fetch(self, item: Item, into: memoryview, done: Callable[[], None], lost: Callable[[str], None]) -> None:
        self.under_way[item] = done, lost

    def cancel(self, item: Item) -> None:
        del self.under_way[item]


class Host:
    """A carrier that notes what comes, and all that has happened, in order."""

    def __init__(self) -> None:
        self.at = 0.0
        self.carries = Carries()
        self.happened: list[object] = []
        self.noted = Noted(self.carries, "node-1", lambda item: "node-0", lambda: self.at, self.happened.append)

    def fetch(self, item: Item, size: int) -> None:
        self.noted.fetch(item, memoryview(bytearray(size)), lambda: self.happened.append("there"), self.happened.append)


def test_each_item_is_told_once_before_whoever_waits_for_it_goes_on() -> None:
    host = Host()
    host.fetch(Version(3), 40)
    host.at = 0.25
    host.fetch(Update(2, 9), 8)
    host.at = 1.5
    for item in (Version(3), Update(2, 9)):
        host.carries.under_way.pop(item)[0]()
    version = Fetch(host="node-1", source="node-0", kind="version", number=3, bytes=40, began=0.0, ended=1.5)
    update = Fetch(host="node-1", source="node-0", kind="update", worker=2, number=9, bytes=8, began=0.25, ended=1.5)
    assert host.happened == [version, "there", update, "there"]


def test_what_is_neither_a_version_nor_an_update_has_no_number() -> None:
    host = Host()
    host.fetch(Blob("fixed"), 16)
    host.carries.under_way[Blob("fixed")][0]()
    assert host.happened[0] == Fetch(
        host="node-1", source="node-0", kind="other", worker=None, number=None, bytes=16, began=0.0, ended=0.0
    )


def test_a_fetch_that_is_lost_or_cancelled_is_not_told() -> None:
    host = Host()
    host.fetch(Version(3), 40)
    host.carries.under_way[Version(3)][1]("its host has gone")
    host.fetch(Version(4), 40)
    host.noted.cancel(Version(4))
    assert host.happened == ["its host has gone"]
    assert Version(4) not in host.carries.under_way


def test_the_head_takes_the_moment_at_which_it_hears_of_a_fetch_as_its_end() -> None:
    """Clocks of two hosts are never compared: only the length is the other host's."""
    there = Fetch(host="node-1", source="node-0", kind="version", number=3, bytes=40, began=5000.25, ended=5000.75)
    heard = between.Fetched.of(there).heard("node-1", 2.0)
    assert heard == Fetch(host="node-1", source="node-0", kind="version", number=3, bytes=40, began=1.5, ended=2.0)
