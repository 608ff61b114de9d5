"""Averages of groups, each share made by a process of its own: of every type, of buffers, and of missing gradients."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places, PushArea
from support.rounding import apart

WORKERS = 4
TARGET = WORKERS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shapes = [((40, 50), torch.float32), ((33,), torch.bfloat16), ((5, 2), torch.float64), ((0,), torch.float32)]
        shapes += [((), torch.float32), ((7,), torch.float16), ((3, 3), torch.complex64)]
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes])
        self.register_buffer("running", torch.zeros(12))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(False))


def new_places() -> Places:
    model = Model()
    return Places.new(Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0)), 0, WORKERS + 1)


def fill(area: PushArea, worker: int) -> None:
    """Its replica. Worker 2 has no gradient for the first parameter, nobody one for the second."""
    generator = torch.Generator().manual_seed(worker)
    for view in (*area.gradients, area.buffers["running"]):
        view.copy_(torch.randn(view.shape, generator=generator, dtype=view.dtype))
    area.present.fill_(1)
    area.present[1] = 0
    if worker == 2:
        area.present[0] = 0
        area.gradients[0].fill_(math.nan)
    area.buffers["count"].fill_((5, 9, 2, 0)[worker])
    area.buffers["seen"].fill_(worker % 2 == 1)


def tensors_of(area: PushArea) -> list[Tensor]:
    real = [torch.view_as_real(view) if view.is_complex() else view for view in area.gradients]
    return [*real, *area.buffers.values(), area.present]


def _largest(tensor: Tensor) -> float:
    """Of those that are numbers."""
    return float(tensor.double().abs().nan_to_num(0.0).max()) if tensor.numel() else 0.0


def average_of(areas: list[PushArea], weights: Sequence[float] | None, before: PushArea) -> list[Tensor]:
    """What the average is, worked out in float64."""

    def mean(values: list[Tensor], factors: Sequence[float]) -> Tensor:
        wide = [value.to(torch.complex128 if value.is_complex() else torch.float64) for value in values]
        return sum((value * factor for value, factor in zip(wide, factors, strict=True)), torch.zeros(()))

    equal = [1 / len(areas)] * len(areas)
    made: list[Tensor] = []
    for number, old in enumerate(before.gradients):
        values, flags = [area.gradients[number] for area in areas], [int(area.present[number]) for area in areas]
        if weights is None:
            value = mean(values, equal)
        elif any(flags):
            having = [(value, weight) for value, weight, flag in zip(values, weights, flags, strict=True) if flag]
            value = mean([value for value, _ in having], [weight for _, weight in having])
        else:
            value = old
        value = value.to(old.dtype)
        made.append(torch.view_as_real(value) if value.is_complex() else value)
    made.append(mean([area.buffers["running"] for area in areas], equal).float())
    made.append(torch.stack([area.buffers["count"] for area in areas]).amax())
    made.append(areas[0].buffers["seen"])
    present = torch.stack([area.present for area in areas]).amax(dim=0)
    made.append(torch.ones_like(present) if weights is None else present)
    return made


def check(members: Sequence[int], weights: Sequence[float] | None) -> None:
    """They make the average, each its share in a process of its own, and change nothing else."""
    places = new_places()
    areas = [places.push_area(worker) for worker in range(WORKERS)]
    for worker, area in enumerate(areas):
        fill(area, worker)
    mine = [areas[member] for member in members]
    expected = average_of(mine, weights, places.push_area(TARGET))
    largest = [max(map(_largest, same)) for same in zip(*map(tensors_of, mine), strict=True)]
    before = [tensor.clone() for area in areas for tensor in tensors_of(area)]
    processes = []
    for part in range(len(members)):
        if not (process := os.fork()):
            code = 1
            try:
                torch.set_num_threads(1)  # the parent's other threads are not here
                AreaAverages(places).share(members, TARGET, weights, part, len(members))
                code = 0
            finally:
                os._exit(code)
        processes.append(process)
    assert [os.waitpid(process, 0)[1] for process in processes] == [0] * len(members)
    for tensor, was in zip((tensor for area in areas for tensor in tensors_of(area)), before, strict=True):
        torch.testing.assert_close(tensor, was, rtol=0.0, atol=0.0, equal_nan=True)
    for got, tensor, most in zip(tensors_of(places.push_area(TARGET)), expected, largest, strict=True):
        rounds = tensor.is_floating_point()
        bound = apart(tensor.dtype, summands=len(members), largest=most) if rounds else 0.0
        torch.testing.assert_close(got.double(), tensor.double(), rtol=0.0, atol=bound, equal_nan=True)


def test_everybody_has_the_mean_of_every_dtype_and_of_buffers() -> None:
    check((0, 1, 3), None)
    check((1,), None)


def test_a_weighted_sum_goes_without_what_has_no_gradient() -> None:
    """Worker 2's first gradient is NaN and not there; of the second parameter nobody has one."""
    check((0, 1, 2, 3), [0.5, 0.25, 0.125, 0.125])
    check((1,), [0.5])
