"""A coordinator and its run state without processes:

a test says what workers and the store say, and when time passes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.coordinator.coordinator import Coordinator
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.run_state import RunState
from paceline.core.choice import choose
from paceline.ipc import messages
from paceline.ipc.channel import attachment
from paceline.job.settings import Settings
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.scenario.scenario import Scenario


class Line:
    """Stands in for a channel, and for the end that is passed on."""

    def __init__(self) -> None:
        self.sent: list[messages.Message] = []
        self.packed: list[str] = []
        """What came along with messages that are to be written, or adopted."""
        self.coming: deque[tuple[messages.Message | Exception, list[int]]] = deque()
        self.full = self.closed = False

    def try_to_send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> bool:
        assert not self.closed
        if not self.full:
            self.sent.append(message)
            if isinstance(message, messages.store.KeepWorker | messages.store.InstallAdopted):
                self.packed += [os.pread(descriptor, 100, 0).decode() for descriptor in descriptors]
        return not self.full

    def receive(self) -> tuple[messages.Message, list[int]]:
        message, descriptors = self.coming.popleft()
        if isinstance(message, Exception):
            raise message
        return message, descriptors

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.closed = True


class Clockwork:
    """Stands in for the loop. Time passes when a test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.lines: dict[str, Line] = {}
        """By the process at the other end."""
        self.watched: dict[Any, Callable[[], object]] = {}
        self.room: dict[Any, Callable[[], object] | None] = {}
        """By source: called once there is room to write."""
        self.ends: dict[int, Callable[[], object]] = {}
        """By process: called when it has ended."""

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.time + seconds, call))

    def connect(self, kinds: Any, peer: str) -> tuple[Any, Any]:
        self.lines[peer] = Line()
        return self.lines[peer], Line()

    def watch(self, source: Any, call: Callable[[], object]) -> None:
        self.watched[source] = call

    def unwatch(self, source: Any) -> None:
        del self.watched[source]

    def watches(self, source: Any) -> bool:
        return source in self.watched

    def await_room(self, source: Any, call: Callable[[], object] | None) -> None:
        self.room[source] = call

    def await_end(self, process: int, call: Callable[[], object]) -> None:
        self.ends[process] = call

    def hear(self, peer: str, message: messages.Message | Exception, packed: str | None = None) -> None:
        """That process says this, or receiving from it raises this. `packed` comes along, as a file that is open."""
        self.lines[peer].coming.append((message, [] if packed is None else [attachment(packed.encode())]))
        self.watched[self.lines[peer]]()

    def pass_time(self, seconds: float = 3600.0) -> None:
        """Let so much time pass, and whatever is due in it come about."""
        until = self.time + seconds
        while due := [timer for timer in self.timers if timer[0] <= until]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.time = first[0]
            first[1]()
        self.time = until


FILES = (
    messages.worker.TakeUp | messages.worker.OptimizerState | messages.worker.FinalRecorded | messages.worker.Evaluate
)
"""What workers are told that the file of something packed or recorded may come along with."""


class Crew:
    """Stands in for the workers' processes."""

    def __init__(self, workers: int) -> None:
        self.numbers = range(workers)
        self.told: list[tuple[int, messages.Message]] = []
        self.handed: list[tuple[int, str | None]] = []
        """Workers that were told what a file may come along with, and the bytes of that file."""
        self.killed: list[int] = []
        self.started: list[int] = []
        self.given_up: list[tuple[int, str]] = []

    def open(self, hear: Callable[[int, Any, list[int]], None], gone: Callable[[int, int], None]) -> None:
        self._hear, self.gone = hear, gone

    def hear(self, worker: int, message: messages.Message, packed: str | None = None) -> None:
        """`packed` comes along, as a file that is open."""
        self._hear(worker, message, [] if packed is None else [attachment(packed.encode())])

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        self.told.append((worker, message))
        if isinstance(message, FILES):
            packed = [os.pread(descriptor, 100, 0).decode() for descriptor in descriptors]
            self.handed.append((worker, packed[0] if packed else None))

    def take(self) -> list[tuple[int, str]]:
        """What workers were told since the last call: the worker, and the kind of message."""
        told, self.told = self.told, []
        return [(worker, type(message).__name__) for worker, message in told]

    def start(self, workers: Sequence[int]) -> None:
        self.started.extend(workers)

    def end(self, worker: int) -> None:
        self.killed.append(worker)

    def give_up(self, worker: int, why: str) -> None:
        self.given_up.append((worker, why))


class Said:
    """Stands in for the run's output."""

    def __init__(self) -> None:
        self.said = self.lines = list[str]()
        self.died_of: list[tuple[int, str, str]] = []

    def died(self, worker: int, how: str, at: str) -> None:
        self.died_of.append((worker, how, at))

    def say(self, line: str) -> None:
        self.lines.append(line)

    def passes_on(self, who: str, line: str) -> None:
        self.say(line)


class Stage:
    """A coordinator with all its run state, and stand-ins around them."""

    def __init__(self, folder: Path, workers: int = 1, policy: Mapping[str, Any] = {}, **given: Any) -> None:
        """`policy` is what the run would not settle by itself."""
        (folder / "versions").mkdir()
        self.settings = replace(SETTINGS, workers=workers, folder=folder, **given)
        self.loop, self.crew, self.output = Clockwork(), Crew(workers), Said()
        stand_ins: Any = self.crew, self.output, self.loop
        crew, output, loop = stand_ins
        self.run_state = RunState(self.settings, crew, Journal(NoLedger()), output, loop, RunPolicy(loop.now, **policy))
        self.coordinator = Coordinator(self.run_state, lambda _: None)
        self.run_state.inbox._waits = True  # what a test lets happen does so while the coordinator waits for its loop


SETTINGS = Settings(
    script=Path("train.py"),
    source=b"",
    arguments=(),
    choice=choose("asp", registry()),
    workers=1,
    scenario=Scenario(),
    seed=0,
    threads=1,
    folder=Path(),
    shards=None,
    epochs=None,
    record=0,
    targets=(),
    on_loss="auto",
    on_divergence="stop",
    tee="none",
    max_steps=None,
    max_seconds=None,
    report_waits=5.0,
    json=False,
    quiet=True,
)

OFFER = messages.worker.Offered(
    forms=["float32 (2,)"],
    fixed_bytes=4096,
    slot_bytes=4096,
    push_bytes=4096,
    flags_bytes=1,
    buffers_bytes=0,
    cuts=[0, 64],
    state_bytes=0,
    model_bytes=8,
    optimizer="SGD",
    scalars=[{"lr": 0.5}],
    loads=False,
    epoch_samples=None,
    data=None,
    streams=False,
    epochs=None,
    buffers=None,
    shards=None,
    evaluates=False,
    keeps=False,
    metrics=None,
    code={},
)
"""What a worker brings to `prepare`."""
