"""Files that come along with messages: between hosts as bytes, which the other host fetches into a file of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.items import Item
from paceline.errors import RunFailed
from paceline.files import to_disk
from paceline.ipc.channel import attachment
from paceline.ipc.memory import OpenFile, Span, available_bytes

if TYPE_CHECKING:  # which a run on one host does without
    from paceline.transfer.manager import TransferManager


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


def bring(
    carrier: TransferManager,
    items: Sequence[Item],
    owner: str,
    arrived: Callable[[], object],
    lost: Callable[[str], object],
) -> None:
    """Fetch these items, one after the other. Call `arrived` when all are here, or `lost` with why one can't come."""
    if not items:
        arrived()
        return
    first, *rest = items
    carrier.fetch(first, (owner, len(rest)), lambda: bring(carrier, rest, owner, arrived, lost), lost)
