"""What the machine of a host has: versions that all hosts must share, and what its workers' bits depend on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec

from paceline.core.phrases import workers_named
from paceline.host import devices, hash_seed
from paceline.host.processor import Isa, cpuinfo, isa, vendor_and_model
from paceline.ipc.endpoint import Count, Word
from paceline.version import __version__

OF_THE_HEAD = ("python", "torch", "numpy", "cpu_capability", "platform", "cores", "devices")
"""What a run of one host notes, too."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Drawn by Linux as it starts."""
BITS = ("torch", "cpu_capability", "vendor", "threads")
"""What a worker's bits depend on, and may differ between hosts that train together."""


Few = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class Machine(msgspec.Struct, frozen=True, array_like=True):
    """What one machine has, as a run uses it."""

    paceline: Word
    python: Word
    torch: Word
    numpy: Word
    isa: Isa
    """See `host.processor`."""
    cpu_capability: Word
    """The instructions that torch uses."""
    vendor: Word
    model: Word
    platform: Word
    cores: Few
    """Those that the run may use."""
    boot: Word
    """Of the system on it. Hosts with the same one are on one machine, and share its cores."""
    devices: Few = 0
    """Accelerators that workers may have. See `host.devices`."""
    hash_seed: Count | None = None
    """See `host.hash_seed`."""


def machine() -> Machine:
    """Return what this machine has. Imports torch."""
    import torch

    vendor, model = vendor_and_model(cpuinfo())
    return Machine(
        paceline=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=version("numpy"),
        isa=isa(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        vendor=vendor,
        model=model,
        platform=platform.platform(),
        cores=len(os.sched_getaffinity(0)),
        boot=BOOT.read_text().strip(),
        devices=len(devices.visible(os.environ, devices.there())),
        hash_seed=hash_seed.of_this_process(),
    )


def environment(here: Machine, hosts: Mapping[str, tuple[Machine, int]]) -> dict[str, Any]:
    """Return what a run's configuration notes of its machines.

    `hosts`: by name, the machine of each and the threads of each worker there, if there are several hosts.
    """
    noted: dict[str, Any] = {key: getattr(here, key) for key in OF_THE_HEAD}
    if hosts:
        noted["hosts"] = {host: _noted(one, threads) for host, (one, threads) in hosts.items()}
    return noted


def difference(head: Machine, other: Machine) -> str:
    """Return why that machine can't train together with the head, without its name; empty if it can.

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
            return f"{name} is {theirs}, and the head's is {ours}; install the same on all hosts"
    if other.isa != head.isa:
        return f"--isa is {other.isa}, and the head's is {head.isa}; give the same on all hosts"
    return ""


def unlike(
    hosts: Mapping[str, Mapping[str, Any]], workers: Mapping[str, list[int]], here: Machine, threads: int
) -> Iterator[str]:
    """Yield a line for each way in which recorded hosts were unlike this machine. It names their workers.

    `hosts`: by name, what was recorded of each one's machine. `workers`: by name, the workers of each. `threads`: those
    of each worker here.
    """
    now = _noted(here, threads)
    found: dict[str, list[int]] = {}
    for host, then in hosts.items():
        differing = [key for key in BITS if then.get(key) != now[key]]
        if differing and workers.get(host):
            what = ", ".join(f"{key} {then.get(key)} (here {now[key]})" for key in differing)
            found.setdefault(what, []).extend(workers[host])
    for what, those in found.items():
        yield f"{workers_named(those)} ran with {what}: the replay can't promise their bits"


def _noted(one: Machine, threads: int) -> dict[str, Any]:
    seed = hash_seed.UNKNOWN if one.hash_seed is None else one.hash_seed
    return {**msgspec.structs.asdict(one), "hash_seed": seed, "threads": threads}


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def _public(torch: str) -> str:
    return torch.partition("+")[0]
