"""Scripts that make a folder as if they were alone, and fail if it is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.worker_process.file_functions import WorkerFiles, making
from paceline.worker_process.touched import notes
from support.launch import Launch
from support.scripts import training


@pytest.fixture
def shared() -> Iterator[int]:
    """What a run's workers note."""
    shared = notes()
    yield shared
    os.close(shared)


class Worker:
    """How a worker makes folders."""

    def __init__(self, number: int, shared: int, mkdir: Callable[..., None] = os.mkdir) -> None:
        files = WorkerFiles.of(number, Path("run"), shared, print)
        self.touched = files.saves.touched
        self.make = making(files, mkdir)


@pytest.fixture
def two(shared: int) -> tuple[Worker, Worker]:
    """Two workers of a run, numbered so that one's number ends with the other's."""
    return Worker(1, shared), Worker(11, shared)


def test_a_folder_that_another_worker_has_made_is_taken_as_made_once(
    two: tuple[Worker, Worker], tmp_path: Path
) -> None:
    one, other = two
    one.make(tmp_path / "new", 0o700)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    other.make(str(tmp_path / "." / "new"))
    for worker in two:
        with pytest.raises(FileExistsError):
            worker.make(tmp_path / "new")


def test_a_folder_that_a_worker_makes_as_another_one_removes_it_is_taken_as_made_once(
    shared: int, tmp_path: Path
) -> None:
    def make_once_it_is_gone(path: Path, mode: int) -> None:
        os.rmdir(path)  # by worker 0, since worker 1 has looked whether it is there
        os.mkdir(path, mode)

    first, other = Worker(0, shared), Worker(1, shared, make_once_it_is_gone)
    first.make(tmp_path / "backup")
    first.touched.forget(str(tmp_path / "backup"))
    other.make(tmp_path / "backup")
    first.make(tmp_path / "backup")


def test_a_folder_that_two_processes_of_one_worker_make_is_an_error(shared: int, tmp_path: Path) -> None:
    Worker(1, shared).make(tmp_path / "new")
    with pytest.raises(FileExistsError):
        Worker(1, shared).make(tmp_path / "new")


def test_what_was_there_before_the_run_is_an_error(two: tuple[Worker, Worker], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "file").touch()
    for name in ("old", "file"):
        for worker in two:
            with pytest.raises(FileExistsError):
                worker.make(tmp_path / name)


def test_a_file_that_has_taken_the_folders_place_is_an_error(two: tuple[Worker, Worker], tmp_path: Path) -> None:
    one, other = two
    one.make(tmp_path / "new")
    (tmp_path / "new").rmdir()
    (tmp_path / "new").touch()
    with pytest.raises(FileExistsError):
        other.make(tmp_path / "new")


def test_a_folder_by_a_name_in_another_is_made_as_ever(two: tuple[Worker, Worker], tmp_path: Path) -> None:
    one, other = two
    inside = os.open(tmp_path, os.O_DIRECTORY)
    one.make("new", dir_fd=inside)
    with pytest.raises(FileExistsError):
        other.make("new", dir_fd=inside)
    os.close(inside)


def test_an_optimizer_whose_step_makes_a_folder_steps_in_the_store(launch: Launch) -> None:
    """As imports in a step may do, of torch's compiler for example."""
    before = f"""
        class Own(torch.optim.SGD):
            def step(self, closure=None):
                os.makedirs({str(launch.tmp_path / "of-the-store")!r}, exist_ok=True)
                return super().step(closure)

        optimizer = Own(model.parameters(), lr=0.05)
        """
    launch.run(training(before=before, epochs=1), "-n", "2").completed()
    assert (launch.tmp_path / "of-the-store").is_dir()
