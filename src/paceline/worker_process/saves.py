"""One writer: of several workers that save to one path, worker 0 writes there, whole or not at all.

What another worker saves goes below its own folder of the run, and that worker finds it again under the path that its
script said: to load it, rename it, copy it, remove it, or ask whether it is there. See `file_functions` for how.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.worker_process.touched import Touched

# these call the functions as they were before the patches
_exists, _isfile, _isdir, _lexists = os.path.exists, os.path.isfile, os.path.isdir, os.path.lexists
_mkdir, _replace, _rmtree = os.mkdir, os.replace, shutil.rmtree

SUFFIXES = (".pt", ".pth", ".ckpt", ".pth.tar", ".safetensors")
"""What checkpoints' names end with. Data sets and downloads end with .bin, .pkl or .tar as well: those are no sign."""
UNFINISHED = ".saving-"
"""What the name of a folder begins with in which a file is written before it takes its place."""


def is_path(path: Any) -> bool:
    """Whether that is a path, and neither a descriptor nor a file."""
    return isinstance(path, str | bytes | os.PathLike)


def is_checkpoint(path: Any) -> bool:
    """Whether the name is one that only checkpoints have."""
    return os.fsdecode(path).lower().endswith(SUFFIXES)


def name_of(path: Any) -> str:
    """The path's name from the root. Links are followed in its folder, and its last part is left as it is."""
    head, tail = os.path.split(os.fsdecode(path).rstrip("/") or "/")
    if tail in ("", ".", ".."):
        return os.path.realpath(os.path.join(head, tail))
    return os.path.join(os.path.realpath(head or "."), tail)


def ensure(folder: str) -> None:
    """Make the folder, and those above it, unless they are there."""
    if not _isdir(folder):
        ensure(os.path.dirname(folder))
        with suppress(FileExistsError):
            _mkdir(folder)


class Saves:
    """Where this worker's saved files are. `folder` is its own in the run; None: files go to the given paths.

    In `touched` it notes the folders that the script saves in.
    """

    def __init__(self, folder: Path | None, touched: Touched) -> None:
        self._root = None if folder is None else str(folder.absolute())
        self.touched = touched

    def place(self, path: Any) -> str:
        """Where to write what the script saves to that path: for a link, what it points to."""
        return self._in_own(os.path.realpath(os.fsdecode(path)))

    def place_of(self, path: Any) -> str:
        """The place of the path itself: for a link, of the link."""
        return self._in_own(name_of(path))

    def _in_own(self, name: str) -> str:
        return name if self._root is None or name.startswith(f"{self._root}/") else self._root + name

    def said(self, place: str | bytes) -> str:
        """The path that the script said for a file of this worker's own."""
        name = os.fsdecode(place)
        return name if self._root is None else name.removeprefix(self._root)

    def found(self, path: Any) -> Any:
        """What to read for that path: this worker's own file, if it has saved one there, else the path itself."""
        if self._root is None or not is_path(path) or not _isdir(self._root):
            return path
        try:
            places = (self.place_of(path), self.place(path))
        except (OSError, ValueError):  # this is no path at all, and the function that is called says so
            return path
        return next((place for place in places if _isfile(place)), path)

    def held(self, path: Any) -> str | None:
        """This worker's own file, folder or link in the place of that path; None if it has made none there."""
        if self._root is None or not is_path(path) or not _isdir(self._root):
            return None
        place = self.place_of(path)
        return place if _lexists(place) else None

    def place_for(self, path: Any) -> str:
        """The place for that path, in an existing folder."""
        place = self.place(path)
        self.touched.note("saved", os.path.dirname(os.path.realpath(os.fsdecode(path))))
        if self._root is not None:
            ensure(os.path.dirname(place))
        return place

    @contextmanager
    def writing(self, path: Any) -> Iterator[str]:
        """A file of the same name to write to, which takes that path's place once it is whole."""
        place = self.place_for(path)
        folder = tempfile.mkdtemp(prefix=UNFINISHED, dir=os.path.dirname(place))
        try:
            file = os.path.join(folder, os.path.basename(place))
            yield file
            if _exists(place):
                shutil.copymode(place, file)
            _replace(file, place)
        finally:
            _rmtree(folder, ignore_errors=True)

    def has_folder(self, folder: str) -> bool:
        """Whether that folder is there for this worker: if it has made it, others may have moved it since."""
        if _isdir(folder) or self._root is None:
            return _isdir(folder)
        return _isdir(self._in_own(folder)) or folder in self.touched.folders

    def may_replace(self, path: Any) -> bool:
        """Whether a file can take that path's place. It can't if that is a device, or where there is no such folder."""
        if not is_path(path):
            return False
        real = os.path.realpath(os.fsdecode(path))
        folder = os.path.dirname(real)
        if not self.has_folder(folder) or (_exists(real) and not _isfile(real)):
            return False
        return self._root is not None or os.access(folder, os.W_OK | os.X_OK)
