"""Several runs of one script. Each is an ordinary `paceline run`, a process of its own, with a folder in the series'.

The series' state is a file beside the runs' folders. The same settings continue an interrupted series.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import DIVERGED, INTERRUPTED, USAGE, ConfigError, RunFailed
from paceline.files import read_json
from paceline.launch.environment import without_engine
from paceline.records import summary as summaries
from paceline.records.kept import FILES
from paceline.records.summary import Summary
from paceline.runs.folders import check_free
from paceline.runs.script import checked_script
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import to_plain
from paceline.version import __version__

RESULTS = (0, DIVERGED)
"""Exit codes of runs that ended by themselves, and so are results."""


def make_run(arguments: Sequence[str], interrupts: Sequence[int]) -> int:
    """Run `paceline run ARGUMENTS` to its end. Return its exit code, negative for a signal.

    The process leads a process group of its own, so that a terminal's Ctrl-C comes to this process alone. Each signal
    in `interrupts`, now or later, is passed on once. If this process is killed, so is the run.
    """
    from paceline.ipc.processes import die_with

    launcher = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", "run", *arguments],
        stdin=None
        if sys.stdin is not None and os.isatty(0)
        else subprocess.DEVNULL,  # a file would be read by the first run alone
        env=without_engine(os.environ),
        stdout=subprocess.DEVNULL,  # the summary, which is in the run's folder, too
        process_group=0,
        preexec_fn=lambda: die_with(launcher),
    )
    told = 0
    while True:
        while told < len(interrupts):
            process.send_signal(signal.SIGTERM)  # to a run the same as SIGINT, but a starting Python ends silently
            told += 1
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.1)


@contextmanager
def interrupts(most: int | None = None) -> Iterator[list[int]]:
    """Yield the signals that have asked for an end so far. After `most` of them, the next raises KeyboardInterrupt."""
    from paceline.ipc.processes import asking_to_end

    taken: list[int] = []

    def take(number: int, _: object) -> None:
        if len(taken) == most:
            raise KeyboardInterrupt
        taken.append(number)

    before = {number: signal.signal(number, take) for number in asking_to_end()}
    try:
        yield taken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the runs of a series have in common."""

    script: Path
    arguments: list[str]
    scenario: Scenario
    """Checked for a real run with these workers."""
    scenario_file: Path | None
    workers: int
    threads: int | None
    """Threads of each worker; None: the cores divided by the workers."""
    devices: str | None
    """The devices of workers, as the flag lists them; None: the default of runs."""
    start: str | None
    """When scripts begin; None: the default of runs."""
    epochs: int | None
    log_to: Sequence[str] = ()
    """The trackers that each run is logged to, as a run of its own. They don't change the runs."""

    def settings(self) -> dict[str, Any]:
        """Return what all runs of the series depend on, as plain values."""
        slowness = to_plain(self.scenario)
        slowness["cluster"].pop("workers", None)  # the workers are a setting of their own
        return {
            "script": str(checked_script(self.script)),
            "script_sha256": hashlib.sha256(self.script.read_bytes()).hexdigest(),
            "arguments": self.arguments,
            "workers": self.workers,
            "scenario": slowness,
            "threads": self.threads,
            "devices": self.devices,
            "epochs": self.epochs,
        }

    def words(self, protocol: str, seed: int, folder: Path, **flags: object) -> list[str]:
        """Return the words of `paceline run` that make one run.

        A flag that is None or False is left out; one that is True has no value.
        """
        common = {
            "-n": None if self.scenario.host_tables else self.workers,  # the tables say how many
            "-p": protocol,
            "--seed": seed,
            "--scenario": self.scenario_file,
            "--threads": self.threads,
            "--devices": self.devices,
            "--start": self.start,
            "--epochs": self.epochs,
            "--log-to": ",".join(self.log_to) or None,
            "--tee": "none",
            "--out": folder,
        }
        all_flags = common | {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        given = {flag: value for flag, value in all_flags.items() if value is not None and value is not False}
        said = [word for flag, value in given.items() for word in ((flag,) if value is True else (flag, str(value)))]
        return [*said, "--json", str(self.script), *self.arguments]


class Stopped(Exception):
    """A series ended before its last run. The message says why; it is empty if the run has said so."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        """The exit code of the command."""


def carried_out(words: Sequence[str], run: Path, state: Path, interrupts: Sequence[int], done: str) -> Summary:
    """Make the run of these words in the folder `run`, and return its summary.

    `state` is the series' file. `done` says how far the series has come. Raises Stopped if the run was refused or
    interrupted, and RunFailed if it failed.
    """
    code = INTERRUPTED if interrupts else make_run(words, interrupts)
    if code == USAGE or (code == 0 and not run.exists()):  # it has said why, or shown the script's --help
        undo(state)
        raise Stopped(code)
    if code == INTERRUPTED or (interrupts and code not in RESULTS):
        raise Stopped(INTERRUPTED, f"interrupted, {done}; go on with the same flags and --out {state.parent}")
    return made(run, code, state.parent)


def opened(
    file: Path, noun: str, settings: dict[str, Any], empty: Mapping[str, Any], check: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Return the state of the series in `file`, or of a new one with these settings and `empty`.

    `check` raises LookupError, TypeError or ValueError for a state that it can't read. Raises ConfigError, in one line,
    if the folder holds something else.
    """
    folder = file.parent
    if not file.exists():
        check_free(folder, noun)
        new: dict[str, Any] = {"paceline": __version__, "settings": settings, **empty}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            summaries.write(file, new)
        except OSError as error:
            raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be made") from None
        return new
    try:
        state: dict[str, Any] = read_json(file)
        dict(state["settings"])
        check(state)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{file}: no {noun} can be read there ({error!r}); name another --out") from None
    return state


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Say how each changed setting has changed, by name."""
    return {
        key: f"{key} was {json.dumps(before.get(key))} and is {json.dumps(now.get(key))}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    }


def undo(file: Path) -> None:
    """Remove the series' folder if its first run was refused."""
    if {path.name for path in file.parent.iterdir()} - FILES == {file.name}:
        file.unlink()
        with suppress(OSError):
            file.parent.rmdir()


def place(folder: Path, stem: str) -> tuple[Path, Summary | None]:
    """Return the folder for the run of this name, and its summary if it ended with a result.

    The folders of interrupted and failed runs stay as they are.
    """
    number = 1
    while (run := folder / (stem if number == 1 else f"{stem}-{number}")).exists():
        if (summary := _result(run)) is not None:
            return run, summary
        number += 1
    return run, None


def made(run: Path, code: int, folder: Path) -> Summary:
    """Return the summary of a run that ended with this exit code. Raises RunFailed if it has no result."""
    if (summary := _result(run)) is not None:
        return summary
    error = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    with suppress(ConfigError):
        error = summaries.read(run / "summary.json")["error"] or error
    raise RunFailed(
        f"{run}: the run failed ({error}); when that is mended, go on with the same flags and --out {folder}"
    )


def _result(run: Path) -> Summary | None:
    with suppress(ConfigError):
        summary = summaries.read(run / "summary.json")
        if summary["outcome"] in ("completed", "diverged"):
            return summary
    return None
