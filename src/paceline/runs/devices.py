"""Measures this machine's CUDA devices, in a process that `paceline doctor` starts.

A process that uses CUDA can't fork another one that does, so the caller's own process never uses it.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from statistics import median
from typing import Any

PROGRAM = "from paceline.runs.devices import tell; tell()"
"""The code that this process executes."""
COPIED = 256_000_000
"""Bytes of each measured copy."""
COPIES = 5
PORTABLE = 1
"""cudaHostRegisterPortable: the memory counts as page-locked for all devices."""


def tell() -> None:
    """Write what `measured` returns as one line of JSON."""
    sys.stdout.write(f"{json.dumps(measured())}\n")


def measured() -> dict[str, Any]:
    """Return torch's build, and the name, memory and copy speeds of each device that torch can use.

    `cuda`: None without CUDA. `unusable` and `unlocked` say why torch can use no device, and why shared memory can't be
    page-locked. They are empty if all is well.
    """
    import torch

    told: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    told |= {"unusable": "", "unlocked": "", "devices": []}
    if torch.version.cuda is None:
        return told
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return told | {"unusable": _first_line(error)}
    host = _shared()
    unlocked = _lock(host)
    return told | {"unlocked": unlocked, "devices": [_measured(one, host) for one in range(torch.cuda.device_count())]}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _shared() -> Any:
    """Return memory like a run's, a mapped memfd, as a tensor whose pages are allocated."""
    import torch

    file = os.memfd_create("paceline-doctor")
    try:
        os.ftruncate(file, COPIED)
        return torch.frombuffer(mmap.mmap(file, COPIED), dtype=torch.uint8).fill_(1)
    finally:
        os.close(file)


def _lock(host: Any) -> str:
    """Page-lock this memory. Return why that failed; empty if it did not."""
    import torch

    register = torch.cuda.cudart().cudaHostRegister  # type: ignore[no-untyped-call]
    code = int(register(host.data_ptr(), host.nbytes, PORTABLE))
    return _first_line(torch.cuda.CudaError(code)) if code else ""


def _measured(index: int, host: Any) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    with torch.cuda.device(index):
        there = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
        return {
            "name": properties.name,
            "memory": properties.total_memory,
            "to": _speed(there, host),
            "from": _speed(host, there),
        }


def _speed(target: Any, source: Any) -> float:
    """Return the median speed of a copy in bytes a second. The first copy is not counted."""
    import torch

    event: Any = torch.cuda.Event
    seconds: list[float] = []
    for _ in range(1 + COPIES):
        began, ended = event(enable_timing=True), event(enable_timing=True)
        began.record()
        target.copy_(source, non_blocking=True)
        ended.record()
        ended.synchronize()
        seconds.append(began.elapsed_time(ended) / 1000)
    return COPIED / median(seconds[1:])
