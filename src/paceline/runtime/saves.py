"""One writer: of several workers that save to one path, worker 0 writes there, whole or not at all.

What another worker saves goes below its own folder of the run, and that worker finds it again under the path that its
script said: to load it, rename it, copy it, remove it, or ask whether it is there. The patches are made in the worker's
process alone, before its script runs. For files that the script opens itself, see `opens`.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

# these call the functions as they were before the patches
_exists, _isfile, _isdir, _replace = os.path.exists, os.path.isfile, os.path.isdir, os.replace


class Saves:
    """Where this worker's saved files are. `folder` is its own in the run; None: files go to the given paths."""

    def __init__(self, folder: Path | None) -> None:
        self._root = None if folder is None else str(folder.absolute())

    def place(self, path: Any) -> str:
        """Where to write what the script saves to that path: for a link, what it points to."""
        real = os.path.realpath(os.fsdecode(path))
        return real if self._root is None or real.startswith(f"{self._root}/") else self._root + real

    def found(self, path: Any) -> Any:
        """What to read for that path: this worker's own file, if it has saved one there, else the path itself."""
        if self._root is None or not isinstance(path, str | bytes | os.PathLike) or not _isdir(self._root):
            return path
        try:
            place = self.place(path)
        except (OSError, ValueError):  # this is no path at all, and the function that is called says so
            return path
        return place if _isfile(place) else path

    def has(self, path: Any) -> bool:
        """Whether this worker has saved to that path, and to a place of its own."""
        return self.found(path) is not path

    def place_for(self, path: Any) -> str:
        """The place for that path, in an existing folder."""
        place = self.place(path)
        if self._root is not None:
            os.makedirs(os.path.dirname(place), exist_ok=True)
        return place

    @contextmanager
    def writing(self, path: Any) -> Iterator[str]:
        """A file of the same name to write to, which takes that path's place once it is whole."""
        place = self.place_for(path)
        folder = tempfile.mkdtemp(prefix=".saving-", dir=os.path.dirname(place))
        try:
            file = os.path.join(folder, os.path.basename(place))
            yield file
            if _exists(place):
                shutil.copymode(place, file)
            _replace(file, place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def may_replace(self, path: Any) -> bool:
        """Whether a file can take that path's place. It can't if that is a device, or where there is no such folder."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        real = os.path.realpath(os.fsdecode(path))
        folder = os.path.dirname(real)
        if not _isdir(folder) or (_exists(real) and not _isfile(real)):
            return False
        return self._root is not None or os.access(folder, os.W_OK | os.X_OK)


def guard(folder: Path | None) -> None:
    """Patch what saves and reads a path, in this process and in what is forked from it. See `Saves`."""
    saves = Saves(folder)
    torch.serialization.save = _saving(saves, torch, "save", "f")
    _saving(saves, safetensors.torch, "save_file", "filename")
    if folder is None:
        return
    torch.serialization.load = _reading(saves, torch, "load", "f")
    for module in (safetensors, safetensors.torch):
        _reading(saves, module, "safe_open", "filename")
    for name in ("replace", "rename"):
        _moving(saves, name)
    for name in ("copyfile", "copy", "copy2"):
        _copying(saves, name)
    for name in ("remove", "unlink"):
        _reading(saves, os, name, "path")
    for name in ("exists", "isfile", "getsize"):
        _reading(saves, os.path, name, "path")
    for name in ("exists", "is_file"):
        _reading(saves, Path, name, "self", Path)


def _patch(module: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    patched = functools.wraps(getattr(module, name), updated=())(call)
    setattr(module, name, patched)
    return patched


def _saving(saves: Saves, module: Any, name: str, parameter: str) -> Callable[..., Any]:
    """Wrap the function of that name, which writes to its second argument."""
    original = getattr(module, name)

    def save(*arguments: Any, **named: Any) -> Any:
        by_name = parameter in named
        path = named[parameter] if by_name else arguments[1] if len(arguments) > 1 else None
        if not saves.may_replace(path):
            return original(*arguments, **named)
        with saves.writing(path) as file:
            if by_name:
                return original(*arguments, **{**named, parameter: file})
            return original(arguments[0], file, *arguments[2:], **named)

    return _patch(module, name, save)


def _reading(
    saves: Saves, module: Any, name: str, parameter: str, kind: Callable[[Any], Any] = lambda path: path
) -> Callable[..., Any]:
    """Wrap the function of that name, which looks at its first argument."""
    original = getattr(module, name)

    def read(*arguments: Any, **named: Any) -> Any:
        if named.get("dir_fd") is not None:  # a name in another folder
            return original(*arguments, **named)
        if parameter in named:
            return original(*arguments, **{**named, parameter: kind(saves.found(named[parameter]))})
        return original(*(kind(saves.found(path)) for path in arguments[:1]), *arguments[1:], **named)

    return _patch(module, name, read)


def _moving(saves: Saves, name: str) -> None:
    """Wrap a function that renames a file."""
    original = getattr(os, name)

    def move(src: Any, dst: Any, **named: Any) -> None:
        if named or not saves.has(src):
            original(src, dst, **named)
        else:
            original(saves.found(src), saves.place_for(dst))

    _patch(os, name, move)


def _copying(saves: Saves, name: str) -> None:
    """Wrap a function that copies a file; all but `copyfile` copy into a folder if they are given one."""
    original = getattr(shutil, name)

    def copy(src: Any, dst: Any, **named: Any) -> Any:
        if not saves.has(src):
            return original(src, dst, **named)
        if name != "copyfile" and _isdir(dst):
            dst = os.path.join(dst, os.path.basename(src))
        original(saves.found(src), saves.place_for(dst), **named)
        return dst

    _patch(shutil, name, copy)
