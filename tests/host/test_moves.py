"""A range that moves to the host beside it: when it may, what each host is told, and what is brought before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

from paceline.core.items import Item, Update, Version
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.events import Attached
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.migration import MOVING, Moves, Taking
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages

HEAD, B, C = Shard("head", 0, 40), Shard("b", 40, 60), Shard("c", 60, 90)
STATE = Attached("share 1 of b", 8)
ARRIVED, COMING, HERE = Update(0, 3), Update(2, 5), Update(2, 4)


class Carrier:
    """Brings what the test says."""

    def __init__(self) -> None:
        self.fetched: dict[Item, tuple[Any, Any]] = {}
        self.again, self.cancelled = Mock(), list[Any]()
        self.owners: dict[Any, Item] = {}

    def fetch(self, item: Item, owner: Any, arrived: Any, lost: Any) -> None:
        self.fetched[item], self.owners[owner] = (arrived, lost), item

    def cancel(self, owner: Any) -> None:
        del self.fetched[self.owners[owner]]

    def comes(self, *items: Item) -> None:
        for item in items:
            self.fetched.pop(item)[0]()


# --- what the host that takes over brings


class Host:
    """Takes over the range of b."""

    def __init__(self) -> None:
        carrier: Any = Carrier()
        self.carrier: Carrier = carrier
        self.then, self.lost, self.stored = Mock(), Mock(), Mock()
        self.taking = Taking(B, {ARRIVED}, {ARRIVED}, carrier, self.then, self.lost)
        self.taking.begin([Version(7)], {COMING: self.stored})


def test_what_is_coming_may_be_lost_with_its_worker_and_what_has_arrived_may_not() -> None:
    host = Host()
    assert host.carrier.fetched[COMING][1] is None
    host.carrier.fetched[ARRIVED][1]("host b has ended")
    host.lost.assert_called_once_with("host b has ended")


def test_where_nothing_is_lacking_the_range_is_taken_over_at_once() -> None:
    then, carrier = Mock(), Carrier()
    Taking(B, set(), set(), carrier, then, Mock()).begin([], {})  # type: ignore[arg-type]
    then.assert_called_once_with()


# --- what the head does


class Company:
    """A head with workers 0 and 1, and hosts b (worker 2) and c (worker 3). Version 7 is the newest."""

    def __init__(self, shards: Sequence[Shard] = (HEAD, B, C)) -> None:
        self.told: list[tuple[str, messages.Message]] = []
        self.server = Mock()
        self.others = Arrivals("head", self.server, self._tell)
        self.others.begin([one.host for one in shards if one != HEAD])
        self.shelf, self.done, self.cut = Shelf(), Mock(), Mock()
        self.head = Mock(shards=shards, shelf=self.shelf, newest=7, may_move=True)
        self.head.name = "head"
        self.head.shares = Shares(Mock(), self.others, Mock())
        for version in (6, 7):
            self.shelf.put(Version(version), ("step", version), range(10))
        self.directory = Mock(leaving=())
        self.moves = Moves(self.head, self.others, self.directory, on_moved=self.cut)

    def _tell(self, host: str, message: messages.Message) -> None:
        self.told.append((host, message))

    def begins(self) -> int:
        """The range of b is to move, and may. Return by what its share is known."""
        self.moves.move("b", self.done)
        assert self.moves.rests()
        host, message = self.told[-1]
        assert isinstance(message, host_messages.PackState)
        assert host == "b"
        self.told.clear()
        return message.number


def test_a_range_moves_once_all_have_begun() -> None:
    company = Company()
    company.head.may_move = False
    company.moves.move("b", company.done)
    assert not company.moves.rests()
    company.head.may_move = True
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host c"


def test_no_version_is_freed_and_none_is_made_until_the_range_has_moved() -> None:
    company = Company()
    number = company.begins()
    assert company.shelf.claimed(MOVING) == (Version(6), Version(7))
    assert company.moves.awaits("b", number)
    assert not company.moves.awaits("c", number)
    company.moves.goes_on(None, STATE)
    assert company.moves.rests()
    assert not company.moves.taken("b"), "another host takes it over"
    assert company.moves.taken("c")
    assert not company.moves.taken("c"), "once"
    assert company.shelf.claimed(MOVING) == ()
    assert not company.moves.rests()
    shards = [HEAD, Shard("c", 40, 90)]
    company.head.recut.assert_called_once_with(shards)
    company.cut.assert_called_once_with(shards, "b")
    company.done.assert_called_once_with(shards, 7)


def test_the_host_beside_is_told_what_it_may_lack_and_the_one_that_leaves_gets_no_more_updates() -> None:
    company = Company()
    for update in (ARRIVED, COMING):
        company.others.bring(update.worker, update, Mock(return_value=None))
    for host in ("b", "c"):
        company.others.stored(host, ARRIVED, 0.0)
    company.others.stored("head", ARRIVED, 0.0)
    company.told.clear()
    company.begins()
    company.moves.goes_on(None, STATE)
    assert company.told == [("c", host_messages.TakeRange("b", 40, 60, [6, 7], [tuple(ARRIVED)], STATE))]
    company.told.clear()
    company.others.bring(0, Update(0, 9), Mock())
    assert company.told == [("c", host_messages.Bring((0, 9, "update"), None))]


def test_a_range_waits_for_states_that_are_on_their_way() -> None:
    """The host that leaves is one of those that send theirs."""
    company = Company()
    company.begins()
    number, hosts = company.head.shares.ask()
    company.told.clear()
    company.moves.goes_on(None, STATE)
    for _ in range(hosts):
        assert company.told == []
        company.head.shares.came(number, None, None)
    assert [type(message) for _, message in company.told] == [host_messages.TakeRange]


def test_a_range_whose_state_can_not_be_packed_ends_the_run() -> None:
    company = Company()
    company.begins()
    company.moves.goes_on("it has a lambda", None)
    company.head.loses.assert_called_once_with("host b leaves, and its range can't move: it has a lambda")


def test_ranges_move_one_after_the_other_and_not_to_a_host_that_leaves_as_well() -> None:
    company = Company()
    company.directory.leaving = {"b", "c"}
    for host in ("c", "b"):
        company.moves.move(host, company.done)
        assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host c to host b"
    company.directory.leaving = {"b"}
    company.head.shards = [HEAD, Shard("b", 40, 90)]
    company.moves._now = None
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host head"


def test_a_host_that_leaves_takes_a_range_over_only_if_no_other_can() -> None:
    company = Company()
    company.directory.leaving = {"b", "c"}
    company.moves.move("b", company.done)
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host head"


def test_a_host_that_is_lost_before_its_range_moves_is_forgotten() -> None:
    company = Company()
    company.head.may_move = False
    company.moves.move("b", company.done)
    company.moves.lost("b")
    company.head.may_move = True
    assert not company.moves.rests()
