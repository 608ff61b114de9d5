"""Whose a path is, for one of a run's workers: nobody's business, the worker's own, or another's.

- *Outside*: temporary, cache and shared-memory folders, the run's own folder, and whatever is neither below the working
  directory nor in a folder that the script makes or saves in. Nothing there is looked after.
- *Own*: what this worker has made, and no other has touched.
- *Another's*: all else. A worker other than the first leaves it as it is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from paceline.worker_process.saves import UNFINISHED, Saves, ensure, is_checkpoint, is_path, name_of
from paceline.worker_process.touched import upwards

# these call the functions as they were before the patches
_lexists, _isdir, _islink = os.path.lexists, os.path.isdir, os.path.islink
_replace, _rmdir, _remove, _move = os.replace, os.rmdir, os.remove, shutil.move
_link, _symlink = os.link, os.symlink

ANEW = os.O_TRUNC | os.O_EXCL
BEGAN = time.time()
"""As this module is imported: before any worker is forked, on this host."""
SYSTEM = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/run")
IN_HOME = (".cache", ".triton", ".nv")
"""Folders of the user's own in which downloads and compilers keep things, whatever the environment says."""
NAMED = ("HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
"""Variables that name such a folder, besides those that have CACHE in their names."""


def outside(run: Path) -> frozenset[str]:
    """Folders in which nothing is looked after. `run` is the run's own."""
    home = os.path.expanduser("~")
    named = [value for name, value in os.environ.items() if name in NAMED or "CACHE" in name]
    folders = [*SYSTEM, *named, tempfile.gettempdir(), str(run.absolute())]
    folders += [os.path.join(home, name) for name in IN_HOME]
    return frozenset(os.path.realpath(one) for one in folders if os.path.isabs(one))


def carry(src: str, dst: str) -> None:
    """Move a file or folder. What is in a folder joins what is in the other, and takes the place of its like."""
    if _isdir(src) and not _islink(src) and _isdir(dst) and not _islink(dst):
        for entry in os.listdir(src):
            carry(os.path.join(src, entry), os.path.join(dst, entry))
        _rmdir(src)
    elif _same(src, dst):
        _remove(src)
    else:
        ensure(os.path.dirname(dst))
        try:
            _replace(src, dst)
        except OSError:  # on another disk, or a folder in the place of a file
            _move(src, dst)


def _same(one: str, other: str) -> bool:
    """Whether both are names of one file, or links that say the same."""
    try:
        if _islink(one) and _islink(other):
            return os.readlink(one) == os.readlink(other)
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


class Ownership:
    """What this worker may change, and what it has made. `saves` has the worker's own folder.

    All that a worker other than the first makes is in that folder, where the worker finds it whatever others do. It is
    shown at its path as well, for as long as no other worker has to do with that path. Checkpoints are not: a script
    that looks for its newest or best one is to find worker 0's.
    """

    def __init__(self, saves: Saves, outside: frozenset[str]) -> None:
        self.saves = saves
        self.touched = saves.touched
        self._outside = outside
        self._here = os.path.realpath(os.getcwd())

    def looks_after(self, name: str) -> bool:
        """Whether the path is not outside: the nearest folder above it that says so decides."""
        made = False
        here = {self._here}
        with suppress(OSError):  # it may be gone
            here.add(os.getcwd())
        for folder in upwards(name):
            if folder in here:
                return True
            if folder in self._outside:
                return False
            if self.touched.by("saved", folder):
                return True
            made = made or bool(self.touched.by("made", folder))
        return made

    def is_own(self, name: str) -> bool:
        """Whether this worker alone has touched the path, or else the nearest one above it that has been touched."""
        nearest = next((one for one in upwards(name) if self.touched.by("touched", one)), name)
        return self.touched.by("touched", nearest) == [self.touched.worker]

    def spares(self, path: Any) -> bool:
        """Whether to remove the path, or to move it away, does nothing: it is another's, or another has removed it."""
        if not is_path(path):
            return False
        name = name_of(path)
        there = _lexists(name) or self.may_have_removed(name)
        made = self.touched.by("made", name)  # a folder of this run is looked after wherever it is
        spared = there and self.looks_after(name) and not self.is_own(name)
        if spared or (made and self.touched.worker not in made):
            self.touched.gone.add(name)
            return True
        return False

    @contextmanager
    def apart(self, path: Any) -> Iterator[None]:
        """Let no other worker begin to use that path meanwhile, if it is looked after."""
        with self.touched.apart() if is_path(path) and self.looks_after(name_of(path)) else nullcontext():
            yield

    def may_have_removed(self, name: str) -> bool:
        """Whether it may be another's doing that the path is not there."""
        return bool(self.touched.others("touched", name)) or not self._with_first()

    def was_there(self, name: str) -> bool:
        """Whether there is something at the path that this worker has to mind, as it were alone."""
        return _lexists(name) and not self.touched.others("touched", name) and name not in self.touched.gone

    def place(self, path: Any) -> str | None:
        """Where this worker makes something at the path: in an existing folder of its own. None: at the path itself."""
        if not is_path(path):
            return None
        name = name_of(path)
        if not self.looks_after(name) or not self.saves.has_folder(os.path.dirname(name)):
            return None
        if not self._with_first() and not is_checkpoint(name) and (self.is_own(name) or not self._is_of_this_run(name)):
            return None
        place = self.saves.place_of(name)
        ensure(os.path.dirname(place))
        return place

    def _with_first(self) -> bool:
        """Whether worker 0 notes what it makes. On another host nothing is known of its files, if it has any there."""
        return bool(self.touched.by("first", ""))

    @staticmethod
    def _is_of_this_run(name: str) -> bool:
        """Whether there is something at the path that was written since the run began here."""
        try:
            return os.lstat(name).st_mtime >= BEGAN
        except FileNotFoundError:
            return False

    def show(self, path: Any) -> None:
        """Show what this worker has made at the path itself, unless another has to do with it."""
        name = name_of(path)
        place = self.saves.place_of(name)
        with self.touched.apart(), suppress(OSError):
            if place != name and self.looks_after(name) and self._with_first():
                self._show(place, name)

    def _show(self, place: str, name: str) -> None:
        own = self.touched.by("touched", name) == [self.touched.worker]
        self.touched.note("touched", name)
        if is_checkpoint(name) or self.touched.others("touched", name) or self.touched.emptied_by_another(name):
            return
        if any(self.touched.others("moved", folder) for folder in upwards(name)):
            return
        if _isdir(place) and not _islink(place):
            ensure(name)
            for entry in os.listdir(place):
                self._show(os.path.join(place, entry), os.path.join(name, entry))
            return
        if _same(place, name) or (self._is_of_this_run(name) and not own):
            return
        beside = f"{name}.{os.getpid()}" if _lexists(name) else name  # what was there before the run is overwritten
        if _islink(place):
            _symlink(os.readlink(place), beside)
        else:
            try:
                _link(place, beside)
            except OSError:  # on another disk
                _symlink(place, beside)
        if beside != name:
            _replace(beside, name)

    def clear(self, path: Any) -> None:
        """Before this worker writes a file of its own anew: who has the old one open, or a link to it, keeps that."""
        place = self.saves.held(path)
        if place is not None and not _isdir(place):
            self.hide(path)
            with suppress(OSError):
                _remove(place)

    def hide(self, path: Any) -> None:
        """Before this worker moves or removes what it has made: show it no longer."""
        name = name_of(path)
        place = self.saves.place_of(name)
        with self.touched.apart(), suppress(OSError):
            if place != name and not self.touched.emptied_by_another(name):
                self._hide(place, name)

    def _hide(self, place: str, name: str) -> None:
        if _isdir(place) and not _islink(place):
            for entry in os.listdir(place):
                self._hide(os.path.join(place, entry), os.path.join(name, entry))
        elif _islink(name) and self.touched.others("touched", name):  # another's link may say the same
            return
        elif _same(place, name) or (_islink(name) and os.readlink(name) == place):
            _remove(name)

    def is_shared(self, path: Any) -> bool:
        """Whether other workers, too, may have touched what is below the path."""
        return not self._with_first() or any(
            self.touched.others("touched", name) for name in self.touched.below("touched", name_of(path))
        )

    def remove_tree(self, path: Any) -> None:
        """Remove what is this worker's own at and below the path, with the folders of it that are then empty."""
        name = name_of(path)
        for own in [name] if self.is_own(name) else self.touched.below("touched", name):
            if self.is_own(own):
                self._prune(own)

    def _prune(self, name: str) -> None:
        with suppress(FileNotFoundError):
            if _isdir(name) and not _islink(name):
                for entry in os.listdir(name):
                    self._prune(os.path.join(name, entry))
                with suppress(OSError):  # another's file is left in it
                    if self.is_own(name):
                        _rmdir(name)
            elif self.is_own(name):
                _remove(name)


class Witness:
    """Notes what this worker makes, moves and removes: an audit hook, for which no function is replaced.

    The first worker's own files are where its script says. So where another worker was first, the first worker takes
    that one's file out of the way, before it makes its own.
    """

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._first = ownership.touched.worker == 0
        self._mine = threading.local()
        self._seen: dict[str, Callable[..., None]] = {
            "open": self._opens,
            "os.mkdir": lambda path, mode, folder: self._makes(path, folder),
            "os.rename": self._renames,
            "os.link": lambda src, dst, source, folder: self._makes(dst, folder, clears=True),
            "os.symlink": lambda src, dst, folder: self._makes(dst, folder, clears=True),
            "os.remove": self._removes,
            "os.rmdir": self._empties,
            "shutil.move": self._moves,
            "shutil.rmtree": lambda path, folder=None: self._empties(path, -1 if folder is None else folder),
        }

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`."""
        if event not in self._seen or getattr(self._mine, "looks", False):
            return
        self._mine.looks = True  # what is done here is an event, too
        try:
            with suppress(OSError, ValueError, TypeError):  # of a path that is none; the call itself says so
                self._seen[event](*arguments)
        finally:
            self._mine.looks = False

    def _opens(self, path: Any, mode: str | None, flags: int) -> None:
        if flags & os.O_ACCMODE != os.O_RDONLY and is_path(path):
            self._makes(os.path.realpath(os.fsdecode(path)), anew=bool(flags & os.O_TRUNC), clears=bool(flags & ANEW))

    def _renames(self, src: Any, dst: Any, source: int, folder: int) -> None:
        self._empties(src, source)
        name = self._name(dst, folder)
        if name is not None and self._first and _isdir(src):
            self._ownership.touched.note("moved", name)
        self._makes(dst, folder, anew=True, clears=True)

    def _moves(self, src: Any, dst: Any) -> None:
        self._makes(os.path.join(dst, os.path.basename(os.fspath(src))) if _isdir(dst) else dst, clears=True)

    def _makes(self, path: Any, folder: int = -1, anew: bool = False, clears: bool = False) -> None:
        name = self._name(path, folder)
        if name is None or not (self._first or anew or not _lexists(name)):
            return
        touched = self._ownership.touched
        if touched.worker in touched.by("touched", name):
            return
        with touched.apart():
            touched.note("touched", name)
            if self._first and clears and _lexists(name):
                self._clear(name)

    def _clear(self, name: str) -> None:
        touched = self._ownership.touched
        places = [f"{touched.own[worker]}{name}" for worker in touched.others("touched", name) if worker in touched.own]
        for place in places:
            if _same(name, place) or (_islink(name) and os.readlink(name) == place):
                _remove(name)
                return
        if places:
            carry(name, places[0])

    def _removes(self, path: Any, folder: int) -> None:
        name = self._name(path, folder) if self._first else None
        if name is not None:
            self._ownership.touched.note("touched", name)

    def _empties(self, path: Any, folder: int) -> None:
        name = self._name(path, folder) if self._first else None
        if name is not None:
            with self._ownership.touched.apart():
                self._ownership.touched.note("touched", name)
                if _isdir(name):
                    self._ownership.touched.note("emptied", name)

    def _name(self, path: Any, folder: int) -> str | None:
        """The path's name, if it is looked after; not by a name in an open folder."""
        if folder != -1 or not is_path(path):
            return None
        name = name_of(path)
        return name if f"/{UNFINISHED}" not in name and self._ownership.looks_after(name) else None
