"""The folder that the head sends to a host: receives and unpacks it, and removes it when the run is over."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import ConfigError
from paceline.host.messages import Folder, FolderPart
from paceline.job.sent_folder import HARM, MOST_PACKED, PART, unpack

WINDOW = 4
"""Parts that may be asked for at once. More would be faster over a long link, but delay beats."""

Mark = tuple[int, int, int]
"""What changes of a file that is written or replaced: its inode, size, and time."""


class ReceivedFolder:
    """What one host receives. A whole folder is unpacked, and stays for the host's next incarnations."""

    def __init__(self, below: Path) -> None:
        """`below`: where folders go. It need not exist."""
        self._below = below
        self._marks: dict[Path, Mark] = {}
        """By file that was sent: its mark when it was unpacked."""
        self._expected: Folder | None = None
        self._parts: list[bytes] = []
        self._asked = 0
        """The beginning of the next part to ask for."""
        self._ask: Callable[[int], None] = lambda at: None

    def working_directory(self, folder: Folder) -> Path | None:
        """Return the working directory of workers with this folder, or None if the folder is not here."""
        place = self._place(folder)
        return place / folder.directory if place.exists() and not _strays(folder) else None

    def expect(self, folder: Folder, ask: Callable[[int], None]) -> None:
        """Ask for all parts of this folder, a few at a time.

        Raises ConfigError, in one line, if it is too large, or would go elsewhere.
        """
        if strays := _strays(folder):
            raise ConfigError(f"the head sent a folder that is to go elsewhere than into its place here: {strays[0]!a}")
        if folder.size > MOST_PACKED:
            raise ConfigError(HARM.format(f"{folder.size:,} bytes"))
        self._expected, self._parts, self._asked, self._ask = folder, [], 0, ask
        for _ in range(WINDOW):
            self._ask_on(folder)

    def take(self, part: FolderPart) -> Path | None:
        """Take that part. Once the folder is whole, return the workers' working directory.

        Raises ConfigError, in one line, if it is not the folder that was announced, or can't be unpacked here.
        """
        folder, at = self._expected, PART * len(self._parts)
        if folder is None or part.at != at or len(part.data) != min(PART, folder.size - at):
            raise ConfigError("the head sent a part of a folder that was not asked for")
        self._parts.append(part.data)
        self._ask_on(folder)
        if at + len(part.data) < folder.size:
            return None
        packed, self._expected, self._parts = b"".join(self._parts), None, []
        if hashlib.sha256(packed).digest() != folder.sha256:
            raise ConfigError("the folder that the head sent is not the one that it announced")
        self._unpack(packed, folder)
        return self.working_directory(folder)

    def remove(self) -> None:
        """Remove what was sent. Files that workers have made or changed since stay."""
        for path, mark in self._marks.items():
            with suppress(OSError):
                if _mark(path) == mark:
                    path.unlink()
        for place in self._below.glob("sent-*"):
            for there, folders, _ in os.walk(place, topdown=False):
                if "__pycache__" in folders:
                    shutil.rmtree(Path(there, "__pycache__"), ignore_errors=True)
                with suppress(OSError):
                    os.rmdir(there)

    def _place(self, folder: Folder) -> Path:
        return self._below / f"sent-{folder.sha256.hex()[:12]}"

    def _ask_on(self, folder: Folder) -> None:
        if self._asked < folder.size:
            self._ask(self._asked)
            self._asked += PART

    def _unpack(self, packed: bytes, folder: Folder) -> None:
        place = self._place(folder)
        try:
            place.mkdir(mode=0o700, parents=True)
            (place / folder.at).mkdir(parents=True, exist_ok=True)
            unpack(packed, place / folder.at)
            (place / folder.directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise ConfigError(f"what the head sent can't be unpacked: {error.filename}: {error.strerror}") from None
        except ConfigError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        for path in place.rglob("*"):
            if path.is_symlink() or not path.is_dir():
                self._marks[path] = _mark(path)


@contextmanager
def received(below: Path) -> Iterator[ReceivedFolder]:
    """Yield what receives the head's folders. At the end they are removed."""
    folders = ReceivedFolder(below)
    try:
        yield folders
    finally:
        folders.remove()


def _strays(folder: Folder) -> list[str]:
    """Return the folder's paths that lead out of its place on a host."""
    paths = (folder.at, folder.directory)
    return [path for path in paths if os.path.isabs(path) or ".." in Path(path).parts or "\0" in path]


def _mark(path: Path) -> Mark:
    status = path.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns
