"""Files that a script opens by itself to write them: `with open("model.pt", "wb") as f: torch.save(model, f)`.

`open` empties the file before `torch.save` hears of it. So in all workers but the first, a file that is opened to be
written anew is in the worker's own folder. If its name is not a checkpoint's, it is shown where the script says for as
long as no other worker writes it. If the script saves a model to such a file, one line says so.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from typing import Any

from paceline.worker_process.ownership import Ownership
from paceline.worker_process.saves import Saves, is_checkpoint

_isfile = os.path.isfile  # as it was before the patches


class Opening:
    """Takes the place of `open` in a worker that has a place of its own for what it saves.

    An object rather than a function: as an attribute of a class, it doesn't become a method, as `open` doesn't.
    """

    def __init__(self, saves: Saves, original: Callable[..., Any], ownership: Ownership | None = None) -> None:
        """`ownership`: which files that are no checkpoints other workers write. None: nothing is known of that."""
        self._saves = saves
        self._open = original
        self._ownership = ownership
        functools.update_wrapper(self, original, updated=())

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Open the worker's own file, if it has saved to that path or is about to."""
        mode = arguments[1] if len(arguments) > 1 else named.get("mode", "r")
        opener = arguments[7] if len(arguments) > 7 else named.get("opener")
        if opener is not None or not isinstance(mode, str):
            return self._open(*arguments, **named)
        if "file" in named:
            path, others = named.pop("file"), []
        elif arguments:
            path, *others = arguments
        else:
            return self._open(**named)
        if not (("w" in mode or "x" in mode) and self._saves.may_replace(path)):
            return self._open(self._saves.found(path), *others, **named)
        if "b" in mode and is_checkpoint(path):
            return self._open(self._saves.place_for(path), *others, **named)
        real = os.path.realpath(os.fsdecode(path))
        place = self._ownership.place(real) if self._ownership is not None else None
        if place is None or ("x" in mode and self._ownership is not None and self._ownership.was_there(real)):
            return self._open(self._saves.found(path), *others, **named)
        if "w" in mode and self._ownership is not None:
            self._ownership.clear(real)
        file = self._open(place, *others, **named)
        if self._ownership is not None:
            self._ownership.show(real)
        return file


class Remark:
    """Tells once that the script saves to a file which it has opened where every worker may."""

    def __init__(self, saves: Saves, say: Callable[[str], None], save: Callable[..., None]) -> None:
        self._saves = saves
        self._say = say
        self._save = save
        self._process: int | None = os.getpid()
        functools.update_wrapper(self, save, updated=())

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Take the place of `torch.save`."""
        file = named.get("f", arguments[1] if len(arguments) > 1 else None)
        name = getattr(file, "name", None) if isinstance(file, io.BufferedIOBase) else None
        here = self._process == os.getpid()  # a process that the script forks has no word with the coordinator
        if here and isinstance(name, str | bytes) and _isfile(name) and not is_checkpoint(name):
            self._process = None
            self._say(
                f"saves to {self._saves.said(name)!r}, a file that the script opened itself; where worker 0 writes it, "
                "too, the others' are in their own folders: save where paceline.is_main() is true, or call the file .pt"
            )
        self._save(*arguments, **named)
