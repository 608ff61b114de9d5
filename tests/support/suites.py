"""Which cases of a test run by default, and which in the longer suites only."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def each(cases: Iterable[Any], *, default: Container[Any] | None = None, long: Container[Any] = ()) -> list[Any]:
    """Parameters for these cases, tuples of which are several values.

    Those in `long` run with `-m long` only, and so do all but those in `default` if that is given.
    """

    def is_long(case: Any) -> bool:
        return case in long or (default is not None and case not in default)

    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.long] if is_long(case) else [])
        for case in cases
    ]
