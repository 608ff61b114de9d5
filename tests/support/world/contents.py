"""What the bytes of each item are. An update's follow from its name, a version's from the orders in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from paceline.core.facts import Fact, GradientReady, UpdateArrived
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPush
from paceline.core.roster import mean_of

SIZE = 32
"""Bytes of each item's content. What else is in its place follows from that, and no two pieces of it are alike."""
TORN = b"\xee"
"""What a place is full of while something is written there."""
WHOLE = b"what the optimizer has before the first version"


Terms = tuple[tuple[int, int, float], ...]
"""(worker, step, weight), in order."""


class Contents:
    """What is to lie in each place that somebody reads."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: the most workers."""
        self.capacity = capacity
        self._weights: dict[tuple[int, int], float | None] = {}
        """By worker and step: the samples in it."""
        self._sum_of: dict[tuple[int, int], int] = {}
        """By worker and step: the sum that it has arrived in."""
        self._sums: dict[int, Terms] = {}
        """By number: the last that was added up."""
        self.fixed = digest("what never moves")
        self._versions = [digest("version 0")]
        self._made_of: list[tuple[tuple[int, int, float], ...]] = [()]
        """By version: its updates, with their weights as they were ordered."""
        self.computes: dict[int, int] = {}
        """By worker: the last step that it has begun to compute."""
        self._scales: dict[tuple[int, int], float] = {}
        self._unapplied: dict[int, dict[int, int | None]] = {}
        """By worker: steps that were pushed, and the version that was ordered of each. None: none was."""
        self._lacking: dict[tuple[int, int], list[int]] = {}

    def told(self, fact: Fact) -> None:
        match fact:
            case GradientReady(worker=worker, step=step):
                self._weights[worker, step] = fact.weighs
            case UpdateArrived(worker=worker, step=step, sum=int(number)):
                self._sum_of[worker, step] = number

    def ordered(self, order: Order) -> None:
        match order:
            case StartPush(worker=worker, step=step, scale=scale):
                self._scales[worker, step] = scale
                self._unapplied.setdefault(worker, {})[step] = None
            case DropUpdate(worker=worker, step=step):
                self._unapplied.get(worker, {}).pop(step, None)
            case Release(worker=worker, step=step, version=version, parameters="eager"):
                pushed = self._unapplied.get(worker, {})
                self._lacking[worker, step] = [one for one, of in pushed.items() if of is None or of > version]
            case ApplyUpdate(version=version, contributions=contributions):
                assert version == len(self._versions), f"version {version} is ordered after {len(self._versions) - 1}"
                parts = tuple(
                    (worker, step, weight * self._scales[worker, step]) for worker, step, weight in contributions
                )
                for worker, step, _ in contributions:
                    if step in self._unapplied[worker]:
                        self._unapplied[worker][step] = version
                self._versions.append(digest(self._versions[-1], parts))
                self._made_of.append(parts)

    def joined(self, worker: int) -> None:
        """A new process takes part as this worker: it has pushed nothing."""
        self._unapplied[worker] = {}

    @property
    def newest(self) -> int:
        return len(self._versions) - 1

    def version(self, version: int) -> bytes:
        assert version < len(self._versions), f"version {version} is nowhere ordered"
        return self._versions[version]

    def lacking(self, worker: int, step: int) -> list[int]:
        """The worker's own steps that it has to add to the version that it computes that step on, in order."""
        return self._lacking.get((worker, step), [])

    def made_of(self, version: int) -> tuple[tuple[int, int, float], ...]:
        """(worker, step, weight) of that version's updates, in order."""
        return self._made_of[version]

    def summands(self, version: int) -> list[tuple[str, bytes, float]]:
        """What that version is made of, in order: its name, its content, and its weight. Sums are means of updates."""
        found: dict[str, tuple[bytes, float]] = {}
        members: dict[int, list[tuple[int, int]]] = {}
        for worker, step, weight in self.made_of(version):
            number = self._sum_of.get((worker, step))
            name = f"step {step} of worker {worker}" if number is None else f"sum {number}"
            before = found[name][1] if name in found else 0.0
            found[name] = self.update(worker, step) if number is None else self.sum(number), before + weight
            if number is not None:
                members.setdefault(number, []).append((worker, step))
        for number, updates in members.items():
            mean = mean_of({one: self._weights[one] for one in updates})
            assert self._sums[number] == mean, f"sum {number} is of {self._sums[number]}, and not of {mean}"
        return [(name, *rest) for name, rest in found.items()]

    def pushed(self) -> Iterator[tuple[int, int]]:
        """Yield (worker, step) of what was pushed and was not dropped, each worker's newest first."""
        for worker, steps in self._unapplied.items():
            yield from ((worker, step) for step in reversed(steps))

    def sums(self, number: int, terms: Terms) -> bytes:
        """These updates are added up as that sum. Return its content."""
        self._sums[number] = terms
        return self.sum(number)

    def sum(self, number: int) -> bytes:
        return digest("sum", number, self._sums[number])

    def update(self, worker: int, step: int) -> bytes:
        return digest("update", worker, step)

    def draft(self, worker: int, step: int) -> bytes:
        """What it would have been, had its script not changed it at the end."""
        return digest("draft", worker, step)


@lru_cache(maxsize=4096)
def filled(content: bytes, size: int) -> bytes:
    """Return what is in an item's place of that size."""
    if content == TORN:
        return TORN * size
    return content + b"".join(digest(content, piece) for piece in range(1, size // SIZE))


def share(begin: int, end: int, version: int) -> bytes:
    """Return what the optimizer has for that range, as of that version."""
    return f"bytes {begin} to {end} as of version {version}".encode()


def digest(*what: Any) -> bytes:
    """Return a content that follows from that."""
    """Return a content that follows from that."""
    return blake2b(repr(what).encode(), digest_size=SIZE).digest()
