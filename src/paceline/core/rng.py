"""Seeded draws whose whole state is one number, so a machine that draws stays plain data.

The generator is splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Rng:
    """A source of draws. Two with the same state draw the same from then on, on any computer."""

    state: int = 0

    def below(self, bound: int) -> int:
        """Draw a whole number from 0 to `bound` - 1, each as likely as any other up to one part in 2**64 / bound."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
        return (mixed * bound) >> 64

    def shuffle(self, items: list[T]) -> None:
        """Shuffle the items in place. O(n)."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]

    def sample(self, items: list[T], count: int) -> list[T]:
        """Draw `count` different items, in any order. O(count) draws. `items` stays as it is."""
        picked: dict[int, int] = {}
        chosen = []
        for place in range(count):
            other = place + self.below(len(items) - place)
            chosen.append(items[picked.get(other, other)])
            picked[other] = picked.get(place, place)
        return chosen
