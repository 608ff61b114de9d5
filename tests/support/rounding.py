"""How far apart two computations may be that differ in nothing but how they round: on any processor.

A processor's vector width, the number of threads and the BLAS decide in which order a sum is made, and where a product
and a sum round once together instead of twice. What such choices can change is bounded; a wrong sample, weight or
learning rate changes far more, and in float64 even one that is wrong by a millionth shows.
"""

from __future__ import annotations

import torch


def apart(dtype: torch.dtype, *, summands: int, steps: int = 1, largest: float = 1.0) -> float:
    """The bound for results of `steps` steps, each of which makes means of so many summands.

    In a mean (weighted, or a sum that is divided) each summand is multiplied once and takes part in `summands` - 1
    additions and at most one division. Each of these rounds by half an ε, relatively. So a computed mean is within
    (`summands` + 1) · ε/2 · `largest` of the exact one, where no summand is larger than `largest`, and two computed
    means are within twice that of each other. Averages, and steps at a learning rate below 2 / curvature, take two
    inputs no further apart than they were. So the errors of the steps add up at most.

    A training that stretches small distances stays below it, because rounding errors have both signs: of n roundings
    about √n remain. Trainings are therefore compared in float64, where what is left has room for a factor of thousands.
    """
    return steps * (summands + 1) * torch.finfo(dtype).eps * largest
