"""What workers of another host print: to the head, so many pieces at a time."""

from __future__ import annotations

from paceline.host import messages as host_messages
from paceline.host.log_forwarding import MOST, LogForwarding
from paceline.ipc import messages


def outward() -> tuple[LogForwarding, list[messages.Message]]:
    made, sent = LogForwarding(), list[messages.Message]()
    made.send = sent.append
    return made, sent


def test_no_more_pieces_are_on_their_way_than_may_be() -> None:
    """However small they are: a link keeps few messages that are not acknowledged."""
    made, sent = outward()
    for number in range(MOST):
        assert not made.full
        made.printed(2, b"%d" % number)
    assert made.full
    made.kept()
    assert not made.full
    made.printed(3, b"more")
    assert made.full
    assert sent == [
        *(host_messages.Printed(2, b"%d" % number) for number in range(MOST)),
        host_messages.Printed(3, b"more"),
    ]
