"""The parameter store: versions in slots, and the user's own optimizer that makes one from the other.

It runs in a process of its own, forked from a worker that had prepared, so that it has the user's
optimizer, of whatever class, without a byte of it being sent.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.fabric.memory import Region
from paceline.training.buffers import Policy, merged
from paceline.training.layout import Layout, PushArea, parameters_sha256

Scalars = list[dict[str, Any]]
"""For each parameter group, its hyperparameters that are plain values (learning rate, momentum, …)."""


class Store:
    """The parameters of one model, version by version.

    A commit writes into a slot that nobody reads, and reads another: readers are never disturbed, and
    never see two versions mixed.
    """

    def __init__(
        self, layout: Layout, optimizer: torch.optim.Optimizer, region: Region, slots: int, workers: int
    ) -> None:
        self.layout = layout
        self.region = region
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.slots = [layout.slot(region, slot) for slot in range(slots)]
        self.pushes = [layout.push_area(region, slots, worker) for worker in range(workers)]
        self.fixed = layout.fixed_tensors(region)
        self.buffers: dict[int, dict[str, Tensor]] = {}
        """Each worker's, as of its last applied update."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        region: Region,
        slots: int,
        workers: int,
    ) -> Store:
        """A store for this model, whose present values become the version in slot 0."""
        store = cls(layout, detached_optimizer(optimizer), region, slots, workers)
        present = dict(model.named_parameters())
        for entry, view in zip(layout.moving, store.slots[0], strict=True):
            view.copy_(present[entry.name].detach())
        held = {**present, **dict(model.named_buffers())}
        for name, view in store.fixed.items():
            view.copy_(held[name].detach())
        return store

    @torch.no_grad()
    def commit(self, source: int, target: int, contributions: list[tuple[int, float]], scalars: Scalars | None) -> None:
        """Make the version in slot `target` from the one in slot `source` and these (worker, weight).

        Gradients are summed in the order given; a weight of 1 multiplies nothing. `scalars`, if any, are
        the hyperparameters from now on.
        """
        if scalars is not None:
            set_scalars(self.optimizer, scalars)
        torch._foreach_copy_(self.slots[target], self.slots[source])
        areas = [(self.pushes[worker], weight) for worker, weight in contributions]
        for number, (parameter, view) in enumerate(zip(self.parameters, self.slots[target], strict=True)):
            parameter.data = view
            parameter.grad = _weighted_sum(areas, number)
        self.optimizer.step()
        for worker, _ in contributions:
            self.buffers[worker] = {name: value.clone() for name, value in self.pushes[worker].buffers.items()}

    def tensors(self, slot: int, workers: list[int], policy: Policy) -> dict[str, Tensor]:
        """The version in that slot under the script's own names, with the buffers of these workers.

        Parameters are views: whoever calls keeps the slot from being written meanwhile.
        """
        moving = {entry.name: view for entry, view in zip(self.layout.moving, self.slots[slot], strict=True)}
        copies = [self.buffers[worker] for worker in sorted(workers) if worker in self.buffers]
        buffers = merged(copies, policy) if copies else {}
        return {**self.fixed, **moving, **buffers}

    def record(self, tensors: dict[str, Tensor], file: Path) -> str:
        """Write them as safetensors, whole or not at all; returns the SHA-256 of the parameters."""
        saved = {name: tensors[name] for name in self.layout.names}
        saved |= {name: tensors[name] for name in tensors if name in self.layout.saved_buffers}
        saved |= {alias: tensors[name].clone() for alias, name in self.layout.aliases.items()}
        unfinished = file.with_suffix(".unfinished")
        safetensors.torch.save_file({name: value.contiguous() for name, value in saved.items()}, unfinished)
        unfinished.rename(file)
        return parameters_sha256(tensors[name] for name in self.layout.names)


def detached_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy of the optimizer, state included, over CPU parameters of its own.

    Made without its constructor, so that it works for any class. A scheduler may have patched `step`, and
    hooks belong to the script: neither comes along.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)  # copy.copy would lose attributes of a class of the user's own
    twin.__dict__.pop("step", None)
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    twins: dict[Tensor, nn.Parameter] = {}
    twin.param_groups = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            twins[parameter] = nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=False)
        twin.param_groups.append({**group, "params": [twins[parameter] for parameter in group["params"]]})
    twin.state = defaultdict(dict)
    for parameter, state in optimizer.state.items():
        twin.state[twins[parameter]] = {key: _own(value) for key, value in state.items()}
    return twin


def scalars_of(optimizer: torch.optim.Optimizer) -> Scalars:
    """The hyperparameters of each group that can change on the way and be sent as plain values."""
    return [
        {key: plain for key, value in group.items() if key != "params" and (plain := _plain(value)) is not _NOT_PLAIN}
        for group in optimizer.param_groups
    ]


def set_scalars(optimizer: torch.optim.Optimizer, scalars: Scalars) -> None:
    """Give the groups these hyperparameters."""
    for group, values in zip(optimizer.param_groups, scalars, strict=True):
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, tuple | list):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if _NOT_PLAIN in items else items
    return value if value is None or isinstance(value, bool | int | float | str) else _NOT_PLAIN


def _own(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.copy(value)


def _weighted_sum(areas: list[tuple[PushArea, float]], number: int) -> Tensor | None:
    """Σ weight · gradient of one parameter, over those that have one; None where nobody has."""
    terms = [(area.gradients[number], weight) for area, weight in areas if area.present[number]]
    if not terms:
        return None
    gradient, weight = terms[0]
    if weight == 1.0 and len(terms) == 1:
        return gradient
    total = gradient * weight
    for gradient, weight in terms[1:]:
        total.add_(gradient, alpha=weight)
    return total
