"""A virtual network: machines, and sockets whose bytes take time, come in parts, are held up, and are lost.

What is here is what a program sees of TCP: bytes come in order or not at all, and each end learns of the other's end
by what comes, by a reset, or by a timeout. So `Stream` and all above it run unchanged.
"""

from __future__ import annotations

import errno
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from support.world.clock import Ended, Scheduler, Seconds, _unwatched
from support.world.lines import Line, Theirs

Address = tuple[str, int]

FIN, RESET = b"", None
"""What ends a stream: the other end has closed it, or has thrown it away."""
AGAIN = 1.0
"""Seconds after which a machine tries once more to reach another one."""
AT_ONCE = 1 << 20


class Machine:
    """A machine: its processes, what they hand to each other, and its sockets."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.processes = network.processes
        self.gone = False
        """Whether it has been switched off: nobody hears of it any more."""
        self.ends = network.ends
        self.sockets: dict[Socket, None] = {}
        self.listeners: dict[Address, Listening] = {}
        self._network = network

    def hands(self, line: Line) -> Theirs:
        """That end is passed on to another process."""
        name = next(self._network.numbers)
        self.ends[name] = line
        return Theirs(name)

    def begins(self) -> int:
        """Return the number of a process that begins."""
        number = next(self._network.numbers)
        self.processes[number] = Ended()
        return number

    def ended(self, process: int) -> None:
        ended = self.processes[process]
        ended.over = True
        ended.changed()

    def listen(self) -> Listening:
        listening = Listening(self, (self.name, next(self._network.ports)))
        self.listeners[listening.address] = listening
        return listening

    def reaches_out(self) -> None:
        """Raises OSError while its network refuses to dial."""
        if self.name in self._network.refuses:
            raise OSError(errno.ENETUNREACH, "network is unreachable")

    def dial(self, address: Address) -> Socket:
        return self._network.dial(self, address)

    def lets_go(self, silently: bool) -> None:
        """The process that had the sockets has ended, or the machine is switched off (`silently`)."""
        self.gone = self.gone or silently
        for listening in list(self.listeners.values()):
            listening.close()
        for one in list(self.sockets):
            if silently:
                one.vanish()
            else:
                one.close()


@dataclass(slots=True)
class _Way:
    to: Socket
    queue: deque[tuple[Seconds, bytes | None]] = field(default_factory=deque)
    """(when they arrive, bytes), or the end of the stream."""
    flying: int = 0
    """Bytes in the queue."""
    owed: int = 0
    """Bytes that have come, and whose sender can't be told so."""
    pumps: Seconds | None = None


class Socket:
    """One end of a connection. Has the methods of `socket.socket` that `net.tcp` calls."""

    def __init__(self, machine: Machine, network: Network, address: Address, peer: Address) -> None:
        self.machine = machine
        self.changed: Callable[[], object] = _unwatched
        self.other: Socket | None = None
        self.coming = _Way(self)
        self.closed = False
        self.user_timeout: Seconds = 900.0
        self._network = network
        self._lots = random.Random(network.lots.random())
        self._address, self._peer = address, peer
        self._unread = bytearray()
        self._ended = self._shut = False
        """Whether the other end has closed the stream, and whether this one has."""
        self._error = 0
        self.is_cut = False
        """Whether what it sends is lost."""
        self._unacknowledged: Seconds | None = None
        """Since when bytes that it has sent are not acknowledged."""
        self._looks = False
        """Whether a look at that is due."""
        machine.sockets[self] = None

    # --- as a socket --------------------------------------------------------------------------------

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing here waits"

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self.user_timeout = value / 1000

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        error, self._error = self._error, 0
        return error

    def getsockname(self) -> Address:
        return self._address

    def getpeername(self) -> Address:
        if self.other is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._peer

    def recv(self, most: int) -> bytes:
        if not self._unread:
            self._raise()
            if self._ended or self._shut:
                return b""
            raise BlockingIOError
        data = bytes(self._unread[: self._some(most)])
        del self._unread[: len(data)]
        self._network.pump(self.coming)
        return data

    def recv_into(self, memory: memoryview) -> int:
        data = self.recv(len(memory))
        memory[: len(data)] = data
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        self._raise()
        if self._shut or self.other is None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        room = self._network.window - self.other.coming.flying - self.other.coming.owed
        if room <= 0:
            raise BlockingIOError
        sent = bytes(data[: self._some(room)])
        if self._unacknowledged is None:
            self._unacknowledged = self._network.now
            self._look_later()
        if not self.is_cut:
            self._network.put(self.other.coming, sent)
        else:
            self.other.coming.owed += len(sent)
        return len(sent)

    def shutdown(self, how: int) -> None:
        if self.other is None or self._shut:
            raise OSError(errno.ENOTCONN, "not connected")
        self._shut = True
        self._unread.clear()
        self._put(FIN)
        self.changed()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.machine.sockets.pop(self, None)
        if not self._shut:
            self._put(RESET if self._unread else FIN)
        self._shut = True

    # --- as a source --------------------------------------------------------------------------------

    def readable(self) -> bool:
        return bool(self._unread or self._ended or self._error or self._shut)

    def writable(self) -> bool:
        if self._error or self._shut:
            return True
        return self.other is not None and self._network.window > self.other.coming.flying + self.other.coming.owed

    # --- what the network does ----------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as this end knows."""
        return not (self.closed or self._shut or self._error or self.other is None)

    @property
    def room(self) -> int:
        """Bytes that may come before some are read."""
        return self._network.window - len(self._unread)

    def joined(self, other: Socket) -> None:
        self.other = other
        self.changed()

    def take(self, data: bytes | None) -> None:
        """These bytes have come, or the stream's end."""
        if self.closed or self._error:
            if data and self.other is not None:
                self._put(RESET)
        elif data is RESET:
            self.fail(errno.ECONNRESET)
        elif data:
            self._unread += data
        else:
            self._ended = True
        self.changed()

    def acknowledged(self) -> None:
        """Some of what it has sent is known to have come."""
        assert self.other is not None
        waits = self.other.coming.flying + self.other.coming.owed
        self._unacknowledged = self._network.now if waits else None
        self.changed()

    def fail(self, error: int) -> None:
        """The connection has gone, as this end finds out."""
        if not self.closed and not self._error:
            self._error = error
            self.changed()
            if error == errno.ETIMEDOUT and self.other is not None:
                self.other.probes()

    def cut(self, heard: Seconds | None) -> None:
        """The connection is cut: this end hears of it after so long, or when a timeout is over."""
        self.is_cut = True
        if heard is None:
            self.isolated(since=self._network.now, cut=True)
        else:
            self._network.scheduler.after(heard, lambda: self.fail(errno.ECONNRESET))

    def vanish(self) -> None:
        self.closed = self._shut = self.is_cut = True
        self.machine.sockets.pop(self, None)
        if self.other is not None and not self.other.closed:
            self.other.cut(None)

    def isolated(self, since: Seconds, cut: bool = False) -> None:
        """From that moment on no answer can come. If that stays so for its timeout, this end gives up."""

        def look() -> None:
            if self.alive and (cut or self._network.apart(self, since)):
                self.fail(errno.ETIMEDOUT)

        self._network.scheduler.at(since + self.user_timeout, look)

    def probes(self) -> None:
        """The other end has gone without a word: a probe finds that out, once one gets there and back."""

        def probe() -> None:
            if self.alive and self._network.apart(self, self._network.now):
                self.probes()
            elif self.alive:
                self.fail(errno.ECONNRESET)

        self._network.scheduler.after(self.user_timeout / 5, probe)

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            assert self._unacknowledged is not None
            self._network.scheduler.at(self._unacknowledged + self.user_timeout, self._look)

    def _look(self) -> None:
        self._looks = False
        if self._unacknowledged is None or not self.alive:
            return
        if self._network.now >= self._unacknowledged + self.user_timeout - 1e-9:
            self.fail(errno.ETIMEDOUT)
        else:
            self._look_later()

    def _put(self, end: bytes | None) -> None:
        if self.other is not None and not self.is_cut:
            self._network.put(self.other.coming, end)

    def _raise(self) -> None:
        if self._error:
            error, self._error, self._ended, self._shut = self._error, 0, True, True
            raise OSError(error, "the connection has gone")

    def _some(self, most: int) -> int:
        return most if most < 2 or self._lots.random() < 0.9 else self._lots.randint(1, most)


class Listening:
    def __init__(self, machine: Machine, address: Address) -> None:
        self.machine = machine
        self.address = address
        self.changed: Callable[[], object] = _unwatched
        self.closed = self.full = False
        """`full`: whether the process has no descriptor left for another connection."""
        self.came: deque[Socket] = deque()

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing here waits"

    def getsockname(self) -> Address:
        return self.address

    def accept(self) -> tuple[Socket, Address]:
        if not self.came:
            raise BlockingIOError
        if self.full:
            raise OSError(errno.EMFILE, "too many open files")
        end = self.came.popleft()
        return end, end.getpeername()

    def close(self) -> None:
        self.closed = True
        self.machine.listeners.pop(self.address, None)
        for end in self.came:
            end.take(b"\0")  # nobody reads it, so the other end is reset
            end.close()

    def readable(self) -> bool:
        return bool(self.came)

    def writable(self) -> bool:
        return False


class Network:
    """All machines of a world, and what is on its way between them."""

    def __init__(self, scheduler: Scheduler, lots: random.Random, slowest: Seconds) -> None:
        """`slowest`: what bytes take at most, about, without a fault."""
        self.scheduler = scheduler
        self.lots = lots
        self.machines: dict[str, Machine] = {}
        self.processes: dict[int, Ended] = {}
        self.ends: dict[int, Line] = {}
        self.numbers = count(1_000_000)
        self.ports = count(1)
        self.window = lots.choice([700, 5_000, 200_000])
        """Bytes that fit into a connection: as many again may lie unread."""
        self.refuses: set[str] = set()
        """Machines whose network refuses to dial."""
        self._delay = min(slowest, lots.choice([0.0001, 0.001, 0.01, 0.05, 0.2]))
        self._blocked: dict[tuple[str, str], list[Seconds]] = {}
        """By sender and receiver: since when nothing gets through, once for each fault."""
        self._slow: list[tuple[str, str, Seconds]] = []

    @property
    def now(self) -> Seconds:
        return self.scheduler.now

    def machine(self, name: str) -> Machine:
        return self.machines.setdefault(name, Machine(name, self))

    # --- connections --------------------------------------------------------------------------------

    def dial(self, machine: Machine, address: Address) -> Socket:
        machine.reaches_out()
        end = Socket(machine, self, (machine.name, next(self.numbers)), address)
        self.scheduler.after(self.takes(machine.name, address[0]), lambda: self._accept(end, address, self.now))
        return end

    def _accept(self, end: Socket, address: Address, since: Seconds) -> None:
        here, there = end.machine.name, self.machines[address[0]]
        if end.closed:  # it was given up
            return
        if there.gone or end.machine.gone or self.blocks(here, there.name) or self.blocks(there.name, here):
            if self.now - since > end.user_timeout:
                end.fail(errno.ETIMEDOUT)
            else:
                self.scheduler.after(AGAIN, lambda: self._accept(end, address, since))
            return
        listening = there.listeners.get(address)
        if listening is None:
            end.fail(errno.ECONNREFUSED)
            return
        other = Socket(there, self, address, end.getsockname())
        other.other = end
        listening.came.append(other)
        end.joined(other)
        later = self.takes(there.name, here) * self.lots.choice([0, 0, 1, 10])
        self.scheduler.after(later, lambda: listening.changed())  # who watches it then, if anybody does

    def put(self, way: _Way, data: bytes | None) -> None:
        """Put bytes on their way, behind all that are on it."""
        sender, receiver = way.to.other, way.to
        assert sender is not None
        arrives = self.now + self.takes(sender.machine.name, receiver.machine.name)
        for part in [data] if not data else self._parts(data):
            arrives = max(arrives, way.queue[-1][0] if way.queue else 0.0)
            way.queue.append((arrives, part))
            way.flying += len(part or b"")
            arrives += self._delay * self.lots.random()
        self._pump_at(way, way.queue[0][0])

    def pump(self, way: _Way) -> None:
        """Let bytes arrive whose time has come, as far as there is room."""
        sender, receiver = way.to.other, way.to
        if sender is None or not way.queue or way.queue[0][0] > self.now:
            if way.queue:
                self._pump_at(way, way.queue[0][0])
            return
        one, other = sender.machine.name, receiver.machine.name
        if self.blocks(one, other):
            return
        came = 0
        while way.queue and way.queue[0][0] <= self.now:
            moment, data = way.queue[0]
            if data and not receiver.closed:
                room = receiver.room
                if room <= 0:
                    break
                if len(data) > room:
                    way.queue[0] = moment, data[room:]
                    receiver.take(data[:room])
                    came += room
                    continue
            way.queue.popleft()
            came += len(data or b"")
            receiver.take(data)
        way.flying -= came
        if came and self.blocks(other, one):
            way.owed += came
        elif came:
            sender.acknowledged()
        if way.queue and way.queue[0][0] > self.now:
            self._pump_at(way, way.queue[0][0])

    def _pump_at(self, way: _Way, moment: Seconds) -> None:
        if way.pumps is None or moment < way.pumps:
            way.pumps = moment

            def due() -> None:
                if way.pumps == moment:
                    way.pumps = None
                    self.pump(way)

            self.scheduler.at(moment, due)

    def _parts(self, data: bytes) -> Iterator[bytes]:
        if len(data) < 2 or self.lots.random() < 0.8:
            yield data
            return
        at = self.lots.randint(1, len(data) - 1)
        yield data[:at]
        yield data[at:]

    # --- faults -------------------------------------------------------------------------------------

    def takes(self, sender: str, receiver: str) -> Seconds:
        slow = sum(by for one, other, by in self._slow if (one, other) == (sender, receiver))
        return self._delay * self.lots.uniform(0.2, 2.0) + slow

    def blocks(self, sender: str, receiver: str) -> bool:
        return bool(self._blocked.get((sender, receiver)))

    def apart(self, end: Socket, since: Seconds) -> bool:
        """Whether that end has had no way to the other one and back since that moment."""
        assert end.other is not None
        pair = end.machine.name, end.other.machine.name
        return any(self._blocked.get(way) and min(self._blocked[way]) <= since for way in (pair, pair[::-1]))

    def between(self, one: str, other: str) -> list[tuple[Socket, Socket]]:
        """The connections between two machines: each one's end, and the other's."""
        return [
            (end, end.other)
            for end in self.machines[one].sockets
            if end.other is not None and end.other.machine.name == other and not (end.closed and end.other.closed)
        ]

    def cut(self, one: str, other: str, heard: tuple[Seconds | None, Seconds | None]) -> None:
        """Connections between two machines break: all of them, or one. All bytes on their way are lost, or the last."""
        there = self.between(one, other)
        if there and self.lots.random() < 0.4:
            there = [self.lots.choice(there)]
        for ends in there:
            for end, after in zip(ends, heard, strict=True):
                left = self.lots.choice([0, 0, self.lots.randint(0, len(end.coming.queue))])
                while len(end.coming.queue) > left:
                    _, data = end.coming.queue.pop()
                    end.coming.flying -= len(data or b"")
                    end.coming.owed += len(data or b"")
                end.cut(after)

    def block(self, sender: str, receiver: str) -> None:
        """Nothing gets from there to there from now on."""
        self._blocked.setdefault((sender, receiver), []).append(self.now)
        for ends in self.between(sender, receiver):
            for end in ends:
                end.isolated(self.now)

    def unblock(self, sender: str, receiver: str) -> None:
        """One of the faults that block that way is over. What has waited comes when it is sent again."""
        since = self._blocked.get((sender, receiver), [])
        if since:
            since.remove(max(since))
        if not since:
            for one, other in self.between(sender, receiver):
                self.scheduler.after(AGAIN * self.lots.random(), lambda way=other.coming: self.pump(way))  # type: ignore[misc]
                if one.coming.owed and not other.is_cut:
                    one.coming.owed = 0
                    other.acknowledged()

    def heal(self, whole: set[str]) -> None:
        """Between these machines all faults are over."""
        for sender, receiver in list(self._blocked):
            while {sender, receiver} <= whole and self._blocked[sender, receiver]:
                self.unblock(sender, receiver)
        self._slow = [one for one in self._slow if not {one[0], one[1]} <= whole]
        self.refuses -= whole

    def slow(self, sender: str, receiver: str, by: Seconds) -> None:
        """What goes from there to there takes longer from now on."""
        self._slow.append((sender, receiver, by))

    def fast(self, sender: str, receiver: str, by: Seconds) -> None:
        """That is over."""
        if (sender, receiver, by) in self._slow:
            self._slow.remove((sender, receiver, by))
