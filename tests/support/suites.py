"""Which cases of a test run by default, and which in the longer suites only."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def each(cases: Iterable[Any], *, long: Container[Any]) -> list[Any]:
    """Parameters for these cases, tuples of which are several values. Those in `long` run with `-m long` only."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.long] if case in long else [])
        for case in cases
    ]
