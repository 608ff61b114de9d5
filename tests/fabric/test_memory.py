"""Region: memory that processes share by descriptor, without a name and of a fixed size."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.ipc import memory
from paceline.ipc.memory import MappedWindow, Region, available_bytes

SIZE = 3 * mmap.PAGESIZE + 100


def fork(body: object) -> int:
    """The exit code of a child that runs it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = body()  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def descriptors() -> set[int]:
    """Those of regions, and of what windows look at."""
    gc.collect()
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing itself
            file = os.readlink(f"/proc/self/fd/{number}")
            if file.startswith("/memfd:paceline ") or file.endswith("/pagemap"):
                found.add(number)
    return found


def test_what_a_forked_process_writes_is_seen_here_and_the_other_way_and_the_rest_is_zero() -> None:
    region = Region.create(SIZE)
    region.memory[:5] = b"ours!"

    def body() -> int:
        attached = Region.attach(region.descriptor)
        there = attached.memory[:5] == b"ours!" and attached.size == SIZE
        attached.memory[SIZE - 6 :] = b"theirs"
        return 0 if there else 1

    assert fork(body) == 0
    assert bytes(region.memory) == b"ours!" + bytes(SIZE - 11) + b"theirs"
    assert region.size == SIZE


def test_its_descriptor_is_closed_once_nothing_refers_to_it_or_it_is_freed() -> None:
    before = descriptors()
    region = Region.create(SIZE)
    window = MappedWindow(region, SIZE)
    window.show(0)
    window.written()
    kept, freed = region.span(0, 10), Region.create(SIZE)
    freed.free()
    del window
    assert descriptors() - before == {region.descriptor}
    del region
    assert kept.file is not None, "bytes that others can be handed keep it open"
    assert descriptors() - before == {kept.file.descriptor}
    del kept
    assert descriptors() == before


def test_a_forked_process_closes_no_file_that_has_come_to_have_the_number_of_its_parent_s_region() -> None:
    region = Region.create(SIZE)

    def body() -> int:
        nonlocal region
        number = region.descriptor
        os.close(number)
        other = os.open("/dev/null", os.O_RDONLY)
        assert other == number
        del region
        os.fstat(other)
        return 0

    assert fork(body) == 0
    os.fstat(region.descriptor)


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 0])
def test_its_size_can_not_be_changed_by_anyone_who_has_it(size: int) -> None:
    region = Region.create(SIZE)
    with pytest.raises(OSError, match=r".") as caught:
        os.ftruncate(region.descriptor, size)
    assert caught.value.errno == errno.EPERM
    assert os.fstat(region.descriptor).st_size == SIZE


def test_its_pages_cost_nothing_until_they_are_touched_and_none_lies_in_dev_shm() -> None:
    region = Region.create(1 << 40)  # far more than there is
    assert os.readlink(f"/proc/self/fd/{region.descriptor}").startswith("/memfd:paceline")
    assert os.fstat(region.descriptor).st_blocks == 0
    region.memory[1 << 39] = 1
    assert 0 < os.fstat(region.descriptor).st_blocks * 512 <= 2 << 20


@pytest.mark.parametrize(("start", "stop", "pages"), [(0, SIZE, 4), (0, 1, 1), (5000, 9000, 2), (4096, 4096, 0)])
def test_populating_touches_the_pages_of_the_range_and_no_others(start: int, stop: int, pages: int) -> None:
    region = Region.create(16 * mmap.PAGESIZE)
    region.populate(start, stop)
    touched = os.fstat(region.descriptor).st_blocks * 512 // mmap.PAGESIZE
    assert touched in (0, pages)  # 0: a kernel before 5.14
    assert bytes(region.memory) == bytes(region.size)


def test_available_bytes_is_what_the_machine_has_or_less() -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < available_bytes() <= total


def test_available_bytes_keeps_to_the_control_groups_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "group" / "inner").mkdir(parents=True)
    (tmp_path / "group" / "inner" / "memory.max").write_text("5000\n")
    (tmp_path / "group" / "inner" / "memory.current").write_text("2000\n")
    (tmp_path / "group" / "inner" / "memory.stat").write_text("anon 1000\ninactive_file 400\n")
    (tmp_path / "cgroup").write_text("0::/inner\n")
    places = {"/sys/fs/cgroup": tmp_path / "group", "/proc/self/cgroup": tmp_path / "cgroup"}
    monkeypatch.setattr(memory, "Path", lambda name: places.get(name) or Path(name))
    assert available_bytes() == 3400, "files that nobody uses are given up when memory is wanted"
    (tmp_path / "group" / "inner" / "memory.max").write_text("max\n")
    assert available_bytes() > 3000


# --- windows ----------------------------------------------------------------------------------------

PART = 8 * mmap.PAGESIZE


@pytest.fixture(params=[PART, memory.HUGE], ids=["small pages", "huge pages"])
def parts(request: pytest.FixtureRequest) -> tuple[Region, int]:
    """A region of three parts, filled with 1, 2 and 3, and the size of a part."""
    size: int = request.param
    region = Region.create(3 * size)
    for part in range(3):
        region.populate(part * size, (part + 1) * size)
        region.memory[part * size : (part + 1) * size] = bytes([part + 1]) * size
    return region, size


def test_a_window_shows_one_part_of_a_region_after_another_at_the_same_place(parts: tuple[Region, int]) -> None:
    region, size = parts
    window = MappedWindow(region, size)
    first = window.memory
    for part in (1, 0, 2, 2, 1):
        window.show(part * size)
        assert bytes(first) == bytes([part + 1]) * size


def test_a_window_follows_what_others_write_and_what_is_written_into_it_reaches_nobody_and_goes_when_it_moves(
    parts: tuple[Region, int],
) -> None:
    region, size = parts
    window = MappedWindow(region, size)
    window.show(0)
    region.memory[5] = 77
    assert window.memory[5] == 77
    window.memory[5] = 99
    assert region.memory[5] == 77
    window.show(size)
    assert window.memory[5] == 2
    window.show(0)
    assert window.memory[5] == 77


def test_a_window_knows_which_of_its_pages_were_written_to_since_it_moved(parts: tuple[Region, int]) -> None:
    region, size = parts
    window = MappedWindow(region, size)
    window.show(0)
    bytes(window.memory)  # reading is not writing
    region.memory[3 * mmap.PAGESIZE] = 50  # nor is what others write
    assert window.written() == []
    for place in (0, 2 * mmap.PAGESIZE + 7, 3 * mmap.PAGESIZE, size - 1):
        window.memory[place] = 9
    page = mmap.PAGESIZE
    assert window.written() == [(0, page), (2 * page, 4 * page), (size - page, size)]
    window.show(0)
    assert window.written() == []


def test_two_windows_of_two_processes_do_not_see_each_other_s_writes(parts: tuple[Region, int]) -> None:
    region, size = parts
    window = MappedWindow(region, size)
    window.show(0)
    window.memory[0] = 42

    def body() -> int:
        other = MappedWindow(Region.attach(region.descriptor), size)
        other.show(0)
        other.memory[1] = 43
        return 0 if bytes(other.memory[:2]) == b"\x01\x2b" else 1

    assert fork(body) == 0
    assert bytes(window.memory[:2]) == b"\x2a\x01"


@pytest.mark.parametrize(("size", "whole"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (2 << 20, 2 << 20)])
def test_parts_are_whole_pages_and_large_ones_whole_huge_pages(size: int, whole: int) -> None:
    assert memory.whole_pages(size) == whole
    assert memory.whole_pages((2 << 20) + 1) == 4 << 20
