"""`--send FOLDER`: a folder as bytes, for hosts that don't share a disk with the head."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from paceline.errors import ConfigError
from paceline.host.messages import Folder, FolderPart
from paceline.net.token import LONGEST, Token
from paceline.records.reading import LEDGER

MOST_BYTES = 64 << 20
MOST_FILES = 10_000
MOST_PACKED = 2 * MOST_BYTES
"""Bytes of the largest archive that is unpacked. It has some for each name, too."""
LEFT_OUT = frozenset(("__pycache__", "node_modules"))
"""Folders that hosts make themselves where needed. All names that begin with a dot are left out, too."""
MARKS = ("pyvenv.cfg", LEDGER)
"""A folder with such a file is left out: a Python environment, or a run."""
HARM = "what the head sent holds {}, which Paceline does not send"
PART = 60 << 10
"""Bytes of a part of the archive. Parts go over the control connection, and must not delay urgent messages."""


@dataclass(frozen=True, slots=True)
class SentFolder:
    """A folder that the head sends to hosts."""

    folder: Folder
    script: str
    """The script's path from the workers' working directory."""
    packed: bytes

    def part(self, at: int) -> FolderPart:
        """Return the part that begins there, which is empty after the end."""
        return FolderPart(at, self.packed[at : at + PART])


def to_send(folder: Path, script: Path) -> SentFolder:
    """Pack that folder, which contains the script, for other hosts. Raises ConfigError, in one line.

    Paths from the working directory into the folder are valid on other hosts, too. If the folder is elsewhere, workers
    there have the folder itself as their working directory.
    """
    packed = pack(folder)
    root, here = folder.resolve(), Path.cwd()
    named = script.parent.resolve() / script.name  # the script itself may be a link
    if not named.is_relative_to(root):
        raise _unsent(folder, f"{script} is not in it; name a folder that contains the script")
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        if str(named.relative_to(root)) not in archive.getnames():
            why = "it is hidden, or in a folder that is hidden, a run's or an environment of Python"
            raise _unsent(folder, f"{script} is not sent with it: {why}; move the script")
    place = here if root.is_relative_to(here) else root
    here = here if here.is_relative_to(place) else root
    at, directory = (str(path.relative_to(place)) for path in (root, here))
    sha256 = hashlib.sha256(packed).digest()
    return SentFolder(Folder(len(packed), sha256, at, directory), os.path.relpath(named, here), packed)


def pack(folder: Path) -> bytes:
    """Return the folder as an archive. The same files always give the same bytes.

    Raises ConfigError, in one line, if it holds too much, or something that can't be sent.
    """
    packed = io.BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, folder)
    except OSError as error:
        raise _unsent(folder, f"{error.filename}: {error.strerror}") from None
    return packed.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Unpack what `pack` returned into that folder, which is there and empty.

    Raises ConfigError, in one line, for anything that `pack` does not make.
    """
    if len(packed) > MOST_PACKED:
        raise ConfigError(HARM.format(f"{len(packed):,} bytes"))
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            archive.extractall(folder, list(_checked(archive)), filter="data")
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"what the head sent can't be unpacked into {folder}: {why}") from None


def _add(archive: tarfile.TarFile, folder: Path) -> None:
    total, largest = 0, (0, "")
    for number, name in enumerate(_names(folder)):
        if number >= MOST_FILES:
            raise _unsent(folder, f"it has more than {MOST_FILES:,} files and folders; send a smaller one")
        entry = _entry(folder, name)
        total, largest = total + entry.size, max(largest, (entry.size, name))
        if total > MOST_BYTES:
            what = f"it has more than {MOST_BYTES >> 20} MiB ({largest[1]} alone has {largest[0]:,} bytes)"
            raise _unsent(folder, f"{what}; keep data elsewhere, or send a smaller folder")
        content = _read(folder / name, entry.size) if entry.isreg() else b""
        if _is_token(content):
            continue
        entry.size = len(content)  # the file may have changed meanwhile
        archive.addfile(entry, io.BytesIO(content))


def _names(folder: Path) -> Iterator[str]:
    """Yield the names that are sent: files, links, and each folder before its contents."""
    if not folder.is_dir():
        raise _unsent(folder, "it is no folder; name the folder of the script, or one that contains it")
    if _is_left_out(folder):
        raise _unsent(folder, "it is a run's folder or an environment of Python; name the folder of the script")
    for there, folders, files in os.walk(folder, onerror=_raise):
        here = Path(there)
        folders[:] = sorted(one for one in folders if one not in LEFT_OUT and not _is_left_out(here / one))
        for name in sorted((*folders, *files)):
            if not name.startswith("."):
                yield str((here / name).relative_to(folder))
        folders[:] = [one for one in folders if not one.startswith(".")]


def _is_left_out(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)


def _entry(folder: Path, name: str) -> tarfile.TarInfo:
    """Return the archive's entry for that file, folder or link."""
    path, entry = folder / name, tarfile.TarInfo(name)
    status = path.lstat()
    entry.mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_IXUSR else 0o644
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        if os.path.isabs(entry.linkname) or not path.resolve().is_relative_to(folder.resolve()):
            raise _unsent(folder, f"{name} links to {entry.linkname}, which is not sent; put a copy in its place")
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        entry.size = status.st_size
    else:
        raise _unsent(folder, f"{name} is neither a file nor a folder; keep it elsewhere")
    return entry


def _is_token(content: bytes) -> bool:
    """Return whether that file is a token, which must stay on this machine."""
    try:
        Token.of(content[:LONGEST].decode(errors="replace"), "")
    except ConfigError:
        return False
    return True


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _checked(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the archive's entries, after checking that `pack` makes such entries.

    The folder of each entry has to come before it. So none is written through a link.
    """
    folders, names, total = {PurePosixPath()}, set[PurePosixPath](), 0
    for entry in archive:
        name = PurePosixPath(entry.name)
        plain = entry.type in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
        if not plain or ".." in name.parts or name.parent not in folders or name in names:
            raise ConfigError(HARM.format(ascii(entry.name[:80])))
        names.add(name)
        if entry.isdir():
            folders.add(name)
        total += entry.size
        if len(names) > MOST_FILES or total > MOST_BYTES:
            raise ConfigError(HARM.format(f"more than {MOST_FILES:,} files, or {MOST_BYTES >> 20} MiB"))
        yield entry.replace(mtime=None)  # type: ignore[arg-type]  # the time is that of unpacking


def _unsent(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"--send {folder}: {why}")


def _raise(error: OSError) -> NoReturn:
    raise error
