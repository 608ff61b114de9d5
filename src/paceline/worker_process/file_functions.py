"""What takes the place of functions that read and write files, in a worker. `patches` says which ones, and why.

Each function here is given a function of Python or torch as it is, and returns what takes its place.
"""

from __future__ import annotations

import errno
import functools
import inspect
import io
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.worker_process.ownership import Ownership, carry, outside
from paceline.worker_process.saves import Saves, is_checkpoint, is_path, name_of
from paceline.worker_process.touched import Touched

# these call the functions as they were before the patches
_lexists, _isdir, _isfile = os.path.lexists, os.path.isdir, os.path.isfile
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """What the functions that take the place of a script's go by, in one worker."""

    saves: Saves
    ownership: Ownership
    say: Callable[[str], None]
    """Tell the user what this worker does."""

    @classmethod
    def of(cls, worker: int, run: Path, notes: int, say: Callable[[str], None]) -> WorkerFiles:
        """For a worker of the run in that folder. In `notes` all workers of this machine note what they make."""
        touched, own = Touched(worker, notes), own_folder(run, worker)
        if worker:
            touched.note("own", str(own.absolute()))
        saves = Saves(own if worker else None, touched)
        return cls(saves, Ownership(saves, outside(run)), say)

    @property
    def first(self) -> bool:
        """Whether this is worker 0, whose files are where its script says."""
        return self.saves.touched.worker == 0


def own_folder(run: Path, worker: int) -> Path:
    """Where what that worker makes is, in the run's folder."""
    return run / f"worker-{worker}" / "saved"


def saving(files: WorkerFiles, original: Call, parameter: str) -> Call:
    """For a function that writes to its second argument: a path, or a file that the script has opened.

    `open` has emptied such a file before `torch.save` hears of it. One line says so if its name is not a checkpoint's.
    """
    process = os.getpid() if files.saves.touched.worker == 1 else None  # the others would say the same

    def save(*arguments: Any, **named: Any) -> Any:
        nonlocal process
        by_name = parameter in named
        path = named[parameter] if by_name else arguments[1] if len(arguments) > 1 else None
        if files.saves.may_replace(path):
            with files.saves.writing(path) as file:
                if by_name:
                    return original(*arguments, **{**named, parameter: file})
                return original(arguments[0], file, *arguments[2:], **named)
        name = getattr(path, "name", None) if isinstance(path, io.BufferedIOBase) else None
        here = process == os.getpid()  # a process that the script forks has no word with the coordinator
        if here and isinstance(name, str | bytes) and _isfile(name) and not is_checkpoint(name):
            process = None
            files.say(
                f"saves to {files.saves.said(name)!r}, a file that the script opened itself; where worker 0 writes it, "
                "too, the others' are in their own folders: save where paceline.is_main() is true, or call the file .pt"
            )
        return original(*arguments, **named)

    return save


def making(files: WorkerFiles, original: Call) -> Call:
    """For `os.mkdir`. A folder that another worker of the run has just made is there for every worker that makes it.

    Scripts name a folder by the time, or find that it isn't there, and make it. `os.mkdir`, `os.makedirs` and
    `Path.mkdir` raise FileExistsError in every worker but the first. A script that runs alone never meets that. So each
    worker notes a folder that isn't there before it makes it. Where another worker has noted the same folder, making it
    is no error. Nor is it where the worker has removed the folder, and it stayed as it is another's. A folder that was
    there before the run is an error, and so is a folder that the worker has made itself. A folder that others have
    moved or removed since is this worker's alone, and not shown.
    """
    touched = files.saves.touched

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:  # a name in another folder
            original(path, mode, dir_fd=dir_fd)
            return
        name = os.path.realpath(os.fsdecode(path))
        moved = not files.first and (touched.others("touched", name) or not _isdir(os.path.dirname(name)))
        if moved and not _lexists(name) and files.ownership.place(name):
            if name in touched.folders:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            touched.folders.add(name)
            return
        with touched.apart():  # so that who finds the folder there finds the note of it, too
            if not _lexists(name):
                touched.note("made", name)
            known = name in touched.folders
            try:
                original(path, mode)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise
                touched.folders.add(name)
                if name not in touched.gone and (known or not touched.others("made", name)):
                    raise
            else:
                touched.note("made", name)  # another may have removed it since it was looked for
            touched.gone.discard(name)
            touched.folders.add(name)

    return mkdir


class Opening:
    """For `open`, in a worker that has a place of its own for what it saves.

    A file that is opened to be written anew is in the worker's own folder, as `open` empties it. If its name is not a
    checkpoint's, it is shown where the script says for as long as no other worker writes it. An object rather than a
    function: as an attribute of a class, it doesn't become a method, as `open` doesn't.
    """

    def __init__(self, files: WorkerFiles, original: Call) -> None:
        self._saves = files.saves
        self._open = original
        self._ownership = files.ownership
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
        place = self._ownership.place(real)
        if place is None or ("x" in mode and self._ownership.was_there(real)):
            return self._open(self._saves.found(path), *others, **named)
        if "w" in mode:
            self._ownership.clear(real)
        file = self._open(place, *others, **named)
        self._ownership.show(real)
        return file


def reading(files: WorkerFiles, original: Call, parameter: str) -> Call:
    """For a function that looks at its first argument."""

    def read(*arguments: Any, **named: Any) -> Any:
        if parameter in named:
            return original(*arguments, **{**named, parameter: files.saves.found(named[parameter])})
        return original(*(files.saves.found(path) for path in arguments[:1]), *arguments[1:], **named)

    return read


def asking(files: WorkerFiles, original: Call) -> Call:
    """For a method of `Path` that looks at its file."""
    return lambda path, *arguments, **named: original(Path(files.saves.found(path)), *arguments, **named)


def asking_for_any(files: WorkerFiles, original: Call) -> Call:
    """For a function that asks whether a file or a folder is there."""

    def ask(path: Any, **named: Any) -> bool:
        found = files.saves.found(path)
        there = original(Path(found) if isinstance(path, Path) else found, **named)
        return bool(there) or (is_path(path) and files.saves.has_folder(name_of(path)))

    return ask


def asking_for_folders(files: WorkerFiles, original: Call) -> Call:
    """For a function that asks whether a folder is there."""

    def ask(path: Any, **named: Any) -> bool:
        return bool(original(path, **named)) or (is_path(path) and files.saves.has_folder(name_of(path)))

    return ask


def measuring(files: WorkerFiles, original: Call) -> Call:
    """For a function that asks how old or large a file is. One that another worker has just removed is of no age."""

    def measure(filename: Any) -> Any:
        try:
            return original(files.saves.found(filename))
        except FileNotFoundError:
            if not files.ownership.may_have_removed(name_of(filename)):
                raise
            return 0

    return measure


def removing(files: WorkerFiles, original: Call) -> Call:
    """For a function that removes a file or an empty folder."""
    ownership = files.ownership

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:  # a name in another folder
            original(path, dir_fd=dir_fd)
            return
        if files.first:
            try:
                original(path)
            except FileNotFoundError:
                if not ownership.touched.others("touched", name_of(path)):  # else it was shown, and is no longer
                    raise
            return
        held = files.saves.held(path)
        ownership.touched.forget(name_of(path))
        if held is not None:
            ownership.hide(path)
            with suppress(*((OSError,) if _isdir(held) else ())):  # of a folder: what is in it is others', too
                original(held)
        with ownership.apart(path):
            if not ownership.spares(path) and (held is None or _lexists(path)):
                original(path)

    return remove


def emptying(files: WorkerFiles, original: Call) -> Call:
    """For `shutil.rmtree`, which goes by names in open folders: those are not looked after one by one."""
    ownership = files.ownership

    def rmtree(path: Any, *arguments: Any, **named: Any) -> None:
        if named.get("dir_fd") is not None:
            original(path, *arguments, **named)
            return
        held = files.saves.held(path)
        ownership.touched.forget(name_of(path))
        if held is not None:
            ownership.hide(path)
            original(held, ignore_errors=True)
        with ownership.apart(path):
            if ownership.spares(path) or ownership.is_shared(path):
                ownership.remove_tree(path)
            elif held is None or _lexists(path):
                original(path, *arguments, **named)

    return rmtree


def moving(files: WorkerFiles, original: Call) -> Call:
    """For a function that gives a file or folder another path."""
    ownership = files.ownership

    def move(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        if any(value is not None for key, value in named.items() if key.endswith("dir_fd")):
            return original(src, dst, *arguments, **named)
        to = _into(src, dst) if original.__name__ == "move" else dst
        held, spared, place = files.saves.held(src), ownership.spares(src), ownership.place(to)
        there = _lexists(src) and not spared
        if name_of(src) == name_of(to) or not (held or spared or (there and place)):
            return original(src, dst, *arguments, **named)
        if held is not None:
            ownership.hide(src)
        if place is not None and (held or there):
            ownership.clear(to)
        if held is not None:
            carry(held, place or name_of(to))
        with ownership.apart(src):
            if there and _lexists(src) and not ownership.spares(src):  # else it was shown there, or is another's now
                carry(name_of(src), place or name_of(to))
        ownership.touched.forget(name_of(src))
        if place is not None and (held or there):
            ownership.show(to)
        return to

    return move


def linking(files: WorkerFiles, original: Call) -> Call:
    """For a function that makes a link to a file. A relative one leads to what lies beside the worker's own link."""

    def link(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        place = files.ownership.place(dst) if not any(key.endswith("dir_fd") for key in named) else None
        if place is None or files.ownership.was_there(name_of(dst)):
            return original(src, dst, *arguments, **named)
        files.ownership.clear(dst)  # its own of before: whether it saw and removed that depends on others
        if original.__name__ == "symlink":
            original(files.saves.found(src) if os.path.isabs(src) else src, place, *arguments, **named)
        else:
            try:
                original(files.saves.found(src), place, *arguments, **named)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copy2(files.saves.found(src), place)
        return files.ownership.show(dst)

    return link


def copying(files: WorkerFiles, original: Call) -> Call:
    """For a function that copies a file. All but `copyfile` copy into a folder, if they are given one."""

    def copy(src: Any, dst: Any, **named: Any) -> Any:
        to = dst if original.__name__ == "copyfile" else _into(src, dst)
        place = files.ownership.place(to)
        if place is None:
            return original(files.saves.found(src), dst, **named)
        found = files.saves.found(src)
        if found != place:
            files.ownership.clear(to)
        original(found, place, **named)
        files.ownership.show(to)
        return to

    return copy


def copying_all(files: WorkerFiles, original: Call) -> Call:
    """For `shutil.copytree`: the folder, and what this worker has made of it."""

    options = list(inspect.signature(original).parameters)[2:]

    def copytree(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        named = dict(zip(options, arguments, strict=False)) | named  # it calls itself, and gives all by their places
        place, held = files.ownership.place(dst), files.saves.held(src)
        merged = named.get("dirs_exist_ok", False)
        if place is None or (files.ownership.was_there(name_of(dst)) and not merged):
            return original(src, dst, **named)
        with suppress(*((FileNotFoundError, shutil.Error) if files.ownership.is_shared(src) else ())):
            original(src, place, **named)  # another worker may remove files of it meanwhile
        if held is not None:
            original(held, place, **(named | {"dirs_exist_ok": True}))
        files.ownership.touched.folders.add(name_of(dst))
        files.ownership.show(dst)
        return dst

    return copytree


def _into(src: Any, dst: Any) -> Any:
    return os.path.join(dst, os.path.basename(os.fspath(src))) if _isdir(dst) else dst
