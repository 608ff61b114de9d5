"""A script's model and optimizer, joined to a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.store.chunks import State, own
from paceline.store.snapshots import OfWorker
from paceline.store.store import own_attributes
from paceline.training.layout import Entry, Places, PushArea
from paceline.training.link import Link
from paceline.training.model.structure import Followed
from paceline.training.optim.clipping import Clip
from paceline.training.residual import Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext:
    """The script's own objects, the memory that they are laid over, and the run's end."""

    link: Link
    places: Places
    followed: Followed
    """The model's tensors."""
    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    """The optimizer's, in its order: the order of `Layout.moving`."""
    clip: Clip | None = None
    """How gradients are clipped where the optimizer steps."""
    residual: Residual | None = None
    """What encoding has lost of pushes, if the next ones are to make up for it."""

    def put_buffers(self, area: PushArea) -> None:
        """Copy the model's buffers into that area."""
        if not area.buffers:
            return
        with torch.no_grad():
            for name, buffer in self.followed.buffers().items():
                area.buffers[name].copy_(buffer)

    def dropped(self, steps: Sequence[int]) -> None:
        """No version will have this worker's updates of these steps."""
        if self.residual is not None:
            for step in steps:
                self.residual.drop(step)

    def optimizer_state(self) -> State:
        """The state in the script's own optimizer object, by the parameter's number."""
        numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        return {numbers[parameter]: state for parameter, state in self.optimizer.state.items()}

    def optimizer_kept(self) -> OfWorker:
        """Return a copy of the state and attributes of an optimizer that steps here."""
        state = {n: {key: own(value) for key, value in s.items()} for n, s in self.optimizer_state().items()}
        return OfWorker(state=state, attributes=own_attributes(self.optimizer))

    def load_optimizer(self, there: OfWorker) -> None:
        """Have the optimizer go on from what a worker kept of it."""
        state = {self.parameters[number]: values for number, values in (there.state or {}).items()}
        self.optimizer.state = self.beside(state)
        vars(self.optimizer).update(there.attributes)

    def beside(self, state: Mapping[Tensor, dict[str, Any]]) -> defaultdict[Tensor, dict[str, Any]]:
        """A copy of the state with each value on its parameter's device, but for counts of steps, as in torch."""
        groups = {parameter: group for group in self.optimizer.param_groups for parameter in group["params"]}
        placed: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        for parameter, values in state.items():
            counts_there = groups[parameter].get("capturable") or groups[parameter].get("fused")
            placed[parameter] = {
                key: one.to(parameter.device) if isinstance(one, Tensor) and (key != "step" or counts_there) else one
                for key, one in values.items()
            }
        return placed

    def refuse_sparse(self, entry: Entry) -> NoReturn:
        """Refuse that parameter's gradient, which is sparse."""
        self.refuse(
            f'the gradient of "{entry.name}" is sparse; only dense gradients can be pushed: '
            "build its layer with sparse=False"
        )

    def remark(self, line: str) -> None:
        """Have the user told what each worker does: worker 0 says it for all."""
        if self.link.worker == 0:
            self.link.remark(line)

    def refuse(self, message: str) -> NoReturn:
        """End the run with this line."""
        self.link.refuse(message)
        raise ConfigError(message)
