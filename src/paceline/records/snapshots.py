"""Snapshots of a run on disk, and the newest whole one.

A snapshot is a folder below `snapshots/`, named after the fact after which it was taken. It is written under another
name, and renamed when all of it is on disk. `state.json` has the digests of the other files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.phrases import error_line
from paceline.files import opened_record, read_record

SNAPSHOTS, STATE, STORE = "snapshots", "state.json", "store.safetensors"
FORMAT = 1
"""The number of the format, in `state.json`."""
KEPT = 2
"""Whole snapshots that a run keeps, in case the newest is damaged."""


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `state.json`: the run's state after a fact's orders."""

    format: int
    fact: int
    """How many facts the machine had been told."""
    version: int
    """The newest version that was ordered. If every worker has a replica: the number of recorded means."""
    at: float
    """Seconds since the run's start."""
    steps: int
    """Updates in the model."""
    samples: int
    """Samples in these updates."""
    memory: Any
    """The machine's durable memory."""
    leases: dict[str, Any]
    """See `core.leases.Leases.plain`."""
    epoch: int
    """The epoch that scripts go on in: the first with batches left, or one whose end a script has yet to see."""
    next_steps: dict[int, int]
    """By worker that trained: its next step number."""
    scalars: dict[int, list[dict[str, Any]]]
    """By worker: its optimizer's hyperparameters at its last push."""
    part: int = 0
    """The number of the protocol's part that decided."""
    edits: int = 0
    """How often scripts have changed the model's structure."""
    metrics: list[tuple[int, str]] = []
    """Each step of a ReduceLROnPlateau: which one, and its value in hexadecimal. Workers may lack the last ones."""
    shared_metrics: int = 0
    """How many of these were for other workers than the deciding one."""
    files: dict[str, str]
    """The SHA-256 of each of the snapshot's other files."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot."""

    folder: Path
    state: SnapshotState


def worker_file(worker: int) -> str:
    """Return the name of the file with this worker's state."""
    return f"worker-{worker}.safetensors"


def replica_file(worker: int) -> str:
    """Return the name of the file with this worker's replica."""
    return f"replica-{worker}.safetensors"


def folder_of(run: Path, fact: int) -> Path:
    """Return the folder of the snapshot after this fact's orders."""
    return run / SNAPSHOTS / f"{fact:08d}"


def draft_of(folder: Path) -> Path:
    """Return the folder in which a snapshot is written until it is whole."""
    return folder.with_name(f".{folder.name}.part")


def whole_of(draft: Path) -> Path:
    """Return the folder of this draft once it is whole."""
    return draft.with_name(draft.name.removeprefix(".").removesuffix(".part"))


def remove_undone(run: Path, fact: int) -> None:
    """Remove the snapshots after this fact, from which the run goes on. New facts will have the same numbers."""
    for folder in whole(run):
        if int(folder.name) > fact:
            folder.rename(draft_of(folder))  # so that a half removed one is not taken for whole
    remove_drafts(run)


def remove_drafts(run: Path) -> None:
    """Remove the drafts of snapshots that are no longer written."""
    for folder in (run / SNAPSHOTS).glob(".*.part"):
        shutil.rmtree(folder, ignore_errors=True)


def newest(run: Path, fits: Callable[[SnapshotState], str] = lambda state: "") -> tuple[Snapshot | None, list[str]]:
    """Return the run's newest whole snapshot, and a line on each newer one that is passed over.

    `fits` returns why a snapshot can't be used, or an empty string.
    """
    passed: list[str] = []
    for folder in whole(run):
        try:
            snapshot = read(folder)
            why = fits(snapshot.state)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            why = error_line(error)
        if not why:
            return snapshot, passed
        passed.append(f"{folder}: this snapshot can't be used ({why})")
    return None, passed


def whole(run: Path) -> Iterator[Path]:
    """Yield the folders of the run's whole snapshots, the newest first."""
    try:
        folders = [path for path in (run / SNAPSHOTS).iterdir() if path.name.isdecimal()]
    except OSError:
        return
    yield from sorted(folders, key=lambda path: int(path.name), reverse=True)  # a name may have more than 8 digits


def read(folder: Path) -> Snapshot:
    """Read a snapshot. Raises OSError, ValueError or a msgspec error if one of its files is damaged."""
    state = msgspec.json.decode(read_record(folder / STATE), type=SnapshotState)
    if state.format != FORMAT:
        raise ValueError(f"its format is {state.format}; this version of Paceline reads {FORMAT}")
    if f"{state.fact:08d}" != folder.name:
        raise ValueError(f"{STATE} is of the snapshot {state.fact:08d}")
    for name, digest in state.files.items():
        if Path(name).name != name:
            raise ValueError(f'"{name}" is not the name of a file in it')
        with opened_record(folder / name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{name} is damaged")
    return Snapshot(folder, state)
