"""bf16 and fp16: half of each value's bits. Torch's own conversion rounds half to even."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.codecs import Codec

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast(Codec):
    kind: ClassVar[str]
    """Torch's name of the type."""

    def size(self, *shape: int) -> int:
        """See `Codec`."""
        return 2 * math.prod(shape)

    def encode(self, values: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        into.view(self._dtype).copy_(values)

    def decode(self, encoded: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        into.copy_(encoded.view(self._dtype))

    @property
    def _dtype(self) -> torch.dtype:
        import torch

        kind: torch.dtype = getattr(torch, self.kind)
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BFloat16(_Cast):
    """float32's range, and 8 bits of its precision."""

    name: ClassVar[str] = "bf16"
    kind: ClassVar[str] = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16(_Cast):
    """11 bits of precision, and no magnitude above 65,504."""

    name: ClassVar[str] = "fp16"
    kind: ClassVar[str] = "float16"
    largest: ClassVar[float] = 65504.0


CODECS = (BFloat16, Float16)
