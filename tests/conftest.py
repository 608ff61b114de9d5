"""What holds for every process of the suite. It is read before any of them has imported torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.ipc import memory
from paceline.net.token import Token, write
from paceline.worker_process import forking
from support import tiers
from support.launch import Launch
from support.processes import adopts_orphans, uncollected

# By default OpenMP's threads spin while they wait for each other. Beside the other half of the suite that is most of
# what a run on two threads costs, and nothing is computed by it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

subprocess.Popen.__init__ = tiers.guarded(subprocess.Popen.__init__)  # type: ignore[method-assign]
forking.forked_zygote = tiers.noted(forking.forked_zygote)  # before any module has it by that name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that make real runs."""
    for item in items:
        if tiers.FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.real_run)
        if item.path.parent.name == "integrations":
            item.add_marker(pytest.mark.integrations)
        if item.path.parent.name == "journeys":
            item.add_marker(pytest.mark.real_run)
            item.add_marker(pytest.mark.journey)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that isn't marked starts no run, and no more does a fixture that it is the first to use."""
    with tiers.under_way(item):
        return (yield)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Runs with this test's folder, which leave nothing behind."""
    launch = Launch(tmp_path)
    yield launch
    launch.close()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What all hosts have: the file that has it."""
    write(Token.drawn(), file := tmp_path / "a token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(file))
    return file


@pytest.fixture(autouse=True)
def _shared_memory_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the shared memory that a test has made here as it ends, as a process's end would.

    Otherwise that comes whenever garbage is collected: amid another test, which counts descriptors, or after there are
    more than `select` takes.
    """
    closes: list[Callable[[], object]] = []
    closed_with = memory._closed_with

    def noted(owner: object, descriptor: int) -> Callable[[], object]:
        closes.append(closed_with(owner, descriptor))
        return closes[-1]

    monkeypatch.setattr(memory, "_closed_with", noted)
    yield
    for close in closes:
        close()


@pytest.fixture(autouse=True)
def _no_orphan_is_adopted_once_a_run_is_over() -> Iterator[None]:
    """Nobody would collect it: a run that is started here ends what it has adopted, and adopts no more."""
    yield
    assert not adopts_orphans()


@pytest.fixture(scope="session", autouse=True)
def _no_child_is_left_uncollected() -> Iterator[None]:
    """Every process that ends is collected by the one that forked it, so this one has no zombies as its tests end."""
    yield
    assert uncollected() == {}
