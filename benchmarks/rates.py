"""Choose a learning rate, for benchmarks that compare trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

EXTENDED = 3
Cost = TypeVar("Cost", float, tuple[float, float])


def tried(rates: Sequence[float], cost: Callable[[float], Cost]) -> dict[float, Cost]:
    """Return what each of these rates costs.

    Where the best is the grid's least or greatest, the grid goes on by halves or doubles, up to `EXTENDED` times.
    """
    found: dict[float, Cost] = {}
    wanted = list(rates)
    for _ in range(1 + EXTENDED):
        found |= {rate: cost(rate) for rate in wanted}
        best = min(found, key=found.__getitem__)
        wanted = [best / 2] * (best == min(found)) + [best * 2] * (best == max(found))
    return found
