"""Functions that `torch.compile` leaves as they are, though a compiled function of the script calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast
from weakref import WeakSet

from torch._compile import _disable_dynamo

from paceline.training.replaced import after_import

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
    if not _awaiting:
        after_import(COMPILER, _compiler_imported)
    _awaiting.add(function)


def _keep_compiler_out(function: Any) -> None:
    import torch._dynamo

    function.__dynamo_disable = torch._dynamo.disable(function, wrapping=False)  # type: ignore[no-untyped-call]


def _compiler_imported() -> None:
    for function in tuple(_awaiting):
        _keep_compiler_out(function)
    _awaiting.clear()
