"""Processes that are forked as in a run, and memory that is given back as at a process's end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from paceline.fabric.memory import Region
from paceline.host import processes


@pytest.fixture(autouse=True)
def regions_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the regions that a test makes: a host's lasts as long as its process, and this one has many hosts."""
    made: list[Region] = []
    create, free = Region.create, Region.free

    def created(size: int) -> Region:
        made.append(create(size))
        return made[-1]

    def freed(region: Region) -> None:
        if region in made:
            made.remove(region)
        free(region)

    monkeypatch.setattr(Region, "create", created)
    monkeypatch.setattr(Region, "free", freed)
    yield
    for region in made:
        os.close(region.descriptor)


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans, as a launcher does."""
    processes.adopt_orphans()
    yield
    processes._prctl(processes.SET_CHILD_SUBREAPER, 0)
