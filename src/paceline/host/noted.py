"""A carrier that tells what it has fetched."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.items import Item
from paceline.host.wire import Carrier
from paceline.records.times import Fetch


class Noted:
    """Keeps the contract `Carrier`. What another carrier brings is told as it comes, before whoever waits for it."""

    def __init__(
        self,
        carrier: Carrier,
        host: str,
        source: Callable[[Item], str],
        now: Callable[[], float],
        fetched: Callable[[Fetch], object],
    ) -> None:
        """`host` is this one. `source(item)`: which host has it."""
        self._carrier = carrier
        self._host = host
        self._source = source
        self._now = now
        self._fetched = fetched

    def fetch(self, item: Item, into: memoryview, done: Callable[[], None], lost: Callable[[str], None]) -> None:
        """See `Carrier`."""
        began, size = self._now(), into.nbytes

        def there() -> None:
            source, ended = self._source(item), self._now()
            self._fetched(Fetch.of(item, host=self._host, source=source, size=size, began=began, ended=ended))
            done()

        self._carrier.fetch(item, into, there, lost)

    def cancel(self, item: Item) -> None:
        """See `Carrier`."""
        self._carrier.cancel(item)
