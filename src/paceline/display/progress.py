"""Shows a run's progress. Views are made from time to time, so the run itself pays next to nothing."""

from __future__ import annotations

import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from paceline.display.state import NAMED, WAITING, View, duration, named
from paceline.host.worker_output import WorkerOutput
from paceline.job.settings import Settings
from paceline.terminal import redraws

if TYPE_CHECKING:
    from rich.console import Console

REFRESH = 0.5  # seconds, on a terminal


def line(view: View) -> str:
    """Return the view in one line."""
    if view.evaluated is not None and view.evaluates:
        done, of = view.evaluated
        known = [f"; {score.metric} {score.value:.4g}" for score in view.scores if score.value is not None]
        return f"{view.seconds:.0f} s: {done} of {of} versions evaluated{''.join(known)}"
    told = [f"{view.seconds:.0f} s: {view.steps} steps, {view.speed:.1f} a second"]
    if view.done is not None:
        told.append(f"{view.done:.0%} done" + ("" if view.left is None else f", about {duration(view.left)} left"))
    if view.logged is not None:
        name, value = view.logged
        told.append(f"{name} {value:.4g}")
    stale = [row.stale for row in view.rows if row.stale is not None]
    if any(stale):
        told.append(f"staleness {sum(stale) / len(stale):.1f}")
    waiting: dict[str, list[int]] = {}
    for row in view.rows:
        if row.state.doing == WAITING:
            waiting.setdefault(str(row.state), []).append(row.worker)
    told += [f"{named(who)} {what}" for what, who in list(waiting.items())[:NAMED]]
    return "; ".join(told)


class Shower(Protocol):
    """Shows views of a run."""

    every: float
    """Seconds between views."""

    def show(self, view: View) -> None:
        """Show this view."""

    def close(self) -> None:
        """Show nothing more."""


class ProgressLines:
    """Prints views as lines on standard error."""

    def __init__(self, output: WorkerOutput, every: float) -> None:
        self.every = every
        self._output = output

    def show(self, view: View) -> None:
        """Print the view, while any worker trains or evaluates."""
        if view.steps and (view.trains or view.evaluates):
            self._output.say_progress(line(view))

    def close(self) -> None:
        """Nothing is left to show."""


class Screen:
    """A table below all that the run prints on the terminal. It is removed by `close`."""

    every = REFRESH

    def __init__(self, output: WorkerOutput, title: str, folder: Path, console: Console | None = None) -> None:
        """`title` names the run in `folder`."""
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._folder = folder
        self._output = output
        self._live = Live(
            console=console or Console(highlight=False),
            auto_refresh=False,  # which takes a thread
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._bar = ""
        """The last line of an unfinished progress bar, which is shown above the table."""
        output.through = self._through

    def show(self, view: View) -> None:
        """Replace the table, unless the terminal takes no output now, such as after Ctrl-S."""
        from rich.text import Text

        from paceline.display.screen import screen

        console = self._live.console
        if not _takes_more(console):
            return
        shown = screen(view, self._title, str(self._folder), console.width, console.height)
        if console.no_color:
            shown = Text(shown.plain)
        if self._bar:
            shown = Text("\n").join([Text(self._bar), shown])
        shown.no_wrap, shown.overflow = True, "ellipsis"
        with suppress(OSError):  # the terminal has gone
            self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Remove the table."""
        self._output.through = None
        with suppress(OSError):
            self._live.stop()

    def _through(self, text: str) -> None:
        lines = text.replace("\r\n", "\n").split("\n")
        *whole, self._bar = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        if whole:
            self._live.console.out("\n".join(whole), highlight=False)


def shower(settings: Settings, output: WorkerOutput) -> Shower | None:
    """Return what shows progress under these settings and on this output; None if nothing does."""
    if settings.quiet or settings.json:
        return None
    if redraws(sys.stdout, sys.stderr):
        return Screen(output, settings.choice.name, settings.folder)
    return ProgressLines(output, settings.progress)


def _takes_more(console: Console) -> bool:
    """Whether writing to the console does not block, as far as can be known."""
    try:
        return bool(select.select([], [console.file], [], 0)[1])
    except (OSError, ValueError):  # it is no file, or is closed
        return True
