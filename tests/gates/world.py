"""3,000 histories of the virtual world: what the protocol's machine is told, what it orders, and what people read."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HASHES = Path(__file__).parent / "data" / "world.txt"
PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
AT_ONCE = 20
"""Histories that a process is given at a time."""
MOST_SHOWN = 20
"""Differences that are shown one by one."""


def check(record: bool, some: int = 1) -> list[str]:
    """Compare every `some`-th history with what is recorded, or record all of them. Return the differences."""
    began = time.monotonic()
    with _processes() as processes:
        numbers = [*range(0, processes.submit(_histories, "count").result(), some)]
        differ = [] if record else processes.submit(_histories, "differences").result()
        parts = [numbers[at : at + AT_ONCE] for at in range(0, len(numbers), AT_ONCE)]
        found: dict[int, str] = {}
        failed: dict[int, str] = {}
        for done in as_completed([processes.submit(_histories, "hashed", part) for part in parts]):
            for number, hashes, wrong in done.result():
                found[number] = hashes
                if wrong:
                    failed[number] = wrong
            if len(found) % 500 < AT_ONCE:
                print(f"world: {len(found)} of {len(numbers)} histories, {time.monotonic() - began:.0f} s", flush=True)
    wrongs = [f"history {number} breaks a rule: {wrong.splitlines()[0]}" for number, wrong in sorted(failed.items())]
    if record:
        _record(found)
        return wrongs
    head, *lines = HASHES.read_text().splitlines()
    if not head.startswith(f"# {PYTHON}:"):
        differ.append(f"this is {PYTHON}, and {head[2:]} were recorded, whose sums of floats may differ")
    recorded = {int(number): hashes for number, *hashes in map(str.split, lines)}
    unlike = [
        f"history {number}: other {', '.join(names)}; python -m gates world --show {number}"
        for number, hashes in sorted(found.items())
        if (names := _unlike(recorded.get(number, []), hashes.split()))
    ]
    left = len(unlike) - MOST_SHOWN
    return [*differ, *wrongs, *unlike[:MOST_SHOWN], *([f"and {left} more histories"] if left > 0 else [])]


def show(number: int) -> None:
    """Write the three traces of a history into files, so that those of two commits can be compared."""
    with _processes() as processes:
        for path in processes.submit(_shown, number).result():
            print(path)


def _unlike(recorded: list[str], found: list[str]) -> list[str]:
    names = "facts", "orders", "sentences"
    if len(recorded) != len(names):
        return [*names]
    return [name for name, one, other in zip(names, recorded, found, strict=True) if one != other]


def _processes() -> ProcessPoolExecutor:
    # new ones, in which nothing of `paceline` was imported before tags are pinned
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))


def _record(found: dict[int, str]) -> None:
    lines = [f"{number:4} {hashes}" for number, hashes in sorted(found.items())]
    HASHES.write_text("\n".join([f"# {PYTHON}: facts, orders, sentences", *lines, ""]))


def _histories(function: str, *arguments: Any) -> Any:
    """Call that function of `gates.histories`, in a process of its own."""
    from gates import histories

    return getattr(histories, function)(*arguments)


def _shown(number: int) -> list[str]:
    from gates import histories

    history = histories.from_text(histories.stored()[number])
    *texts, wrong = histories.traces(history)
    folder = Path(f"build/gates/world-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, lines in zip(("history", *histories.TRACES), ([str(history), wrong], *texts), strict=True):
        (path := folder / f"{name}.txt").write_text("\n".join([*lines, ""]))
        written.append(str(path))
    return written
