"""A run's processes, by their place among the launcher's children."""

from __future__ import annotations

from pathlib import Path


def children(launcher: int) -> list[int]:
    """The launcher's children, in the order in which they became its children."""
    return [int(number) for number in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def zygote_of(launcher: int) -> int:
    """The process that workers are forked from. The launcher forks it before all else."""
    return children(launcher)[0]
