"""Hosts that add up their workers' updates, as the head sees them: when one begins with that, and when it ends."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.shards.sums_of_hosts import SumsOfHosts
from paceline.ipc import messages

TERMS = [(Update(2, 5), 0.25), (Update(3, 5), 0.75)]


class Head:
    """The head a, where sums are looked through for NaN."""

    def __init__(self) -> None:
        self.together, self.sums, self.summer, self.others = Mock(), Mock(look=True), Mock(), Mock()
        self.told: list[tuple[str, messages.Message]] = []
        told = self.told.append
        self.of_hosts = SumsOfHosts(
            "a", self.together, self.sums, self.summer, self.others, lambda host, message: told((host, message))
        )


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_host_adds_up_updates_if_it_has_room_for_several_workers(workers: int) -> None:
    head = Head()
    assert head.of_hosts.begins("b", range(workers)) == (workers > 1)
    assert head.together.begins.called == (workers > 1)


def test_another_host_is_told_what_adds_up_and_the_head_has_a_place_for_the_sum() -> None:
    head = Head()
    head.together.sum_up("b", Sum(4), TERMS)
    assert head.told == [("b", host_messages.SumUp(4, [(2, 5, 0.25), (3, 5, 0.75)], look=True))]
    head.summer.lay.assert_called_once_with(Sum(4), [Update(2, 5), Update(3, 5)])
    head.summer.sum_up.assert_not_called()


def test_the_head_makes_its_own_sums() -> None:
    head = Head()
    head.together.sum_up("a", Sum(4), TERMS)
    head.summer.sum_up.assert_called_once_with(Sum(4), TERMS, look=True)
    assert head.told == []


def test_a_void_sum_is_kept_nowhere() -> None:
    head = Head()
    head.together.drop("b", Sum(4))
    head.others.void.assert_called_once_with(Sum(4))
    head.summer.drop.assert_called_once_with(Sum(4))
    assert head.told == [("b", host_messages.DropSum(4))]


def test_a_host_that_has_lost_its_process_adds_up_no_more_and_that_is_told() -> None:
    head = Head()
    head.of_hosts.ended = Mock()
    head.of_hosts.ends("b")
    head.of_hosts.ended.assert_not_called()
    head.of_hosts.lost("c", "why")
    head.of_hosts.ended.assert_called_once_with("c", "why")
    assert [call.args for call in head.together.ends.call_args_list] == [("b",), ("c",)]
