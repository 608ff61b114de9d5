"""Which buffers a version has, when every worker has its own (BatchNorm's statistics, say).

`mean`    floating-point buffers are averaged over the workers; whole numbers become the largest one
`leader`  the lowest worker's
`local`   each worker keeps its own in its script; a recorded version has the lowest worker's
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Policy = Literal["mean", "leader", "local"]
POLICIES: tuple[str, ...] = get_args(Policy)


def merged(copies: list[dict[str, Tensor]], policy: Policy) -> dict[str, Tensor]:
    """Merge the workers' copies into one set of buffers. Copies ascend by worker, and there is at least one."""
    if policy != "mean" or len(copies) == 1:
        return dict(copies[0])
    return {name: _mean([copy[name] for copy in copies]) for name in copies[0]}


def added(copies: list[dict[str, Tensor]], of: int) -> dict[str, Tensor]:
    """Return the sums of these buffers; or the mean over so many workers, if these are sums of theirs.

    Whole numbers become the largest one, and truth values the first.
    """
    return {name: _added([copy[name] for copy in copies], of) for name in copies[0]}


def _added(values: list[Tensor], of: int) -> Tensor:
    if not (values[0].is_floating_point() or values[0].is_complex()):
        return _mean(values)
    total = torch.stack(values).sum(dim=0)
    return total / of if of else total


def _mean(values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    if stacked.is_floating_point() or stacked.is_complex():
        return stacked.mean(dim=0)
    if stacked.dtype == torch.bool:
        return values[0]
    return stacked.amax(dim=0)
