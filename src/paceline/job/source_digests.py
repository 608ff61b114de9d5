"""The user's own code: the modules that a script has imported from its folder, and the SHA-256 of each."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from pathlib import Path

INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders with packages that were installed: a script's folder may have an environment in it."""


def digests(script: Path, before: Collection[str]) -> dict[str, str]:
    """By file, relative to the script's folder: the SHA-256 of what was imported from there until now.

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
            except OSError:  # imported from what is no file any more
                continue
    return dict(sorted(found.items()))
