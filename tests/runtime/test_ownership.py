"""Whose a path is, and what a worker may do with it: the functions of two workers beside each other, in one process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.worker_process.file_functions import WorkerFiles, own_folder
from paceline.worker_process.ownership import Ownership, Witness, carry, outside
from paceline.worker_process.patches import FILES_OF_EVERY_WORKER, FILES_OF_THE_OTHERS, replaced_in
from paceline.worker_process.saves import Saves, name_of
from paceline.worker_process.touched import Touched, notes, notes_of, told


class Worker:
    """The functions that this worker's script finds, by name, without the originals' being replaced."""

    def __init__(self, number: int, run: Path, notes: int) -> None:
        self.files = WorkerFiles.of(number, run, notes, print)
        self.touched = self.files.saves.touched
        self.own = own_folder(run, number)
        self._functions: dict[str, Any] = {
            name: row.replacement(name) for row in replaced_in(self.files) for name in row.names
        }

    def __getattr__(self, name: str) -> Any:
        return self._functions[name]

    def touches(self, path: Path) -> None:
        """As its audit hook would note."""
        self.touched.note("touched", name_of(path))


@pytest.fixture
def shared() -> Iterator[int]:
    shared = notes(with_first=True)
    yield shared
    os.close(shared)


@pytest.fixture
def two(tmp_path: Path, shared: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Worker, Worker]:
    """Workers 0 and 1, whose working directory is `work`."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Worker(0, tmp_path / "run", shared), Worker(1, tmp_path / "run", shared)


@pytest.mark.parametrize("change", ["replace", "move", "remove", "rmtree"])
def test_what_the_first_worker_makes_while_another_takes_its_own_away_stays(
    change: str, two: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = two
    folder, file = Path("made"), Path("made/x") if change == "rmtree" else Path("x")
    if change == "rmtree":
        other.mkdir(folder)
    with other.open(file, "w") as writing:
        writing.write("other's")
    hide = Ownership.hide

    def meanwhile(ownership: Ownership, path: Any) -> None:
        hide(ownership, path)
        monkeypatch.setattr(Ownership, "hide", hide)
        first.touches(file)
        file.write_text("first's")

    monkeypatch.setattr(Ownership, "hide", meanwhile)
    getattr(other, change)(*{"replace": (file, "y"), "move": (file, "y"), "rmtree": (folder,)}.get(change, (file,)))
    assert file.read_text() == "first's"
    if change in ("replace", "move"):
        assert other.open("y").read() == "other's"


def test_another_s_file_stays_when_it_is_removed_or_moved_and_nothing_fails(two: tuple[Worker, Worker]) -> None:
    first, other = two
    Path("of-before").write_text("x")
    Path("of-0").write_text("x")
    first.touches(Path("of-0"))
    for name in ("of-before", "of-0"):
        other.remove(name)
        other.unlink(path=name)
        other.replace(name, "elsewhere")
        other.move(name, "elsewhere")
        assert Path(name).read_text() == "x"
    assert not Path("elsewhere").exists()


def test_a_file_that_another_has_removed_meanwhile_is_no_error_and_one_that_never_was_is(
    two: tuple[Worker, Worker],
) -> None:
    first, other = two
    first.touches(Path("of-0"))  # and has removed it
    other.remove("of-0")
    other.rename("of-0", "elsewhere")
    assert other.getmtime("of-0") == other.getsize(Path("of-0")) == 0
    for act in (other.remove, other.getmtime, other.rmtree, first.remove):
        with pytest.raises(FileNotFoundError):
            act("never-was")


def test_the_first_worker_misses_no_file_that_was_another_s(two: tuple[Worker, Worker]) -> None:
    first, other = two
    other.touches(Path("of-1"))  # the first worker has listed it, and it is gone
    first.remove("of-1")
    assert first.getmtime("of-1") == 0


def test_what_a_worker_makes_is_at_the_path_until_another_makes_it_too(
    two: tuple[Worker, Worker], tmp_path: Path
) -> None:
    first, other = two
    with other.open("log-1.txt", "w") as file:
        file.write("of 1")
    assert Path("log-1.txt").read_text() == "of 1"
    other.replace("log-1.txt", "log-1.old")
    assert Path("log-1.old").read_text() == other.open("log-1.old").read() == "of 1"
    assert not Path("log-1.txt").exists()
    other.remove("log-1.old")
    assert not Path("log-1.old").exists()

    with other.open("both.json", "w") as file:
        file.write("of 1")
        file.flush()
        witness = Witness(first.files.ownership)
        witness("open", ("both.json", "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        Path("both.json").write_text("of 0")
        file.write(", all of it")
    assert Path("both.json").read_text() == "of 0"
    assert other.open("both.json").read() == "of 1, all of it"
    other.replace("both.json", "end.json")
    assert Path("both.json").read_text() == "of 0"
    assert other.open("end.json").read() == "of 1, all of it"


def test_a_folder_is_emptied_of_a_worker_s_own_files_alone(two: tuple[Worker, Worker]) -> None:
    first, other = two
    for name in ("out", "out/shared"):
        os.mkdir(name)
        first.touches(Path(name))
    Path("out/of-0").touch()
    first.touches(Path("out/of-0"))
    other.touches(Path("out/shared"))
    for name in ("out/of-1", "out/own/of-1"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    other.touches(Path("out/of-1"))
    other.touches(Path("out/own"))
    other.rmtree("out")
    assert sorted(str(path) for path in Path("out").rglob("*")) == ["out/of-0", "out/shared"]
    other.mkdir("out")  # as the script goes on
    other.rmtree(Path("out"), ignore_errors=True)
    other.rmdir("out/shared")
    assert Path("out/shared").is_dir()


def test_a_worker_s_own_folder_is_really_removed_with_what_other_programs_put_there(two: tuple[Worker, Worker]) -> None:
    _, other = two
    other.mkdir("own")
    other.touches(Path("own"))
    Path("own/of-a-program").touch()
    other.rmtree("own")
    assert not Path("own").exists()


def test_of_folders_within_each_other_the_nearest_decides(
    tmp_path: Path, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "cache").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("SOME_CACHE_DIR", str(here / "cache"))
    touched = Touched(1, shared)
    ownership = Ownership(Saves(tmp_path / "own", touched), outside(tmp_path / "run"))
    assert ownership.looks_after(str(here / "file"))  # although it is below /tmp
    assert not ownership.looks_after(str(here / "cache" / "file"))
    assert not ownership.looks_after(str(tmp_path / "file"))
    touched.note("saved", str(tmp_path / "saved-in"))
    assert ownership.looks_after(str(tmp_path / "saved-in" / "deeper" / "file"))
    assert not ownership.looks_after("/dev/shm/file")


def test_links_and_copies_don_t_overwrite_another_s_and_are_no_error(two: tuple[Worker, Worker]) -> None:
    first, other = two
    Path("of-0").write_text("of 0")
    Path("latest").symlink_to("of-0")
    for name in ("of-0", "latest"):
        first.touches(Path(name))
    with other.open("of-1", "w") as file:
        file.write("of 1")
    other.copy("of-1", "of-0")
    other.symlink("of-1", "latest")
    assert (Path("of-0").read_text(), os.readlink("latest")) == ("of 0", "of-0")
    assert other.open("of-0").read() == other.open("latest").read() == "of 1"
    os.remove("latest")
    Path("latest").symlink_to("of-1")  # the first worker's link says the same now, and stays
    other.remove("latest")
    assert os.readlink("latest") == "of-1"
    Path("of-before").touch()
    with pytest.raises(FileExistsError):  # as alone
        other.symlink("of-1", "of-before")


def test_a_folder_that_another_has_moved_away_is_still_there_for_the_worker_that_made_it(
    two: tuple[Worker, Worker], tmp_path: Path
) -> None:
    first, other = two
    os.mkdir("unfinished")
    first.touches(Path("unfinished"))
    with pytest.raises(FileExistsError):
        other.mkdir("unfinished")
    Path("unfinished/about.json").write_text("of 0")
    witness = Witness(first.files.ownership)
    witness("os.rename", ("unfinished", "step-1", -1, -1))
    os.rename("unfinished", "step-1")
    assert other.isdir("unfinished")
    with other.open("unfinished/about.json", "w") as file:
        file.write("of 1")
    other.rename("unfinished", "step-1")
    assert other.open("step-1/about.json").read() == "of 1"
    assert not other.isdir("unfinished")
    assert Path("step-1/about.json").read_text() == "of 0"


def test_carrying_a_folder_into_another_keeps_what_only_the_other_has(tmp_path: Path) -> None:
    for name, content in {"a/x": "new", "a/sub/y": "new", "b/x": "old", "b/z": "old"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    carry(str(tmp_path / "a"), str(tmp_path / "b"))
    assert not (tmp_path / "a").exists()
    assert [(tmp_path / "b" / name).read_text() for name in ("x", "sub/y", "z")] == ["new", "new", "old"]


def test_a_note_that_is_half_written_is_read_when_it_is_whole(shared: int) -> None:
    one, other = Touched(0, shared), Touched(1, shared)
    one.note("touched", "/a b")
    os.write(shared, b"0 touch")
    assert other.by("touched", "/a b") == [0]
    os.write(shared, b"ed /c\0")
    assert other.by("touched", "/c") == [0]


def test_where_the_notes_were_closed_nothing_is_noted_in_the_file_that_has_their_number_now(tmp_path: Path) -> None:
    """As in the store, which is forked from a worker."""
    shared = notes()
    touched = Touched(1, shared)
    touched.note("touched", "/a")
    os.close(shared)
    touched.note("touched", "/b")
    handle = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.dup2(handle, shared)
    touched.note("touched", "/c")
    with touched.apart():
        assert touched.by("touched", "/c") == []
    assert (tmp_path / "file").read_bytes() == b""
    os.close(handle)
    if handle != shared:
        os.close(shared)


def test_a_folder_that_was_emptied_counts_as_such_until_it_is_made_again(shared: int) -> None:
    one, other = Touched(0, shared), Touched(1, shared)
    one.note("made", "/out")
    for _ in range(2):
        one.note("emptied", "/out")
        assert other.emptied_by_another("/out/deeper/file")
        assert not one.emptied_by_another("/out/file")
        one.note("made", "/out")
        assert not other.emptied_by_another("/out/file")


def test_the_guide_names_every_function_that_is_replaced() -> None:
    page = (Path(__file__).parents[2] / "docs" / "habits.md").read_text()
    section = page.split("## Who saves")[1].split("\n## ")[0]
    files = (*FILES_OF_EVERY_WORKER, *FILES_OF_THE_OTHERS)
    names = {name for row in files for name in row.names} - {"save", "load", "is_file", "is_dir"}  # those of classes
    assert [name for name in sorted(names) if name not in section] == []


def test_a_host_of_the_head_s_machine_adds_to_the_head_s_notes_and_one_elsewhere_has_its_own(
    shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, name = told(shared)
    there, elsewhere, alone = notes_of((at, name)), notes_of((at, f"{name} of another machine")), notes_of(None)
    Touched(1, there).note("made", "/a")
    Touched(0, shared).note("made", "/a")
    Touched(2, there).note("made", "/a")
    assert Touched(3, shared).by("made", "/a") == [1, 0, 2]
    assert Touched(3, elsewhere).by("made", "/a") == Touched(3, alone).by("first", "") == []

    monkeypatch.chdir(tmp_path)
    far = Worker(1, tmp_path / "run", alone)
    far.remove("removed meanwhile.json")  # worker 0 may have done it
    far.rename("removed meanwhile.json", "kept.json")
    assert not Path("kept.json").exists()
    for one in (there, elsewhere, alone):
        os.close(one)


def test_a_folder_is_copied_with_what_the_worker_has_made_in_it_also_as_copytree_calls_itself(
    two: tuple[Worker, Worker],
) -> None:
    _, other = two
    Path("results").mkdir()
    with other.open("results/a.json", "w") as file:
        file.write("other's")
    for _ in range(2):
        other.copytree("results", "copied", False, None, shutil.copy2, False, True)  # all by their places
    assert other.open("copied/a.json").read() == "other's"
