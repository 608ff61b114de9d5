"""A host's range of each version, where another host is the head: what the head orders, and what it hears of that."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

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


STATE = Blob("share 1 of c")
TAKES = host_messages.TakeRange("c", 16, 24, [0], [(ELSEWHERE, 5, "update")], Attached(STATE.name, 8))


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
