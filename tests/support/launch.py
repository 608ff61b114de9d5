"""Runs whose traces are looked for when they are over."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from support.events import Events
from support.leftovers import Traces
from support.runs import Launcher, Run, ended, joining, resume, start


class Launch:
    """Starts runs for one test. Each is watched: what it leaves behind fails the test."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.events = Events(tmp_path / "events")
        self.traces: list[Traces] = []
        self._numbers = count()

    def start(
        self, script: str | Path, *flags: str, args: tuple[str, ...] = (), fresh: bool = False, first: str = ""
    ) -> Launcher:
        """See `support.runs.start`."""
        traces = Traces(self.tmp_path / f"temporary_{next(self._numbers)}")
        self.traces.append(traces)
        env = traces.environment | self.events.environment
        return start(script, *flags, args=args, tmp_path=self.tmp_path, env=env, fresh=fresh, first=first)

    def run(
        self, script: str | Path, *flags: str, args: tuple[str, ...] = (), fresh: bool = False, first: str = ""
    ) -> Run:
        """See `support.runs.run`."""
        return ended(self.start(script, *flags, args=args, fresh=fresh, first=first))

    def signalled(self, number: int, script: str, *flags: str, args: tuple[str, ...] = (), group: bool = False) -> Run:
        """A run of two workers, which gets that signal once both have told that they train.

        `group`: as a terminal sends it, to every process of the run's group.
        """
        process = self.start(script, "-n", "2", *flags, args=args)
        for worker in range(2):
            self.events.wait_for("trains", worker)
        (os.killpg if group else os.kill)(process.pid, number)
        return ended(process)

    def start_joining(self, address: str, *flags: str, fresh: bool = False, first: str = "") -> Launcher:
        """`paceline join ADDRESS FLAGS`, not waited for."""
        traces = Traces(self.tmp_path / f"temporary_{next(self._numbers)}")
        self.traces.append(traces)
        return joining(address, *flags, env=traces.environment | self.events.environment, fresh=fresh, first=first)

    def start_resumed(
        self, run: Path, *flags: str, fresh: bool = False, first: str = "", quiet: bool = True
    ) -> Launcher:
        """See `support.runs.resume`."""
        traces = Traces(self.tmp_path / f"temporary_{next(self._numbers)}")
        self.traces.append(traces)
        env = traces.environment | self.events.environment
        return resume(run, *flags, env=env, fresh=fresh, first=first, quiet=quiet)

    def resume(self, run: Path, *flags: str, quiet: bool = True) -> Run:
        """Go on with that run, to its end."""
        return ended(self.start_resumed(run, *flags, quiet=quiet))

    def assert_nothing_left(self) -> None:
        """Neither processes, nor shared memory, sockets or temporary files."""
        while self.traces:
            self.traces.pop().assert_nothing_left()

    def close(self) -> None:
        """The end of the test."""
        self.events.close()
        self.assert_nothing_left()
