"""What a script changes beside its steps, in its parameters or its optimizer.

Before the first step all workers adopt it, if all of them changed the same. Later it is refused, as other workers
can't follow.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.training.fixed import Fixed
from paceline.training.holders.holder import Holder
from paceline.training.joined import Joined
from paceline.training.packing import packed, unpacked
from paceline.training.parts import STATE, State, user_class


class Changes:
    """Sees to what the script has changed, whenever it steps. Knows where the optimizer's state is."""

    def __init__(self, joined: Joined, holder: Holder, fixed: Fixed, resumed: bool) -> None:
        """`resumed`: whether the run goes on from a snapshot, so that nothing can be adopted."""
        self._joined = joined
        self._holder = holder
        self._fixed = fixed
        self._resumed = resumed
        self._state_loaded = False
        """Whether the script has given the optimizer another state, which is not adopted yet."""
        self._state_shown: bytes | None = None
        """The store's state of the optimizer when the script last asked for it, before the first step."""
        self._stepped = False
        """Whether the script has made a step."""
        self._devices = [tensor.device for tensor in (*joined.parameters, *fixed.tensors)]
        self._leave_state_to_store()
        self._attributes = _attributes(joined.optimizer)

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state is in the script's own object, rather than with the store."""
        return self._state_loaded or self._holder.keeps_state

    def optimizer_state(self) -> State:
        """The optimizer's state of the newest version, by the parameter's number."""
        state = self._joined.link.optimizer_state()
        if not self._stepped:
            self._state_shown = state
        numbered: State = unpacked(state)
        return numbered

    def state_came(self) -> None:
        """The script has loaded a state into the optimizer. If that is what it was last shown, nothing has changed.

        Wrappers of optimizers (Accelerate's, so transformers' Trainer too) load back what they were shown. Another
        worker may have trained meanwhile, so each may be shown another state, and the store has a newer one.
        """
        if self._state_shown is not None and _packed_alike(self._joined.optimizer_state(), self._state_shown):
            self._state_loaded = False
            self._joined.optimizer.state.clear()
        else:
            self._state_loaded = True

    def discard(self, place: int) -> None:
        """The run goes on from a snapshot, which is in that place: what the script has changed by now is gone."""
        if self._holder.changed():
            self._holder.adopt()
            self._holder.show(place)
        self._fixed.discard()
        self._state_loaded = False
        self._leave_state_to_store()

    def moved(self) -> list[str]:
        """The names of parameters that the script has changed, all in all."""
        return [*self._holder.changed(), *self._fixed.changed()]

    def see_to(self) -> None:
        """The script steps. Adopt what it changed before its first step, and refuse what it changed since."""
        changed = self.moved()
        if changed:
            self._refuse_another_device()
        if not self._stepped and (changed or self._state_loaded):
            if self._resumed:
                what = f'the parameter "{changed[0]}"' if changed else STATE
                self._joined.refuse(
                    f"the script changed {what} before its first step, "
                    "and the run goes on from a snapshot; change what training begins with only where "
                    "paceline.resumed() is false"
                )
            self._have_adopted()
        elif changed:
            self._joined.refuse(
                f'the script changed the parameter "{changed[0]}" after the first step; others have begun '
                "with it as it was: change it before that, or in the model's forward (torch.nn.utils.parametrize); "
                "to swap other values in and back, keep your own with p.data.clone(), as state_dict() may be newer"
            )
        elif self._state_loaded:
            self._joined.refuse(
                "the script called optimizer.load_state_dict() after the first step; it has another "
                "state by now: load it before the first step"
            )
        if not self._holder.keeps_state:
            self._refuse_changed_attributes()
        self._stepped, self._state_shown = True, None

    def _refuse_another_device(self) -> None:
        """Refuse parameters that the script has moved: their holder would bring them back, away from the batches."""
        entries = (*self._joined.places.layout.moving, *self._fixed.entries)
        tensors = (*self._joined.parameters, *self._fixed.tensors)
        for entry, tensor, before in zip(entries, tensors, self._devices, strict=True):
            if tensor.device != before:
                self._joined.refuse(
                    f'the parameter "{entry.name}" is on {tensor.device} now and was on {before} in prepare(); call '
                    "prepare() once the model is on its device"
                )

    def _refuse_changed_attributes(self) -> None:
        attributes, before = _attributes(self._joined.optimizer), self._attributes
        if attributes != before:
            name = next(name for name in attributes.keys() | before if attributes.get(name) != before.get(name))
            self._joined.refuse(
                f'the script changed the optimizer\'s attribute "{name}", which does not reach the store; keep what '
                "changes in its param_groups"
            )

    def _have_adopted(self) -> None:
        link, holder, fixed = self._joined.link, self._holder, self._fixed
        entries = (*self._joined.places.layout.moving, *fixed.entries)
        tensors = (*self._joined.parameters, *fixed.tensors)
        for entry, tensor in zip(entries, tensors, strict=True):
            if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
                self._joined.refuse(
                    f'the parameter "{entry.name}" is {tensor.dtype} {list(tensor.shape)} now and was '
                    f"{entry.dtype} {list(entry.shape)} in prepare(); give the model its final form before it"
                )
        try:
            state = packed(self._joined.optimizer_state(), STATE) if self._state_loaded else b""
        except ConfigError as error:
            self._joined.refuse(str(error))
        digest = hashlib.sha256(state)
        for tensor in tensors:
            digest.update(_bytes_of(tensor))
        place = link.adopt(digest.hexdigest())
        if place is not None:  # this is the first of the workers, which all wrote the same
            holder.put(place)
            fixed.put()
            link.adopted(b"" if holder.keeps_state else state)
        holder.adopt()
        fixed.adopt()
        self._state_loaded = False
        self._leave_state_to_store()

    def _leave_state_to_store(self) -> None:
        if not self._holder.keeps_state:
            self._joined.optimizer.state.clear()


def _packed_alike(state: State, packing: bytes) -> bool:
    try:
        return packed(unpacked(packing), STATE) == packed(state, STATE)
    except ConfigError:  # a value that can't be passed on: the first step says so
        return False


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The plain values that an optimizer of the user's own class has in addition to its groups."""
    if user_class(optimizer).__module__.startswith("torch."):
        return {}
    return {
        name: copy.deepcopy(value)
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and name not in ("defaults", "param_groups", "state") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return value is None or isinstance(value, bool | int | float | str)


def _bytes_of(tensor: Tensor) -> Any:
    contiguous = tensor.detach().cpu().contiguous().reshape(-1)
    return contiguous.view(torch.uint8).numpy() if contiguous.numel() else b""
