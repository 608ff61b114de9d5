"""Histories of the virtual world as data, and what a world of each of them comes to. Imported in processes of its own.

See `gates.world`. The package `paceline` is imported here, so that a process that compares has its tags pinned.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

import gates.tags  # before all other imports of ours, as it pins tags
from support.world import faults
from support.world.faults import Fault, History
from support.world.processes import Script
from support.world.world import built

STORED = Path(__file__).parent / "data" / "histories.jsonl.gz"
TRACES = "facts", "orders", "sentences"


@cache
def stored() -> list[bytes]:
    """The histories that are stored, each as text."""
    return gzip.decompress(STORED.read_bytes()).splitlines()


def count() -> int:
    """How many histories are stored."""
    return len(stored())


def differences() -> list[str]:
    """Messages whose tags are new. With the world, all messages are imported."""
    return gates.tags.differences()


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
