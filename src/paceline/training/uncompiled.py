"""Functions that `torch.compile` leaves as they are, though a compiled function of the script calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from torch._compile import _disable_dynamo

F = TypeVar("F", bound=Callable[..., Any])

COMPILER = "torch._dynamo"

_awaiting: WeakSet[Any] = WeakSet()
"""Functions that are called as they are until the compiler is imported."""


def uncompiled(function: F) -> F:
    """Keep `torch.compile` out of this function. A compiled function that calls it is compiled before and after it.

    torch marks its own functions so. Its mark imports the compiler when it is first called, which takes a second.
    """
    marked = _disable_dynamo(function)
    await_compiler(function)
    return cast(F, marked)


def await_compiler(function: Any) -> None:
    """Let a function that torch has marked be called without importing the compiler (benchmarks/startup.py).

    While the compiler is not imported, nothing can be being compiled, and the function itself will do. torch keeps
    the one that is to be called in an attribute of the plain one, which must not change while a call is being compiled.
    """
    if hasattr(function, "__dynamo_disable"):
        return
    if COMPILER in sys.modules:
        _keep_compiler_out(function)
        return
    function.__dynamo_disable = function
    _awaiting.add(function)
    if not any(isinstance(finder, _CompilerFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CompilerFinder())


def _keep_compiler_out(function: Any) -> None:
    import torch._dynamo

    function.__dynamo_disable = torch._dynamo.disable(function, wrapping=False)  # type: ignore[no-untyped-call]


class _CompilerFinder(MetaPathFinder):
    """Sees the compiler being imported. From then on it is kept out of the functions that have awaited it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            for function in tuple(_awaiting):
                _keep_compiler_out(function)
            _awaiting.clear()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
