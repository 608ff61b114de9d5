"""What every run keeps to, as its ledger, its final version and its replay show."""

from __future__ import annotations

import torch

from support.recorded import checked
from support.runs import Run, replayed


def right(run: Run) -> None:
    """`paceline check` finds nothing wrong with the run."""
    assert (found := checked(run.folder)).ok, found.wrong


def sound(run: Run) -> None:
    """That holds, and a replay ends on the same bits."""
    right(run)
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


def same_bits(one: Run, other: Run) -> bool:
    """Whether both have come to the same parameters and buffers."""
    a, b = one.final(), other.final()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
