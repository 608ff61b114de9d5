"""Runs that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import rays, sshd
from support.launch import Launch


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Callable[[], Launch]]:
    """Makes launches, each with a folder of its own."""
    made: list[Launch] = []

    def make() -> Launch:
        folder = tmp_path / f"launch-{len(made)}"
        folder.mkdir()
        made.append(Launch(folder))
        return made[-1]

    yield make
    for launch in made:
        launch.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    """An sshd on loopback: whatever a test calls a host is this machine."""
    if lacking := sshd.lacking():
        pytest.skip(lacking)
    with sshd.sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rays.RayCluster]:
    """A Ray cluster of three nodes. A test that kills one adds another."""
    if lacking := rays.lacking():
        pytest.skip(lacking)
    with rays.cluster(tmp_path_factory.mktemp("ray"), 2) as cluster:
        yield cluster
