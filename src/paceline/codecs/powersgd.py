"""powersgd: two thin matrices in the place of a large one. What they lack comes with later pushes, by feedback.

Source: PowerSGD, Vogels et al. 2019 (arXiv 1905.13727). There P and Q are averages of all workers', which takes two
exchanges one after the other. Here each worker has its own, and their products are averaged, as with any other codec.
So the mean has a higher rank, and a link carries the two matrices of each worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.codecs import Codec
from paceline.core.choice import parameter
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

DEPENDENT = 1e-9
"""The share of a column that is left without those before it if it depends on them, but for rounding in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSGD(Codec):
    """A is the parameter's first dimension by all others: P = orth(A Q), then Q = Aᵀ P, which decode to P Qᵀ.

    A push begins with the last one's Q. Encoded: P, then Q, as float32.
    """

    name: ClassVar[str] = "powersgd"
    whole: ClassVar[bool] = True
    largest: ClassVar[float] = 1e30

    rank: int = parameter(2, "columns of the two matrices", unit="columns", least=1)

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if not self.feedback:
            raise ConfigError("powersgd: feedback is false; it must be true, as most of a gradient would be lost")

    def size(self, *shape: int) -> int:
        """See `Codec`. A parameter of one dimension, or without a gain of two, takes what it takes as it is."""
        whole = math.prod(shape)
        factors = self.rank * sum(_sides(shape)) if len(shape) > 1 else whole
        return 4 * (factors if 2 * factors < whole else whole)

    def encode(self, values: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        p, q = self._factors(into, values)
        if not values.isfinite().all():
            into.view(p.dtype).fill_(math.nan)
            return
        matrix = values.reshape(len(p), -1)
        p.copy_(_orthonormal((matrix @ _start(q)).double()))
        q.copy_(matrix.t() @ p)

    def decode(self, encoded: Tensor, into: Tensor) -> None:
        """See `Codec`. Each product and each sum is rounded by itself, so all processors come to the same bits."""
        p, q = self._factors(encoded, into)
        made = p[:, :1] * q[:, 0]
        for column in range(1, self.rank):
            made += p[:, column : column + 1] * q[:, column]
        into.copy_(made.view(into.shape))

    def _factors(self, encoded: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        n, m = _sides(values.shape)
        both = encoded.view(values.dtype).view(n + m, self.rank)
        return both[:n], both[n:]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def _start(last: Tensor) -> Tensor:
    """Return the last Q, each column up to 1: no product of it is too large. A column of zeros or NaN begins anew."""
    import torch

    lost = last.abs().amax(dim=0).isfinite().logical_not() | (last == 0).all(dim=0)
    if lost.any():
        drawn = last.new_empty(last.shape).normal_(generator=torch.Generator(last.device).manual_seed(0))
        last = torch.where(lost, drawn, last)
    return last / last.abs().amax(dim=0)


def _orthonormal(columns: Tensor) -> Tensor:
    """Make the columns orthonormal, by Gram and Schmidt, one after the other. What depends on others becomes zeros."""
    for number, column in enumerate(columns.unbind(dim=1)):
        size = column.norm()
        for before in columns[:, :number].unbind(dim=1):
            column -= before * before.dot(column)
        left = column.norm()
        column.div_(left) if left > DEPENDENT * size else column.zero_()
    return columns


CODECS = (PowerSGD,)
