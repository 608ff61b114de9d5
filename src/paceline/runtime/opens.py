"""Checkpoints saved through an open file: `with open("model.pt", "wb") as f: torch.save(model, f)`.

`open` empties the file before `torch.save` hears of it, so the name has to say that this is a checkpoint, and the mode
that it is written anew. In all workers but the first, such a file is the worker's own, as other saves are. A file of
another name is left alone, and one line says so when the script saves to it.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.runtime.saves import Saves

SUFFIXES = (".pt", ".pth", ".ckpt", ".pth.tar", ".safetensors")
"""What checkpoints' names end with. Data sets and downloads end with .bin, .pkl or .tar as well: those are no sign."""


class Opening:
    """Takes the place of `open` in a worker that has a place of its own for what it saves.

    An object rather than a function: as an attribute of a class, it doesn't become a method, as `open` doesn't.
    """

    def __init__(self, saves: Saves, original: Callable[..., Any]) -> None:
        self._saves = saves
        self._open = original
        functools.update_wrapper(self, original, updated=())

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Open the worker's own file, if it has saved to that path or is about to."""
        mode = arguments[1] if len(arguments) > 1 else named.get("mode", "r")
        opener = arguments[7] if len(arguments) > 7 else named.get("opener")
        if opener is not None or not isinstance(mode, str):
            return self._open(*arguments, **named)
        if "file" in named:
            return self._open(*arguments, **{**named, "file": self._place(named["file"], mode)})
        return self._open(*(self._place(path, mode) for path in arguments[:1]), *arguments[1:], **named)

    def _place(self, path: Any, mode: str) -> Any:
        begins_anew = "b" in mode and ("w" in mode or "x" in mode)
        if begins_anew and self._saves.may_replace(path) and _is_checkpoint(path):
            return self._saves.place_for(path)
        return self._saves.found(path)


class Remark:
    """Tells once that the script saves to a file which every worker opens."""

    def __init__(self, say: Callable[[str], None], save: Callable[..., None]) -> None:
        self._say = say
        self._save = save
        self._process: int | None = os.getpid()
        functools.update_wrapper(self, save, updated=())

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Take the place of `torch.save`."""
        file = named.get("f", arguments[1] if len(arguments) > 1 else None)
        name = getattr(file, "name", None) if isinstance(file, io.BufferedIOBase) else None
        here = self._process == os.getpid()  # a process that the script forks has no word with the coordinator
        if here and isinstance(name, str | bytes) and os.path.isfile(name) and not _is_checkpoint(name):
            self._process = None
            self._say(
                f"saves to {name!r}, a file that the script opened itself, and workers that open one file overwrite "
                "each other's saves: save where paceline.is_main() is true, or call the file .pt, .pth or .ckpt"
            )
        self._save(*arguments, **named)


def guard_open(folder: Path, say: Callable[[str], None] | None) -> None:
    """Patch `open`, in this process and in what is forked from it. What the worker saves is in `folder`.

    `say` tells the user what this worker does, if no other worker says the same.
    """
    builtins.open = io.open = Opening(Saves(folder), io.open)
    if say is not None:
        torch.save = torch.serialization.save = Remark(say, torch.save)


def _is_checkpoint(path: Any) -> bool:
    return os.fsdecode(path).lower().endswith(SUFFIXES)
