"""What is known of all ranges of a version: who has what, whose shares of the state came, and which range moves."""

from __future__ import annotations

import os
from unittest.mock import Mock

from paceline.core.facts import UpdateArrived
from paceline.core.items import Sum, Update
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.migration import Moves
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of


class Head:
    """The head, and hosts b and c, which make ranges as well. The range of host b is to move."""

    def __init__(self) -> None:
        self.told: list[tuple[str, messages.Message]] = []
        self.arrivals = Arrivals("a", Mock(), lambda host, message: self.told.append((host, message)))
        self.arrivals.begin(["b", "c"])
        self.arithmetic = Mock()
        self.shares = Shares(self.arithmetic, self.arrivals, Mock())
        shards = Shard("a", 0, 40), Shard("b", 40, 60), Shard("c", 60, 90)
        self.store = Mock(shards=shards, shelf=Shelf(), newest=7, may_move=True, shares=self.shares)
        self.moves = Moves(self.store, self.arrivals, Mock(leaving=()), on_moved=Mock())
        self.moves.move("b", Mock())


def test_a_host_that_says_twice_that_it_has_an_update_counts_once() -> None:
    update, arrivals = Update(1, 0), Head().arrivals
    arrivals.bring(1, update, lambda at: UpdateArrived(worker=1, step=0, at=at))
    assert [arrivals.stored(host, update, 1.0) for host in "abb"] == [None] * 3
    assert arrivals.stored("c", update, 2.0) == UpdateArrived(worker=1, step=0, at=2.0)


def test_what_hosts_have_of_a_void_sum_is_dropped() -> None:
    head, total = Head(), Sum(3)
    head.arrivals.bring(1, total, lambda at: UpdateArrived(worker=1, step=0, at=at))
    head.told.clear()
    for _ in range(2):
        head.arrivals.void(total)
    assert head.told == [(host, host_messages.Drop(fields_of(total))) for host in ("b", "c")]


def test_shares_that_are_held_are_handed_over_once_they_may_be_and_the_rest_as_it_comes() -> None:
    head = Head()
    number, count = head.shares.ask(held=True)
    assert (count, head.told) == (2, [(host, host_messages.PackState(number)) for host in ("b", "c")])
    came = os.memfd_create("share")
    head.shares.came(number, None, came)
    os.close(came)
    assert not head.arithmetic.send.called
    head.shares.release(number)
    head.shares.came(number, "too large", None)
    assert [call.args[0] for call in head.arithmetic.send.call_args_list] == [
        messages.store.TakeShare(number, None),
        messages.store.TakeShare(number, "too large"),
    ]


def test_a_range_whose_state_can_not_be_packed_ends_the_run() -> None:
    head = Head()
    assert head.moves.rests()
    head.moves.goes_on("it has a lambda", None)
    head.store.loses.assert_called_once_with("host b leaves, and its range can't move: it has a lambda")


def test_a_host_that_is_lost_before_its_range_moves_is_forgotten() -> None:
    head = Head()
    head.store.may_move = False
    head.moves.lost("b")
    head.store.may_move = True
    assert not head.moves.rests()
