"""Who needs which items. Pure: names only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paceline.core.items import Item

Owner = tuple[str | int, ...]
"""Who claims: what for, and the numbers that tell apart those who claim for that. `("step", 2)` is worker 2's step."""


class Claims:
    """A table of owners and items. An item is needed as long as an owner claims it, whether it is made or not."""

    def __init__(self, on_freed: Callable[[Item], object] | None = None) -> None:
        """`on_freed` is told of each item that no owner claims any more."""
        self._on_freed = on_freed
        self._claims: dict[Owner, tuple[Item, ...]] = {}
        self._owners: dict[Item, dict[Owner, None]] = {}
        """By item. No item without an owner."""

    def claim(self, owner: Owner, *items: Item) -> None:
        """The owner needs these items from now on, and no longer those that it has claimed before."""
        before = self._claims.pop(owner, ())
        if items:
            self._claims[owner] = items
            for item in items:
                self._owners.setdefault(item, {})[owner] = None
        for item in before:
            if item not in items:
                self._unclaim(item, owner)

    def release(self, owner: Owner) -> None:
        """The owner needs nothing any more."""
        for item in self._claims.pop(owner, ()):
            self._unclaim(item, owner)

    def pass_on(self, item: Item, new: Item) -> None:
        """Those who claim the item claim the new one in its place."""
        for owner in list(self._owners.get(item, ())):
            self.claim(owner, *(new if one == item else one for one in self._claims[owner]))

    def claimed(self, owner: Owner) -> tuple[Item, ...]:
        """What the owner claims."""
        return self._claims.get(owner, ())

    def owned(self) -> Iterator[tuple[Owner, Item]]:
        """Every claim."""
        for owner, items in self._claims.items():
            for item in items:
                yield owner, item

    def _unclaim(self, item: Item, owner: Owner) -> None:
        owners = self._owners[item]
        del owners[owner]
        if not owners:
            del self._owners[item]
            self._unneeded(item)

    def _unneeded(self, item: Item) -> None:
        """No owner claims the item any more."""
        if self._on_freed is not None:
            self._on_freed(item)
