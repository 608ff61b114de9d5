"""Tests with seeds: one test for many of them, as pytest itself takes longer for a test than a small history does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each_seed(seeds: Iterable[int]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the test with each of these as its `seed`. A failure says at which one."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def with_each(**arguments: Any) -> None:
            for seed in seeds:
                try:
                    test(seed=seed, **arguments)
                except BaseException as failure:
                    failure.add_note(f"with seed {seed}")
                    raise

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name != "seed"]
        with_each.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return with_each

    return decorate
