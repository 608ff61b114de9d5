"""Has a machine that is about to join a run told the run's hash seed, before it imports torch (`host.hash_seed`)."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

from paceline.host import hash_seed
from paceline.net import tcp
from paceline.net.listener import HostListener

PURPOSE = "hash-seed"
SEED = struct.Struct("!q")
NONE = -1
"""In the place of a seed that is not known."""
WITHIN = 5.0
"""Seconds in which the head has to say it."""


def tell(door: HostListener) -> None:
    """Have whoever comes in for it told this process's seed."""
    seed = hash_seed.of_this_process()

    def said(end: Any) -> None:
        with suppress(OSError):
            end.send(SEED.pack(NONE if seed is None else seed))
        tcp.leave(end)

    door.serves(PURPOSE, said)


def heard(end: socket.socket) -> int | None:
    """Return what is said over that connection, and close it. None: the seed is not known, or nothing was said."""
    with end, suppress(OSError):
        end.settimeout(WITHIN)
        data = b""
        while len(data) < SEED.size and (more := end.recv(SEED.size - len(data))):
            data += more
        if len(data) == SEED.size:
            (seed,) = SEED.unpack(data)
            return int(seed) if 0 <= seed < hash_seed.SEEDS else None
    return None
