"""Shared memory without names: nothing lies in /dev/shm, and the last process to go takes it along."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

MADV_POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module


class Region:
    """Memory that processes share by passing its descriptor on.

    Tensors are laid over `memory` with `torch.frombuffer`, which does not keep the mapping alive: so it is
    never closed by hand, and goes when the last reference to this object does.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.memory = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> Region:
        """A new region of that many bytes, zeroed; pages cost memory when first touched."""
        descriptor = os.memfd_create("paceline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(descriptor, size)

    @classmethod
    def attach(cls, descriptor: int) -> Region:
        """The region behind a descriptor that another process passed."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def populate(self, start: int, stop: int) -> None:
        """Touch these bytes' pages now rather than during training (60 ms for 100 MB)."""
        first = start - start % mmap.PAGESIZE
        try:
            self.memory.madvise(MADV_POPULATE_WRITE, first, stop - first)
        except OSError:
            return  # an older kernel: the pages come when first written


def available_bytes() -> int:
    """Memory that can still be had: of the machine and of the control group, whichever is less.

    A memfd may be made far larger than that, and the process is then killed as it fills.
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
            cache = int(stat.get("inactive_file", 0))  # is given up when memory is wanted
            amounts.append(int(limit) - int((group / "memory.current").read_text()) + cache)
    except (OSError, ValueError):
        pass  # no second-generation control group here: the machine's own memory is the limit
    return min(amounts)
