"""The model's parameters and buffers, followed as objects from `prepare` on, also when their names change.

Pruning and parametrizations rename a Parameter and keep it, tying drops one, and modules are added, removed or moved.
A forward may put a new tensor in a buffer's place: then the place is followed, which is a module and a name in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from paceline.training.layout import Layout

UNSAVED = ", not saved"
"""Ends the form of a tensor that `state_dict()` leaves out."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Which tensors the model has under which names."""

    number: int
    """How often the script has changed it since `prepare`."""
    names: dict[str, str]
    """By name: the name in `prepare` of a tensor that training began with. Of buffers, those that are saved."""
    added: dict[str, str] = field(default_factory=dict)
    """By name: the form of a tensor that came later."""

    @classmethod
    def of(cls, layout: Layout) -> Structure:
        """The structure in `prepare`."""
        return cls(0, {name: name for name in (*layout.names, *layout.saved_buffers)} | layout.aliases)

    def only_ties(self, before: Structure) -> bool:
        """Return whether names are the same as in that one, though other tensors may be under them."""
        return self.names.keys() == before.names.keys() and not self.added


class Followed:
    """A model's tensors by the names that they had in `prepare`, where this is made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        self.added: dict[str, Tensor] = {}
        """Tensors that the model has had since, by their names now."""
        self.touched = False
        """Whether a tensor or a module was registered anywhere since this was last looked at."""
        self._places: dict[str, tuple[nn.Module, str]] = {}
        """By buffer: the module that has it, and its name there."""
        seen = set()
        for path, module in model.named_modules():
            for local, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._places[_joined(path, local)] = module, local
        self._ours = {id(parameter) for parameter in self.parameters.values()}
        self.structure = self._structure_now(0)

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

    def is_renamed(self, entry: str) -> bool:
        """Return whether the model has that parameter under another name than when this was last looked at."""
        name = next((name for name, before in self.structure.names.items() if before == entry), entry)
        now = dict(self.model.named_parameters(remove_duplicate=False))
        return now.get(name) is not self.parameters[entry]

    def watch(self) -> None:
        """Set `touched` from now on when a tensor or module is registered. Deletions are not seen."""
        register_module_parameter_registration_hook(lambda *one: self._registers("_parameters", *one))
        register_module_buffer_registration_hook(lambda *one: self._registers("_buffers", *one))
        register_module_module_registration_hook(lambda *one: self._registers("_modules", *one))

    def look(self) -> Structure | None:
        """Return the model's structure if it has changed since this was last asked; else None."""
        self.touched, added = False, self.added
        structure = self._structure_now(self.structure.number + 1)
        same = structure.names == self.structure.names and structure.added == self.structure.added
        if same and all(self.added[name] is tensor for name, tensor in added.items()):
            return None
        self.structure = structure
        return structure

    def _registers(self, kind: str, module: nn.Module, name: str, value: Any) -> None:
        """See a module register a tensor or module under that name."""
        held = module.__dict__.get(kind, {})
        if kind == "_buffers" and name in held and (id(module), name) in self._by_place:
            return  # a forward puts a new tensor in a buffer's place
        if name not in held or held[name] is not value:  # else a forward ties what is tied
            self.touched = True

    def _structure_now(self, number: int) -> Structure:
        known = {id(parameter): name for name, parameter in self.parameters.items()}
        names, forms, added = dict[str, str](), dict[str, str](), dict[str, Tensor]()
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if id(parameter) in known:
                names[name] = known[id(parameter)]
            else:
                added[name], forms[name] = parameter, _form(parameter)
        known = {id(buffer): name for name, buffer in self.buffers().items()}
        places = {(id(module), local): name for name, (module, local) in self._places.items()}
        for path, module in self.model.named_modules(remove_duplicate=False):
            unsaved = getattr(module, "_non_persistent_buffers_set", ())
            for local, buffer in module._buffers.items():
                if buffer is None:
                    continue
                name, entry = _joined(path, local), places.get((id(module), local), known.get(id(buffer)))
                if entry is None:
                    added[name], forms[name] = buffer, _form(buffer) + (UNSAVED if local in unsaved else "")
                    continue
                self._places[entry] = module, local
                if local not in unsaved:
                    names[name] = entry
        self._by_place = {(id(module), local) for module, local in self._places.values()}
        self.added = added
        return Structure(number, names, forms)


class Shape:
    """A model's modules at one moment: their classes and attributes, without the values of tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, type(module), _own(vars(module))) for module in model.modules()]
        self._classes = {kind: dict(vars(kind)) for _, kind, _ in self._modules}

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore the modules' classes and attributes inside the block, except their training mode."""
        now = [(module, type(module), dict(vars(module))) for module, _, _ in self._modules]
        modes = [module.training for module, _, _ in self._modules]
        lost = [  # a parametrization's end takes a property from the class that torch has made for the module
            (kind, name, value)
            for kind, had in self._classes.items()
            for name, value in had.items()
            if name not in vars(kind)
        ]
        for kind, name, value in lost:
            setattr(kind, name, value)
        self._set([(module, kind, _own(has)) for module, kind, has in self._modules])
        for (module, _, _), mode in zip(self._modules, modes, strict=True):
            module.training = mode
        try:
            yield
        finally:
            self._set(now)
            for kind, name, _ in lost:
                delattr(kind, name)

    def _set(self, modules: list[tuple[nn.Module, type[nn.Module], dict[str, Any]]]) -> None:
        for module, kind, has in modules:
            if module.__class__ is not kind:
                module.__class__ = kind
            vars(module).clear()
            vars(module).update(has)


def _own(has: dict[str, Any]) -> dict[str, Any]:
    """A module's attributes, with dictionaries and sets of its own."""
    return {name: value.copy() if isinstance(value, dict | set) else value for name, value in has.items()}


def _joined(path: str, local: str) -> str:
    return f"{path}.{local}" if path else local


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
