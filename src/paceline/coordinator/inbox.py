"""What hosts report, until the coordinator hears it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from paceline.host.events import HostEvent
from paceline.ipc.loop import Loop


class Inbox:
    """Hands on each event once, in the order of the reports.

    What is reported within a command to a host, or as an event is heard, waits until the coordinator calls `hear`: it
    is not called back in the midst of what it does. While it waits for its loop, an event is heard at once: hosts count
    on that. So is what a timer's or a signal's own commands report.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._events = deque[HostEvent]()
        self._heard: Callable[[HostEvent], None] | None = None
        self._waits = False

    def open(self, heard: Callable[[HostEvent], None]) -> None:
        """From now on events are handed to `heard`."""
        self._heard = heard

    def report(self, event: HostEvent) -> None:
        """Take an event. See `host.events.Report`."""
        self._events.append(event)
        if self._waits:
            self._waits = False
            self.hear()
            self._waits = True

    def hear(self) -> None:
        """Have all heard that was reported, and what is reported meanwhile."""
        while self._events:
            assert self._heard is not None, "nothing is heard before the coordinator listens"
            self._heard(self._events.popleft())

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the loop once, so many seconds at most, unless something is left to hear."""
        if self._events:
            return
        self._waits = True
        try:
            self._loop.wait(seconds)
        finally:
            self._waits = False
