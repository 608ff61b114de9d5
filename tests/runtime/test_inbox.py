"""What a host reports is heard once, in order, and never in the midst of what the coordinator does."""

from __future__ import annotations

from unittest.mock import Mock

from paceline.coordinator.inbox import Inbox
from paceline.host.events import AwaitsPlace


def test_what_is_reported_within_a_command_waits_until_the_coordinator_hears() -> None:
    heard: list[object] = []
    inbox = Inbox(Mock())
    inbox.open(heard.append)
    inbox.report(AwaitsPlace(1))
    inbox.report(AwaitsPlace(2))
    assert heard == []
    inbox.hear()
    inbox.hear()
    assert heard == [AwaitsPlace(1), AwaitsPlace(2)]


def test_what_is_reported_as_an_event_is_heard_comes_after_that() -> None:
    log: list[object] = []
    inbox = Inbox(loop := Mock())

    def heard(event: object) -> None:
        log.append(event)
        if event == AwaitsPlace(1):
            inbox.report(AwaitsPlace(3))
            log.append("done with 1")

    inbox.open(heard)
    loop.wait.side_effect = lambda _: (inbox.report(AwaitsPlace(1)), log.append("the host goes on"))
    inbox.wait()
    assert log == [AwaitsPlace(1), "done with 1", AwaitsPlace(3), "the host goes on"], "heard at once, as it waits"


def test_nothing_is_waited_for_while_something_is_left_to_hear() -> None:
    inbox = Inbox(loop := Mock())
    inbox.report(AwaitsPlace(1))
    inbox.wait(5.0)
    loop.wait.assert_not_called()
