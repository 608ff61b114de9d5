"""Virtual time: one clock that jumps from event to event, and a loop for each host that goes by it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from support.world.lines import Line, Theirs, lines

if TYPE_CHECKING:
    from support.world.network import Listening, Machine, Socket

Seconds = float

MOST_EVENTS = 400_000
"""Events of one history. One that needs more turns in circles."""
TURN = 2e-5
"""Seconds that a loop takes at least from one turn to the next."""

PASSES = 1e-6
"""Seconds that pass while a program does something: a timer of no time is due after what is handled now."""


class Stuck(AssertionError):
    """Something turns in circles, or nothing is left that could happen."""


class Scheduler:
    """What happens when. All that happens at one moment happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self.happened = 0
        self.deadline: Seconds = float("inf")
        """When all must be over."""
        self.pending: Callable[[], str] = str
        """Says what is pending then."""
        self._events: list[tuple[Seconds, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, moment: Seconds, call: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(moment, self.now), next(self._numbers), call))

    def after(self, seconds: Seconds, call: Callable[[], object]) -> None:
        self.at(self.now + seconds, call)

    def step(self) -> None:
        if not self._events:
            raise Stuck("nothing is left that could happen")
        self.happened += 1
        if self.happened > MOST_EVENTS:
            raise Stuck(f"{MOST_EVENTS:,} events by {self.now:.3f} s: something turns in circles; {self.pending()}")
        self.now, _, call = heapq.heappop(self._events)
        if self.now > self.deadline:
            raise Stuck(f"it is not over at {self.deadline:.3f} s; {self.pending()}")
        call()

    def run(self, until: Callable[[], bool], most: Seconds) -> bool:
        """Let time pass until that is so, or until that moment. Return whether it is so."""
        while not until():
            if not self._events or self._events[0][0] > most:
                self.now = max(self.now, most)
                return until()
            self.step()
        return True


class Source(Protocol):
    """What a virtual loop can watch."""

    changed: Callable[[], object]
    """To be called whenever one of the two below may have become true."""

    def readable(self) -> bool: ...

    def writable(self) -> bool: ...


def _unwatched() -> None:
    """Nobody watches the source."""


class Ended:
    """A process, as a source: readable once it has ended."""

    def __init__(self) -> None:
        self.over = False
        self.changed: Callable[[], object] = _unwatched

    def readable(self) -> bool:
        return self.over

    def writable(self) -> bool:
        return False


class VirtualLoop:
    """Has the methods of `ipc.loop.Loop`. A turn handles what is ready, and then the timers, as there."""

    def __init__(self, scheduler: Scheduler, lots: random.Random, machine: Machine) -> None:
        """`machine`: where it runs, which has the sockets and the processes."""
        self.turned: Callable[[], object] = _unwatched
        """Called after each turn of its own."""
        self.paused = self.dead = False
        self._scheduler = scheduler
        self._lots = lots
        self._machine = machine
        self._origin = lots.uniform(0, 1e5)
        self._boot = lots.uniform(1e5, 2e5)
        self._lag = lots.choice([0.0, 1e-4, 1e-3, 1e-2])
        """Seconds that the process may take to be scheduled."""
        self._sources: dict[Any, list[Callable[[], object] | None]] = {}
        """By source: what is to be called when it is readable, and when it is writable."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._turn_at: Seconds | None = None
        self._waits = self._due = False
        """Whether the program waits in `wait`, and whether a turn of it is due."""

    # --- as the loop of a host ----------------------------------------------------------------------

    def now(self) -> float:
        return self._scheduler.now + self._origin

    def since_boot(self) -> float:
        return self._scheduler.now + self._boot

    def watch(self, source: Source, call: Callable[[], object]) -> None:
        assert source not in self._sources, "it is watched already"
        self._sources[source] = [call, None]
        source.changed = self._wake
        if source.readable():
            self._wake()

    def await_room(self, source: Source, call: Callable[[], object] | None) -> None:
        self._sources[source] = [self._sources[source][0], call]  # a new one: what was ready before is looked at anew
        if call is not None and source.writable():
            self._wake()

    def unwatch(self, source: Source) -> None:
        del self._sources[source]
        source.changed = _unwatched

    def watches(self, source: Source) -> bool:
        return source in self._sources

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now() + seconds + PASSES, next(self._numbers), call))
        self._turn_by(self._timers[0][0] - self._origin)

    def soon(self, call: Callable[[], None]) -> None:
        self.after(0.0, call)

    def wait(self, most: float | None = None) -> None:
        self._waits = True
        if most is not None:
            self._turn_by(self._scheduler.now + most)
        while not self._due:
            self._scheduler.step()
        self._waits = self._due = False
        self._turn()

    def connect(self, kinds: Any, peer: str) -> tuple[Line, Theirs]:
        ours, theirs = lines(kinds, peer)
        return ours, self._machine.hands(theirs)

    def dial(self, address: tuple[str, int]) -> Socket:
        return self._machine.dial(address)

    def listen(self, towards: tuple[str, int]) -> Listening:
        self._machine.reaches_out()
        return self._machine.listen()

    def await_end(self, process: int, call: Callable[[], object]) -> None:
        ended = self._machine.processes[process]

        def once() -> None:
            self.unwatch(ended)
            call()

        self.watch(ended, once)

    def close(self) -> None:
        self._sources.clear()

    # --- as a process of the world ------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def go_on(self, slept: Seconds) -> None:
        """Take turns again. `slept`: seconds that its machine slept, in which one of its clocks stood still."""
        if self.paused and not self.dead:
            self.paused = False
            self._origin -= slept
            self._turn_at = None
            self._wake()

    def die(self) -> None:
        self.dead = True
        self._sources.clear()
        self._timers.clear()

    def _wake(self) -> None:
        self._turn_by(self._scheduler.now + self._lag * self._lots.random())

    def _turn_by(self, moment: Seconds) -> None:
        if not (self._turn_at is not None and self._turn_at <= moment) and not self.dead:
            self._turn_at = moment
            self._scheduler.at(moment, partial(self._comes_round, moment))

    def _comes_round(self, moment: Seconds) -> None:
        if self._turn_at != moment or self.paused or self.dead:  # another one was due before, or none is taken
            return
        self._turn_at = None
        if self._waits:
            self._due = True
            return
        self._turn()
        self.turned()

    def _turn(self) -> None:
        ready = []
        for source, entry in self._sources.items():
            if source.readable():
                ready.append((source, entry, 0))
            if entry[1] is not None and source.writable():
                ready.append((source, entry, 1))
        if len(ready) > 1 and self._lots.random() < 0.3:
            self._lots.shuffle(ready)
        for source, entry, which in ready:
            call = entry[which]
            if call is not None and self._sources.get(source) is entry:
                call()
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if any(
            source.readable() or (entry[1] is not None and source.writable()) for source, entry in self._sources.items()
        ):
            self._turn_by(self._scheduler.now + TURN)
        elif self._timers:
            self._turn_by(max(self._timers[0][0] - self._origin, self._scheduler.now + TURN))
