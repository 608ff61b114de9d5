"""What CUDA says of this machine's devices, measured in a process of its own: `paceline doctor` starts it.

A process that has begun to use CUDA can't fork one that uses it, so the caller's own process never does.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from statistics import median
from typing import Any

PROGRAM = "from paceline.runs.devices import tell; tell()"
"""What that process executes."""
COPIED = 256_000_000
"""Bytes of each measured copy."""
COPIES = 5
PORTABLE = 1
"""cudaHostRegisterPortable: the memory counts as page-locked for all devices."""


def tell() -> None:
    """Write what `measured` returns as one line of JSON."""
    sys.stdout.write(f"{json.dumps(measured())}\n")


def measured() -> dict[str, Any]:
    """Return what torch was built with, why it can use no device, and what each device that it can use is and does.

    `cuda`: None without CUDA. `unusable`, `unlocked`: why there is no device, and why shared memory can't be
    page-locked; empty if all is well.
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
    """Return memory as a run's is: a mapped memfd, as a tensor. Its pages are there."""
    import torch

    file = os.memfd_create("paceline-doctor")
    try:
        os.ftruncate(file, COPIED)
        return torch.frombuffer(mmap.mmap(file, COPIED), dtype=torch.uint8).fill_(1)
    finally:
        os.close(file)


def _lock(host: Any) -> str:
    """Page-lock that memory. Return why that is not possible; empty if it is done."""
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
    """Return how many bytes a second are copied: the median, after a copy that is not counted."""
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
