"""A run's processes, by their place among the launcher's children."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

from paceline.ipc import processes

GET_CHILD_SUBREAPER = 37  # from <linux/prctl.h>


def uncollected() -> dict[int, str]:
    """This process's children that have ended and are not waited for, with their names."""
    found = {}
    for child in processes.children():
        with suppress(OSError):
            what, _, rest = Path(f"/proc/{child}/stat").read_text().rpartition(")")
            if rest.split()[0] == "Z":
                found[child] = what.partition("(")[2]
    return found


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def adopts_orphans() -> bool:
    """Whether orphans of this process's descendants become its children."""
    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0
    return bool(found.value)


def until_asleep(process: int) -> None:
    """Wait until the process's main thread waits for something, and goes on waiting."""
    seen = 0
    while seen < 20:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        seen = seen + 1 if state == "S" else 0
        time.sleep(0.005)
