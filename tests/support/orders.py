"""Orders of samples, as a script that trains by itself draws them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.training.seeding import plain_ids, seed_epoch


def epoch_order(batches: Iterable[list[Any]], seed: int, epoch: int) -> list[list[Any]]:
    """The batches of sample ids of an epoch, as drawn from a batch sampler under (seed, epoch)."""
    seed_epoch(batches, seed, epoch)
    return [plain_ids(batch) for batch in batches]
