"""How a run goes, for whoever watches: looked at from time to time, so that the run itself pays next to nothing."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from paceline.records.summary import Tally
from paceline.runtime.member import Member
from paceline.runtime.output import Output
from paceline.runtime.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

REFRESH = 0.5  # seconds, on a terminal
SHOWN = 16
"""Workers that are named or have a line each: more would fill the screen."""
WINDOW = 5.0
"""Seconds over which a speed is a mean."""


@dataclass(frozen=True, slots=True)
class Row:
    """One worker at this moment."""

    worker: int
    steps: int
    """Of which the updates are applied."""
    speed: float
    """Steps a second, of late."""
    state: str
    lead: int | None
    """None where it takes no part."""
    stale: int | None
    """The staleness of its last applied update; None before that."""
    logged: tuple[str, float] | None
    """What its script logged last: the loss, if there is one."""


@dataclass(frozen=True, slots=True)
class View:
    """All workers at this moment."""

    seconds: float
    """Since training began."""
    steps: int
    speed: float
    done: float | None
    """The share of the run that is done, 0 to 1; None if nobody knows how long it is."""
    rows: tuple[Row, ...]
    passed: float | None = None
    """Seconds that whoever watches has waited since training began, where `seconds` are virtual; None: they are not."""

    @property
    def left(self) -> float | None:
        """Seconds until the end, if it goes on like this."""
        passed = self.seconds if self.passed is None else self.passed
        return passed * (1 - self.done) / self.done if self.done else None


class Watch:
    """Looks at the members and the tally, and remembers how far everybody was a few seconds ago."""

    def __init__(self, settings: Settings, members: Mapping[int, Member], tally: Tally) -> None:
        self.work: int | None = None
        """Samples in the whole run, or steps where none are counted; None if nobody knows."""
        self.passed: Callable[[], float] | None = None
        """See `View.passed`."""
        self.share: Callable[[], float] | None = None
        """How much is done of what else may end the run, 0 to 1."""
        self._settings = settings
        self._members = members
        self._tally = tally
        self._before: deque[tuple[float, dict[int, int]]] = deque()

    def epoch_opened(self, samples: int, epochs: int | None) -> None:
        """An epoch of so many samples begins; the script says that there are so many."""
        epochs = self._settings.epochs or epochs
        if self.work is None and epochs is not None:
            self.work = samples * epochs

    def look(self, at: float) -> View:
        """What there is to see `at` seconds since the run's start."""
        shares = self._tally.shares
        steps = {worker: shares[worker].steps if worker in shares else 0 for worker in self._members}
        if self._before and self._before[-1][0] > at:  # training has begun meanwhile: time counts from there
            self._before.clear()
        while len(self._before) > 1 and self._before[1][0] <= at - WINDOW:
            self._before.popleft()
        then, before = self._before[0] if self._before else (0.0, dict.fromkeys(steps, 0))
        self._before.append((at, steps))
        speeds = {worker: max(0, steps[worker] - before[worker]) / max(at - then, 1e-9) for worker in steps}
        finished = self._tally.counts.finished
        return View(
            seconds=at,
            steps=sum(steps.values()),
            speed=sum(speeds.values()),
            done=self._done(at),
            passed=None if self.passed is None else self.passed(),
            rows=tuple(
                Row(
                    worker=worker,
                    steps=steps[worker],
                    speed=speeds[worker],
                    state=state(member),
                    lead=self._tally.counts.lead(worker) if worker in finished else None,
                    stale=shares[worker].stale if worker in shares else None,
                    logged=_first(member.logged),
                )
                for worker, member in self._members.items()
            ),
        )

    def _done(self, at: float) -> float | None:
        """Whatever ends it first is what counts."""
        tally, settings, shares = self._tally, self._settings, []
        if self.work:
            counted = tally.counted and any(share.samples for share in tally.shares.values())
            shares.append(
                (sum(share.samples for share in tally.shares.values()) if counted else tally.steps) / self.work
            )
        if settings.max_steps is not None:
            shares.append(tally.steps / settings.max_steps)
        if settings.max_seconds is not None:
            shares.append(at / settings.max_seconds)
        if self.share is not None and (share := self.share()):  # nothing is done of what has no limit
            shares.append(share)
        return min(1.0, max(shares)) if shares else None


def state(member: Member) -> str:
    """What a worker is at, in a few words."""
    if member.stage in ("ended", "gone") or (member.stage == "closing" and member.waits is None):
        return member.left or "done"
    if member.waits is not None:
        found = re.search(r"waits for (.+)$", member.waits)
        return f"waiting for {found[1]}" if found else f"waiting: {member.waits}"
    if member.stage == "starting":
        return "starting"
    if member.step is not None:
        return "computing"
    return "pushing" if member.on_the_way else "idle"


def line(view: View) -> str:
    """All of it in one line."""
    told = [f"{view.seconds:.0f} s: {view.steps} steps, {view.speed:.1f} a second"]
    if view.done is not None:
        told.append(f"{view.done:.0%} done" + ("" if view.left is None else f", about {_time(view.left)} left"))
    losses = [row.logged for row in view.rows if row.logged]
    if losses:
        name = losses[0][0]
        values = [value for other, value in losses if other == name]
        told.append(f"{name} {sum(values) / len(values):.4g}")
    stale = [row.stale for row in view.rows if row.stale is not None]
    if any(stale):
        told.append(f"staleness {sum(stale) / len(stale):.1f}")
    waiting: dict[str, list[str]] = {}
    for row in view.rows:
        if row.state.startswith("waiting"):
            waiting.setdefault(row.state, []).append(str(row.worker))
    told += [f"{_named(who)} {what}" for what, who in list(waiting.items())[:SHOWN]]
    return "; ".join(told)


def _named(workers: list[str]) -> str:
    """`worker 3`, `workers 1, 2`, `workers 1, 2, … and 480 more`."""
    if len(workers) == 1:
        return f"worker {workers[0]}"
    rest = f" and {len(workers) - SHOWN} more" if len(workers) > SHOWN else ""
    return f"workers {', '.join(workers[:SHOWN])}{rest}"


def screen(view: View, title: str) -> str:
    """All of it, a line for each worker. Not a table of rich's, which takes twenty times as long to make."""
    head = f"{title} · {_time(view.seconds)} · {view.steps} steps · {view.speed:.1f} steps/s"
    if view.done is not None:
        head += f" · {view.done:.0%}" + ("" if view.left is None else f", about {_time(view.left)} left")
    name = next((row.logged[0] for row in view.rows if row.logged), "loss")
    lines = [head, f"worker   steps  steps/s   lead  stale {name:>10}"]
    for row in view.rows[:SHOWN]:
        lead = "-" if row.lead is None else row.lead
        stale = "-" if row.stale is None else row.stale
        logged = "-" if row.logged is None else f"{row.logged[1]:.4g}"
        numbers = (
            f"{row.worker:>6} {row.steps:>7} {row.speed:>8.1f} {lead:>6} {stale:>6} {logged:>{max(10, len(name))}}"
        )
        lines.append(f"{numbers}  {row.state}")
    if len(view.rows) > SHOWN:
        lines.append(f"and {len(view.rows) - SHOWN} more workers")
    return "\n".join(lines)


class Shower(Protocol):
    """Shows views, each instead of the one before or after it."""

    every: float
    """Seconds from one to the next."""

    def show(self, view: View) -> None:
        """Show it."""

    def close(self) -> None:
        """Show no more."""


class Lines:
    """A line each, on standard error."""

    def __init__(self, output: Output, every: float) -> None:
        self.every = every
        self._output = output

    def show(self, view: View) -> None:
        """Say it, while anybody trains."""
        if view.steps and any(row.lead is not None for row in view.rows):
            self._output.say(line(view))

    def close(self) -> None:
        """Nothing is left to do."""


class Screen:
    """A table at the end of the terminal, below all that is printed; gone when it is closed."""

    every = REFRESH

    def __init__(self, output: Output, title: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._output = output
        self._live = Live(
            console=console or Console(highlight=False),
            auto_refresh=False,  # by a thread, that is
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._bar = ""
        """The last line of a progress bar that is not over yet: it stands above the table, in its place."""
        output.through = self._through

    def show(self, view: View) -> None:
        """Replace what is there."""
        from rich.text import Text

        lines = [self._bar, screen(view, self._title)] if self._bar else [screen(view, self._title)]
        shown = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        with suppress(OSError):  # the terminal has gone
            self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Take it away."""
        self._output.through = None
        with suppress(OSError):
            self._live.stop()

    def _through(self, text: str) -> None:
        lines = text.replace("\r\n", "\n").split("\n")
        *whole, self._bar = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        if whole:
            self._live.console.out("\n".join(whole), highlight=False)


def shower(settings: Settings, output: Output) -> Shower | None:
    """What fits the settings and where we print; None if nothing is to be said."""
    if settings.quiet or settings.json:
        return None
    if sys.stdout.isatty() and sys.stderr.isatty() and not _in_notebook():
        return Screen(output, settings.choice.spec.name)
    return Lines(output, settings.progress)


def _in_notebook() -> bool:
    """Whether the terminal is a notebook cell's, which shows every picture of the table below the one before.

    Jupyter's kernel and Colab say so in the environment of what a cell starts.
    """
    return os.environ.get("TERM") == "dumb" or any(name in os.environ for name in ("JPY_PARENT_PID", "COLAB_GPU"))


def _first(logged: Mapping[str, float]) -> tuple[str, float] | None:
    name = "loss" if "loss" in logged else next(iter(logged), None)
    return None if name is None else (name, logged[name])


def _time(seconds: float) -> str:
    """`8 s`, `2:05`, `1:02:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return time.strftime("%M:%S" if whole < 3600 else f"{whole // 3600}:%M:%S", time.gmtime(whole)).lstrip("0")
