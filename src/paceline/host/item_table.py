"""Items by kind: where the bytes of each kind are on a host, where they come to, and which hosts have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.core.items import Item
from paceline.host.claims import Owner
from paceline.host.host_memory import HostMemory
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Span
from paceline.records.times import FetchTimes

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where

Kind = TypeVar("Kind", bound=Item)


class ItemKind(ABC, Generic[Kind]):
    """Items of some kind on this host. What owns them keeps this contract, of which `manager.Items` says more."""

    @abstractmethod
    def ranges(self, item: Kind) -> list[tuple[str, int, int]]:
        """Return which hosts have the item that is to come: each with its first byte, and the one after its last."""

    @abstractmethod
    def lay(self, item: Kind, number: int) -> Span:
        """Return the bytes that the item is to come to."""

    def free(self, item: Kind, whole: bool) -> None:
        """The item comes no more. `whole`: all of it is here."""

    @abstractmethod
    def look(self, item: Kind, begin: int, end: int) -> Where:
        """Return where these bytes are of an item that another host asks for."""

    @abstractmethod
    def view(self, item: Kind) -> Span:
        """Return the bytes of an item that is here."""

    def claim(self, item: Kind, owner: Owner) -> None:
        """Keep the item while it is sent. Most kinds stay until the hosts that need them have said that they do."""


class Placed(ItemKind[Kind]):
    """Items that lie in places of the host's memory."""

    def __init__(self, shelf: Shelf, memory: HostMemory) -> None:
        self._shelf = shelf
        self._memory = memory

    def place(self, item: Kind) -> int:
        """Return the place of an item that is here, or is to come. Raises NotHere."""
        return self._shelf.place(item)

    def lay(self, item: Kind, number: int) -> Span:
        """See `ItemKind`."""
        self._shelf.comes(number, self.place(item))
        return self.view(item)

    def view(self, item: Kind) -> Span:
        """See `ItemKind`. Raises NotHere."""
        return self._memory.place(self.place(item))


class ItemTable:
    """Keeps `manager.Items`: what is asked of an item is asked of its kind."""

    def __init__(
        self,
        shelf: Shelf,
        kinds: Mapping[type[Item], ItemKind[Any]],
        fetched: Callable[[FetchTimes], object],
        emptied: Callable[[], object],
    ) -> None:
        """`fetched` hears of each fetch. `emptied` is called when a place is free that bytes were still to come to."""
        self._shelf = shelf
        self._kinds = kinds
        self._fetched = fetched
        self._emptied = emptied

    def ranges(self, item: Item) -> Sequence[tuple[str, int, int]]:
        """See `Items`."""
        return self._kinds[type(item)].ranges(item)

    def lay(self, item: Item, number: int) -> Span:
        """See `Items`."""
        return self._kinds[type(item)].lay(item, number)

    def free(self, item: Item, whole: bool) -> None:
        """See `Items`."""
        self._kinds[type(item)].free(item, whole)

    def settled(self, number: int) -> None:
        """See `Items`."""
        if self._shelf.settled(number):
            self._emptied()

    def fetched(self, fetch: FetchTimes) -> None:
        """See `Items`."""
        self._fetched(fetch)

    def look(self, item: Item, begin: int, end: int) -> Where:
        """See `Items`. This host has nothing of a kind that the run does without."""
        kind = self._kinds.get(type(item))
        return "gone" if kind is None else kind.look(item, begin, end)

    def view(self, item: Item) -> Span:
        """See `Items`."""
        return self._kinds[type(item)].view(item)

    def claim(self, item: Item, owner: Owner) -> None:
        """See `Items`."""
        self._kinds[type(item)].claim(item, owner)

    def release(self, item: Item, owner: Owner) -> None:
        """See `Items`."""
        self._shelf.release(owner)
