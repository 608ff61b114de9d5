"""What the tests on a GPU have in common: they are skipped where there is none."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are marked."""
    there = torch.accelerator.is_available()
    for item in items:
        if "tests/gpu/" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.real_run)
            if not there:
                item.add_marker(pytest.mark.skip(reason="torch finds no accelerator on this machine"))
