"""What every worker needs is imported once, before the zygote is forked."""

from __future__ import annotations

import gc
import os
from typing import Any

SPEAKS_OF_COMPILING = (b"compile", b"dynamo", b"checkpoint")
"""Names that make a script need torch._dynamo."""


def import_torch(script: bytes) -> None:
    """Import torch, and what this script's workers need of it, and compute nothing: workers are forked from here.

    numpy's BLAS would start a thread, and threads do not survive a fork.
    """
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    collects = gc.isenabled()
    gc.disable()  # imports leave little garbage, and looking for it takes a tenth of their time
    try:
        import torch

        import paceline.worker_process.worker  # noqa: F401

        if any(word in script for word in SPEAKS_OF_COMPILING):
            import torch._dynamo
        else:
            _leave_dynamo_out(torch.optim.Optimizer)
        gc.freeze()  # otherwise a collection in a worker would touch, and so copy, all that it shares with the launcher
    finally:
        if collects:
            gc.enable()
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before


def _leave_dynamo_out(kind: Any) -> None:
    """Let an optimizer be made without importing torch._dynamo, which some of its methods are kept from."""
    from paceline.training.uncompiled import await_compiler

    for name in ("__init__", "add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        plain = getattr(getattr(kind, name, None), "__wrapped__", None)
        if plain is not None:
            await_compiler(plain)
