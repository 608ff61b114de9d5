"""Hosts and a network in virtual time, under a seed: what is real here are the ends, and the bytes that they write.

A connection is a stream of bytes in each direction, as TCP has it. One seed draws how long bytes take, in how many
parts they come, and a list of faults (`Faults.drawn`). Each fault is a value with its moment, so that any of them can
be left out. `tried` runs a history under a seed. One that fails names its seed, and the fewest faults it fails with.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

Seconds = float


# --- faults -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """Connections between two nodes break. Bytes on their way are lost. Each end hears of it after a time, or never."""

    at: Seconds
    one: str
    other: str
    heard: tuple[Seconds | None, Seconds | None]


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing gets from one node to the other for a while. It comes later, if the connection lives so long."""

    at: Seconds
    until: Seconds
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True)
class Slow:
    """What one node sends to the other takes longer for a while."""

    at: Seconds
    until: Seconds
    sender: str
    receiver: str
    by: Seconds


@dataclass(frozen=True, slots=True)
class Paused:
    """A node computes nothing for a while. Its kernel still takes bytes and connections."""

    at: Seconds
    until: Seconds
    node: str
    ticks_first: bool
    """Whether it looks at the clock before it reads what has come."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A node's process ends, and begins anew later if that is not None."""

    at: Seconds
    node: str
    silently: bool
    """Whether its machine goes too, so that nobody hears of it."""
    back: Seconds | None


@dataclass(frozen=True, slots=True)
class Garbled:
    """Something becomes of the next bytes that one node writes to the other."""

    at: Seconds
    sender: str
    receiver: str
    how: str
    """`double`: they come twice; `swap`: those that are written next come before them; `noise`: others come first."""


Fault = Cut | Blocked | Slow | Paused | Killed | Garbled


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what happens, drawn for one history."""

    pairs: tuple[tuple[str, str], ...]
    """Nodes that are connected."""
    mortal: tuple[str, ...] = ()
    """Nodes that may be killed."""
    pausing: tuple[str, ...] = ()
    """Nodes that may pause."""
    timeout: Seconds = 15.0
    end: Seconds = 60.0
    """When faults are over."""
    garbles: tuple[str, ...] = ("double", "swap", "noise")
    """What may become of bytes. TCP does none of it, and who numbers its messages bears all."""

    def drawn(self, seed: int) -> list[Fault]:
        """Draw a list of faults, by time. Rates differ from seed to seed."""
        lots = random.Random(f"faults {seed}")
        makers: list[Callable[[random.Random], Fault]] = [self.cut, self.blocked, self.slow, self._garbled]
        if self.pausing:
            makers.append(self.paused)
        if self.mortal:
            makers.append(self._killed)
        rates = [lots.choice([0, 0, 1, 3]) for _ in makers]
        if not any(rates):
            return []
        kinds = lots.choices(makers, rates, k=lots.randint(0, 12))
        return sorted((make(lots) for make in kinds), key=lambda fault: fault.at)

    def lasts(self, lots: random.Random) -> tuple[Seconds, Seconds]:
        """From when to when: often less than a fifth of the timeout, and sometimes more than all of it."""
        at = lots.uniform(0, self.end)
        length = lots.choice([0.05, 0.2, 0.2, 0.7, 1.0, 1.5]) * self.timeout * lots.uniform(0.5, 1.5)
        return at, min(at + length, self.end)

    def _way(self, lots: random.Random) -> tuple[str, str]:
        one, other = lots.choice(self.pairs)
        return (one, other) if lots.random() < 0.5 else (other, one)

    def cut(self, lots: random.Random) -> Fault:
        one, other = lots.choice(self.pairs)
        heard = [lots.choice([0.0, lots.uniform(0, 0.1), lots.uniform(0, self.timeout), None]) for _ in "12"]
        return Cut(lots.uniform(0, self.end), one, other, (heard[0], heard[1]))

    def blocked(self, lots: random.Random) -> Fault:
        return Blocked(*self.lasts(lots), *self._way(lots))

    def slow(self, lots: random.Random) -> Fault:
        return Slow(*self.lasts(lots), *self._way(lots), lots.choice([0.05, 0.5, 4.0]))

    def paused(self, lots: random.Random) -> Fault:
        return Paused(*self.lasts(lots), lots.choice(self.pausing), lots.random() < 0.5)

    def _killed(self, lots: random.Random) -> Fault:
        at = lots.uniform(0, self.end)
        back = lots.choice([None, at + 0.1, at + lots.uniform(0, 2 * self.timeout)])
        return Killed(at, lots.choice(self.mortal), lots.random() < 0.5, back)

    def _garbled(self, lots: random.Random) -> Fault:
        return Garbled(lots.uniform(0, self.end), *self._way(lots), lots.choice(self.garbles))


# --- the network ------------------------------------------------------------------------------------


class Process(Protocol):
    """What runs at a node: a driver of pure ends. It answers with `Network.dial`, `write` and `close`."""

    def connected(self, connection: int, now: Seconds) -> None: ...

    def received(self, connection: int, data: bytes, now: Seconds) -> None: ...

    def lost(self, connection: int, why: str, now: Seconds) -> None: ...

    def tick(self, now: Seconds) -> None: ...

    def due(self) -> Seconds | None: ...


@dataclass(slots=True)
class _Node:
    name: str
    begin: Callable[[], Process]
    process: Process | None = None
    """None: it is dead."""
    life: int = 0
    """How often it has begun. What was meant for an earlier life never comes."""
    paused: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Facts that come while it is paused."""
    ends: dict[int, _End] = field(default_factory=dict)
    """Its connections, by the number that the node has for each."""
    wakes: Seconds | None = None


@dataclass(slots=True)
class _End:
    """One end of a connection, and the bytes on their way to the other one."""

    node: _Node
    number: int
    life: int
    lots: random.Random
    other: _End | None = None
    queue: deque[tuple[Seconds, bytes | None]] = field(default_factory=deque)
    """(when they arrive, bytes); None: this end has closed."""
    pumps: Seconds | None = None
    """When the first of them are looked at next."""
    broken: bool = False
    """Whether the connection is cut."""
    swapped: bytes | None = None
    """Bytes that come after the next ones."""


NOISE = b"\x03\x00\x00\x00\x00\x00\x00\x00\xc1\xc1\xc1"
"""A frame that nobody can read."""
MOST_EVENTS = 200_000


class Network:
    """Nodes, their connections, and a clock that jumps from one event to the next."""

    def __init__(self, seed: int, faults: Iterable[Fault] = ()) -> None:
        self.now: Seconds = 0.0
        self._seed = seed
        self._lots = random.Random(f"network {seed}")
        self._delay = self._lots.choice([0.0001, 0.001, 0.02, 0.2])
        self._nodes: dict[str, _Node] = {}
        self._events: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._accepted = itertools.count(1_000_001)
        self._made = itertools.count()
        self._blocked: list[Blocked] = []
        self._slow: list[Slow] = []
        self._garbled: list[Garbled] = []
        self._faults_on = True
        for fault in faults:
            self.at(fault.at, lambda fault=fault: self._fault(fault))  # type: ignore[misc]

    # --- for a world --------------------------------------------------------------------------------

    def add(self, name: str, begin: Callable[[], Process]) -> None:
        """A node begins, and begins anew after each death."""
        self._nodes[name] = _Node(name, begin)
        self._begin(self._nodes[name])

    def process(self, name: str) -> Process | None:
        """What runs at that node."""
        return self._nodes[name].process if name in self._nodes else None

    def paused(self, name: str) -> bool:
        """Whether that node is paused."""
        return self._nodes[name].paused

    def at(self, moment: Seconds, call: Callable[[], None]) -> None:
        """Have this called at that moment."""
        heapq.heappush(self._events, (max(moment, self.now), next(self._order), call))

    def on(self, name: str, call: Callable[[], None]) -> None:
        """Have the node do this now: once it is awake, and not at all if it is dead."""
        if (node := self._nodes.get(name)) is not None:
            self._tell(node, node.life, call)

    def heal(self) -> None:
        """Faults are over: those under way end, and no other begins."""
        self._faults_on = False
        self._blocked.clear()
        self._slow.clear()
        self._garbled.clear()
        for node in self._nodes.values():
            self._resume(node, ticks_first=False)
            for end in node.ends.values():
                end.queue = deque((min(arrives, self.now + 2 * self._delay), data) for arrives, data in end.queue)
                if end.swapped is not None:
                    self._put(end, b"")
                self._pump_at(end, self.now)

    def run(self, until: Callable[[], bool], most: Seconds) -> bool:
        """Let time pass until that is so, or until that moment. Return whether it is so."""
        for _ in range(MOST_EVENTS):
            if until():
                return True
            if not self._events or self._events[0][0] > most:
                self.now = max(self.now, most)
                return until()
            self.now, _, call = heapq.heappop(self._events)
            call()
        raise AssertionError(f"{MOST_EVENTS:,} events by {self.now:.3f} s: something turns in circles")

    def kill(self, name: str, silently: bool = False) -> None:
        """End what runs at the node."""
        node = self._nodes[name]
        for end in list(node.ends.values()):
            if silently:
                end.broken = True
            elif end.other is not None:
                self._put(end, None)
        node.ends.clear()
        node.process, node.wakes, node.paused = None, None, False
        node.waiting.clear()

    def begin(self, name: str) -> None:
        """Let a dead node begin anew."""
        if self._nodes[name].process is None:
            self._begin(self._nodes[name])

    # --- for processes ------------------------------------------------------------------------------

    def dial(self, name: str, connection: int, to: str) -> None:
        """Connect the node to another one, by this number of its own."""
        node = self._nodes[name]
        end = _End(node, connection, node.life, random.Random(f"{self._seed} {next(self._made)}"))
        node.ends[connection] = end
        self.at(self.now + self._takes(end, to), lambda: self._accept(end, to))

    def write(self, name: str, connection: int, data: bytes) -> None:
        """Send bytes. What is written to a connection that has gone is lost."""
        end = self._nodes[name].ends.get(connection)
        if end is not None and end.other is not None:
            self._put(end, data)

    def close(self, name: str, connection: int) -> None:
        """Close this end. The other one hears so after all that was written."""
        end = self._nodes[name].ends.pop(connection, None)
        if end is not None and end.other is not None:
            self._put(end, None)

    # --- connections --------------------------------------------------------------------------------

    def _takes(self, end: _End, to: str) -> Seconds:
        slow = sum(one.by for one in self._slow if (one.sender, one.receiver) == (end.node.name, to))
        return self._delay * end.lots.uniform(0.2, 2.0) + slow

    def _blocks(self, one: str, other: str) -> bool:
        return any((block.sender, block.receiver) == (one, other) for block in self._blocked)

    def _accept(self, end: _End, to: str) -> None:
        node, other = end.node, self._nodes[to]
        if node.ends.get(end.number) is not end:  # it was given up
            return
        if self._blocks(node.name, to) or self._blocks(to, node.name):
            self.at(self.now + 1.0, lambda: self._accept(end, to))
            return
        if other.process is None:
            del node.ends[end.number]
            self._tell(node, end.life, lambda: node.process.lost(end.number, "refused", self.now))  # type: ignore[union-attr]
            return
        lots = random.Random(f"{self._seed} {next(self._made)}")
        there = _End(other, next(self._accepted), other.life, lots, other=end)
        end.other = there
        other.ends[there.number] = there
        self._connected(there)
        self._connected(end)

    def _connected(self, end: _End) -> None:
        node = end.node

        def tell() -> None:
            if node.ends.get(end.number) is end:
                node.process.connected(end.number, self.now)  # type: ignore[union-attr]

        self._tell(node, end.life, tell)

    def _put(self, end: _End, data: bytes | None) -> None:
        """Put bytes on their way, in parts, behind all that are on it. What is garbled is whole writes."""
        assert end.other is not None
        if end.broken:
            return
        to = end.other.node.name
        if data:
            for fault in [one for one in self._garbled if (one.sender, one.receiver) == (end.node.name, to)]:
                self._garbled.remove(fault)
                if fault.how == "swap" and end.swapped is None:
                    end.swapped = data
                    return
                data = {"double": data + data, "noise": NOISE + data}.get(fault.how, data)
        if data is not None and end.swapped is not None:
            data, end.swapped = data + end.swapped, None
        arrives = self.now + self._takes(end, to)
        for part in [None] if data is None else _parts(data, end.lots):
            arrives = max(arrives, end.queue[-1][0] if end.queue else 0.0)
            end.queue.append((arrives, part))
            arrives += self._delay * end.lots.random()
        self._pump_at(end, end.queue[0][0])

    def _pump_at(self, end: _End, moment: Seconds) -> None:
        if end.pumps is None or moment < end.pumps:
            end.pumps = max(moment, self.now)
            self.at(end.pumps, lambda: self._pump(end))

    def _pump(self, end: _End) -> None:
        """Let bytes arrive whose time has come."""
        if end.pumps is None or end.other is None or end.pumps > self.now:
            return
        end.pumps = None
        there = end.other
        if self._blocks(end.node.name, there.node.name):
            self._pump_at(end, self.now + 0.5)
            return
        while end.queue and end.queue[0][0] <= self.now and not end.broken:
            _, data = end.queue.popleft()
            self._arrived(there, data)
        if end.queue and not end.broken:
            self._pump_at(end, end.queue[0][0])

    def _arrived(self, end: _End, data: bytes | None) -> None:
        node = end.node
        if node.process is not None and node.life != end.life:  # its machine knows nothing of the connection
            assert end.other is not None
            self._reset(end.other)

        def tell() -> None:
            if node.ends.get(end.number) is not end:
                return
            if data is None:
                del node.ends[end.number]
                node.process.lost(end.number, "end of file", self.now)  # type: ignore[union-attr]
            else:
                node.process.received(end.number, data, self.now)  # type: ignore[union-attr]

        self._tell(node, end.life, tell)

    def _break(self, end: _End, heard: Seconds | None) -> None:
        end.broken = True
        end.queue.clear()
        if heard is not None:
            self.at(self.now + heard, lambda: self._reset(end))

    def _reset(self, end: _End) -> None:
        node = end.node

        def tell() -> None:
            if node.ends.get(end.number) is end:
                del node.ends[end.number]
                node.process.lost(end.number, "reset", self.now)  # type: ignore[union-attr]

        self._tell(node, end.life, tell)

    # --- nodes --------------------------------------------------------------------------------------

    def _begin(self, node: _Node) -> None:
        node.life += 1
        node.process = node.begin()
        self._wake(node)

    def _tell(self, node: _Node, life: int, call: Callable[[], None]) -> None:
        if node.process is None or node.life != life:
            return
        if node.paused:
            node.waiting.append(call)
            return
        call()
        self._wake(node)

    def _wake(self, node: _Node) -> None:
        """See to it that the node's process is called when it has something to do."""
        due = node.process.due() if node.process is not None else None
        if due is None or (node.wakes is not None and node.wakes <= due):
            return
        node.wakes = due
        life = node.life

        def wake() -> None:
            if node.life == life and node.wakes == due:
                node.wakes = None
                self._tick(node, life)

        self.at(due, wake)

    def _tick(self, node: _Node, life: int) -> None:
        if node.process is None or node.life != life or node.paused:
            return
        due = node.process.due()
        if due is not None and due <= self.now:
            node.process.tick(self.now)
        self._wake(node)

    def _resume(self, node: _Node, ticks_first: bool) -> None:
        if not node.paused or node.process is None:
            return
        node.paused = False
        waiting, node.waiting = node.waiting, []
        if ticks_first:
            node.process.tick(self.now)
        for call in waiting:
            call()
        node.process.tick(self.now)
        self._wake(node)

    # --- faults -------------------------------------------------------------------------------------

    def _fault(self, fault: Fault) -> None:
        if not self._faults_on or not {getattr(fault, "node", None)} <= {None, *self._nodes}:
            return
        match fault:
            case Cut():
                self._cut(fault)
            case Blocked():
                self._blocked.append(fault)
                self.at(fault.until, lambda: _without(self._blocked, fault))
            case Slow():
                self._slow.append(fault)
                self.at(fault.until, lambda: _without(self._slow, fault))
            case Paused():
                node = self._nodes[fault.node]
                if node.process is not None and not node.paused:
                    node.paused, life = True, node.life
                    self.at(fault.until, lambda: self._resume(node, fault.ticks_first) if node.life == life else None)
            case Killed():
                if self._nodes[fault.node].process is not None:
                    self.kill(fault.node, fault.silently)
                    if fault.back is not None:
                        self.at(fault.back, lambda: self.begin(fault.node))
            case Garbled():
                self._garbled.append(fault)

    def _cut(self, fault: Cut) -> None:
        for end in list(self._nodes[fault.one].ends.values()) if fault.one in self._nodes else []:
            if end.other is not None and end.other.node.name == fault.other:
                self._break(end, fault.heard[0])
                self._break(end.other, fault.heard[1])


def _without(faults: list, fault: Fault) -> None:  # type: ignore[type-arg]
    if fault in faults:
        faults.remove(fault)


def _parts(data: bytes, lots: random.Random) -> list[bytes]:
    if lots.random() < 0.6:
        return [data]
    at = sorted(lots.randint(0, len(data)) for _ in range(lots.randint(1, 3)))
    return [data[begin:end] for begin, end in itertools.pairwise([0, *at, len(data)])]


# --- histories --------------------------------------------------------------------------------------


def tried(seed: int, faults: Faults, history: Callable[[int, list[Fault]], None]) -> None:
    """Let the history happen under this seed. One that fails is told with the fewest faults with which it fails."""
    drawn = faults.drawn(seed)
    try:
        history(seed, drawn)
    except Exception as first:
        fewest, failure = shrunk(drawn, first, lambda left: history(seed, left))
        lines = "\n".join(f"  {fault}" for fault in fewest)
        raise AssertionError(
            f"seed {seed} fails with {len(fewest)} of {len(drawn)} faults:\n{lines}\n{failure}"
        ) from failure


def all_tried(seeds: Iterable[int], faults: Faults, history: Callable[[int, list[Fault]], None]) -> None:
    """Try each of these seeds."""
    for seed in seeds:
        tried(seed, faults, history)


def shrunk(
    faults: list[Fault], failure: Exception, history: Callable[[list[Fault]], None]
) -> tuple[list[Fault], Exception]:
    """Leave out faults one at a time while it still fails. Return what is left, and how that fails."""
    left = list(faults)
    for fault in faults:
        fewer = [one for one in left if one is not fault]
        try:
            history(fewer)
        except Exception as error:
            left, failure = fewer, error
    return left, failure
