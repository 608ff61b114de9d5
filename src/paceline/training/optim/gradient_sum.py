"""One gradient from several of the script's steps: the mean over all of their samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.training.data.batches import Stands
from paceline.training.training_context import TrainingContext


class GradientSum:
    """Takes the script's gradients, step by step, until they are pushed as one.

    It keeps their mean, as a sum of half-precision gradients might overflow.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        self._parameters = context.parameters
        self._mean: list[Tensor | None] = [None] * len(self._parameters)
        self._weight = 0.0
        self.steps: list[Stands] = []
        """What each of the script's steps stands for that it has the gradient of."""

    @torch.no_grad()
    def add(self, stands: Stands) -> None:
        """Take the gradient that the script steps with. A parameter without one counts as having zeros."""
        weight = 1.0 if stands.weighs is None else stands.weighs
        self._weight += weight
        share = weight / self._weight if self._weight else 0.0
        every = zip(self._context.places.layout.moving, self._parameters, strict=True)
        for number, (entry, parameter) in enumerate(every):
            gradient, mean = parameter.grad, self._mean[number]
            if gradient is not None and gradient.layout != torch.strided:
                self._context.refuse_sparse(entry)
            if mean is None:
                self._mean[number] = None if gradient is None else gradient.detach() * share
            elif gradient is None:
                mean.mul_(1 - share)
            else:
                mean.lerp_(gradient, share)
        self.steps.append(stands)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have the parameters' gradients be the mean inside the block, and then what they were before."""
        own = [parameter.grad for parameter in self._parameters]
        for parameter, mean in zip(self._parameters, self._mean, strict=True):
            parameter.grad = mean
        try:
            yield
        finally:
            for parameter, gradient in zip(self._parameters, own, strict=True):
                parameter.grad = gradient
            self._mean = [None] * len(self._parameters)
            self._weight, self.steps = 0.0, []
