"""Which item lies in which place of the host's region, and who claims it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from paceline.core.items import Former, Item
from paceline.host.claims import Claims, Owner
from paceline.host.contract import NotHere


class Shelf(Claims):
    """A host's items and their places, and who claims them.

    An item is on the shelf as long as an owner claims it. Its place is free once no item lies there. Several items may
    lie in one place: what a group averages to is the replica of each of its members. An item may be claimed before it
    is made.
    """

    def __init__(
        self,
        *,
        on_freed: Callable[[Item], object] | None = None,
        on_emptied: Callable[[int], object] | None = None,
    ) -> None:
        """`on_freed` is told of each item that lay in a place, once no owner claims it.

        `on_emptied` is told of each place in which nothing lies any more.
        """
        super().__init__(on_freed)
        self._on_emptied = on_emptied
        self._places: dict[Item, int] = {}
        self._items: dict[int, dict[Item, None]] = {}
        """By place. No place without an item."""
        self._coming: dict[int, int] = {}
        """By number of what comes from another host, or was to: the place to which bytes of it may still be written."""

    def place(self, item: Item) -> int:
        """Where the item lies. Raises NotHere if it is not on the shelf."""
        try:
            return self._places[item]
        except KeyError:
            raise NotHere(f"{item} is not here") from None

    def has(self, item: Item) -> bool:
        """Whether the item lies in a place."""
        return item in self._places

    def at(self, place: int) -> tuple[Item, ...]:
        """What lies in that place."""
        return tuple(self._items.get(place, ()))

    def free(self, among: Iterable[int], *, comes: bool = False) -> int | None:
        """The first of these places where nothing lies: places that are never needed cost nothing.

        `comes`: what is to lie there comes from another host, so no late byte is written after it. See `comes`.
        """
        taken = () if comes else self._coming.values()
        return next((place for place in among if place not in self._items and place not in taken), None)

    def put(self, item: Item, owner: Owner, among: Iterable[int], *, comes: bool = False) -> int | None:
        """Put the item into the first free one of these places, claimed by that owner. None: no place is free."""
        place = self.free(among, comes=comes)
        if place is not None:
            self._lay(item, place)
            self.claim(owner, item)
        return place

    def comes(self, number: int, place: int) -> None:
        """Bytes come into that place from another host, by that number, until `settled`.

        If what lies there is dropped meanwhile, late bytes of it may still come. So nothing is put there that is
        written on this host.
        """
        self._coming[number] = place

    def settled(self, number: int) -> bool:
        """No byte comes by that number any more. Return whether a place is free since."""
        place = self._coming.pop(number, None)
        return place is not None and place not in self._items and place not in self._coming.values()

    def name(self, item: Item, there: Item, owner: Owner) -> None:
        """Call what lies there by another name too, which that owner claims."""
        self._lay(item, self.place(there))
        self.claim(owner, item)

    def rename(self, item: Item, new: Item) -> None:
        """The item has become another one in its place: those who claim it claim the new one."""
        self._lay(new, self._places[item])
        self.pass_on(item, new)

    def replace(self, item: Item, by: Item) -> None:
        """The item's name is that of what lies there by now. Those who claim it claim what it was, too."""
        former = Former(item)
        self._lay(former, self._places[item])
        for owner in list(self._owners[item]):
            self.claim(owner, *self._claims[owner], former)
        del self._items[self._places[item]][item]
        self._lay(item, self._places[by])

    def withdraw(self, item: Item) -> None:
        """The item has not come to its place after all. Those who claim it claim one that is to be made."""
        place = self._places.pop(item)
        del self._items[place][item]
        if not self._items[place]:
            del self._items[place]
            if self._on_emptied is not None:
                self._on_emptied(place)

    def others(self, item: Item, owners: Iterable[Owner]) -> bool:
        """Whether anybody besides these owners claims what lies in the item's place."""
        own = set(owners)
        return any(owner not in own for there in self._items[self._places[item]] for owner in self._owners[there])

    def claims(self) -> Iterator[tuple[Owner, Item, int | None]]:
        """Every claim: its owner, its item, and that one's place if it is made. So a claim too many has a name."""
        for owner, item in self.owned():
            yield owner, item, self._places.get(item)

    def _lay(self, item: Item, place: int) -> None:
        self._places[item] = place
        self._items.setdefault(place, {})[item] = None

    def _unneeded(self, item: Item) -> None:
        if item in self._places:
            self.withdraw(item)
            super()._unneeded(item)
