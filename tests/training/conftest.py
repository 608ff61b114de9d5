"""What is compared bit for bit is computed with one thread, here as in the runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support import fake_device


@pytest.fixture(autouse=True)
def _no_clock_goes_on() -> Iterator[None]:
    yield
    fake_device.stop_counting()


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
