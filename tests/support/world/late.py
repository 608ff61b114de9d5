"""Bytes that come late: after their want is dropped, as a process that moves them is told of that late, or at all."""

from __future__ import annotations

import pytest

from paceline.core.items import EarlyVersion, Version
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.transfer.data_connection import PeerExchange
from paceline.transfer.data_plane import DataPlane, Hear
from paceline.transfer.emulated_link import EmulatedLink
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Brought, Command, DropWant, Event, Settled, Want
from paceline.transfer.movers import InLoop
from support.world.clock import VirtualLoop
from support.world.faults import HEAD

LATE = 0.2
"""Seconds after which it has stopped to write."""
WRITTEN = b"\xdd"
"""What comes late."""


class _Late(DataPlane):
    """Writes to the place of what is dropped until the process would have heard of that."""

    def __init__(self, hear: Hear, loop: Loop) -> None:
        super().__init__(hear, PeerExchange)
        self._loop = loop
        self._late: dict[int, list[Span]] = {}
        """By number: places to which it may still be written."""

    def tell(self, command: Command, memory: Span | None = None) -> None:
        if isinstance(command, DropWant) and self._drop(command.number):
            return
        if isinstance(command, Want):
            for late in self._late.values():  # it does one thing after the other: what was dropped is written before
                _write(late)
                late.clear()
        super().tell(command, memory)

    def _drop(self, number: int) -> bool:
        requests = [coming for record, coming in self._fetches._requests.values() if record.number == number]
        if not requests:
            return False
        self._late[number] = [self._spans[number].part(one.have, one.end) for one in requests]
        self._forget(number)
        self._obey(self._fetches.drop(number))
        self._loop.after(LATE, lambda: self._settle(number))
        return True

    def _settle(self, number: int) -> None:
        _write(self._late.pop(number))
        self._hear(Settled(number))


def _write(spans: list[Span]) -> None:
    for span in spans:
        span.memory[:] = WRITTEN * span.nbytes


def versions_come_late(monkeypatch: pytest.MonkeyPatch, host: str, seconds: float) -> None:
    """Have what that host has made of versions come to the head so much later."""
    hear = TransferManager._hear

    def heard(self: TransferManager, event: Event) -> None:
        of_host = self._host == HEAD and isinstance(event, Brought) and event.peer.host == host
        want = self._wants.get(event.number) if of_host and isinstance(event, Brought) else None
        if want is not None and isinstance(want.item, EarlyVersion | Version):
            loop: VirtualLoop = self._now.__self__  # type: ignore[attr-defined]
            loop.after(seconds, lambda: hear(self, event))
        else:
            hear(self, event)

    monkeypatch.setattr(TransferManager, "_hear", heard)


def comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all hosts be late to stop what is dropped."""

    def plane(self: InLoop, hear: Hear, link: EmulatedLink | None = None) -> DataPlane:
        self._plane = _Late(hear, self._loop)
        return self._plane

    monkeypatch.setattr(InLoop, "plane", plane)
