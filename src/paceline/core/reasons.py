"""Reasons: a code with arguments, such as why a worker is held. A table has the sentence of each code.

A sentence is written when somebody reads it: a tuple costs a tenth of a formatted string on the decision path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Formatter

from paceline.core.phrases import count, workers_named

Why = tuple[str | int | float | tuple[int, ...], ...]
"""(code, argument, …). The code is a key of a table of sentences, with {0}, {1}, … for the arguments.

`{0:workers}` stands for the workers that are awaited: their numbers, or how many of the slowest they are. See
`awaited_of`.
"""
NAMED_AT_MOST = 4  # workers that a reason names; naming all would cost O(n) for each fact


OF_REPLICAS = "replica-"
"""What the codes of a part with replicas begin with, since parts with a store have some of the same codes."""


def awaited_of(workers: Collection[int]) -> tuple[int, ...] | int:
    """Return awaited workers as an argument of a reason: all of them, or how many there are if they are many."""
    return len(workers) if len(workers) > NAMED_AT_MOST else tuple(workers)


def sentence(why: Why, table: Mapping[str, str]) -> str:
    """Write the reason out. One that the table lacks is written as it is."""
    code, *arguments = why
    template = table.get(str(code))
    return " ".join(map(str, why)) if template is None else _FORMATTER.vformat(template, arguments, {})


def awaited(why: Why, table: Mapping[str, str]) -> tuple[int, ...] | int | None:
    """Return the workers that a held worker waits for, or how many of the slowest. None: it waits for no worker."""
    code, *arguments = why
    for _, field, form, _ in _FORMATTER.parse(table.get(str(code), "")):
        if form == WORKERS and field:
            found = arguments[int(field)]
            assert isinstance(found, tuple | int)
            return found
    return None


WORKERS = "workers"
"""The format of awaited workers in a sentence."""


class _Formatter(Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        """Format like `str.format`, and awaited workers as `worker 3`, `workers 1, 2` or `9 workers`."""
        if format_spec != WORKERS:
            return str(super().format_field(value, format_spec))
        return count(value, "worker") if isinstance(value, int) else workers_named(value)  # type: ignore[arg-type]


_FORMATTER = _Formatter()
