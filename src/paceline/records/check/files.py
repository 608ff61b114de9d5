"""Checks the files of recorded versions against the hashes that were noted."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from paceline.core.phrases import count
from paceline.files import opened_record
from paceline.records.check.checking import Checking
from paceline.records.violations import FILE_HASH, FILE_NOTED, READABLE, Violation

ORDER = "parameters"
"""The metadata key of the parameters' names in the order of the hash, as `store.store` writes them."""
CHUNK = 1 << 20
MOST = 100_000_000
"""The longest header that the format allows, in bytes."""


def files(checking: Checking) -> None:
    """Check that every file in `versions` is a recorded version with its hash. A missing file is no inconsistency."""
    folder = checking.run.folder
    rows = checking.run.ledger.execute("SELECT version, sha256, file FROM versions ORDER BY rowid").fetchall()
    here = {file.name for file in (folder / "versions").glob("*.safetensors")}
    final, hashed, gone, unordered = "final.safetensors", 0, 0, 0
    names = {f"{version:08d}.safetensors": sha256 for version, sha256, _ in rows}
    for version, _, file in rows:
        if file != f"versions/{version:08d}.safetensors":
            raise Violation(FILE_NOTED, f"versions/{version:08d}.safetensors", file, "versions", version)
    stray = sorted(here - names.keys() - ({final} if rows else set()))
    if checking.completed and stray:
        raise Violation(FILE_NOTED, "files of recorded versions alone", stray[0], "versions/", None)
    if rows and final in here and not stray:  # a killed launcher may not have noted its last file
        names[final] = rows[-1][1]
    for name, noted in names.items():
        checking.table, checking.row = f"versions/{name}", None
        if name not in here:
            gone += name != final
            continue
        found = _sha256(folder / "versions" / name)
        if found is None:
            unordered += name != final
            continue
        hashed += name != final
        if found != noted:
            raise Violation(FILE_HASH, noted, found)
    if hashed and unordered:
        raise Violation(
            READABLE, "the order of parameters in every file", f"none in {unordered} of them", "versions/", None
        )
    if hashed:
        rest = f"; {count(gone, 'file')} {'is' if gone == 1 else 'are'} gone" if gone else ""
        checking.proved.append(f"{count(hashed, 'file')} in versions with the hashes that were noted{rest}")
    checking.counts["files"] = hashed


def _sha256(path: Path) -> str | None:
    """Return the SHA-256 of its parameters' raw bytes, in their order; None if the file has no order."""
    try:
        opened = opened_record(path)
    except OSError as error:
        raise Violation(READABLE, "a file", error.strerror) from None
    with opened as file:
        header = _header(file, os.fstat(file.fileno()).st_size)
        order = header.pop("__metadata__", {}).get(ORDER)
        if order is None:
            return None
        digest, start = hashlib.sha256(), file.tell()
        try:
            for name in json.loads(order):
                first, end = header[name]["data_offsets"]
                file.seek(start + first)
                _feed(digest, file, end - first)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise Violation(READABLE, "its parameters, and their order", f"{type(error).__name__}: {error}") from None
    return digest.hexdigest()


def _header(file: BinaryIO, size: int) -> dict[str, Any]:
    """Read a safetensors file's header: 8 bytes of length, and JSON."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MOST, size - 8):
        raise Violation(READABLE, "a safetensors file", f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(file.read(length))
        spans = sorted(tuple(one["data_offsets"]) for name, one in header.items() if name != "__metadata__")
        whole = all(before[1] == after[0] for before, after in pairwise(spans))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Violation(READABLE, "a safetensors file", f"{type(error).__name__}: {error}") from None
    if not whole or (spans and (spans[0][0] != 0 or spans[-1][1] != size - 8 - length)):
        raise Violation(READABLE, "tensors that fill the file", f"{len(spans)} that do not")
    return dict(header)


def _feed(digest: Any, file: BinaryIO, size: int) -> None:
    while size:
        data = file.read(min(CHUNK, size))
        if not data:
            raise ValueError("the file ends too early")
        digest.update(data)
        size -= len(data)
