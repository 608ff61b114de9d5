"""Which objects the functions that a script is in have names for: what it works on, and not what it has put by."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import FrameType
from typing import Any

DEPTH, WIDTH = 3, 64
"""How deep, and in each container how far, objects are searched."""


def in_variables(wanted: Collection[int], thread: int) -> list[set[int]]:
    """Return those of the objects with these ids that are in a variable of some function that this thread is in.

    There is a set of ids for each variable that has some. An object may also be in a container there. What a suspended
    generator has in its variables is not found, nor what is an attribute of some other object. O(variables of all these
    functions).
    """
    inside: list[set[int]] = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith(("torch.", "paceline.")):
            for value in list(frame.f_locals.values()):
                found: set[int] = set()
                _search(value, wanted, found, DEPTH)
                if found:
                    inside.append(found)
        frame = frame.f_back
    return inside


def _search(value: Any, wanted: Collection[int], found: set[int], depth: int) -> None:
    if id(value) in wanted:
        found.add(id(value))
        return
    items: Iterable[Any]
    if not depth:
        return
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, list | tuple | set):
        items = value
    elif not isinstance(value, type) and (fields := getattr(type(value), "__dataclass_fields__", None)):
        items = [getattr(value, name, None) for name in fields]
    else:
        return
    for item in islice(items, WIDTH):
        _search(item, wanted, found, depth - 1)
