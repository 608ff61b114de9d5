"""A link that lets so many bytes a second through each way, or takes its time: it is dialled in place of its target.

Bytes go on in threads of the test, whatever they say. So connections may be encrypted.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

LONG = 60.0  # seconds: nothing that a test waits for takes as long
CHUNK = 4 << 10
BUFFERED = 64 << 10
"""Bytes that a socket keeps: what is in them was let through, and has not come."""


class Throttle:
    """Stands for the port of `target`. It never lets through more than its rates, not even for a moment."""

    def __init__(self, target: tuple[str, int], *, there: float, back: float, delay: float = 0.0) -> None:
        """`there`, `back`: bytes a second towards the target and from it. `delay`: seconds that each chunk takes."""
        self._target = target
        self._delay = delay
        self._rates = (there, back)
        self._flows = threading.Event()
        self._flows.set()
        self._passed = 0
        """Bytes that came back from the target."""
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, after: float) -> None:
        """Wait until so many bytes came back, and let nothing through any more, without a word."""
        until = time.monotonic() + LONG
        while self._passed < after:
            assert time.monotonic() < until, f"no {after:.0f} bytes came back"
            time.sleep(0.002)
        self._flows.clear()

    def close(self) -> None:
        """Cut all that goes through."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
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
                self._flows.wait()
                free = max(free, time.monotonic()) + len(data) / rate
                time.sleep(max(0.0, free - time.monotonic()) + self._delay)
                target.sendall(data)
                if rate is self._rates[1]:
                    self._passed += len(data)
            target.shutdown(socket.SHUT_WR)
