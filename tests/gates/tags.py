"""Pins the tag of every message to its name on the day when the gates were first recorded. Import it before `paceline`.

A message's tag is the name of its class. A renamed message would be longer or shorter on the wire, and the seeded
network would cut elsewhere. `renamed.txt` has the renames, a line each: the class's new name, and the old one.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RENAMED = dict(line.split() for line in (HERE / "renamed.txt").read_text().splitlines() if line[:1] not in ("", "#"))
"""By new name, or module and new name where two messages have that: the old name."""
RECORDED = HERE / "data" / "tags.txt"


def _pinned(function: Any, name: str, *bases: Any, **given: Any) -> Any:
    module = function.__globals__["__name__"]
    key = f"{module.rpartition('.')[2]}.{name}"
    old = RENAMED.get(key, RENAMED.get(name))
    if old and module.startswith("paceline.") and any(getattr(base, "__struct_config__", None) for base in bases):
        given["tag"] = old
    return _build_class(function, name, *bases, **given)


_build_class = builtins.__build_class__
if "paceline.net" in sys.modules:
    raise RuntimeError("import gates.tags before paceline: tags can't be pinned any more")
builtins.__build_class__ = _pinned


def tags() -> dict[str, str]:
    """By module and class: the tag of each message."""
    from paceline.ipc.endpoint import Message
    from paceline.net.numbered import Frame

    return {
        f"{kind.__module__}.{kind.__name__}": kind.__struct_config__.tag
        for root in (Frame, Message)
        for kind in _below(root)
        if kind.__struct_config__.tag is not None and kind.__module__.startswith("paceline.")
    }


def differences() -> list[str]:
    """Messages whose tags are new, and tags that no message has: a line each."""
    found, recorded = tags(), RECORDED.read_text().split()
    new = [name for name, tag in found.items() if tag not in recorded]
    gone = [tag for tag in recorded if tag not in found.values()]
    way = "if a message was renamed, write its new and its old name into tests/gates/renamed.txt"
    return [f"messages are new: {new}, and gone: {gone}; {way}"] if new else []


def _below(kind: type) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
