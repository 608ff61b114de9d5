"""What of a script is replaced in a worker, and why: `REPLACED` is the whole table.

The first worker saves whole files, and shares folders with the others. All else is for the others: what they save is in
a folder of their own, and they take no file away that is another's (see `saves` and `ownership`). The patches are made
in the worker's process alone, before its script runs. Listing and `stat` are as they were.
"""

from __future__ import annotations

import builtins
import errno
import functools
import inspect
import io
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch

from paceline.worker_process.folders import Folders
from paceline.worker_process.opens import Opening, Remark
from paceline.worker_process.ownership import Ownership, Witness, carry, outside
from paceline.worker_process.saves import Saves, is_path, name_of

# these call the functions as they were before the patches
_lexists, _isdir = os.path.lexists, os.path.isdir
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hands:
    """What the functions that take a script's functions' places go by. `first`: whether this is worker 0."""

    first: bool
    folders: Folders
    saves: Saves
    ownership: Ownership


def _saving(hands: Hands, original: Call, parameter: str) -> Call:
    """For a function that writes to its second argument."""

    def save(*arguments: Any, **named: Any) -> Any:
        by_name = parameter in named
        path = named[parameter] if by_name else arguments[1] if len(arguments) > 1 else None
        if not hands.saves.may_replace(path):
            return original(*arguments, **named)
        with hands.saves.writing(path) as file:
            if by_name:
                return original(*arguments, **{**named, parameter: file})
            return original(arguments[0], file, *arguments[2:], **named)

    return save


def _making(hands: Hands, original: Call) -> Call:
    """For `os.mkdir`. A folder that others have moved or removed since is this worker's alone, and not shown."""
    touched = hands.ownership.touched
    if hands.first:
        return hands.folders.make

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = os.path.realpath(os.fsdecode(path)) if dir_fd is None and is_path(path) else None
        moved = name is not None and (touched.others("touched", name) or not _isdir(os.path.dirname(name)))
        if name is None or not moved or _lexists(name) or not hands.ownership.place(name):
            hands.folders.make(path, mode, dir_fd=dir_fd)
            return
        if name in touched.folders:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        touched.folders.add(name)

    return mkdir


def _opening(hands: Hands, original: Call) -> Call:
    return Opening(hands.saves, original, hands.ownership)


def _reading(hands: Hands, original: Call, parameter: str) -> Call:
    """For a function that looks at its first argument."""

    def read(*arguments: Any, **named: Any) -> Any:
        if parameter in named:
            return original(*arguments, **{**named, parameter: hands.saves.found(named[parameter])})
        return original(*(hands.saves.found(path) for path in arguments[:1]), *arguments[1:], **named)

    return read


def _asking(hands: Hands, original: Call) -> Call:
    """For a method of `Path` that looks at its file."""
    return lambda path, *arguments, **named: original(Path(hands.saves.found(path)), *arguments, **named)


def _asking_for_any(hands: Hands, original: Call) -> Call:
    """For a function that asks whether a file or a folder is there."""

    def ask(path: Any, **named: Any) -> bool:
        found = hands.saves.found(path)
        there = original(Path(found) if isinstance(path, Path) else found, **named)
        return bool(there) or (is_path(path) and hands.saves.has_folder(name_of(path)))

    return ask


def _asking_for_folders(hands: Hands, original: Call) -> Call:
    """For a function that asks whether a folder is there."""

    def ask(path: Any, **named: Any) -> bool:
        return bool(original(path, **named)) or (is_path(path) and hands.saves.has_folder(name_of(path)))

    return ask


def _measuring(hands: Hands, original: Call) -> Call:
    """For a function that asks how old or large a file is. One that another worker has just removed is of no age."""

    def measure(filename: Any) -> Any:
        try:
            return original(hands.saves.found(filename))
        except FileNotFoundError:
            if not hands.ownership.may_have_removed(name_of(filename)):
                raise
            return 0

    return measure


def _removing(hands: Hands, original: Call) -> Call:
    """For a function that removes a file or an empty folder."""
    ownership = hands.ownership

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:  # a name in another folder
            original(path, dir_fd=dir_fd)
            return
        if hands.first:
            try:
                original(path)
            except FileNotFoundError:
                if not ownership.touched.others("touched", name_of(path)):  # else it was shown, and is no longer
                    raise
            return
        held = hands.saves.held(path)
        ownership.touched.forget(name_of(path))
        if held is not None:
            ownership.hide(path)
            with suppress(*((OSError,) if _isdir(held) else ())):  # of a folder: what is in it is others', too
                original(held)
        with ownership.apart(path):
            if not ownership.spares(path) and (held is None or _lexists(path)):
                original(path)

    return remove


def _emptying(hands: Hands, original: Call) -> Call:
    """For `shutil.rmtree`, which goes by names in open folders: those are not looked after one by one."""
    ownership = hands.ownership

    def rmtree(path: Any, *arguments: Any, **named: Any) -> None:
        if named.get("dir_fd") is not None:
            original(path, *arguments, **named)
            return
        held = hands.saves.held(path)
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


def _moving(hands: Hands, original: Call) -> Call:
    """For a function that gives a file or folder another path."""
    ownership = hands.ownership

    def move(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        if any(value is not None for key, value in named.items() if key.endswith("dir_fd")):
            return original(src, dst, *arguments, **named)
        to = _into(src, dst) if original.__name__ == "move" else dst
        held, spared, place = hands.saves.held(src), ownership.spares(src), ownership.place(to)
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


def _linking(hands: Hands, original: Call) -> Call:
    """For a function that makes a link to a file. A relative one leads to what lies beside the worker's own link."""

    def link(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        place = hands.ownership.place(dst) if not any(key.endswith("dir_fd") for key in named) else None
        if place is None or hands.ownership.was_there(name_of(dst)):
            return original(src, dst, *arguments, **named)
        hands.ownership.clear(dst)  # its own of before: whether it saw and removed that depends on others
        if original.__name__ == "symlink":
            original(hands.saves.found(src) if os.path.isabs(src) else src, place, *arguments, **named)
        else:
            try:
                original(hands.saves.found(src), place, *arguments, **named)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copy2(hands.saves.found(src), place)
        return hands.ownership.show(dst)

    return link


def _copying(hands: Hands, original: Call) -> Call:
    """For a function that copies a file. All but `copyfile` copy into a folder, if they are given one."""

    def copy(src: Any, dst: Any, **named: Any) -> Any:
        to = dst if original.__name__ == "copyfile" else _into(src, dst)
        place = hands.ownership.place(to)
        if place is None:
            return original(hands.saves.found(src), dst, **named)
        found = hands.saves.found(src)
        if found != place:
            hands.ownership.clear(to)
        original(found, place, **named)
        hands.ownership.show(to)
        return to

    return copy


def _copying_all(hands: Hands, original: Call) -> Call:
    """For `shutil.copytree`: the folder, and what this worker has made of it."""

    options = list(inspect.signature(original).parameters)[2:]

    def copytree(src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        named = dict(zip(options, arguments, strict=False)) | named  # it calls itself, and gives all by their places
        place, held = hands.ownership.place(dst), hands.saves.held(src)
        merged = named.get("dirs_exist_ok", False)
        if place is None or (hands.ownership.was_there(name_of(dst)) and not merged):
            return original(src, dst, **named)
        with suppress(*((FileNotFoundError, shutil.Error) if hands.ownership.is_shared(src) else ())):
            original(src, place, **named)  # another worker may remove files of it meanwhile
        if held is not None:
            original(held, place, **(named | {"dirs_exist_ok": True}))
        hands.ownership.touched.folders.add(name_of(dst))
        hands.ownership.show(dst)
        return dst

    return copytree


def _into(src: Any, dst: Any) -> Any:
    return os.path.join(dst, os.path.basename(os.fspath(src))) if _isdir(dst) else dst


class Patch(NamedTuple):
    """Functions that are replaced in the same way."""

    of: tuple[Any, ...]
    """The modules, or the class, that have them."""
    names: tuple[str, ...]
    by: Call
    why: str
    first: bool = False
    """Whether this holds for worker 0, too."""


F, FILENAME, PATH = (functools.partial(_reading, parameter=name) for name in ("f", "filename", "path"))
REPLACED = (
    Patch((torch, torch.serialization), ("save",), functools.partial(_saving, parameter="f"), "files are whole", True),
    Patch((safetensors.torch,), ("save_file",), functools.partial(_saving, parameter="filename"), "the same", True),
    Patch((os,), ("mkdir",), _making, "a folder that another worker has just made is there for all", True),
    Patch((os,), ("remove", "unlink"), _removing, "no worker takes another's file away, or misses one", True),
    Patch((os.path,), ("getsize", "getmtime", "getctime"), _measuring, "the same", True),
    Patch((os,), ("rmdir",), _removing, "the same"),
    Patch((shutil,), ("rmtree",), _emptying, "the same"),
    Patch((os,), ("rename", "replace"), _moving, "the same, and none is overwritten"),
    Patch((shutil,), ("move",), _moving, "the same"),
    Patch((os,), ("link", "symlink"), _linking, "none is overwritten, and a path that another has taken is no error"),
    Patch((shutil,), ("copyfile", "copy", "copy2"), _copying, "the same"),
    Patch((shutil,), ("copytree",), _copying_all, "the same"),
    Patch((builtins, io), ("open",), _opening, "the same; it finds its own"),
    Patch((torch, torch.serialization), ("load",), F, "it finds its own"),
    Patch((safetensors, safetensors.torch), ("safe_open",), FILENAME, "the same"),
    Patch((os.path,), ("isfile",), PATH, "the same"),
    Patch((Path,), ("is_file",), _asking, "the same"),
    Patch((os.path,), ("exists",), _asking_for_any, "the same"),
    Patch((Path,), ("exists",), _asking_for_any, "the same"),
    Patch((os.path,), ("isdir",), _asking_for_folders, "the same"),
    Patch((Path,), ("is_dir",), _asking_for_folders, "the same"),
)


def own_folder(run: Path, worker: int) -> Path:
    """Where what that worker makes is, in the run's folder."""
    return run / f"worker-{worker}" / "saved"


def hands_of(worker: int, run: Path, notes: int) -> Hands:
    """For a worker of the run in that folder. In `notes` all workers of this machine note what they make."""
    folders = Folders(worker, notes, os.mkdir)
    saves = Saves(own_folder(run, worker) if worker else None, folders.touched)
    if worker:
        folders.touched.note("own", str(own_folder(run, worker).absolute()))
    return Hands(worker == 0, folders, saves, Ownership(saves, folders.touched, outside(run)))


def replacement(row: Patch, name: str, hands: Hands) -> Any:
    """What takes the place of the function of that name."""
    original = getattr(row.of[0], name)
    patched = row.by(hands, original)
    if isinstance(patched, FunctionType):
        functools.update_wrapper(patched, original, updated=())
    return patched


def install(worker: int, run: Path, notes: int, say: Callable[[str], None]) -> None:
    """Replace what `REPLACED` says for this worker, in this process and in what is forked from it.

    `say` tells the user what this worker does.
    """
    hands = hands_of(worker, run, notes)
    for row in REPLACED:
        for name in row.names if row.first or not hands.first else ():
            patched = replacement(row, name, hands)
            for owner in row.of:
                setattr(owner, name, patched)
    if worker == 1:  # the others would say the same
        torch.save = torch.serialization.save = Remark(hands.saves, say, torch.save)
    sys.addaudithook(Witness(hands.ownership, hands.first))
