"""A host's range of each version, where another host is the head: what the head orders, and what it hears of that."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.items import Blob, Sum, Update, Version
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.events import Attached
from paceline.host.memory_plan import plan
from paceline.host.shards.server import ShardServer
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.protocols import registry
from support.reports import Reports

OWN, ELSEWHERE = 2, 0
"""A worker of this host, and one of another."""


class Company:
    """The range [8, 16) of a host that has worker 2 of four, which begins with version 0."""

    def __init__(self) -> None:
        choice = choose("bsp", registry())
        self.plan = plan(choice.spec, choice.unapplied, 4)
        self.came: list[Any] = []
        """Updates and sums that are here."""
        self.shelf, self.carrier, self.reports, self.store = Shelf(), Mock(), Reports(), Mock(lost=False)
        self.own, self.range_lost, self.keeps_buffers, self.buffers_of = {OWN}, Mock(), False, Mock()
        self.attachments = Mock(take_file=lambda attached: os.memfd_create("state"))
        self.attachments.comes.return_value = [STATE]
        self.ranges = ShardServer(
            Shard("b", 8, 16),
            self.shelf,
            self.plan,
            self.store,
            self.carrier,
            self.attachments,
            self,
            head="a",
        )
        assert self.shelf.put(Version(0), ("beginning",), self.plan.shared) == 0
        self.ranges.begins(0, None)
        self.shelf.release(("beginning",))

    def away(self, version: Version) -> bool:
        return True

    def idle_cores(self) -> int:
        return 1

    def stored(self, item: Any) -> None:
        self.came.append(item)

    def range_made(self, made: messages.store.Committed) -> None:
        self.reports(host_messages.RangeMade(made))

    def report(self, event: Any) -> None:
        self.reports(event)

    def sent(self) -> list[Any]:
        """What the store process was told."""
        return [call.args[0] for call in self.store.send.call_args_list]

    def brings(self, worker: int, step: int) -> None:
        """Have the update brought. If it is elsewhere, it comes."""
        self.ranges.bring(Update(worker, step), None)
        if worker != OWN:
            self.ranges.place_of(Update(worker, step))
            self.carrier.fetch.call_args.args[2]()
            self.ranges.comes_no_more(Update(worker, step), whole=True)

    def makes(self, version: int, *updates: Update) -> None:
        """The head orders that version's range."""
        self.ranges.make(
            host_messages.MakeRange(version, [(tuple(one), 0.5) for one in updates], None, look=True),
            [(one, 0.5) for one in updates],
        )

    def made(self, version: int) -> bool:
        """The process has made it. Return whether it was to."""
        return self.ranges.hear(messages.store.Committed(version, 0.0, 7, None), [])


def test_a_version_is_made_from_the_one_before_of_the_updates_in_the_heads_order() -> None:
    company, own, other = Company(), Update(OWN, 0), Update(ELSEWHERE, 5)
    area = company.shelf.put(own, ("update", *own[:2]), company.plan.of(OWN))
    company.brings(*own[:2])
    company.brings(*other[:2])
    assert company.came == [own, other]
    company.makes(1, other, own)
    (order,) = company.sent()
    assert area is not None
    places = [company.shelf.place(other), area]
    assert order.pushed == [(company.plan.area(place), 0.5) for place in places]
    assert (order.version, order.source, order.target, order.tells) == (1, 0, 1, True)
    assert company.made(1)
    assert company.reports.of(host_messages.RangeMade) == [
        host_messages.RangeMade(messages.store.Committed(1, 0.0, 7, None))
    ]


def test_norms_that_are_exchanged_are_told_before_a_range_is_made_with_those_of_all() -> None:
    company = Company()
    company.ranges.make(host_messages.MakeRange(1, [], None, look=True, exchanges=True), [])
    company.makes(2)
    (taken,) = company.sent()
    assert (type(taken), taken.version, taken.first) == (messages.store.TakeNorms, 1, True)
    assert not company.ranges.hear(messages.store.Norms(2, []), [])
    own, every = messages.store.Norms(1, [(0, 1.0)]), messages.store.Norms(1, [(0, 1.0), (1, 2.0)])
    assert company.ranges.hear(own, [])
    assert company.reports.of(host_messages.RangeNorms) == [host_messages.RangeNorms(own)]
    company.ranges.make_with(every)
    (order,) = company.sent()[1:]
    assert (type(order), order.version, order.norms) == (messages.store.Commit, 1, every.norms)
    assert company.made(1)
    assert [(one.version, one.norms) for one in company.sent()[2:]] == [(2, None)]


def test_one_range_is_made_at_a_time_in_the_order_of_the_orders_and_shares_are_as_of_the_version_before() -> None:
    company = Company()
    company.makes(1)
    company.ranges.pack_state(4)
    company.makes(2)
    assert [type(one) for one in company.sent()] == [messages.store.Commit]
    assert not company.made(2), "it was not to be made yet"
    assert company.made(1)
    assert company.sent()[1:] == [messages.store.SendShare(4), company.sent()[2]]
    assert company.sent()[2].version == 2
    assert company.made(2)
    assert not company.made(2), "it is made already"


def test_an_update_of_a_worker_that_has_left_is_not_said_to_be_here() -> None:
    company = Company()
    company.ranges.bring(Update(OWN, 0), None)
    assert not company.came
    assert list(company.shelf.claims()) == [(("made here", 0), Version(0), 0)]


def test_a_version_waits_for_a_place_and_no_order_is_lost() -> None:
    company = Company()
    places = len(company.plan.shared)
    for version in range(1, places):
        company.makes(version)
        company.made(version)
    company.makes(places)
    company.makes(places + 1)
    assert company.sent()[-1].version == places - 1
    company.ranges.free(3)
    assert company.sent()[-1].version == places
    company.ranges.free(4)
    company.made(places)
    assert company.sent()[-1].version == places + 1


STATE = Blob("share 1 of c")
STATE_ASKED = messages.store.SendState(0, 1, 1)
TAKES = host_messages.TakeRange("c", 16, 24, [0], [(ELSEWHERE, 5, "update")], Attached(STATE.name, 8))


def test_a_range_is_taken_over_with_what_is_lacking_of_updates_and_its_state() -> None:
    company, own, arrived, here, coming = Company(), Update(OWN, 0), Update(0, 5), Update(1, 2), Update(3, 4)
    company.shelf.put(own, ("update", *own[:2]), company.plan.of(OWN))
    for one in (own, arrived, here):
        company.brings(*one[:2])
    company.ranges.bring(coming, None)
    company.carrier.fetch.reset_mock()
    company.came.clear()
    company.ranges.take(TAKES)
    company.carrier.cancel.assert_called_once_with(("for the range made here", *coming))
    assert company.ranges.shard == Shard("b", 8, 24)
    fetched = {call.args[0]: call.args[2:] for call in company.carrier.fetch.call_args_list}
    assert list(fetched) == [Version(0), STATE, arrived, here, coming]
    assert fetched[coming][1] is None, "it may be lost with its worker, and what has arrived may not"
    assert [company.ranges.parts_of(one) for one in (arrived, here)] == [Shard("c", 16, 24), None]
    assert [company.ranges.had(one) for one in (arrived, here, coming)] == [True, True, False]
    assert company.ranges.place_of(here) == company.shelf.place(here)
    company.makes(1, own, arrived)
    company.ranges.pack_state(3)
    company.ranges.when_taken(lambda: company.store.send(STATE_ASKED))
    for arrives, _ in list(fetched.values())[:-1]:
        arrives()
    assert (company.sent(), company.reports.of(host_messages.RangeTaken)) == ([], [])
    fetched[coming][0]()
    extended, asked, commit = company.sent()
    assert (type(extended), asked, type(commit)) == (messages.store.ExtendRange, STATE_ASKED, messages.store.Commit)
    assert len(company.reports.of(host_messages.RangeTaken)) == 1
    assert company.came == [here, coming]
    assert [company.ranges.parts_of(arrived), company.ranges.had(here)] == [None, False]
    company.made(1)
    assert company.sent()[-1] == messages.store.SendShare(3)


def test_an_update_that_is_dropped_as_a_range_is_taken_over_is_not_waited_for() -> None:
    company = Company()
    company.brings(ELSEWHERE, 6)
    company.ranges.take(msgspec.structs.replace(TAKES, versions=[]))
    assert company.carrier.fetch.call_args_list[-2].args[0] == STATE
    company.carrier.fetch.call_args_list[-2].args[2]()
    assert not company.reports.of(host_messages.RangeTaken)
    company.ranges.drop(Update(ELSEWHERE, 6))
    company.carrier.cancel.assert_called_once_with(("taken over", ELSEWHERE, 6, "update"))
    assert len(company.reports.of(host_messages.RangeTaken)) == 1


@pytest.mark.parametrize("room", [True, False])
def test_a_host_that_can_not_take_a_range_over_makes_no_versions_any_more(room: bool) -> None:
    company, why = Company(), "host c has ended"
    if not room:
        why = "the optimizer's state has no room here: No space left on device"
        company.attachments.comes.side_effect = OSError(28, "No space left on device")
    company.ranges.take(TAKES)
    if room:
        company.carrier.fetch.call_args.args[3](why)
    company.range_lost.assert_called_once_with(f"it was to take over the range of host c: {why}")


def test_an_update_that_is_expected_is_not_said_to_be_here_before_it_is_brought() -> None:
    company, other = Company(), Update(ELSEWHERE, 5)
    company.ranges.expect(Update(ELSEWHERE, 5))
    owner = company.carrier.expect.call_args.args[1]
    company.carrier.fetch.assert_not_called()
    company.ranges.bring(other, None)
    assert company.carrier.fetch.call_args.args[:2] == (other, owner)
    assert not company.came
    company.carrier.fetch.call_args.args[2]()
    assert company.came == [other]


def test_an_update_that_is_expected_and_dropped_comes_no_more_and_leaves_its_place() -> None:
    company = Company()
    company.ranges.expect(Update(ELSEWHERE, 5))
    company.ranges.place_of(Update(ELSEWHERE, 5))
    company.ranges.drop(Update(ELSEWHERE, 5))
    company.carrier.cancel.assert_called_once_with(company.carrier.expect.call_args.args[1])
    company.ranges.comes_no_more(Update(ELSEWHERE, 5), whole=False)
    assert not company.shelf.has(Update(ELSEWHERE, 5))


def test_an_update_of_this_hosts_own_worker_is_not_expected() -> None:
    company = Company()
    company.ranges.expect(Update(OWN, 0))
    company.carrier.expect.assert_not_called()


def test_an_update_that_came_by_itself_and_goes_into_a_version_in_a_sum_leaves_its_place() -> None:
    """In a replay on one host, which makes the sums that several hosts have made."""
    company, total, update = Company(), Sum(3), Update(OWN, 0)
    company.shelf.put(update, ("update", *update[:2]), company.plan.of(OWN))
    company.brings(*update[:2])
    company.shelf.put(total, ("sum", 3), company.plan.of_sums)
    order = host_messages.MakeRange(1, [(tuple(total), 1.0)], None, look=True)
    company.ranges.make(order, [(total, 1.0)], [update])
    company.shelf.release(("update", *update[:2]))
    assert company.shelf.has(update)
    company.made(1)
    assert not company.shelf.has(update)
