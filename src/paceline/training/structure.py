"""The model's parameters and buffers, followed as objects from `prepare` on, whatever becomes of their names.

Pruning and parametrizations rename a Parameter and keep it, tying drops one, and modules are added, removed or moved.
A forward may put a new tensor in a buffer's place: then the place is followed, which is a module and a name in it.
"""

from __future__ import annotations

from torch import Tensor, nn


class Followed:
    """A model's tensors by the names that they had in `prepare`, where this is made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        self._places: dict[str, tuple[nn.Module, str]] = {}
        """By buffer: the module that has it, and its name there."""
        seen = set()
        for path, module in model.named_modules():
            for local, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._places[f"{path}.{local}" if path else local] = module, local
        self._ours = {id(parameter) for parameter in self.parameters.values()}

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as they are now. One that the script has removed is left out."""
        places = self._places.items()
        there = {name: module._buffers[local] for name, (module, local) in places if local in module._buffers}
        return {name: buffer for name, buffer in there.items() if buffer is not None}

    def held(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return {**self.parameters, **self.buffers()}

    def has_some_of(self, module: nn.Module) -> bool:
        """Return whether the module has one of these tensors. A copy of the model has none."""
        if any(id(parameter) in self._ours for parameter in module.parameters()):
            return True
        buffers = {id(buffer) for buffer in self.buffers().values()}
        return any(id(buffer) in buffers for buffer in module.buffers())
