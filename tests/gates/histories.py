"""Histories of the virtual world as data, and what a world of each of them comes to. Imported in processes of its own.

See `gates.world`. The package `paceline` is imported here, so that a process that compares has its tags pinned.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import gates.tags  # before all other imports of ours, as it pins tags
from support.world import faults
from support.world.faults import Fault, History, alone, drawn, grouped, leaving, serving
from support.world.processes import Script
from support.world.world import built

STORED = Path(__file__).parent / "data" / "histories.jsonl.gz"
KINDS: dict[str, tuple[Callable[[int], History], int]] = {
    "drawn": (drawn, 1000),
    "grouped": (grouped, 700),
    "leaving": (leaving, 450),
    "serving": (serving, 350),
    "alone": (alone, 500),
}
"""What draws histories, and how many of them are stored."""
TRACES = "facts", "orders", "sentences"


def drawn_one(kind: str, seed: int) -> tuple[str, str]:
    """Draw a history. Return it as text, and its hashes; both are empty unless it has facts and keeps the rules."""
    text = json.dumps(to_plain(KINDS[kind][0](seed)), separators=(",", ":"))
    facts, *_, wrong = found = traces(from_text(text))
    if wrong:
        print(f"{kind} {seed} breaks a rule: {wrong}", flush=True)
    return (text, _hashes(found[:3])) if facts and not wrong else ("", "")


def store(texts: list[str]) -> None:
    """Store these histories, and the tags that messages have now."""
    STORED.parent.mkdir(exist_ok=True)
    STORED.write_bytes(gzip.compress("\n".join(texts).encode(), mtime=0))
    gates.tags.RECORDED.write_text("\n".join([*sorted(set(gates.tags.tags().values())), ""]))


@cache
def stored() -> list[bytes]:
    """The histories that are stored, each as text."""
    return gzip.decompress(STORED.read_bytes()).splitlines()


def count() -> int:
    """How many histories are stored."""
    return len(stored())


def counts() -> dict[str, int]:
    """By kind: how many are to be stored."""
    return {kind: count for kind, (_, count) in KINDS.items()}


def differences() -> list[str]:
    """Messages whose tags are new. With the world, all messages are imported."""
    return gates.tags.differences()


def to_plain(history: History) -> dict[str, Any]:
    """The history as plain values, moments and lengths of time in tenths of a millisecond."""
    plain = asdict(history) | {"faults": [{"kind": type(one).__name__} | asdict(one) for one in history.faults]}
    return _rounded(plain)  # type: ignore[no-any-return]


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
    return value


def from_text(text: str | bytes) -> History:
    """The history that this text is."""
    plain = json.loads(text)
    made: list[Fault] = []
    for one in plain["faults"]:
        kind = getattr(faults, one.pop("kind"))
        made.append(msgspec.convert(one, kind))
    tuples = {
        "servers": tuple(plain["servers"]),
        "lost": tuple((name, how) for name, how in plain["lost"]),
        "faults": tuple(made),
    }
    return History(**plain | {"script": Script(**plain["script"])} | tuples)


def traces(history: History) -> tuple[list[str], list[str], list[str], str]:
    """Facts, orders and sentences of that history, and why the judge finds it wrong; empty if it doesn't."""
    wrong = ""
    with built(history) as world:
        try:
            world.run()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
    orders = [str(one) for one in world.judge.orders]
    facts = [str(one) for one in world.judge.facts]
    ended = [] if world.run_state is None else [f"{world.run_state.shutdown.outcome}: {world.run_state.shutdown.error}"]
    return facts, orders, [*world.said, *ended], wrong


def hashed(numbers: list[int]) -> list[tuple[int, str, str]]:
    """For each history with one of these numbers: three hashes in a line, and what is wrong with it."""
    found = []
    for number in numbers:
        *texts, wrong = traces(from_text(stored()[number]))
        found.append((number, _hashes(texts), wrong))
    return found


def _hashes(texts: Sequence[list[str]]) -> str:
    return " ".join(sha256("\n".join(text).encode()).hexdigest()[:12] for text in texts)
