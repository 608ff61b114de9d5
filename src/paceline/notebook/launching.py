"""`paceline.run` and `paceline.compare`: the commands of these names, from a program or a notebook."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Unpack

import tomli_w

from paceline.core.choice import choose
from paceline.errors import DIVERGED, FAILED, INTERRUPTED, USAGE, ConfigError, RunFailed
from paceline.files import read_json
from paceline.notebook.child import CommandEnd, carry_out
from paceline.notebook.comparison import Comparison
from paceline.notebook.flags import CompareFlags, RunFlags, parsed, words
from paceline.notebook.recorded import Run
from paceline.protocols import registry
from paceline.records import kept
from paceline.records.comparison import COMPARISON
from paceline.records.reading import LEDGER, SUMMARY
from paceline.records.summary import read
from paceline.runs.folders import check_free, checked_folder, new_folder
from paceline.scenario.scenario_file import from_plain, to_plain

Script = Callable[..., object] | str | os.PathLike[str]
Scenario = str | os.PathLike[str] | Mapping[str, Any]


def run(
    train: Script,
    *,
    workers: int | None = None,
    protocol: str = "bsp",
    scenario: Scenario | None = None,
    seed: int = 0,
    threads: int | None = None,
    target: str | Sequence[str] = (),
    epochs: int | None = None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    out: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **flags: Unpack[RunFlags],
) -> Run:
    """Train a function or a script with several workers, as `paceline run` does, and return the run.

    Each worker process calls the function, which must call `paceline.prepare`. The function may be defined in a
    notebook's cell or in the program itself. It is sent with the values that it uses, and is kept in the run's folder
    for `paceline replay`. What it returns is ignored. What is printed appears as it comes.

    Every flag of `paceline run` is a keyword argument, with the same default and the same checks: `--on-loss stop` is
    `on_loss="stop"`. The most used ones are listed here. `paceline run --help` has them all.

    Args:
        train: The function, or the path of a script.
        workers: How many worker processes (default: the scenario's, or 2).
        protocol: How they synchronise, such as `"ssp:bound=3"`.
        scenario: A scenario file, or a mapping with the file's tables: slow and failing workers.
        seed: The seed of all randomness.
        threads: Threads of each worker (default: cores / workers).
        target: A target such as `"accuracy>=0.95"`, or several.
        epochs: How many epochs the function trains, if its `prepare` does not say.
        max_steps: Updates after which the run ends.
        max_seconds: Seconds of training after which the run ends.
        out: The run's folder (default: `runs/PROTOCOL-DATE-TIME`).
        quiet: Print nothing but what the workers print.
        args: The function's positional arguments, or the script's own words.
        kwargs: The function's keyword arguments.
        **flags: Any other flag of `paceline run`, with underscores.

    Returns:
        The run, whose `status` is `completed` or `diverged`; `interrupted` if a signal other than Ctrl-C ended it.

    Raises:
        ConfigError: In one line, if a value is refused, the function can't be sent, or the script can't be trained.
        RunFailed: If the run failed. Its folder is named, and `paceline.Run` opens it.
        KeyboardInterrupt: At Ctrl-C, or a notebook's interrupt, once the workers have ended and saved.

    Example:
        >>> import paceline, torch
        >>> def train(rate):
        ...     model = torch.nn.Linear(4, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        ...     model, optimizer = paceline.prepare(model, optimizer)
        ...     for step in range(10):
        ...         model(torch.randn(8, 4)).square().mean().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> run = paceline.run(train, workers=2, protocol="ssp:bound=3", args=(0.1,))  # doctest: +SKIP
        >>> run.status, run.summary["steps"]  # doctest: +SKIP
        ('completed', 20)
    """
    given = {
        "workers": workers,
        "protocol": protocol,
        "scenario": scenario,
        "seed": seed,
        "threads": threads,
        "target": target,
        "epochs": epochs,
        "max_steps": max_steps,
        "max_seconds": max_seconds,
        "out": out,
        "quiet": quiet,
        **flags,
    }
    return Run(_launched("run", train, args, kwargs, given))


def compare(
    train: Script,
    *,
    protocol: str | Sequence[str],
    workers: int | None = None,
    scenario: Scenario | None = None,
    seed: int = 0,
    seeds: int = 1,
    threads: int | None = None,
    target: str | None = None,
    epochs: int | None = None,
    max_seconds: float | None = None,
    out: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **flags: Unpack[CompareFlags],
) -> Comparison:
    """Train a function or a script under several protocols, as `paceline compare` does, and return the comparison.

    What `run` says of functions and flags holds here too. With the same `out` a comparison that was interrupted goes
    on. Its function must be the same: the one that this session sent before.

    Args:
        train: The function, or the path of a script.
        protocol: The protocols, such as `["bsp", "ssp:bound=3"]`.
        workers: How many worker processes each run has (default: the scenario's, or 2).
        scenario: A scenario file, or a mapping with the file's tables.
        seed: The seed of each protocol's first run; the next has one more.
        seeds: How many runs of each protocol. Three or more give intervals.
        threads: Threads of each worker (default: cores / workers).
        target: What to come to, such as `"accuracy>=0.95"` (default: the run's end).
        epochs: How many epochs the function trains, if its `prepare` does not say.
        max_seconds: Seconds of training after which each run ends.
        out: The comparison's folder (default: `runs/compare-DATE-TIME`).
        quiet: Print nothing but errors.
        args: The function's positional arguments, or the script's own words.
        kwargs: The function's keyword arguments.
        **flags: Any other flag of `paceline compare`, with underscores.

    Returns:
        The comparison, with a `Run` for each protocol and seed.

    Raises:
        ConfigError: In one line, as `run` does.
        RunFailed: If one of the runs failed.
        KeyboardInterrupt: At Ctrl-C, or a notebook's interrupt.

    Example:
        >>> both = paceline.compare("train.py", protocol=["bsp", "asp"], workers=4, seeds=3)  # doctest: +SKIP
        >>> [run.status for run in both.runs]  # doctest: +SKIP
        ['completed', 'completed', 'completed', 'completed', 'completed', 'completed']
    """
    given = {
        "protocol": protocol,
        "workers": workers,
        "scenario": scenario,
        "seed": seed,
        "seeds": seeds,
        "threads": threads,
        "target": target,
        "epochs": epochs,
        "max_seconds": max_seconds,
        "out": out,
        "quiet": quiet,
        **flags,
    }
    return Comparison(_launched("compare", train, args, kwargs, given))


def _launched(
    command: str, train: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> Path:
    """Run the command, and return its folder."""
    _refuse_in_worker(command)
    with _scenario_file(given["scenario"]) as scenario:
        said = words(command, {**given, "scenario": scenario, "out": None})
        name = choose(str(given["protocol"]), registry()).spec.name if command == "run" else command
        parsed(command, said)
        with _place(command, given["out"], name) as folder:
            script, own = _script(command, train, args, kwargs, folder)
            quiet = bool(given["quiet"])
            printed = ["--json"] if quiet else []
            ended = carry_out([command, *said, *printed, f"--out={folder}", script, *own], only_errors=quiet)
            if isinstance(given["scenario"], Mapping):
                ended.message = ended.message.replace(str(scenario), "scenario")
            _raise_unless_done(ended, folder, script)
            return folder


def _refuse_in_worker(command: str) -> None:
    """Raise ConfigError in a worker: each worker of a script that calls `run` would start a run of its own."""
    if (prepare := sys.modules.get("paceline.training.prepare")) is not None and prepare.ScriptProcess.link is not None:
        message = f"paceline.{command}() was called by a worker of a run; call it in a program that no run has started"
        prepare.refuse(message)
        raise ConfigError(message)


@contextmanager
def _scenario_file(scenario: Any) -> Iterator[Any]:
    """Yield a scenario file for a mapping. The file ends with this process at the latest."""
    if not isinstance(scenario, Mapping):
        yield scenario
        return
    text = tomli_w.dumps(to_plain(from_plain(scenario, "scenario")))
    descriptor = os.memfd_create("scenario")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _place(command: str, out: Any, name: str) -> Iterator[Path]:
    """Make the folder. Remove it again if it stays empty."""
    folder = new_folder(name) if out is None else Path(out)
    if command == "run":
        checked_folder(folder, name)
    elif not (folder / COMPARISON).exists():
        check_free(folder, "comparison")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be made") from None
    there = {path.name for path in folder.iterdir()}
    try:
        yield folder
    finally:
        if not _is_of_function(folder):
            for file in kept.FILES - there:
                with suppress(OSError):
                    (folder / file).unlink()
        for path in made:
            with suppress(OSError):  # it is not empty
                path.rmdir()


def _is_of_function(folder: Path) -> bool:
    """Whether the folder has a run, or a comparison of the function that is kept there."""
    if (folder / LEDGER).exists():
        return True
    try:
        script = read_json(folder / COMPARISON)["settings"]["script"]
    except (OSError, ValueError, TypeError, LookupError):
        return False
    return bool(script == str(folder.absolute() / kept.SCRIPT))


def _script(
    command: str, train: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, folder: Path
) -> tuple[str, list[str]]:
    """Return the script, or one that calls the function, and the script's own words."""
    if isinstance(args, str):
        raise ConfigError(f"args is {args!r}; give a sequence, such as args=({args!r},)")
    if isinstance(train, str | os.PathLike):
        if kwargs:
            raise ConfigError(f"kwargs is {dict(kwargs)!r}; a script has none, say args=[…] with its own words")
        path = os.fspath(train)
        return f"./{path}" if path.startswith("-") else path, [str(word) for word in args]
    if not callable(train):
        raise ConfigError(f"paceline.{command}() got {train!r}; give it a function, or the path of a script")
    from paceline.notebook.sending import SentFunction

    sent = SentFunction(train, args, kwargs or {})
    if not (folder / COMPARISON).exists():
        for file in kept.FILES:  # left by a call that was killed before its run began
            (folder / file).unlink(missing_ok=True)
    return str(sent.keep_in(folder.absolute())), []  # a later call may name the folder otherwise


def _raise_unless_done(ended: CommandEnd, folder: Path, script: str) -> None:
    """Raise an error for the command's end, unless it has a result."""
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.code == USAGE and ended.message:
        raise ConfigError(ended.message)
    if ended.code < 0:
        raise RunFailed(f"{folder}: {signal.Signals(-ended.code).name} killed the run's launcher")
    if ended.code in (0, DIVERGED, INTERRUPTED) and any((folder / file).exists() for file in (LEDGER, COMPARISON)):
        return
    if ended.code == FAILED:
        why = read(folder / SUMMARY)["error"] if (folder / SUMMARY).exists() else ended.message
        raise RunFailed(f"{folder}: the run failed: {why}" if (folder / LEDGER).exists() else why)
    raise ConfigError(f"{script}: its own argument parser ended it before it trained (exit code {ended.code})")
