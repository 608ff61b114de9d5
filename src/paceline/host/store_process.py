"""The process that computes for a host: it adds up updates, makes versions or a range of each, and means of replicas.

A worker forks it, as that has the script's model and optimizer. A host with one worker has nothing to add up, and one
without a shard makes no range. With neither, a host besides the head's has no such process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from paceline.core.items import Item
from paceline.errors import MessageUnreadable, PeerLost
from paceline.host.claims import Owner
from paceline.host.contract import STORE, SUMS
from paceline.host.version_shelf import Shelf
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.channel import Channel, End
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region
from paceline.ipc.processes import end_in_time
from paceline.ipc.send_queue import SendQueue


class StoreOwner(Protocol):
    """The host that has the process."""

    def store_ready(self, beginning: str) -> None:
        """The process is there. The checksum is that of what training begins with."""

    def store_not_forked(self) -> None:
        """None of the workers that might have forked the process is left."""

    def store_said(self, message: messages.Message, descriptors: list[int]) -> bool:
        """The process says this of its orders, and these descriptors came along. Return whether it was asked."""

    def store_lost(self, why: str) -> None:
        """The process has gone, or could not be forked. This is told once."""


class StoreProcess:
    """The host's end of the channel to it. The process is lost at most once, and nothing is sent to it after that."""

    def __init__(self, shelf: Shelf, loop: Loop, workers: Workers, owner: StoreOwner, name: str = STORE) -> None:
        """`workers`: those that can fork it."""
        self.name = name
        """What it is called where its end is told. See `STORE`."""
        self.forker: int | None = None
        """The worker that was asked last to fork it."""
        self.process: int | None = None
        """Its number, once it says that it is there."""
        self.lost = False
        """Whether the process has gone, or was told to end."""
        self._shelf = shelf
        self._loop = loop
        self._workers = workers
        self._owner = owner
        self._fork: Callable[[], None] | None = None
        """Asks the next worker to fork it."""
        self._channel: Channel | None = None
        self._outbox: SendQueue | None = None
        self._writing: dict[int, Owner] = {}
        """Versions that are being written, and who claims what is read for that."""

    @property
    def writing(self) -> bool:
        """Whether a version is being written to disk."""
        return bool(self._writing)

    def fork(
        self,
        forkers: Callable[[], Iterable[int]],
        region: Region,
        order: messages.worker.ForkStore,
        ends: Sequence[End] = (),
    ) -> None:
        """Have the lowest of these workers fork the process. If it dies before it has, the next one does.

        `forkers()` are those that have come to `prepare` and are there. `ends` come along, and are closed here.
        """
        asked: set[int] = set()

        def fork() -> None:
            if not (there := sorted(set(forkers()) - asked)):
                self._owner.store_not_forked()
                return
            self.forker = there[0]
            asked.add(there[0])
            own = self._open()
            descriptors = (region.descriptor, own.fileno(), *(end.fileno() for end in ends))
            self._workers.send(there[0], order, descriptors)
            own.close()

        self._fork = fork
        fork()
        for end in ends:
            end.close()

    def gone(self, worker: int) -> None:
        """The worker's process has ended. It may have been about to fork this one."""
        if worker == self.forker and self.process is None:
            self.abandon()

    def _open(self) -> End:
        """Open a channel to the process that is to be forked. Return its other end, to be passed on and closed."""
        self.abandon()
        channel, theirs = self._loop.connect(messages.store.FromStore, "the store")
        self._loop.watch(channel, self._receive)
        self._channel = channel
        self._outbox = SendQueue(channel, self._loop, lambda: self.lose(f"{self.name} does not read what it is sent"))
        return theirs

    def abandon(self) -> None:
        """The worker that was to fork the process has ended before that."""
        if self._channel is not None and self._outbox is not None:
            self._unwatch()
            self._outbox.send(messages.store.Quit())
            self._outbox.forget()  # it also ends when it finds the channel closed
            self._channel.close()
            self._channel = self._outbox = None

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell the process, now or when it reads. The descriptors may be closed at once."""
        if not self.lost and self._outbox is not None:
            self._outbox.send(message, descriptors)

    def write(
        self,
        order: messages.store.Record | messages.store.RecordMean | messages.store.MakeBeginning,
        *items: Item,
    ) -> None:
        """Have a version written, or the mean of these replicas. The items are kept until `written`."""
        if self.lost:
            return
        owner = self._writing[order.version] = ("writing of version", order.version)
        self._shelf.claim(owner, *items)
        self.send(order)

    def writes(self, version: int) -> bool:
        """Whether that version is being written."""
        return version in self._writing

    def written(self, version: int) -> bool:
        """The version is on disk. Return whether it was to be written."""
        owner = self._writing.pop(version, None)
        if owner is not None:
            self._shelf.release(owner)
        return owner is not None

    def adopt(self, descriptors: list[int]) -> None:
        """The fixed part is the adopted one from now on. The optimizer's state may come along."""
        self.send(messages.store.InstallAdopted(), tuple(descriptors))

    def lose(self, why: str) -> None:
        """The process has gone, or can't go on."""
        if self.lost:
            return
        self.lost = True
        self._unwatch()  # what else it may say comes too late
        for version in list(self._writing):
            self.written(version)
        self._owner.store_lost(why)

    def wake(self) -> None:
        """The run is to end, for which this process has work to do: have it go on if it is stopped."""
        if self.process is not None and not self.lost:
            with suppress(ProcessLookupError):  # its end is about to show
                os.kill(self.process, signal.SIGCONT)

    def close(self) -> None:
        """Tell the process to end, and see that it does."""
        self.abandon()
        self.lost = True
        if self.process is not None:
            end_in_time(self.process)  # it has written everything by now

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            message, descriptors = self._channel.receive()
        except PeerLost:
            self._unwatch()
            if self.process is None and self._fork is not None and self.forker is not None:
                if self.name != SUMS:  # else a worker that can't fork goes on, as only sums are lost
                    self._workers.end(self.forker)  # most likely it has died
                self._fork()
            return  # else its end is about to show
        except MessageUnreadable as why:
            self.lose(f"{self.name} sent a message that can't be read ({why})")
            return
        if not self._means(message, descriptors):
            self.lose(f"{self.name} sent {type(message).__name__} out of turn")
        for descriptor in descriptors:
            os.close(descriptor)

    def _means(self, message: messages.Message, descriptors: list[int]) -> bool:
        """Do what the message says. Return whether it came in turn."""
        match message:
            case messages.store.StoreReady(process=process, beginning=beginning):
                if self.process is not None:
                    return False
                self.process = process
                self._loop.await_end(process, self._ended)
                self._owner.store_ready(beginning)
                return True
            case messages.store.StoreFailed(error=error):
                self.lose(f"{self.name} failed: {error.strip()}")
                return True
        return self._owner.store_said(message, descriptors)

    def _ended(self) -> None:
        process = f"{self.name}'s process" if self.name == STORE else self.name
        self.lose(f"{process} died" + ("" if self.name == SUMS else "; the files in versions/ are whole"))

    def _unwatch(self) -> None:
        if self._channel is not None and self._loop.watches(self._channel):
            self._loop.unwatch(self._channel)
