"""Processes that are forked as in a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.host import processes


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans, as a launcher does."""
    processes.adopt_orphans()
    yield
    processes._prctl(processes.SET_CHILD_SUBREAPER, 0)
