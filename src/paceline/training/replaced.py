"""Functions that are replaced in a process that trains, and put back. `worker_process.patches` lists them all."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType, new_class
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """Functions that are replaced in the same way."""

    of: tuple[Any, ...]
    """The modules, or the class, that have them."""
    names: tuple[str, ...]
    by: Callable[..., Any]
    """Make of a function what takes its place."""
    why: str

    def replacement(self, name: str) -> Any:
        """Return what takes the place of the function of that name."""
        original = getattr(self.of[0], name)
        made = self.by(original)
        if isinstance(made, FunctionType) and not hasattr(made, "__wrapped__"):
            functools.update_wrapper(made, original, updated=())
        return made


_replaced: dict[tuple[Any, str], tuple[Any, Any]] = {}
"""By owner and name: the function as it was, and what takes its place in this process."""


def replace(patches: Iterable[Patch]) -> None:
    """Replace these functions in this process and in what is forked from it, unless they are replaced.

    A function that this version of its package does not have is left out.
    """
    for patch in patches:
        for name in patch.names:
            if (patch.of[0], name) in _replaced or not hasattr(patch.of[0], name):
                continue
            made = patch.replacement(name)
            for owner in patch.of:
                _replaced[owner, name] = getattr(owner, name), made
                setattr(owner, name, made)


def put_back(patches: Iterable[Patch]) -> None:
    """Put these functions back. One that the script has replaced in turn stays."""
    for patch in patches:
        for owner, name in [(owner, name) for owner in patch.of for name in patch.names]:
            original, made = _replaced.pop((owner, name), (None, None))
            if original is not None and getattr(owner, name) is made:
                setattr(owner, name, original)


def after_import(name: str, call: Callable[[], object]) -> None:
    """Call this once that module is imported, or now if it is."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


class _AfterImport(MetaPathFinder):
    """Sees one module being imported."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            self._call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def class_like(kind: type, bases: tuple[type, ...], attributes: Mapping[str, Any], name: str = "") -> type:
    """Make a class of these bases that goes by the name of `kind`, or by another one."""
    named = {"__module__": kind.__module__, "__qualname__": name or kind.__qualname__, **attributes}
    return new_class(name or kind.__name__, bases, exec_body=lambda namespace: namespace.update(named))


def mixed_into(value: Any, mixin: type, name: str = "", **attributes: Any) -> None:
    """Make the object one of a class of the same name, with the methods of `mixin` before its own.

    `attributes` are those of the new class. `name`: another name for it.
    """
    value.__class__ = class_like(type(value), (mixin, type(value)), attributes, name)
