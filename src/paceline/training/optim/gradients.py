"""A script's gradients: whether there are any, and whether the script has zeroed what autograd has made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.training.tensor_bits import checksum


class Gradients:
    """Looks at the parameters' gradients."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self.first = 0
        """The parameter whose gradient came first since the batches may have changed."""
        self._as_made: tuple[int, int] | None = None
        """That gradient, as autograd left it."""

    def made(self, number: int) -> None:
        """Autograd has made this parameter's gradient."""
        if number == self.first:
            self._as_made = self._mark()

    def there(self) -> list[Tensor]:
        """Return all that there are."""
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def zeroed(self) -> bool:
        """Whether the script has zeroed all gradients since the last backward: by `model.zero_grad()`, or by hand.

        A gradient that autograd has made zero counts. So values are looked at, which waits for a device, only if the
        script has written into the parameter's gradient that came first. The smallest gradients come first.
        """
        if self._mark() == self._as_made:
            return False
        return not any(
            (gradient._values() if gradient.is_sparse else gradient).any()
            for gradient in sorted(self.there(), key=torch.Tensor.numel)
        )

    def checksum(self) -> str | None:
        """Return the checksum of the dense ones, to compare workers.

        None if they are zero, which shows nothing: at the start of a schedule, or of a layer, those of all workers may
        be.
        """
        dense = [gradient for gradient in self.there() if gradient.layout == torch.strided]
        return checksum(dense) if any(gradient.any() for gradient in dense) else None

    def _mark(self) -> tuple[int, int] | None:
        """Tell the first gradient from what the script makes of it."""
        gradient = self._parameters[self.first].grad
        return None if gradient is None else (id(gradient), gradient._version)
