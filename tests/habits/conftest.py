"""Runs that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launch import Launch


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Runs with this test's folder."""
    launch = Launch(tmp_path)
    yield launch
    launch.close()
