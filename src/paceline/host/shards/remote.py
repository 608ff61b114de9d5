"""A host besides the head's that makes a range of each version, as the head has it: it is told each command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.orders.pushes import Pushed
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of


class RemoteShard:
    """Keeps the contract `ShardHost`: each command is a message, of which `Host.tell` has its server hear."""

    def __init__(self, tell: Callable[[messages.Message], None]) -> None:
        """`tell` sends a message to the host, if that takes part."""
        self._tell = tell

    def expect(self, update: Update) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.ExpectUpdate(update.worker, update.step))

    def bring(self, item: Update | Sum, source: str | None) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.Bring(fields_of(item), source))

    def drop(self, item: Update | Sum) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.Drop(fields_of(item)))

    def make(self, order: host_messages.MakeRange, pushed: Pushed, summed: Sequence[Update]) -> None:
        """See `ShardHost`. The order has the terms, and buffers are at the head only."""
        self._tell(order)

    def make_with(self, norms: messages.store.Norms) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.AllNorms(norms))

    def free(self, version: int) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.FreeVersion(version))

    def pack_state(self, number: int) -> None:
        """See `ShardHost`."""
        self._tell(host_messages.PackState(number))

    def take(self, order: host_messages.TakeRange) -> None:
        """See `ShardHost`."""
        self._tell(order)
