"""Which tests make real runs: only those that say so may start one.

A real run is processes that train: a launcher, its workers, its store. Each costs seconds, so `make test` has few of
them, in `tests/journeys`, and `make test-runs` has the rest. The marker `real_run` is what tells them apart.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FIXTURES = frozenset({"launch", "launches", "runs", "server", "ray_cluster"})
"""A test that uses one of these is marked by it."""

_COMMANDS = "(run|join|compare|replay|tune|doctor)"
STARTS = re.compile(
    rf"paceline(\.__main__)?\s+(-\S+\s+)*{_COMMANDS}\b"  # the command, however it is started
    rf"|paceline\.cli\.main\b.*\s{_COMMANDS}\s"  # code that calls it
    rf"|paceline\.notebook\.child\s+\d+\s+\d+\s+{_COMMANDS}\b"  # what a program's `paceline.run` starts
    r"|\bpaceline\.(run|compare)\("  # a program that is about to
    r"|\bmake_run\(",
    re.DOTALL,
)
"""How a command shows that it starts a run."""

_unmarked: list[str] = []
"""The test that is under way, if it isn't marked."""


@contextmanager
def under_way(item: pytest.Item) -> Iterator[None]:
    """All of this test, with the setup of its fixtures, however long these stay."""
    if item.get_closest_marker("real_run") is None:
        _unmarked.append(item.nodeid)
    try:
        yield
    finally:
        _unmarked.clear()


def starts(what: str) -> None:
    """Something is about to start a run. Fails the test that is under way unless it is marked."""
    if _unmarked:
        pytest.fail(
            f"{_unmarked[0]} starts a real run ({what}) and isn't marked: "
            "decorate it with @pytest.mark.real_run, or say pytestmark = pytest.mark.real_run in its module",
            pytrace=False,
        )


def started_by(command: str | Sequence[Any]) -> str:
    """The part of a command, or of a Python file that it names, by which it starts a run. Empty if it starts none."""
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    texts = [" ".join(words), *(_text(Path(word)) for word in words if word.endswith(".py"))]
    return next((found[0] for text in texts if (found := STARTS.search(text))), "")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def guarded(init: Callable[..., None]) -> Callable[..., None]:
    """`subprocess.Popen.__init__` that looks at what is to be started."""

    def looks(self: subprocess.Popen[Any], args: Any, *others: Any, **named: Any) -> None:
        if _unmarked and (found := started_by([args] if isinstance(args, Path) else args)):
            starts(found)
        init(self, args, *others, **named)

    return looks


def noted(fork: Callable[..., Any]) -> Callable[..., Any]:
    """What forks a run's workers, and says so first: a run that this very process makes."""

    def forks(*given: Any) -> Any:
        starts("in this process")
        return fork(*given)

    return forks
