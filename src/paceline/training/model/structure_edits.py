"""How a script changes its model's structure as it trains: told to the run, whose first worker's new tensors hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.ipc.messages.worker import OwnValues
from paceline.training.holders.holder import Holder
from paceline.training.model.non_optimized import NonOptimized
from paceline.training.model.structure import Shape, Structure
from paceline.training.packing import packed, unpacked
from paceline.training.training_context import TrainingContext


class StructureEdits:
    """Follows the model's structure, and tells of values that no step moves: versions are recorded with both."""

    def __init__(self, context: TrainingContext, holder: Holder, fixed: NonOptimized, evaluates: bool) -> None:
        """`evaluates`: whether recorded versions are evaluated."""
        self._context = context
        self._followed = context.followed
        self.holder = holder
        self._fixed = fixed
        self._evaluates = evaluates
        self.began_with = self._followed.structure
        self.shapes = [Shape(self._followed.model)] if evaluates else []
        """By number of the structure."""
        self._told: list[tuple[int, int]] = []
        """What tells the values that were told last from others."""
        self._times_told = 0
        self.told_after = -1
        """How many steps this worker had made as it told its own values last."""

    def look(self, steps: int) -> None:
        """Look how the script has changed the model. `steps`: how many this worker has made."""
        followed, before = self._followed, self._followed.structure
        structure = followed.look()
        if structure is None:
            return
        if steps and self._remade(before):  # prune.remove() after training, say: see `finish`
            followed.structure = before
            return
        if self._evaluates:
            self.shapes.append(Shape(followed.model))
        added = followed.added
        lacking = [name for name, one in added.items() if isinstance(one, nn.Parameter) and one.requires_grad]
        if lacking:
            self._context.remark(
                f'has a new parameter "{lacking[0]}", which no step moves: the optimizer did not have it in prepare(); '
                "give the model its final parameters before prepare()"
            )
        tree = {"number": structure.number, "names": structure.names, "forms": structure.added, "added": added}
        try:
            packing = packed(tree, "the model")
        except ConfigError as error:
            self._context.refuse(str(error))
        first = self._context.link.edit(structure, structure.only_ties(self.began_with), lambda: packing)
        if first is not None:
            values = unpacked(first)["added"]
            with torch.no_grad():
                for name, tensor in added.items():
                    tensor.copy_(values[name])
        self._told = self._marks(steps)

    def remade(self) -> dict[str, Tensor | None]:
        """Return the parameters that the script has given other names, and values, since its last step.

        With each comes its mask, if it was pruned until then: `prune.remove` has multiplied it by that.
        """
        before, added = self._followed.structure, self._followed.added
        if self._followed.look() is None:
            return {}
        names = {entry: name for name, entry in before.names.items()}
        return {name: added.get(f"{names.get(name, name).removesuffix('_orig')}_mask") for name in self._remade(before)}

    def _remade(self, before: Structure) -> set[str]:
        now = self._followed.structure.names
        kept = {entry for name, entry in now.items() if before.names.get(name) == entry}
        return {name for name in self.holder.changed() if name not in kept}

    def tell_values(self, steps: int) -> None:
        """Tell of the newest values of what no step moves, if there is such a thing and it has changed."""
        marks = self._marks(steps)
        if marks and marks != self._told:
            self._told, self.told_after = marks, steps
            self._times_told += 1
            values = {"moved": self._moved(), "added": dict(self._followed.added)}
            self._context.link.say(OwnValues(self._times_told), packed(values, "the model"))

    def _moved(self) -> dict[str, Tensor]:
        """Return the parameters that the script moves by itself."""
        return {name: self._followed.parameters[name] for name in self._fixed.moved}

    def _marks(self, steps: int) -> list[tuple[int, int]]:
        """Return what tells these values from others."""
        moved = self._moved()
        marks = [(id(tensor), tensor._version) for tensor in (*moved.values(), *self._followed.added.values())]
        return [*marks, *[(steps, 0)] * bool(moved)]
