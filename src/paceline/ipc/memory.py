"""Shared memory without names: no file in /dev/shm, and the kernel frees it with the last process that uses it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

PAGE = mmap.PAGESIZE
HUGE = 2 * 1024 * 1024  # bytes: a huge page of x86 and, with 4 KiB pages, of ARM

POPULATE_READ, POPULATE_WRITE, COLLAPSE = 22, 23, 25  # madvise: Linux 5.14, 5.14, 6.1; not in the mmap module
REMOVE = 9
FIXED, NO_RESERVE = 0x10, 0x4000  # mmap
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt

_PRESENT, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61  # in an entry of /proc/self/pagemap

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def whole_pages(size: int) -> int:
    """Round bytes up to whole pages, or to huge pages from one huge page on."""
    page = HUGE if size >= HUGE else PAGE
    return max(1, -(-size // page)) * page


class Region:
    """Memory that processes share by passing its descriptor on.

    Tensors lie over its bytes by `torch.frombuffer`, which keeps no mapping alive. So a mapping lasts as long as the
    process. The descriptor is closed once nothing refers to the region.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Take over the descriptor."""
        self.descriptor = descriptor
        self._close = _closed_with(self, descriptor)
        self.size = size
        self.address = _reserve(size)
        _map(self.address, size, mmap.MAP_SHARED, descriptor, 0)
        self.memory = _memory(self.address, size)

    @classmethod
    def create(cls, size: int) -> Region:
        """Make a region of so many zeros. A page takes memory when it is first touched."""
        descriptor = os.memfd_create("paceline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(descriptor, size)

    @classmethod
    def attach(cls, descriptor: int) -> Region:
        """Map the region of a descriptor that another process has passed."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def span(self, start: int, stop: int) -> Span:
        """Return these bytes."""
        return Span(self.memory[start:stop], self, start)

    def free(self) -> None:
        """Give all pages back, for all processes. A process that still reads them finds zeros."""
        _libc.madvise(self.address, self.size, REMOVE)
        self._close()

    def discard(self, start: int, stop: int) -> None:
        """Give these whole pages back, for all processes, which find zeros there."""
        _libc.madvise(self.address + start, stop - start, REMOVE)

    def populate(self, start: int, stop: int) -> None:
        """Get these bytes' pages now rather than during training, as huge pages where possible.

        A first touch costs 70 ms for 100 MB in small pages and 36 ms in huge ones. A `MappedWindow` moves over huge
        pages in 0.1 ms rather than 6. An older kernel can't do this: there pages come when they are first written.
        """
        first, last = -(-(self.address + start) // HUGE) * HUGE, (self.address + stop) // HUGE * HUGE
        if last > first:
            for huge in range(first, last, HUGE):  # only what has a page can be collapsed
                _libc.madvise(huge, PAGE, POPULATE_WRITE)
            _libc.madvise(first, last - first, COLLAPSE)
        whole = self.address + start - start % PAGE
        _libc.madvise(whole, self.address + stop - whole, POPULATE_WRITE)


class OpenFile:
    """A file that stays open as long as anything refers to it or to its bytes."""

    def __init__(self, descriptor: int) -> None:
        """Open the file, which is not empty, once more. The caller may close its descriptor."""
        self.descriptor = os.dup(descriptor)
        _closed_with(self, self.descriptor)

    def span(self, *, writable: bool = False) -> Span:
        """Return its bytes."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        size = os.fstat(self.descriptor).st_size
        return Span(memoryview(mmap.mmap(self.descriptor, size, prot=protection)), self)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file that this process has mapped. Another process that is handed the file can map them, too."""

    memory: memoryview
    file: Region | OpenFile | None = None
    """None: no other process can have these bytes."""
    start: int = 0
    """Where the bytes begin in the file."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.memory.nbytes

    def part(self, begin: int, end: int) -> Span:
        """Return a range of these bytes."""
        return Span(self.memory[begin:end], self.file, self.start + begin)


class Mapping:
    """A part of a region, mapped at an address of its own for as long as anything refers to its bytes."""

    def __init__(self, region: Region, start: int, size: int) -> None:
        """`start` and `size` are bytes, in whole pages."""
        self._source = region.address + start
        self._address = _reserve(size)
        _map(self._address, size, mmap.MAP_SHARED, region.descriptor, start)
        self._size = size
        array = (ctypes.c_char * size).from_address(self._address)
        weakref.finalize(array, _libc.munmap, self._address, size).atexit = False
        self.memory = memoryview(array).cast("B")

    def leave(self) -> None:
        """Replace the shared bytes by a private copy, for the objects that still refer to them."""
        _map(self._address, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        ctypes.memmove(self._address, self._source, self._size)


class MappedWindow:
    """A fixed place in this process's memory that shows one part of a region or another.

    Writes to the window are private to this process, and lost when the window moves. Tensors over a window, and all
    their aliases, then see the other part's bytes, as if these had been copied.
    """

    def __init__(self, region: Region, size: int) -> None:
        """`size` is in bytes, in whole pages."""
        self.region = region
        self.size = size
        self.address = _reserve(size)
        self.memory = _memory(self.address, size)
        self._pages = -1

    def show(self, start: int) -> None:
        """Show the region from that byte on, which begins a page. This is atomic: no thread sees two parts mixed."""
        _map(self.address, self.size, mmap.MAP_PRIVATE | NO_RESERVE, self.region.descriptor, start)
        _libc.madvise(self.address, self.size, POPULATE_READ)

    def written(self) -> list[tuple[int, int]]:
        """Return the pages written since the window moved, as runs of (start, stop) in bytes.

        Raises OSError if /proc/self/pagemap can't be read.
        """
        if self._pages < 0:
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            _closed_with(self, self._pages)
        entries = os.pread(self._pages, self.size // PAGE * 8, self.address // PAGE * 8)
        import numpy  # late, as the launcher first sets numpy's BLAS to start no thread

        pages = numpy.frombuffer(entries, dtype=numpy.uint64)
        # a page of a private mapping belongs to the file until it is written
        taken = (pages & numpy.uint64(_PRESENT | _SWAPPED)) != 0
        own = taken & ((pages & numpy.uint64(_OF_A_FILE)) == 0)
        if not own.any():
            return []
        edges = numpy.flatnonzero(numpy.diff(own.astype(numpy.int8), prepend=0, append=0))
        return [(int(first) * PAGE, int(last) * PAGE) for first, last in edges.reshape(-1, 2)]


def _closed_with(owner: object, descriptor: int) -> weakref.finalize[..., object]:
    """Close the descriptor with its owner, in this process only: a forked one may use the number for another file."""
    process = os.getpid()

    def close() -> None:
        if os.getpid() == process:
            os.close(descriptor)

    closes = weakref.finalize(owner, close)
    closes.atexit = False  # the process's end closes it
    return closes


def _reserve(size: int) -> int:
    """Reserve so many bytes of addresses. Return the first, which is aligned so that huge pages can be mapped."""
    found = _map(None, size + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, -1, 0)
    address, stop = -(-found // HUGE) * HUGE, found + size + HUGE
    kept = address + -(-size // PAGE) * PAGE
    for start, rest in ((found, address - found), (kept, stop - kept)):
        if rest >= PAGE:
            _libc.munmap(start, rest - rest % PAGE)
    return address


def _map(address: int | None, size: int, flags: int, descriptor: int, offset: int) -> int:
    protection = 0 if address is None else mmap.PROT_READ | mmap.PROT_WRITE
    if address is not None:
        flags |= FIXED
    found: int = _libc.mmap(address, size, protection, flags, descriptor, offset)
    if found == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, f"{size} bytes of shared memory can't be mapped: {os.strerror(error)}")
    return found


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def keep_freed_memory() -> None:
    """Give free memory to the kernel now. From now on have malloc keep freed memory for the next allocation.

    Otherwise autograd's temporaries of more than 32 MB cost page faults in every step. That is a quarter of a step of
    25 million parameters (benchmarks/results/step.md). Only glibc has these settings.
    """
    if hasattr(_libc, "malloc_trim") and hasattr(_libc, "mallopt"):
        _libc.malloc_trim(0)
        _libc.mallopt(MMAP_THRESHOLD, 1 << 30)
        _libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)


def available_bytes() -> int:
    """Return the bytes of memory that the machine or the control group still has, whichever is less.

    A larger memfd can be made, but the process is killed as it fills.
    """
    amounts = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    group = Path("/sys/fs/cgroup")
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            hierarchy, _, path = line.split(":", 2)
            if hierarchy == "0":
                group = group / path.lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cache = int(stat.get("inactive_file", 0))  # the kernel frees it when memory is needed
            amounts.append(int(limit) - int((group / "memory.current").read_text()) + cache)
    except (OSError, ValueError):
        pass  # without control groups of version 2 the machine's memory is the limit
    return min(amounts)
