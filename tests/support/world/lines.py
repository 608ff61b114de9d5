"""Channels between processes of one virtual machine: real messages, in memory. What is sent is there at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from paceline.ipc.channel import attachment
from paceline.ipc.endpoint import Coding
from support.direct import ROOM, Direct, pair


class Line(Direct):
    """One end of a channel, which a virtual loop can watch."""

    def __init__(self, ways: Any, kinds: Any, peer: str) -> None:
        super().__init__(ways, kinds, peer)
        self.changed: Callable[[], object] = lambda: None
        self.other: Line
        self.closed = False

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        sent = super().try_to_send(message, descriptors)
        self.other.changed()
        return sent

    def close(self) -> None:
        super().close()
        self.closed = True
        self.other.changed()

    def expects(self, kinds: Any) -> None:
        """It belongs to the process from now on that is sent these."""
        self._coding = Coding(kinds)

    def readable(self) -> bool:  # `ready` decodes, and is slower
        return bool(self._bodies or self._in.unread or not self._in.writer_open)

    def writable(self) -> bool:
        return len(self._out.unread) < ROOM


def lines(kinds: Any, peer: str, theirs: Any = None) -> tuple[Line, Line]:
    """Return the two ends of a channel to that process. `theirs`: what that process may be sent."""
    one, other = pair()
    ours, its = Line(one, kinds, peer), Line(other, theirs or Any, "the coordinator")
    ours.other, its.other = its, ours
    return ours, its


class Theirs:
    """An end that is passed on to another process, with a real descriptor that names it."""

    def __init__(self, name: int) -> None:
        self._file = attachment(name.to_bytes(8, "little"))

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        os.close(self._file)


def named_by(descriptor: int) -> int:
    """The name of the end that was passed on."""
    return int.from_bytes(os.pread(descriptor, 8, 0), "little")
