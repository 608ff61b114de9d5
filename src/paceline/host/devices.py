"""Which accelerator each worker has: `--devices`.

A worker has its device by CUDA_VISIBLE_DEVICES, which is set in its own process before its script begins. So a script's
plain "cuda" is the worker's device. Nothing here asks CUDA: a process that has begun to use CUDA can't fork one
that uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from paceline.core.phrases import count, cut
from paceline.errors import ConfigError

FLAG, VARIABLE = "--devices", "CUDA_VISIBLE_DEVICES"
ON_CPU = "cpu"
"""The entry for a worker that no device is visible to."""
DEV = Path("/dev")
DEVICE = re.compile(r"nvidia\d+", re.ASCII)
"""The driver's file for one device. `nvidiactl` and others are for all of them."""
ENTRY = re.compile(rf"\d{{1,4}}|{ON_CPU}", re.ASCII)
NONE = {"", "NoDevFiles"}
"""What schedulers write into the variable where a job has no device."""


def listed(text: str) -> str:
    """Return the list as it is recorded: `0,cpu`. Raises ConfigError, in one line, for what is no such list."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(ENTRY.fullmatch(entry) for entry in entries):
        raise ConfigError(f'{FLAG} is "{cut(text, 41)}"; write device numbers or cpu, such as 0,1 or 0,cpu')
    return ",".join(entry if entry == ON_CPU else str(int(entry)) for entry in entries)


def there(folder: Path = DEV) -> int:
    """Return how many devices this machine has."""
    try:
        return sum(DEVICE.fullmatch(name) is not None for name in os.listdir(folder))
    except OSError:
        return 0


def visible(environ: Mapping[str, str], there: int) -> list[str]:
    """Return the devices that CUDA would see, of as many as there are, each as CUDA_VISIBLE_DEVICES names it."""
    if (said := environ.get(VARIABLE)) is None:
        return [str(number) for number in range(there)]
    found = []
    for entry in map(str.strip, said.split(",")):
        if entry in NONE or entry.startswith("-"):
            break  # CUDA reads no further than the first entry that is no device
        found.append(entry)
    return found


def devices(environ: Mapping[str, str], there: int, asked: str | None) -> list[str]:
    """Return what is dealt out to workers, in turn, each as CUDA_VISIBLE_DEVICES names it; empty for the processor.

    An empty list means that nothing is dealt out, as there is no choice. `asked` is what `listed` has returned. Raises
    ConfigError, in one line, if it names a device that isn't visible.
    """
    found = visible(environ, there)
    if asked is None:
        return found if len(found) > 1 else []
    entries = asked.split(",")
    for entry in entries:
        if entry != ON_CPU and int(entry) >= len(found):
            raise ConfigError(f"{FLAG} names device {entry}, and {_what_there_is(environ, len(found))}")
    return ["" if entry == ON_CPU else found[int(entry)] for entry in entries]


def device_of(worker: int, devices: Sequence[str]) -> str | None:
    """Return that worker's device. None: none is dealt out, and the worker has what its process has."""
    return devices[worker % len(devices)] if devices else None


def check(asked: str | None) -> None:
    """Raise ConfigError, in one line, if a device is asked for that this process can't give to a worker."""
    devices(os.environ, there(), asked)


def give(worker: int, asked: str | None, environ: MutableMapping[str, str] = os.environ) -> None:
    """Give the worker whose process this is its device. Call this before anything uses CUDA here."""
    device = device_of(worker, devices(environ, there(), asked))
    if device is not None:
        environ[VARIABLE] = device


def _what_there_is(environ: Mapping[str, str], number: int) -> str:
    if not number:
        what = f"{VARIABLE} leaves none visible" if VARIABLE in environ else "this machine has no GPU visible"
        return f"{what}; write {ON_CPU}, or leave {FLAG} out"
    has = f"{VARIABLE if VARIABLE in environ else 'this machine'} has {count(number, 'device')}"
    if number == 1:
        return f"{has}, number 0; name that, or {ON_CPU}"
    return f"{has}, numbers 0 to {number - 1}; name those, or {ON_CPU}"
