"""Names, numbers and values for sentences: a few are written in full, many are cut short."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_MOVES = re.compile(
    r"\x1b\[(?:[0-9;]*[A-GKm]|0?J|\?25[hl])|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+"
)
"""Colours and moves of the cursor as progress bars have them, or what else would move it, or turn text around."""

MOST = 8
"""The most entries that are written in full. More workers become ranges. Further ranges are only counted."""


def listed(names: Sequence[str]) -> str:
    """`a, b, c`, or `a, b, c, d, e, f, g, h and 12 others`."""
    return _joined(names[:MOST], len(names) - MOST)


def numbers(workers: Iterable[int]) -> str:
    """`3`, `0, 1, 2`, `0-199`, or `0-99, 105, 107, 110, 112, 115, 117, 120 and 17 others`."""
    workers = sorted(workers)
    if len(workers) <= MOST:
        return _joined([str(worker) for worker in workers], 0)
    ranges = list(_ranges(workers))
    shown = ranges[:MOST]
    return _joined(
        [str(first) if first == last else f"{first}-{last}" for first, last in shown],
        len(workers) - sum(last - first + 1 for first, last in shown),
    )


def workers_named(workers: Iterable[int]) -> str:
    """`worker 3`, `workers 0, 1, 2`, `workers 0-199`."""
    workers = list(workers)
    return f"worker{'' if len(workers) == 1 else 's'} {numbers(workers)}"


def count(number: int, noun: str) -> str:
    """`1 run`, `2,000 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cut(text: str, most: int) -> str:
    """Cut the text to `most` characters. A text that was cut ends with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: str) -> str:
    """Return the text on one line: what no terminal shows is escaped, as in `\\n`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def error_line(error: Exception, most: int = 200) -> str:
    """Return an error's message on one line, cut to `most` characters; the error's class if it has no message."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def tame(text: str) -> str:
    """Return what another machine has printed, with colours and progress bars. Nothing else is sent to a terminal."""
    return _MOVES.sub(lambda found: found[0] if found[0][:2] == "\x1b[" else printable(found[0]), text)


def _joined(shown: Sequence[str], others: int) -> str:
    rest = f" and {others} other{'' if others == 1 else 's'}" if others > 0 else ""
    return ", ".join(shown) + rest


def _ranges(workers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each row of neighbours. Two neighbours are written one by one."""
    row: list[int] = []
    for worker in workers:
        if row and worker != row[-1] + 1:
            yield from _written(row)
            row = []
        row.append(worker)
    if row:
        yield from _written(row)


def _written(row: Sequence[int]) -> Iterator[tuple[int, int]]:
    if len(row) > 2:
        yield row[0], row[-1]
    else:
        yield from ((one, one) for one in row)
