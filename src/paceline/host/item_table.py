"""Items by kind: where the bytes of each kind are on a host, where they come to, and which hosts have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from paceline.core.items import Item
from paceline.host.version_shelf import Owner
from paceline.ipc.memory import Span

if TYPE_CHECKING:  # which a run on one host does without
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
