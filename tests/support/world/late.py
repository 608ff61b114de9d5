"""Bytes that are still written after their fetch is cancelled, as a process that moves them is told of that late."""

from __future__ import annotations

import pytest

from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.transfer.data_connection import PeerExchange, PipeNews
from paceline.transfer.fetch_table import Named, Peer
from paceline.transfer.movers import InLoop

LATE = 0.2
"""Seconds after which it has stopped to write."""
WRITTEN = b"\xdd"
"""What comes late."""


class _Late(PeerExchange):
    """Writes to the place of what is cancelled until the process would have heard of that."""

    def __init__(self, peer: Peer, news: PipeNews, loop: Loop, late: list[Span]) -> None:
        """`late`: places of this host to which it may still be written."""
        super().__init__(peer, news)
        self._told = news
        self._loop = loop
        self._late = late
        self._asked: dict[int, Span] = {}

    def ask(self, request: int, named: Named, begin: int, end: int) -> None:
        if self.connected and (there := self._told.memory(self.peer, request)) is not None:
            for span in self._late:  # it does one thing after the other: what was cancelled is written before
                _write(span)
            self._late.clear()
            self._asked[request] = there
        super().ask(request, named, begin, end)

    def cancel(self, request: int) -> bool:
        super().cancel(request)
        if (there := self._asked.pop(request, None)) is None:
            return True
        self._late.append(there)
        self._loop.after(LATE, lambda: self._settle(request, there))
        return False

    def _settle(self, request: int, there: Span) -> None:
        if any(one is there for one in self._late):
            _write(there)
            self._late[:] = [one for one in self._late if one is not there]
        self._told.settled(self.peer, request)


def _write(span: Span) -> None:
    span.memory[:] = WRITTEN * span.nbytes


def comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all hosts be late to stop what is cancelled."""
    late: dict[InLoop, list[Span]] = {}

    def pipe(self: InLoop, peer: Peer, news: PipeNews) -> PeerExchange:
        return _Late(peer, news, self._loop, late.setdefault(self, []))

    monkeypatch.setattr(InLoop, "pipe", pipe)
