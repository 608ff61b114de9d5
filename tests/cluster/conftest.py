"""Scenario files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path):
    """Writes a scenario file and gives back its path."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "slow.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write
