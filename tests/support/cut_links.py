"""Links between the hosts of a run that break and delay: what agents dial in the head's place.

Each host's link passes on what both sides say, in a thread of the test. So connections are cut where bytes are, and the
run itself is as it always is.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from paceline.net.handshake import FRAME

Kind = Literal["control", "data"]
Way = Literal["to the head", "to the host"]
KINDS: tuple[Kind, Kind] = ("control", "data")
WAYS: tuple[Way, Way] = ("to the head", "to the host")
MOST = 1 << 20
"""Bytes that wait in one direction of a connection."""
RESET = struct.pack("ii", 1, 0)

FIRST = """
import json, os
from pathlib import Path
from paceline.coordinator import emulated
ports, folder, real = {ports!r}, Path({folder!r}), emulated.agent
def agent(name, workers, address, *arguments, **keys):
    if name in ports:
        (folder / "new").write_text(json.dumps(address))
        os.replace(folder / "new", folder / name)
        address = "127.0.0.1", ports[name]
    return real(name, workers, address, *arguments, **keys)
emulated.agent = agent
"""


@dataclass
class _Way:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    left: int | None
    """Bytes that it passes on before the connection is cut; None: it is not."""
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    """Bytes, and when they go on."""
    over: bool = False
    """Whether its source has said all."""

    @property
    def room(self) -> bool:
        return not self.over and sum(len(data) for _, data in self.waiting) < MOST


@dataclass(eq=False)
class _Connection:
    """A connection of an agent, and the one to the head that it stands for."""

    ways: tuple[_Way, _Way]

    def cut(self) -> None:
        for way in self.ways:
            with suppress(OSError):
                way.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            way.source.close()


class Link:
    """The link between one host and the head."""

    def __init__(self, folder: Path, host: str) -> None:
        """`folder`: where agents write what they would dial."""
        self.made = dict.fromkeys(KINDS, 0)
        """Connections that the host has made."""
        self.cuts = 0
        """Connections that were cut."""
        self.delay = 0.0
        """Seconds that all bytes take."""
        self.limit: Callable[[Kind], tuple[Way, int] | None] = lambda kind: None
        """After how many bytes, and which way, a new connection is cut."""
        self._address = folder / host
        self._blocked = False
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[_Connection] = []
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where the agent dials."""
        port: int = self._listener.getsockname()[1]
        return port

    # --- what happens to it -------------------------------------------------------------------------

    def block(self) -> None:
        """Cut all connections, and all that the host makes from now on."""
        with self._lock:
            self._blocked = True
            for one in list(self._connections):
                self._cut(one)

    def close(self) -> None:
        """Pass on nothing any more."""
        self._over = True
        self._thread.join(10)
        self.block()
        self._listener.close()

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                ways = [(one, way) for one in self._connections for way in one.ways]
                reads = [way.source for _, way in ways if way.room]
                due = [way for _, way in ways if way.waiting and way.waiting[0][0] <= time.monotonic()]
                writes = [way.target for way in due]
            try:
                readable, writable, _ = select.select([self._listener, *reads], writes, [], 0.002)
            except (OSError, ValueError):  # one was cut meanwhile
                continue
            with self._lock:
                if self._listener in readable:
                    self._accept()
                for one, way in ways:
                    if one in self._connections and way.source in readable:
                        self._receive(one, way)
                    if one in self._connections and way.target in writable:
                        self._send(one, way)

    def _accept(self) -> None:
        end, _ = self._listener.accept()
        if (kind := _kind(end)) is None:
            end.close()
            return
        self.made[kind] += 1
        if self._blocked:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.close()
            self.cuts += 1
            return
        try:
            head = socket.create_connection(tuple(json.loads(self._address.read_text())), timeout=10)
        except OSError:  # the head has gone
            end.close()
            return
        for one in (end, head):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = dict([drawn]) if (drawn := self.limit(kind)) else {}
        there = _Way(end, head, limit.get("to the head"))
        back = _Way(head, end, limit.get("to the host"))
        self._connections.append(_Connection((there, back)))

    def _receive(self, one: _Connection, way: _Way) -> None:
        try:
            data = way.source.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            self._end(one)
            return
        way.over = not data
        way.waiting.append((time.monotonic() + self.delay, data))

    def _send(self, one: _Connection, way: _Way) -> None:
        _, data = way.waiting.popleft()
        if not data:
            self._end(one)
            return
        part = data if way.left is None else data[: way.left]
        try:
            sent = way.target.send(part)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(one)
            return
        if sent < len(data):
            way.waiting.appendleft((0.0, data[sent:]))
        if way.left is not None:
            way.left -= sent
            if not way.left:
                self._cut(one)

    def _cut(self, one: _Connection) -> None:
        self._connections.remove(one)
        one.cut()
        self.cuts += 1

    def _end(self, one: _Connection) -> None:
        """One side has closed the connection, and the other hears of that."""
        self._connections.remove(one)
        for way in one.ways:
            way.source.close()


def _kind(end: socket.socket) -> Kind | None:
    """What a connection is for, as its first bytes say. They are still to be passed on."""
    end.settimeout(10)
    greeting = b""
    while len(greeting) < FRAME.size:
        try:
            before, greeting = greeting, end.recv(FRAME.size, socket.MSG_PEEK)
        except OSError:
            return None
        if not greeting:
            return None
        if greeting == before:
            time.sleep(0.001)
    purpose: Kind = FRAME.unpack(greeting)[3].rstrip(b"\0").decode()
    return purpose


class Links:
    """The links of some hosts of one run."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        """`folder` is made."""
        folder.mkdir()
        self._folder = folder
        self.by_host = {host: Link(folder, host) for host in hosts}

    @property
    def first(self) -> str:
        """What a launcher executes first, so that its agents dial these links: see `support.runs.run`."""
        ports = {host: link.port for host, link in self.by_host.items()}
        return FIRST.format(ports=ports, folder=str(self._folder))

    def close(self) -> None:
        """Pass on nothing any more."""
        for link in self.by_host.values():
            link.close()
