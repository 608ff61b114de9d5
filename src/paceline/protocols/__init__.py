"""One file for each system. The registry reads this folder, so a file alone adds a protocol."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from paceline.core.machine import Spec


@cache
def registry() -> dict[str, Spec]:
    """Every protocol's `SPEC`, by its name on the command line, in alphabetical order."""
    modules = (importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__))
    return {spec.name: spec for spec in sorted((module.SPEC for module in modules), key=lambda spec: spec.name)}
