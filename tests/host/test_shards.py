"""What is known of all ranges: an update has come, and a version is made, once all hosts that make ranges say so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from unittest.mock import Mock

from paceline.core.facts import UpdateArrived
from paceline.core.items import Sum, Update, Version
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.events import Attached
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.migration import MOVING, Moves
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of


class Head:
    """The head, and hosts b and c, which make ranges as well."""

    def __init__(self) -> None:
        self.own = Mock()
        """The head's own range."""
        self.told: list[tuple[str, messages.Message]] = []
        self.shards = Arrivals("a", self.own, lambda host, message: self.told.append((host, message)))
        self.shards.begin(["b", "c"])

    def brings(self, worker: int, step: int) -> None:
        """The update is on its way to all three."""

        def then(at: float) -> UpdateArrived:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.shards.bring(worker, Update(worker, step), then)

    def stored(self, host: str, worker: int, step: int, at: float) -> object:
        """That host has its range of the update. Return what has happened."""
        return self.shards.stored(host, Update(worker, step), at)


def test_an_update_has_arrived_once_the_last_host_has_its_range_whichever_that_is() -> None:
    head = Head()
    head.brings(1, 0)
    assert head.told == [
        ("b", host_messages.Bring((1, 0, "update"), None)),
        ("c", host_messages.Bring((1, 0, "update"), None)),
    ]
    head.own.bring.assert_called_once_with(Update(1, 0), None)
    assert (head.stored("c", 1, 0, 1.0), head.stored("a", 1, 0, 2.0)) == (None, None)
    assert head.stored("b", 1, 0, 3.0) == UpdateArrived(worker=1, step=0, at=3.0)
    head.brings(1, 1)
    assert (head.stored("c", 1, 1, 4.0), head.stored("b", 1, 1, 5.0)) == (None, None)
    assert head.stored("a", 1, 1, 6.0) == UpdateArrived(worker=1, step=1, at=6.0)


def test_a_host_that_says_twice_that_it_has_an_update_counts_once() -> None:
    head = Head()
    head.brings(1, 0)
    assert head.stored("a", 1, 0, 0.0) is None
    assert (head.stored("b", 1, 0, 1.0), head.stored("b", 1, 0, 2.0)) == (None, None)


def test_an_update_of_a_worker_that_has_left_never_arrives_and_is_kept_nowhere() -> None:
    head = Head()
    head.brings(1, 0)
    head.brings(2, 0)
    head.told.clear()
    head.shards.cancel(1)
    assert head.told == [("b", host_messages.Drop((1, 0, "update"))), ("c", host_messages.Drop((1, 0, "update")))]
    head.own.drop.assert_called_once_with(Update(1, 0))
    assert [head.stored(host, 1, 0, 1.0) for host in "abc"] == [None] * 3


def test_what_hosts_were_told_to_expect_they_drop_as_it_is_withdrawn_or_its_worker_leaves() -> None:
    head = Head()
    for worker in (1, 2, 3):
        head.shards.expect(Update(worker, 0))
    assert head.told[:2] == [("b", host_messages.ExpectUpdate(1, 0)), ("c", host_messages.ExpectUpdate(1, 0))]
    assert [call.args for call in head.own.expect.call_args_list] == [(Update(worker, 0),) for worker in (1, 2, 3)]
    head.brings(3, 0)
    head.told.clear()
    for _ in range(2):
        head.shards.forget(Update(1, 0))
        head.shards.forget(Update(3, 0))
    head.shards.cancel(2)
    assert head.told == [
        (host, host_messages.Drop(fields_of(Update(worker, 0)))) for worker in (1, 2) for host in ("b", "c")
    ]


def test_an_update_has_not_arrived_before_a_range_is_taken_over_and_the_wider_range_of_it_is_here() -> None:
    """What the host that takes over has said before is about its own range."""
    head = Head()
    head.brings(1, 0)
    assert (head.stored("a", 1, 0, 1.0), head.stored("c", 1, 0, 1.0)) == (None, None)
    assert head.shards.leaves("b") == []
    assert head.stored("c", 1, 0, 2.0) is None
    assert head.shards.taken(3.0) == [UpdateArrived(worker=1, step=0, at=3.0)]


def test_what_has_arrived_is_known_until_a_version_is_made_of_it_or_none_will_have_it() -> None:
    head = Head()
    for step in range(4):
        head.brings(1, step)
        for host in "abc":
            head.stored(host, 1, step, 0.0)
    made = host_messages.MakeRange(1, [((1, 0, "update"), 1.0), ((3, "sum"), 1.0)], None, look=True)
    head.shards.make(made, [(Update(1, 0), 1.0), (Sum(3), 1.0)], [Update(1, 3)])
    head.shards.dropped(Update(1, 1))
    assert head.shards.leaves("b") == [Update(1, 2)]


def file(content: bytes) -> int:
    descriptor = os.memfd_create("share")
    os.write(descriptor, content)
    return descriptor


def test_shares_that_are_held_are_handed_over_once_they_may_be_and_the_rest_as_it_comes() -> None:
    arithmetic, head = Mock(), Head()
    shares, told = Shares(arithmetic, head.shards, Mock()), head.told
    number, count = shares.ask(held=True)
    assert (count, told) == (2, [("b", host_messages.PackState(number)), ("c", host_messages.PackState(number))])
    came = file(b"b")
    shares.came(number, None, came)
    os.close(came)
    assert not arithmetic.send.called
    shares.release(number)
    shares.came(number, "too large", None)
    said = [call.args for call in arithmetic.send.call_args_list]
    assert [message for message, _ in said] == [
        messages.store.TakeShare(number, None),
        messages.store.TakeShare(number, "too large"),
    ]


def test_a_share_of_what_has_all_come_is_not_waited_for_any_more() -> None:
    arithmetic = Mock()
    shares = Shares(arithmetic, Head().shards, Mock())
    number, count = shares.ask()
    for _ in range(count + 1):
        shares.came(number, "too large", None)
    assert arithmetic.send.call_count == count


# --- a range that moves to the host beside it

OWN, B, C = Shard("head", 0, 40), Shard("b", 40, 60), Shard("c", 60, 90)
STATE = Attached("share 1 of b", 8)
ARRIVED, COMING = Update(0, 3), Update(2, 5)


class Moving:
    """A head with workers 0 and 1, and hosts b (worker 2) and c (worker 3). Version 7 is the newest."""

    def __init__(self, shards: Sequence[Shard] = (OWN, B, C)) -> None:
        self.told: list[tuple[str, messages.Message]] = []
        self.server = Mock()
        self.others = Arrivals("head", self.server, self._tell)
        self.others.begin([one.host for one in shards if one != OWN])
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
    company = Moving()
    company.head.may_move = False
    company.moves.move("b", company.done)
    assert not company.moves.rests()
    company.head.may_move = True
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host c"


def test_no_version_is_freed_and_none_is_made_until_the_range_has_moved() -> None:
    company = Moving()
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
    shards = [OWN, Shard("c", 40, 90)]
    company.head.recut.assert_called_once_with(shards)
    company.cut.assert_called_once_with(shards, "b")
    company.done.assert_called_once_with(shards, 7)


def test_the_host_beside_is_told_what_it_may_lack_and_the_one_that_leaves_gets_no_more_updates() -> None:
    company = Moving()
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
    company = Moving()
    company.begins()
    number, hosts = company.head.shares.ask()
    company.told.clear()
    company.moves.goes_on(None, STATE)
    for _ in range(hosts):
        assert company.told == []
        company.head.shares.came(number, None, None)
    assert [type(message) for _, message in company.told] == [host_messages.TakeRange]


def test_a_range_whose_state_can_not_be_packed_ends_the_run() -> None:
    company = Moving()
    company.begins()
    company.moves.goes_on("it has a lambda", None)
    company.head.loses.assert_called_once_with("host b leaves, and its range can't move: it has a lambda")


def test_ranges_move_one_after_the_other_and_not_to_a_host_that_leaves_as_well() -> None:
    company = Moving()
    company.directory.leaving = {"b", "c"}
    for host in ("c", "b"):
        company.moves.move(host, company.done)
        assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host c to host b"
    company.directory.leaving = {"b"}
    company.head.shards = [OWN, Shard("b", 40, 90)]
    company.moves._now = None
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host head"


def test_a_host_that_leaves_takes_a_range_over_only_if_no_other_can() -> None:
    company = Moving()
    company.directory.leaving = {"b", "c"}
    company.moves.move("b", company.done)
    assert company.moves.rests()
    assert company.moves.busy_with == "the store is moving the range of host b to host head"


def test_a_host_that_is_lost_before_its_range_moves_is_forgotten() -> None:
    company = Moving()
    company.head.may_move = False
    company.moves.move("b", company.done)
    company.moves.lost("b")
    company.head.may_move = True
    assert not company.moves.rests()
