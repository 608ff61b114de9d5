"""Fetchers that tests make their own from."""

from __future__ import annotations

from paceline.core.facts import Fact
from paceline.transfer.fetcher import Fetchable, Then


class NoFetcher:
    """Keeps the contract `Fetcher`, and brings nothing."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        raise NotImplementedError

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        raise NotImplementedError

    def cancel(self, worker: int) -> None:
        raise NotImplementedError

    def next(self, until: float) -> Fact | None:
        return None

    def due(self) -> float | None:
        return None
