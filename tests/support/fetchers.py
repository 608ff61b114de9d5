"""Fetchers that tests make their own from."""

from __future__ import annotations

from paceline.transfer.fetcher import Fetchable, Then


class NoFetcher:
    """Keeps the contract `Fetcher`, and brings nothing."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        raise NotImplementedError

    def cancel(self, worker: int) -> None:
        raise NotImplementedError
