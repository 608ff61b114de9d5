"""Functions that `torch.compile` leaves as they are, though a compiled function of the script calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch._compile import _disable_dynamo

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Keep `torch.compile` out of this function. A compiled function that calls it is compiled before and after it.

    torch marks its own functions so. Its mark imports the compiler when it is first called, which takes a second.
    """
    marked = _disable_dynamo(function)
    await_compiler(function, marked)
    return cast(F, marked)


def await_compiler(function: Any, marked: Callable[..., Any]) -> None:
    """Let the marked function be called without importing the compiler (benchmarks/startup.py).

    While the compiler is not imported, nothing can be being compiled, and the function itself will do. torch keeps
    the one that is to be called in an attribute of the plain one. A torch that does not simply imports the compiler.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if function.__dict__.get("__dynamo_disable") is call:
            del function.__dict__["__dynamo_disable"]
        return marked(*args, **kwargs)

    if not hasattr(function, "__dynamo_disable"):
        function.__dynamo_disable = call
