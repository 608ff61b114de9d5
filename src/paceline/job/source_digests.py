"""The user's own code: the modules that a script has imported from its folder, and the SHA-256 of each."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from pathlib import Path

INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of installed packages, as a script's folder may contain an environment."""


def digests(script: Path, before: Collection[str]) -> dict[str, str]:
    """Return the SHA-256 of each file imported from the script's folder so far, by its path relative to that folder.

    `before`: names of modules that were there before the script began. torch alone imports a thousand.
    """
    folder = script.resolve().parent
    found = {}
    for name, module in list(sys.modules.items()):
        file = None if name in before else getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path == script.resolve() or not path.is_relative_to(folder):
            continue
        inside = path.relative_to(folder)
        if not INSTALLED.intersection(inside.parts):
            try:
                found[str(inside)] = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:  # the file is gone
                continue
    return dict(sorted(found.items()))
