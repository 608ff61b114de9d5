"""`paceline` as gates call it: on one thread, with the arithmetic that all processors share, in a folder of its own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from support import nursery

ALIKE = {
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
    "TZ": "UTC",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "FORCE_COLOR": "",
    "PYTHONHASHSEED": "0",
}
"""What is in the environment of each call, so that another machine prints and computes the same."""
TRAIN = Path(__file__).with_name("train.py")


def paceline(*words: str, timeout: float = 120) -> tuple[int, str, str]:
    """`paceline WORDS` in this folder, to its end: its exit code, and what it printed and said on standard error."""
    process = nursery.Process(words, ALIKE)
    out, err = process.communicate(timeout=timeout)
    assert process.returncode is not None
    return process.returncode, out, err


Thing, Value = TypeVar("Thing"), TypeVar("Value")


def two_at_a_time(function: Callable[[Thing], Value], things: Iterable[Thing]) -> list[Value]:
    """The function's value for each thing, in order."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, things))


def recorded(file: Path, text: str, record: bool) -> list[str]:
    """How the text differs from that of the file, line by line. With `record`, write it there."""
    if record:
        file.write_text(text)
        return []
    before = file.read_text() if file.exists() else ""
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), file.name, file.name, lineterm="", n=0)
    return [line[:300] for line in lines if not line.startswith(("---", "+++"))]
