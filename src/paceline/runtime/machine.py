"""What the machine of a host has: versions that all hosts must share, and what its workers' bits depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.listed import workers_named
from paceline.version import __version__

CPUINFO = Path("/proc/cpuinfo")
VENDOR, MODEL = ("vendor_id", "CPU implementer"), ("model name", "CPU part")
"""The keys in that file: those of x86, and those of ARM."""
OF_THE_HEAD = ("python", "torch", "numpy", "cpu_capability", "platform", "cores")
"""What a run of one host notes, too."""
BITS = ("torch", "cpu_capability", "vendor", "threads")
"""What a worker's bits depend on, and may differ between hosts that train together."""


class Machine(msgspec.Struct, frozen=True, array_like=True):
    """What one machine has, as a run uses it."""

    paceline: str
    python: str
    torch: str
    numpy: str
    cpu_capability: str
    """The instructions that torch computes with."""
    vendor: str
    """Who made the processor, in the processor's own words."""
    model: str
    platform: str
    cores: int
    """Those that the run may use."""
    threads: int
    """Of each worker."""


def machine(threads: int) -> Machine:
    """Return what this machine has. Imports torch."""
    import torch

    vendor, model = processor(cpuinfo())
    return Machine(
        paceline=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=version("numpy"),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        vendor=vendor,
        model=model,
        platform=platform.platform(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
    )


def environment(here: Machine, hosts: Mapping[str, Machine]) -> dict[str, Any]:
    """Return what a run's configuration notes of its machines. `hosts`: those of all hosts, if there are several."""
    noted: dict[str, Any] = {key: getattr(here, key) for key in OF_THE_HEAD}
    if hosts:
        noted["hosts"] = {host: msgspec.structs.asdict(one) for host, one in hosts.items()}
    return noted


def cpuinfo() -> dict[str, str]:
    """Return what the system says of this machine's first processor."""
    try:
        return read_cpuinfo(CPUINFO.read_text(errors="replace"))
    except OSError:
        return {}


def read_cpuinfo(text: str) -> dict[str, str]:
    """Return what the text of that file says of the first processor."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def processor(found: Mapping[str, str]) -> tuple[str, str]:
    """Return the vendor and the model of a processor of which `cpuinfo` says that."""
    vendor, model = (next((found[key] for key in keys if key in found), "") for keys in (VENDOR, MODEL))
    return vendor or platform.machine(), model or platform.machine()


def instructions(found: Mapping[str, str]) -> set[str]:
    """Return the names of the extensions that such a processor has."""
    return set(found.get("flags", found.get("Features", "")).split())


def difference(head: Machine, other: Machine, host: str) -> str:
    """Return why that host can't train together with the head; empty if it can.

    Releases of Python and builds of torch may differ. They understand each other, though they may round differently.
    """
    versions = (
        ("Paceline", head.paceline, other.paceline),
        ("Python", _minor(head.python), _minor(other.python)),
        ("torch", _public(head.torch), _public(other.torch)),
        ("numpy", head.numpy, other.numpy),
    )
    for name, ours, theirs in versions:
        if ours != theirs:
            return f"host {host} has {name} {theirs}, and the head {ours}; install the same on all hosts"
    return ""


def unlike(hosts: Mapping[str, Mapping[str, Any]], workers: Mapping[str, list[int]], here: Machine) -> Iterator[str]:
    """Yield a line for each way in which recorded hosts were unlike this machine. It names their workers.

    `hosts`: by name, what was recorded of each one's machine. `workers`: by name, the workers of each.
    """
    now = msgspec.structs.asdict(here)
    found: dict[str, list[int]] = {}
    for host, then in hosts.items():
        differing = [key for key in BITS if then.get(key) != now[key]]
        if differing and workers.get(host):
            what = ", ".join(f"{key} {then.get(key)} (here {now[key]})" for key in differing)
            found.setdefault(what, []).extend(workers[host])
    for what, those in found.items():
        yield f"{workers_named(sorted(those))} ran with {what}: the replay can't promise their bits"


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def _public(torch: str) -> str:
    return torch.partition("+")[0]
