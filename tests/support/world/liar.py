"""A host that has joined, and says what it may not: messages of a run, changed, doubled, early and late."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from paceline.coordinator.host_registry import HostRegistry
from paceline.errors import MessageUnreadable
from paceline.host import messages as host_messages
from paceline.host.events import WorkerSaid
from paceline.ipc.endpoint import Coding
from support.world import insides
from support.world.clock import VirtualLoop
from support.world.hosts import Agent

EXTREMES: list[Any] = [
    *(-(1 << 63), -1, 0, 1, 2, 7, 255, 1 << 31, (1 << 63) - 1, (1 << 64) - 1),
    *(math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e300),
    *("", "\x1b[2J\n", "x" * 5000, "node-0", "version", "update", None, True, False, [], {}, b"", [[]], [1, 2]),
]
"""What stands in the place of a value."""
LIAR = "node-1"
CODING = Coding(host_messages.ToHead)


def changed(lots: random.Random, message: Any, others: list[Any]) -> Any:
    """The message, with something in it changed, as plain values. `others` are some that were said before."""
    if others and lots.random() < 0.4:
        kind = lots.choice(sorted({_kind(one) for one in others}))
        message = lots.choice([one for one in others if _kind(one) == kind])
        if lots.random() < 0.5:
            return message
    plain = msgspec.msgpack.decode(CODING.encode(message))
    for _ in range(lots.choice((1, 1, 1, 2))):
        there = plain
        while True:
            at = lots.choice([*there]) if isinstance(there, dict) else lots.randrange(len(there)) if there else None
            if at is None:
                break
            inner = there[at]
            if isinstance(inner, list | dict) and inner and lots.random() < 0.8:
                there = inner
                continue
            match lots.randrange(6):
                case 0 if isinstance(there, list):
                    del there[at]
                case 1 if isinstance(there, list):
                    there.insert(at, inner)
                case 2 if isinstance(inner, int | float) and not isinstance(inner, bool):
                    there[at] = inner + lots.choice((-1, 1))
                case _:
                    there[at] = lots.choice(EXTREMES)
            break
        if not isinstance(plain, list) or not plain:
            break
    return plain


def _kind(message: Any) -> str:
    said = message.message if isinstance(message, WorkerSaid) else message
    return str(said.__struct_config__.tag)  # not the class's name: a lie is drawn anew where messages sort otherwise


class Liar:
    """Puts its words between those that an honest host says to the head."""

    def __init__(self, lots: random.Random, often: float) -> None:
        """`often`: how often it says something before an honest message."""
        self._lots = lots
        self._often = often
        self.said: list[Any] = []
        """What was told to the head, and could be read."""
        self._honest: list[Any] = []
        self.changed = 0
        """How many messages were."""

    def lies(self, others: HostRegistry, message: Any) -> None:
        incarnation = insides.incarnation(others, LIAR)
        self._honest.append(message)
        while self._lots.random() < self._often and others._hosts.lives(LIAR, incarnation):
            said = changed(self._lots, message, self._honest)
            self.changed += 1
            try:
                said = CODING.decode(msgspec.msgpack.encode(said), ())
            except (MessageUnreadable, OverflowError, TypeError):
                continue  # a link ends the host for it: see `test_mutated_frames`
            self.said.append(said)
            others.delivered(LIAR, incarnation, said)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        hear = HostRegistry.delivered

        def delivered(others: HostRegistry, host: str, incarnation: int, message: Any) -> None:
            if host == LIAR:
                self.lies(others, message)
            hear(others, host, incarnation, message)

        turn = VirtualLoop._turn

        def turned(loop: VirtualLoop) -> None:
            agent = getattr(loop.turned, "__self__", None)
            try:
                turn(loop)
            except Exception:  # it is answered what it has not asked
                if not isinstance(agent, Agent) or agent.name != LIAR:
                    raise
                agent.die()

        with patch.object(HostRegistry, "delivered", delivered), patch.object(VirtualLoop, "_turn", turned):
            yield
