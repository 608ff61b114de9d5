"""What the head knows of ranges that other hosts make: an update has come, and a version is made, once all say so."""

from __future__ import annotations

import os
from unittest.mock import Mock

from paceline.core.facts import UpdateArrived
from paceline.core.items import Sum, Update, Version
from paceline.host import messages as host_messages
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.shards.remote import RemoteShards
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of


class Head:
    """The head, and hosts b and c, which make ranges as well."""

    def __init__(self) -> None:
        self.inner = Mock()
        self.told: list[tuple[str, messages.Message]] = []
        self.drops = Mock()
        self.shards = RemoteShards(
            self.inner,
            "a",
            host_of=Mock(),
            drops=self.drops,
            tell=lambda host, message: self.told.append((host, message)),
        )
        self.shards.begin(["b", "c"])
        self.arrived: list[float] = []

    def fetches(self, worker: int, step: int) -> None:
        """The update is on its way to all three."""

        def then(at: float) -> UpdateArrived:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.shards.fetch(worker, Update(worker, step), then)

    def here(self, at: float) -> UpdateArrived | None:
        """The head has its range of what was fetched last."""
        *_, then = self.inner.fetch.call_args.args
        return then(at)  # type: ignore[no-any-return]


def test_an_update_has_arrived_once_the_last_host_has_its_range_whichever_that_is() -> None:
    head = Head()
    head.fetches(1, 0)
    assert head.told == [
        ("b", host_messages.Bring((1, 0, "update"), None)),
        ("c", host_messages.Bring((1, 0, "update"), None)),
    ]
    assert (head.shards.stored("c", Update(1, 0), 1.0), head.here(2.0)) == (None, None)
    assert head.shards.stored("b", Update(1, 0), 3.0) == UpdateArrived(worker=1, step=0, at=3.0)
    head.fetches(1, 1)
    assert (head.shards.stored("c", Update(1, 1), 4.0), head.shards.stored("b", Update(1, 1), 5.0)) == (None, None)
    assert head.here(6.0) == UpdateArrived(worker=1, step=1, at=6.0)


def test_a_host_that_says_twice_that_it_has_an_update_counts_once() -> None:
    head = Head()
    head.fetches(1, 0)
    assert head.here(0.0) is None
    assert (head.shards.stored("b", Update(1, 0), 1.0), head.shards.stored("b", Update(1, 0), 2.0)) == (None, None)


def test_an_update_of_a_worker_that_has_left_never_arrives_and_is_kept_nowhere() -> None:
    head = Head()
    head.fetches(1, 0)
    head.fetches(2, 0)
    head.told.clear()
    head.shards.cancel(1)
    assert head.told == [("b", host_messages.Drop((1, 0, "update"))), ("c", host_messages.Drop((1, 0, "update")))]
    assert (head.shards.stored("b", Update(1, 0), 1.0), head.shards.stored("c", Update(1, 0), 1.0)) == (None, None)
    head.inner.cancel.assert_called_once_with(1)


def test_what_hosts_were_told_to_expect_they_drop_as_it_is_withdrawn_or_its_worker_leaves() -> None:
    head = Head()
    for worker in (1, 2, 3):
        head.shards.expect(Update(worker, 0))
    assert head.told[:2] == [("b", host_messages.ExpectUpdate(1, 0)), ("c", host_messages.ExpectUpdate(1, 0))]
    head.fetches(3, 0)
    head.told.clear()
    for _ in range(2):
        head.shards.forget(Update(1, 0))
        head.shards.forget(Update(3, 0))
    head.shards.cancel(2)
    assert head.told == [
        (host, host_messages.Drop(fields_of(Update(worker, 0)))) for worker in (1, 2) for host in ("b", "c")
    ]


def test_a_version_goes_to_its_worker_alone() -> None:
    head = Head()
    head.shards.fetch(1, Version(3), Mock())
    assert head.told == []
    head.inner.fetch.assert_called_once()


def test_all_hosts_are_told_the_same_commit() -> None:
    head = Head()
    told = host_messages.MakeRange(4, [((1, 0, "update"), 0.25), ((2, 0, "update"), 0.5)], [{"lr": 0.1}], look=True)
    head.shards.make(told, [(Update(1, 0), 0.25), (Update(2, 0), 0.5)])
    assert head.told == [("b", told), ("c", told)]


def test_an_update_has_not_arrived_before_a_range_is_taken_over_and_the_wider_range_of_it_is_here() -> None:
    """What the host that takes over has said before is about its own range."""
    head = Head()
    head.fetches(1, 0)
    assert (head.here(1.0), head.shards.stored("c", Update(1, 0), 1.0)) == (None, None)
    assert head.shards.leaves("b") == []
    assert head.shards.stored("c", Update(1, 0), 2.0) is None
    assert head.shards.taken(3.0) == [UpdateArrived(worker=1, step=0, at=3.0)]


def test_an_update_that_is_still_coming_as_a_range_is_taken_over_arrives_with_the_last_host_that_stays() -> None:
    head = Head()
    head.fetches(1, 0)
    head.shards.leaves("b")
    assert (head.shards.taken(1.0), head.here(2.0)) == ([], None)
    assert head.shards.stored("c", Update(1, 0), 3.0) == UpdateArrived(worker=1, step=0, at=3.0)


def test_what_has_arrived_is_known_until_a_version_is_made_of_it_or_none_will_have_it() -> None:
    head = Head()
    for step in range(3):
        head.fetches(1, step)
        for host in ("b", "c"):
            head.shards.stored(host, Update(1, step), 0.0)
        head.here(0.0)
    head.shards.make(host_messages.MakeRange(1, [((1, 0, "update"), 1.0)], None, look=True), [(Update(1, 0), 1.0)])
    head.shards.dropped(Update(1, 1))
    assert head.shards.leaves("b") == [Update(1, 2)]


def test_an_update_that_no_version_will_have_is_told_of_while_it_has_its_place() -> None:
    head = Head()
    head.fetches(1, 0)
    head.shards.cancel(1)
    head.drops.assert_called_once_with(Update(1, 0))


def file(content: bytes) -> int:
    descriptor = os.memfd_create("share")
    os.write(descriptor, content)
    return descriptor


def test_shares_that_are_held_are_handed_over_once_they_may_be_and_the_rest_as_it_comes() -> None:
    arithmetic, head = Mock(), Head()
    shares, told = Shares(arithmetic, head.shards), head.told
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
    shares = Shares(arithmetic, Head().shards)
    number, count = shares.ask()
    for _ in range(count + 1):
        shares.came(number, "too large", None)
    assert arithmetic.send.call_count == count


def test_without_other_hosts_nothing_is_asked() -> None:
    assert Shares(Mock(), RemoteShards(Mock(), "a", host_of=Mock(), drops=Mock(), tell=Mock())).ask() == (0, 0)


def test_a_void_sum_that_all_have_is_kept_nowhere() -> None:
    head = Head()
    head.shards.fetch(1, Sum(4), lambda at: None)
    head.here(1.0)
    for host in ("b", "c"):
        head.shards.stored(host, Sum(4), 1.0)
    head.told.clear()
    head.shards.void(Sum(5))
    assert head.told == []
    head.shards.void(Sum(4))
    assert head.told == [(host, host_messages.Drop(fields_of(Sum(4)))) for host in ("b", "c")]
