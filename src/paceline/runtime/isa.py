"""`--isa common`: torch and numpy compute with instructions that processors of several kinds have."""

from __future__ import annotations

import os
import sys
from typing import Final, Literal

from paceline.errors import ConfigError
from paceline.runtime.machine import cpuinfo, instructions, processor

Isa = Literal["native", "common"]
ISAS: Final = ("native", "common")
"""What the libraries may use: all that the processor has, or AVX2. The first is the default."""
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


def can_cap() -> bool:
    """Whether this machine's processor has what `common` means."""
    return instructions(cpuinfo()) >= NEEDED


def cap(isa: Isa) -> None:
    """Let this process and its children compute with these instructions. To be called before torch is imported.

    Raises ConfigError, in one line, if the processor lacks them.
    """
    if isa == "native":
        return
    if not can_cap():
        vendor, model = processor(cpuinfo())
        raise ConfigError(f"--isa common means AVX2, which this processor ({vendor} {model}) lacks; leave it out")
    assert not {"torch", "numpy"} & set(sys.modules), "they have read the variables"
    os.environ |= CAPS
