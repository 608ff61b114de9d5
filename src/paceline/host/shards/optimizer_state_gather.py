"""What the optimizer has for ranges that other hosts make, on its way to the store process here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.server import ShardServer
from paceline.host.store_process import StoreProcess
from paceline.ipc import messages


@dataclass(slots=True)
class _Asked:
    """What was asked of all other hosts at one moment."""

    held: bool
    """Whether the process is to have none of it yet."""
    lacking: int
    """How many hosts have not answered."""
    came: list[tuple[str | None, int | None]] = field(default_factory=list)
    """What has come meanwhile: (error, descriptor)."""


class Shares:
    """Asks for the shares as of one version, and hands them over. Pure but for descriptors."""

    def __init__(self, store: StoreProcess, arrivals: Arrivals, own: ShardServer) -> None:
        """`own` makes the range of the head's host, whose process has the state for that."""
        self.when_own_is_whole = own.when_taken
        """Calls once that process has the state for all of its range: nobody else has some of it that is on its way."""
        self._store = store
        self._arrivals = arrivals
        self._numbers = count(1)
        self._asked: dict[int, _Asked] = {}
        """By number: what the process does not have all of."""
        self._when_idle: list[Callable[[], object]] = []

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call once all that was asked for has come, before more is asked for."""
        if self._asked:
            self._when_idle.append(call)
        else:
            call()

    def number(self) -> int:
        """Return what one more request for a share is known by."""
        return next(self._numbers)

    def ask(self, *, held: bool = False) -> tuple[int, int]:
        """Ask for all shares as of the newest version. Return the number of that, and how many shares will come.

        `held`: whether the process is to have them only after `release`.
        """
        if not self._arrivals.others:
            return 0, 0
        number, hosts = self.number(), len(self._arrivals.others)
        self._asked[number] = _Asked(held, hosts)
        self._arrivals.pack_states(number)
        return number, hosts

    def came(self, number: int, error: str | None, file: int | None) -> None:
        """A share has come. Its descriptor may be closed at once. None: it could not be packed."""
        if (asked := self._asked.get(number)) is None:
            return
        asked.lacking -= 1
        asked.came.append((error, None if file is None else os.dup(file)))
        if not asked.held:
            self.release(number)

    def release(self, number: int) -> None:
        """The process is to have what has come, and what comes."""
        if (asked := self._asked.get(number)) is None:
            return
        asked.held = False
        for error, file in asked.came:
            self._store.send(messages.store.TakeShare(number, error), () if file is None else (file,))
            if file is not None:
                os.close(file)
        asked.came.clear()
        if not asked.lacking:
            del self._asked[number]
        while self._when_idle and not self._asked:
            self._when_idle.pop(0)()
