"""A run that is made again from its ledger, as a rule that every run keeps."""

from __future__ import annotations

import os
import signal
import subprocess

import torch

from support import nursery
from support.runs import Run


def broken_replay(run: Run, first: str = "") -> list[str]:
    """What is wrong with the run's replay, a line each. `first`: see `support.runs.run`."""
    folder = run.folder.parent / f"{run.folder.name}-again"
    process = nursery.Process(["replay", str(run.folder), "--out", str(folder)], first=first)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return [f"the replay is not over after a minute: {out}{err}"]
    if "there are no bits to compare" in err + out:
        return []  # it failed before any
    if process.returncode:
        return [f"the replay ends with {process.returncode}: {out}{err}"]
    again = Run(process.returncode, out, err, folder)
    if not (run.folder / "versions" / "final.safetensors").exists():
        return []  # it failed, and what it recorded before is the same
    one, other = run.final(), again.final()
    # NaN is as it was, too
    if differs := [name for name in one if not torch.equal(_octets(one[name]), _octets(other[name]))]:
        return [f"{differs} differ in the replay"]
    return []


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
