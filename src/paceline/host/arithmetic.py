"""The process that computes for a host: it makes the store's versions, and means of replicas, and writes them."""

from __future__ import annotations

import os

from paceline.core.items import Item
from paceline.fabric.unix import Channel
from paceline.host import messages
from paceline.host.outbox import Outbox
from paceline.host.shelf import Owner, Shelf


class Arithmetic:
    """The host's end of the channel to it."""

    def __init__(self, channel: Channel, outbox: Outbox, shelf: Shelf) -> None:
        self.channel = channel
        self.lost = False
        """Whether the process has gone."""
        self._outbox = outbox
        self._shelf = shelf
        self._writing: dict[int, Owner] = {}
        """Versions that are being written, and who claims what is read for that."""

    @property
    def writing(self) -> bool:
        """Whether a version is being written to disk."""
        return bool(self._writing)

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell the process, now or when it reads. The descriptors may be closed at once."""
        self._outbox.send(message, descriptors)

    def write(self, order: messages.Record | messages.RecordMean, *items: Item) -> None:
        """Have a version written, or the mean of these replicas. The items are kept until `written`."""
        if self.lost:
            return
        owner = self._writing[order.version] = ("writing of version", order.version)
        self._shelf.claim(owner, *items)
        self.send(order)

    def written(self, version: int) -> None:
        """The version is on disk."""
        self._shelf.release(self._writing.pop(version))

    def want_state(self, worker: int) -> None:
        """Have the optimizer's state sent for that worker, as of the newest version."""
        self.send(messages.SendState(worker))

    def adopt(self, descriptors: list[int]) -> None:
        """The fixed part is the adopted one from now on. The optimizer's state may come along."""
        self.send(messages.Adopt(), tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def lose(self) -> None:
        """The process has gone."""
        self.lost = True
        for version in list(self._writing):
            self.written(version)

    def end(self) -> None:
        """Tell the process to end, and close the channel."""
        self.send(messages.Quit())
        self._outbox.forget()  # it also ends when it finds the channel closed
        self.channel.close()
