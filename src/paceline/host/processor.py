"""What the processor is, and which of its instructions torch and numpy use: `--isa`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from paceline.errors import ConfigError

Isa = Literal["native", "common"]
ISAS: Final = ("native", "common")
"""What the libraries may use: all that the processor has, or AVX2 and the like. The first is the default."""
NEEDED = {"avx2", "fma"}
"""What x86 processors have since 2013 (Intel) and 2015 (AMD)."""
CAPS = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own loops
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # torch's convolutions
    "MKL_CBWR": "COMPATIBLE",  # torch's products of matrices; MKL heeds all else on processors of Intel alone
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's products of matrices
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL",
}
"""Variables that the libraries read as they are loaded. numpy ignores the names that its version does not have."""
CPUINFO = Path("/proc/cpuinfo")
VENDOR, MODEL = ("vendor_id", "CPU implementer"), ("model name", "CPU part")
"""The keys in that file: those of x86, and those of ARM."""


def cpuinfo() -> dict[str, str]:
    """Return what the system says of this machine's first processor."""
    found: dict[str, str] = {}
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def vendor_and_model(found: Mapping[str, str]) -> tuple[str, str]:
    """Return who made a processor and what it is called, in its own words. `found` is what `cpuinfo` returned."""
    vendor, model = (next((found[key] for key in keys if key in found), "") for keys in (VENDOR, MODEL))
    return vendor or platform.machine(), model or platform.machine()


def isa() -> Isa:
    """Return what the libraries use in this process."""
    return "common" if all(os.environ.get(name) == value for name, value in CAPS.items()) else "native"


def can_cap() -> bool:
    """Whether this machine's processor has what `common` means."""
    return set(cpuinfo().get("flags", "").split()) >= NEEDED


def cap(isa: Isa) -> None:
    """Have the libraries use these instructions, in this process and its children. Call it before torch is imported.

    Raises ConfigError, in one line, if the processor lacks them.
    """
    if isa == "native":
        return
    if not can_cap():
        vendor, model = vendor_and_model(cpuinfo())
        raise ConfigError(f"--isa common means AVX2, which this processor ({vendor} {model}) lacks; leave it out")
    assert not {"torch", "numpy"} & set(sys.modules), "they have read the variables"
    os.environ |= CAPS
