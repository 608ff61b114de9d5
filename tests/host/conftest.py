"""Processes that are forked as in a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.ipc import processes


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans, as a launcher does."""
    processes.adopt_orphans()
    yield
    processes.adopt_orphans(False)
