"""The launcher's side of trackers. Nothing here waits for one while workers train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from paceline.core.phrases import listed
from paceline.display.trackers import FOLDER, figures, record_of, run_before
from paceline.errors import MessageUnreadable, PeerLost
from paceline.files import write_whole
from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from paceline.ipc.loop import Loop
from paceline.ipc.messages.tracker import (
    End,
    FromTracker,
    Log,
    Open,
    Plain,
    RunOpened,
    RunRefused,
    Values,
    ValuesLeftOut,
)
from paceline.job.settings import Settings
from paceline.net.token import VARIABLE
from paceline.records.comparison import COMPARISON
from paceline.records.summary import Summary
from paceline.terminal import say

EVERY = 2.0
"""Seconds between two looks at how the run goes."""
GATHERS = 0.2
"""Seconds in which what is logged is gathered, to be sent together."""
TOGETHER = 500
"""Moments in one message."""
MOST = 50_000
"""Moments that may wait for one tracker. Those that come meanwhile are left out."""
PATIENCE = 60.0
"""Seconds that trackers have after the run to write what is left."""
SOON, LOOK = 2.0, 0.2
"""Seconds until the user is told what the run waits for, and between two looks at whether the user still wants that."""
COMMAND = (sys.executable, "-P", "-m", "paceline.display.trackers.process")
"""With -P, no file in the script's folder takes the place of a package of its name."""
GOES_ON = "the run goes on, and its folder has all"
STATE_OF_SERIES = (COMPARISON, "tune.json")
"""Files beside the folders of runs that belong together."""


class Trackers:
    """All trackers of a run: each gets the same, in a process of its own. Leaving the block ends the tracker's run."""

    def __init__(self, is_given_up: Callable[[], object] = lambda: False) -> None:
        """`is_given_up()`: whether the user no longer wants to wait for trackers at the end."""
        self._is_given_up = is_given_up
        self._feeds: list[Feed] = []
        self._loop: Loop | None = None
        self._began = False
        self._rows: list[Values] = []
        """What is still to be sent."""
        self.summary: Summary | None = None
        """What the run has come to; None: it has failed before it came to anything."""

    def __bool__(self) -> bool:
        """Whether there is any tracker."""
        return bool(self._feeds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @contextmanager
    def started(self, settings: Settings, loop: Loop, say: Callable[[str], None]) -> Iterator[None]:
        """Start the trackers' processes. In the block the loop is there, and what is logged is sent."""
        self._loop = loop
        for name in settings.log_to:
            try:
                self._feeds.append(Feed(name, settings, loop, say))
            except OSError as error:
                say(f"nothing is logged to {name} (its process can't be started: {error.strerror}); {GOES_ON}")
        try:
            yield
        finally:
            self._send()
            self._loop = None
            for feed in self._feeds:
                feed.leave_loop()

    def begin(self, parameters: dict[str, Plain]) -> None:
        """Training begins, or goes on, with these parameters."""
        self._began = True
        for feed in self._feeds:
            feed.open(parameters)

    def logged(self, worker: int, step: int, scalars: Mapping[str, float]) -> None:
        """The worker's script has logged these values in that step."""
        values = {f"{name}/worker-{worker}": value for name, value in scalars.items()}
        self._tell(f"step/worker-{worker}", step, time.time(), values)

    def evaluated(self, version: int, ago: float, metrics: Mapping[str, float]) -> None:
        """A version that was made `ago` seconds ago has these metrics."""
        self._tell("version", version, time.time() - ago, dict(metrics))

    def went(self, updates: int, found: Mapping[str, float]) -> None:
        """These figures say how the run goes. So many updates are in the model."""
        self._tell("updates", updates, time.time(), dict(found))

    def _tell(self, axis: str, step: int, at: float, values: dict[str, float]) -> None:
        if self._loop is None or not self._began or not self._feeds:
            return
        if not self._rows:
            self._loop.after(GATHERS, self._send)
        self._rows.append(Values(axis, step, at, values))

    def _send(self) -> None:
        rows, self._rows = self._rows, []
        for first in range(0, len(rows), TOGETHER):
            for feed in self._feeds:
                feed.send(Log(rows[first : first + TOGETHER]))

    def _end(self) -> None:
        outcome = "failed" if self.summary is None else str(self.summary["outcome"])
        results = {} if self.summary is None else figures.results(self.summary)
        began, told = time.monotonic(), False
        waiting = [feed for feed in self._feeds if self._began and feed.end(outcome, dict(results))]
        while waiting and not self._is_given_up() and time.monotonic() - began < PATIENCE:
            waiting = [feed for feed in waiting if not feed.has_ended(LOOK)]
            if waiting and not told and time.monotonic() - began > SOON:
                told = True
                names = listed([feed.name for feed in waiting])
                say(f"waiting for {names} to take the rest of what is logged (interrupt to leave it out)")
        for feed in waiting:
            say(f"{feed.name} has not taken all that is logged; the run's folder has it")
        for feed in self._feeds:
            feed.close()


class Feed:
    """The launcher's end of one tracker's process."""

    def __init__(self, name: str, settings: Settings, loop: Loop, say: Callable[[str], None]) -> None:
        self.name = name
        self._settings = settings
        self._loop: Loop | None = loop
        self._say = say
        self._left_out = 0
        """Values that the tracker was too slow for."""
        self._to_end = False
        """Whether the tracker was told that the run has ended."""
        self._waiting: deque[messages.Message] = deque()
        self._rows = 0
        """How many moments are in these."""
        self._folder = settings.folder / FOLDER
        self._folder.mkdir(exist_ok=True)
        ours, theirs = pair()
        with theirs, (self._folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, name, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env={key: value for key, value in os.environ.items() if key != VARIABLE},
                process_group=0,
            )
        self._channel: Channel | None = Channel(ours, FromTracker, f"the process that logs to {name}")
        loop.watch(self._channel, self._hear)

    def open(self, parameters: dict[str, Plain]) -> None:
        """Begin the tracker's run, or go on with that of the run that is resumed."""
        self.send(opening(self.name, self._settings, parameters))

    def send(self, message: messages.Message) -> None:
        """Send the message, now or when there is room. Values that too many others wait before are left out."""
        if self._channel is None:
            return
        if not self._waiting:
            try:
                if self._channel.try_to_send(message):
                    return
            except PeerLost:  # which shows as there is nothing more to hear
                return
            if self._loop is not None:
                self._loop.await_room(self._channel, self._go_on)
        rows = message.rows if isinstance(message, Log) else []
        if self._rows + len(rows) > MOST:
            if not self._left_out:
                self._say(f"{self.name} is slower than the run, so some values are left out there; {GOES_ON}")
            self._left_out += sum(len(row.values) for row in rows)
            return
        self._rows += len(rows)
        self._waiting.append(message)

    def leave_loop(self) -> None:
        """The loop no longer says when there is room, or something to hear."""
        if self._loop is not None and self._channel is not None and self._loop.watches(self._channel):
            self._loop.unwatch(self._channel)
        self._loop = None

    def end(self, outcome: str, results: dict[str, Plain]) -> bool:
        """Tell the tracker that the run has ended so. Return whether it is still to write something."""
        self.leave_loop()
        self._say, self._to_end = say, True
        left_out: dict[str, Plain] = {"final/values_left_out": self._left_out} if self._left_out else {}
        self.send(End(outcome, results | left_out))
        return self._channel is not None

    def has_ended(self, within: float) -> bool:
        """Send and hear what there is, for so many seconds at most. Return whether the tracker's run has ended."""
        if self._channel is None:
            return True
        self._go_on()
        if self._channel is not None and self._channel.ready(within):
            self._hear()
        return self._channel is None

    def close(self) -> None:
        """End the process. It has ended by itself, unless it was not waited for."""
        self.leave_loop()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._process.kill()
        try:
            self._process.wait(SOON)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _go_on(self) -> None:
        try:
            while self._channel is not None and self._waiting and self._channel.try_to_send(self._waiting[0]):
                sent = self._waiting.popleft()
                self._rows -= len(sent.rows) if isinstance(sent, Log) else 0
        except PeerLost:
            self._waiting.clear()
        if not self._waiting and self._loop is not None and self._channel is not None:
            self._loop.await_room(self._channel, None)

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive()
        except (PeerLost, MessageUnreadable):
            self._lose()
            return
        match message:
            case RunOpened():
                self._opened(message)
            case RunRefused(error=error):
                self._say(f"nothing is logged to {self.name} ({error}); {GOES_ON}")
                self._lose(told=True)
            case ValuesLeftOut(error=error):
                self._say(f"{self.name} does not take what is logged ({error}); {GOES_ON}")

    def _opened(self, message: RunOpened) -> None:
        if not self._settings.quiet:
            self._say(f"logging to {self.name}: {message.where}")
        file = record_of(self._settings.folder, self.name)
        try:
            write_whole(file, json.dumps({"run": message.run, "where": message.where}))
        except OSError as error:
            self._say(f"{file} can't be written ({error.strerror}): a resumed run will be another run of {self.name}")

    def _lose(self, told: bool = False) -> None:
        """Nothing more comes of the process, nor can anything be sent to it. `told`: the user knows."""
        assert self._channel is not None
        self.leave_loop()
        self._channel.close()
        self._channel = None
        self._waiting.clear()
        if not told and not self._to_end:
            self._say(f"the process that logs to {self.name} has died; {GOES_ON}")


def opening(name: str, settings: Settings, parameters: dict[str, Plain]) -> Open:
    """Return the order to begin a run of that tracker, or to go on with the one that a resumed run had there."""
    folder = settings.folder.absolute()
    is_one_of_several = any((folder.parent / file).exists() for file in STATE_OF_SERIES)
    return Open(
        name=folder.name,
        project=settings.script.stem,
        group=folder.parent.name if is_one_of_several else None,
        folder=str(folder),
        script=str(settings.script),
        parameters=parameters,
        before=None if settings.resumed is None else run_before(folder, name),
    )
