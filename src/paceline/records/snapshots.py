"""Snapshots of a run on disk: what each says, and the newest one that is whole.

A snapshot is a folder below `snapshots/`, named after the fact at whose end it was taken. It is written under another
name, and gets this one when all of it is on disk. `state.json` has the digests of the other files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.files import opened_record, read_record

SNAPSHOTS, STATE, STORE = "snapshots", "state.json", "store.safetensors"
FORMAT = 1
"""The number of the format, in `state.json`."""
KEPT = 2
"""How many whole snapshots a run keeps: if the newest is damaged, there is another one."""


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `state.json` says: how things were at the end of a fact's orders."""

    format: int
    fact: int
    """How many facts the machine had been told."""
    version: int
    """The newest version that was ordered; where every worker has a replica, the number of recorded means."""
    at: float
    """When, in seconds since the run's start."""
    steps: int
    """Updates in the model."""
    samples: int
    """Samples in these."""
    memory: Any
    """What the machine declares durable."""
    leases: dict[str, Any]
    """See `core.leases.Leases.plain`."""
    epoch: int
    """The epoch that scripts go on in: the first that has batches left, or one whose end a script has yet to see."""
    next_steps: dict[int, int]
    """By worker that trained: its next step number."""
    scalars: dict[int, list[dict[str, Any]]]
    """By worker: its optimizer's hyperparameters as of its last push."""
    edits: int = 0
    """How often scripts had changed the model's structure."""
    metrics: list[tuple[int, str]] = []
    """Which ReduceLROnPlateau was stepped by what: a number in hexadecimal. Some workers may lack the last ones."""
    shared_metrics: int = 0
    """How many of these were for other workers than the deciding one by then."""
    files: dict[str, str]
    """The snapshot's other files, and the SHA-256 of each."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is whole."""

    folder: Path
    state: State


def worker_file(worker: int) -> str:
    """The name of the file with what that worker packed."""
    return f"worker-{worker}.safetensors"


def replica_file(worker: int) -> str:
    """The name of the file with that worker's replica."""
    return f"replica-{worker}.safetensors"


def folder_of(run: Path, fact: int) -> Path:
    """The folder of the snapshot that was taken at the end of that fact's orders."""
    return run / SNAPSHOTS / f"{fact:08d}"


def draft_of(folder: Path) -> Path:
    """Where a snapshot is written until it is whole."""
    return folder.with_name(f".{folder.name}.part")


def whole_of(draft: Path) -> Path:
    """Where that draft is once it is whole."""
    return draft.with_name(draft.name.removeprefix(".").removesuffix(".part"))


def remove_undone(run: Path, fact: int) -> None:
    """Remove all that was kept after that fact, from which the run goes on: other facts will have the same numbers."""
    for folder in whole(run):
        if int(folder.name) > fact:
            folder.rename(draft_of(folder))  # not whole any more, even if it is not removed to its end
    remove_drafts(run)


def remove_drafts(run: Path) -> None:
    """Remove what is there of snapshots that nobody writes any more."""
    for folder in (run / SNAPSHOTS).glob(".*.part"):
        shutil.rmtree(folder, ignore_errors=True)


def newest(run: Path, fits: Callable[[State], str] = lambda state: "") -> tuple[Snapshot | None, list[str]]:
    """Return the newest whole snapshot of that run, and a line on each newer one that is passed over.

    `fits` says why a snapshot can't be used; empty if it can.
    """
    passed: list[str] = []
    for folder in whole(run):
        try:
            snapshot = read(folder)
            why = fits(snapshot.state)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
        if not why:
            return snapshot, passed
        passed.append(f"{folder}: this snapshot can't be used ({why})")
    return None, passed


def whole(run: Path) -> Iterator[Path]:
    """The folders of that run's snapshots that were written to their end, the newest first."""
    try:
        folders = [path for path in (run / SNAPSHOTS).iterdir() if path.name.isdecimal()]
    except OSError:
        return
    yield from sorted(folders, key=lambda path: int(path.name), reverse=True)  # a name may have more than 8 digits


def read(folder: Path) -> Snapshot:
    """Read a snapshot. Raises OSError, ValueError or a msgspec error if a file of it is not as it was written."""
    state = msgspec.json.decode(read_record(folder / STATE), type=State)
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
