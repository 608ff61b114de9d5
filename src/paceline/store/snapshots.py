"""The files of a snapshot that have tensors: their contents, and how they are written and read.

`store.safetensors`      the store's state: the version's parameters, the fixed part, buffers, the optimizer's state
`replica-W.safetensors`  a worker's replica, where workers own replicas
`worker-W.safetensors`   what a worker's script keeps
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from paceline.errors import ConfigError
from paceline.files import to_disk
from paceline.ipc.channel import path_of
from paceline.store.chunks import Chunk, PartState, State
from paceline.training.packing import Pieces, Tree, load, pieces, save


@dataclass(frozen=True, slots=True, kw_only=True)
class OfStore:
    """The store's state at a version."""

    parameters: dict[str, Tensor]
    """The version's parameters. Empty where workers own replicas."""
    fixed: dict[str, Tensor]
    """See `training.layout`."""
    buffers: dict[int, dict[str, Tensor]]
    """By worker, as of its last update in the version."""
    state: State
    """The optimizer's."""
    groups: list[dict[str, Tree]]
    """As in `shares.Whole`."""
    attributes: dict[str, Tree]
    """As in `shares.Whole`."""
    told: list[dict[str, Any]]
    """As in `shares.Whole`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfReplica:
    """A worker's replica."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfWorker:
    """What a worker's script keeps, and what its optimizer has."""

    kept: dict[str, Tree] = field(default_factory=dict)
    """Each kept object's `state_dict()`, by its name."""
    groups: list[dict[str, Tree]] = field(default_factory=list)
    """The script's parameter groups, without parameters."""
    state: State | None = None
    """The optimizer's, where the worker steps it."""
    attributes: dict[str, Tree] = field(default_factory=dict)
    """As in `shares.Whole`, where the worker steps the optimizer."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """The model's, for a worker that joins. A snapshot has buffers in its other files."""
    residual: tuple[int, Tensor] | None = None
    """What encoding has lost of that worker's pushes, without those that no version has. See `training.residual`."""
    own: tuple[int, int, list[Tensor]] | None = None
    """The worker, and what `Holder.own` has returned."""


class StateSnapshot:
    """The optimizer's state of one version, copied part by part while later versions are made.

    The writer and the next commit, before its step, both need a copy of each part. Whichever comes first makes it, and
    the other waits for that part only.
    """

    def __init__(
        self,
        parts: Sequence[Chunk],
        *,
        groups: list[dict[str, Any]],
        attributes: dict[str, Any],
        told: list[dict[str, Any]],
        buffers: dict[int, dict[str, Tensor]],
        copied: bool = True,
    ) -> None:
        """Everything but the parts' state is small, and is copied by the caller. See `OfStore`."""
        self._copied = copied
        self.groups, self.attributes, self.told, self.buffers = groups, attributes, told, buffers
        self.apart = [part.first for part in parts if part.is_split]
        """See `shares.StateShare`."""
        self._parts = parts
        self._locks = {id(part): threading.Lock() for part in parts}
        self._taken: dict[int, PartState] = {}

    def take(self, part: Chunk) -> None:
        """Copy the part's state unless it is copied. A part that was added later is not in the snapshot."""
        if id(part) not in self._locks:
            return
        with self._locks[id(part)]:
            if id(part) not in self._taken:
                self._taken[id(part)] = part.state(copied=self._copied)

    def states(self) -> Iterator[PartState]:
        """Yield each part's state as it was. A state is freed when the next one is requested."""
        for part in self._parts:
            self.take(part)
            state, self._taken[id(part)] = self._taken[id(part)], []
            yield state


Kind = TypeVar("Kind", OfStore, OfReplica, OfWorker)


def pack(part: OfWorker) -> Pieces:
    """Pack a worker's part. Raises ConfigError if that fails. See `packing.pieces`."""
    return pieces(_tree(part), "the worker")


def taken(descriptor: int, *, copied: bool = True) -> OfWorker:
    """Unpack the result of `pack` from the file that came along with a message, and close that.

    `copied`: see `packing.load`.
    """
    with path_of(descriptor) as file:
        return OfWorker(**load(file, copied=copied))


def write(file: Path, part: OfStore | OfReplica) -> str:
    """Write the file, and wait until it is on disk. Return its SHA-256. Raises ConfigError if packing fails."""
    save(_tree(part), "the snapshot", file)
    return _finished(file)


def write_packed(file: Path, descriptor: int) -> str:
    """Write what a worker has packed into the descriptor's file. See `write`."""
    with open(descriptor, "rb", closefd=False) as packing, open(file, "wb") as out:
        packing.seek(0)
        shutil.copyfileobj(packing, out, 1 << 20)
    return _finished(file)


def read(kind: type[Kind], file: Path) -> Kind:
    """Read a file that `write` has written."""
    return kind(**load(file))


def put(values: dict[str, Tensor], places: dict[str, Tensor]) -> None:
    """Copy the values into the tensors of the same names. Raises ConfigError if names or shapes differ."""
    for name, place in places.items():
        value = values.get(name)
        if value is None or (value.dtype, value.shape) != (place.dtype, place.shape):
            there = "is not there" if value is None else f"is {value.dtype} {list(value.shape)} there"
            raise ConfigError(
                f'the snapshot is of another model: "{name}", {place.dtype} {list(place.shape)} here, {there}'
            )
        place.copy_(value)


def _tree(part: OfStore | OfReplica | OfWorker) -> Tree:
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


def _finished(file: Path) -> str:
    file.chmod(file.parent.stat().st_mode & 0o666)  # as all files of the run; safetensors makes it private
    to_disk(file)
    with file.open("rb") as written:
        return hashlib.file_digest(written, "sha256").hexdigest()
