"""Files that come along with messages: between hosts as bytes, which the other host fetches into a file of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.items import Blob, Item
from paceline.errors import MessageUnreadable, RunFailed
from paceline.files import to_disk
from paceline.host.events import Attached
from paceline.host.item_table import ItemKind
from paceline.ipc.channel import attachment
from paceline.ipc.memory import OpenFile, Span, available_bytes

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


NO_ROOM = "this host has no room for it"
"""Why what comes along with a message can't come. The system's reason follows."""


@contextmanager
def recorded_file(path: str) -> Iterator[int]:
    """The descriptor of a file that the run has recorded. Raises RunFailed if the file is there no more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunFailed(f"{path} can't be read any more: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_attached(descriptor: int, path: str) -> None:
    """Write what came along to that file: whole or not at all. On return it is on disk."""
    unfinished = Path(f"{path}.unfinished")
    with open(descriptor, "rb", closefd=False) as came, unfinished.open("wb") as file:
        came.seek(0)
        shutil.copyfileobj(came, file, 1 << 20)
    to_disk(unfinished)
    unfinished.rename(path)


def file_bytes(descriptor: int) -> Span:
    """Return the bytes of that file, which is not empty. The descriptor may be closed at once."""
    return OpenFile(descriptor).span()


def opened_again(descriptor: int) -> int:
    """Return another descriptor of that file. Whoever reads it does not move the place at which others read."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def long_message(body: bytes) -> Span:
    """Return the bytes of a message, in a file of their own."""
    descriptor = attachment(body)
    try:
        return file_bytes(descriptor)
    finally:
        os.close(descriptor)


def empty_file(size: int) -> tuple[int, Span]:
    """Return the descriptor of an anonymous file of that size, and its bytes, to be written to.

    Raises OSError if there is no room for it.
    """
    if size > available_bytes():  # the file takes none before another host sends it
        raise OSError(0, "it is more than there is memory")
    file = os.memfd_create("paceline-attached", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        return file, OpenFile(file).span(writable=True)
    except OSError:
        os.close(file)
        raise


@dataclass(slots=True)
class _Offer:
    """What other hosts may fetch."""

    span: Span
    host: str | None
    """For which host it is. None: for all, as long as the run lasts."""
    messages: int = 1
    """Those with which it comes along, and that the host has not heard in full."""


class Attachments(ItemKind[Blob]):
    """What is fetched by a name of its own: what comes along with messages, and bytes that never change.

    What comes along with a message of this host to itself is here at once.
    """

    def __init__(self, host: str, carrier: TransferManager | None) -> None:
        """`host` is this one. `carrier`: None if there are no other hosts."""
        self._host = host
        self._carrier = carrier
        self._offers: dict[Blob, _Offer] = {}
        self._coming: dict[Blob, tuple[str, Span]] = {}
        """By what comes here, or is about to: the host that has it, and the bytes that it comes to."""
        self._files: dict[Blob, int] = {}
        """The files that such bytes are of, until they are taken."""
        self._waiting: dict[Blob, list[tuple[Callable[[int], object], Callable[[str], object]]]] = {}
        """By file that is on its way: whom to pass it on to, and whom to tell that it can't come."""
        self._numbers = count()

    # --- what this host offers ----------------------------------------------------------------------

    def offer(self, name: str, span: Span, host: str | None) -> Attached:
        """Have these bytes come along with a message to that host, by that name. None: all hosts may have them."""
        self._offers[Blob(name)] = _Offer(span, host)
        return Attached(name, span.nbytes)

    def attach(self, span: Span, host: str, by: str = "") -> Attached:
        """The same, by a name that no other has. `by`: what its name says besides."""
        return self.offer(f"attached {by}{next(self._numbers)}", span, host)

    def offer_again(self, name: str) -> Attached | None:
        """Have what is offered by that name come along with one more message. None: nothing is offered by that name."""
        if (one := self._offers.get(Blob(name))) is None:
            return None
        one.messages += 1
        return Attached(name, one.span.nbytes)

    def host_has(self, host: str, name: str) -> None:
        """That host has what came along with one message."""
        if (one := self._offers.get(Blob(name))) is not None and one.host == host:
            one.messages -= 1
            if one.messages == 0:
                del self._offers[Blob(name)]

    def host_lost(self, host: str) -> None:
        """That host takes no part any more."""
        self._offers = {item: one for item, one in self._offers.items() if one.host != host}

    # --- what comes here ----------------------------------------------------------------------------

    def require_new(self, attached: Attached, host: str) -> None:
        """Raise MessageUnreadable for a name of another host's that something else has which comes along."""
        if host != self._host and (Blob(attached.name) in self._coming or Blob(attached.name) in self._offers):
            raise MessageUnreadable(f"{attached.name} comes along already")

    def comes(self, attached: Attached, host: str) -> list[Item]:
        """Lay out a file for what comes along with a message of that host. Return what is to be fetched.

        Raises OSError if there is no room for it.
        """
        item = Blob(attached.name)
        if host == self._host:
            file = self._offers[item].span.file
            assert isinstance(file, OpenFile)
            self._files[item] = opened_again(file.descriptor)
            return []
        self._files[item], span = empty_file(attached.size)
        self._coming[item] = host, span
        return [item]

    def comes_to(self, item: Blob, host: str, span: Span) -> list[Item]:
        """Have what that host has come to these bytes. Return what is to be fetched: nothing, if it is empty."""
        if not span.nbytes or host == self._host:
            return []
        self._coming[item] = host, span
        return [item]

    def take_file(self, attached: Attached) -> int:
        """Return the descriptor of the file for what comes along. Whoever takes it closes it."""
        return self._files.pop(Blob(attached.name))

    @contextmanager
    def file(self, attached: Attached) -> Iterator[int]:
        """The descriptor of the file that came along."""
        descriptor = self.take_file(attached)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def bring(
        self, items: Sequence[Item], owner: str, arrived: Callable[[], object], lost: Callable[[str], object]
    ) -> None:
        """Fetch these, one after the other. Call `arrived` when all are here, or `lost` with why one can't come.

        Those that come to files were laid out before. Files that nobody has taken are closed if one can't come.
        """

        def fetch(rest: Sequence[Item]) -> None:
            if rest:
                assert self._carrier is not None  # else all is here
                self._carrier.fetch(rest[0], (owner, len(rest) - 1), lambda: fetch(rest[1:]), never)
            else:
                arrived()

        def never(why: str) -> None:
            for item in items:
                if isinstance(item, Blob):
                    self._coming.pop(item, None)
                    if (file := self._files.pop(item, None)) is not None:
                        os.close(file)
            lost(why)

        fetch(items)

    def bring_file(
        self, attached: Attached, host: str, there: Callable[[int], object], lost: Callable[[str], object]
    ) -> None:
        """Bring what comes along with a message of that host, and pass its file on, which is closed after that.

        It comes once, however many wait for it. Raises OSError if there is no room for it.
        """
        if (item := Blob(attached.name)) in self._waiting:
            self._waiting[item].append((there, lost))
            return

        def arrived() -> None:
            with self.file(attached) as file:
                for call, _ in self._waiting.pop(item):
                    call(file)

        def never(why: str) -> None:
            for _, call in self._waiting.pop(item):
                call(why)

        items = self.comes(attached, host)
        self._waiting[item] = [(there, lost)]
        self.bring(items, attached.name, arrived, never)

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def ranges(self, item: Blob) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        host, span = self._coming[item]
        return [(host, 0, span.nbytes)]

    def lay(self, item: Blob, number: int) -> Span:
        """See `ItemKind`."""
        return self._coming[item][1]

    def free(self, item: Blob, whole: bool) -> None:
        """See `ItemKind`."""
        self._coming.pop(item, None)

    def look(self, item: Blob, begin: int, end: int) -> Where:
        """See `ItemKind`."""
        return "here" if item in self._offers else "gone"

    def view(self, item: Blob) -> Span:
        """See `ItemKind`."""
        return self._offers[item].span
