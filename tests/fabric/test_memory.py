"""Region: memory that processes share by descriptor, without a name and of a fixed size."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from paceline.fabric import memory
from paceline.fabric.memory import Region, available_bytes

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


def test_a_new_region_is_zero_and_as_large_as_asked() -> None:
    region = Region.create(SIZE)
    assert region.size == len(region.memory) == SIZE
    assert bytes(region.memory) == bytes(SIZE)


def test_what_a_forked_process_writes_is_seen_here_and_the_other_way() -> None:
    region = Region.create(SIZE)
    region.memory[:5] = b"ours!"

    def body() -> int:
        attached = Region.attach(region.descriptor)
        there = attached.memory[:5] == b"ours!" and attached.size == SIZE
        attached.memory[SIZE - 6 :] = b"theirs"
        return 0 if there else 1

    assert fork(body) == 0
    assert region.memory[SIZE - 6 :] == b"theirs"


def test_nothing_of_it_lies_in_dev_shm() -> None:
    before = set(os.listdir("/dev/shm"))
    region = Region.create(SIZE)
    region.memory[:] = b"x" * SIZE
    mine = os.readlink(f"/proc/self/fd/{region.descriptor}")
    assert mine.startswith("/memfd:paceline")
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "paceline" in name}


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 0])
def test_its_size_can_not_be_changed_by_anyone_who_has_it(size: int) -> None:
    region = Region.create(SIZE)
    with pytest.raises(OSError, match=r".") as caught:
        os.ftruncate(region.descriptor, size)
    assert caught.value.errno == errno.EPERM
    assert os.fstat(region.descriptor).st_size == SIZE


def test_its_pages_cost_nothing_until_they_are_touched() -> None:
    region = Region.create(1 << 40)  # far more than there is
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


def test_populating_on_an_older_kernel_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MADV_POPULATE_WRITE", 9999)  # advice that no kernel knows
    region = Region.create(SIZE)
    region.populate(0, SIZE)
    assert os.fstat(region.descriptor).st_blocks == 0


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
