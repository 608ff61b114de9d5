"""A link that lets so many bytes a second through each way, or takes its time: it is dialled in place of its target.

Bytes go on in threads of the test, whatever they say. So connections may be encrypted.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress

CHUNK = 4 << 10
BUFFERED = 64 << 10
"""Bytes that a socket keeps: what is in them was let through, and has not come."""


class Throttle:
    """Stands for the port of `target`. It never lets through more than its rates, not even for a moment."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        there: float = math.inf,
        back: float = math.inf,
        delay: float = 0.0,
        source: str = "127.0.0.1",
    ) -> None:
        """`there`, `back`: bytes a second towards the target and from it. `delay`: seconds that each chunk takes.

        The target sees connections from the address `source`.
        """
        self._target = target
        self._source = source
        self._delay = delay
        self._rates = (there, back)
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all that goes through."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, source_address=(self._source, 0))
                self._ends += [near, far]
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFERED)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                there, back = self._rates
                threading.Thread(target=self._pass, args=(near, far, there), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, back), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, rate: float) -> None:
        free = time.monotonic()
        with suppress(OSError):
            while data := source.recv(CHUNK):
                free = max(free, time.monotonic()) + len(data) / rate
                time.sleep(max(0.0, free - time.monotonic()) + self._delay)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
