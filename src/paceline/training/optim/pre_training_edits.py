"""What a script changes beside its steps, in its parameters or its optimizer.

Before the first step all workers adopt it, if all of them changed the same. Later it is refused, as other workers
can't follow.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, NoReturn

import torch
from torch import Tensor

from paceline.core.state_edits import CLEARED, StateEdit
from paceline.errors import ConfigError
from paceline.ipc.messages.worker import AdoptionWritten
from paceline.store.chunks import STATE, State, user_class
from paceline.store.store import is_sent
from paceline.training.holders.holder import Holder
from paceline.training.model.non_optimized import NonOptimized
from paceline.training.optim.optimizer_state import NewestState, edits_of, same
from paceline.training.packing import packed, unpacked
from paceline.training.tensor_bits import octets
from paceline.training.training_context import TrainingContext

CHANGED = (
    "and other workers can't follow; change it before that; clamp or mask it in the step() of an optimizer class of "
    "your own, in the model's forward (torch.nn.utils.parametrize) or by torch.nn.utils.prune; to swap other values in "
    "and back, keep your own with p.data.clone(), as state_dict() may be newer"
)
RENAMED = (
    "and gave it another name, as prune.remove() does, and other workers can't follow; do this after the last step: "
    "until then prune's mask keeps the weights at zero"
)


class PreTrainingEdits:
    """Adopts or refuses what the script has changed, whenever it steps."""

    def __init__(
        self,
        context: TrainingContext,
        holder: Holder,
        fixed: NonOptimized,
        resumed: bool,
        hear_switches: Callable[[], object],
    ) -> None:
        """`resumed`: whether the run goes on from a snapshot, so that nothing can be adopted.

        `hear_switches` takes up the switches that have come: they may say that the optimizer's state is elsewhere.
        """
        self._hear_switches = hear_switches
        self._context = context
        self.holder = holder
        self._fixed = fixed
        self._resumed = resumed
        self._state_loaded = False
        """Whether the script has given an optimizer that steps here another state, which is not adopted yet."""
        self._state = NewestState(self._fetch_state)
        """What the script sees of the optimizer's state where the store has it."""
        self._state_shown: bytes | None = None
        """The store's state of the optimizer when the script last looked at it in this step."""
        self._before_batches: list[str] | None = None
        """Parameters of the fixed part that the script had changed as it got its first batch; None: it got none."""
        self._buffers: dict[str, Tensor] | None = None
        """The model's buffers as it got that, if they are adopted: the first forward changes each worker's own. None
        once it has stepped."""
        self._stepped = False
        """Whether the script has made a step."""
        self._devices = [tensor.device for tensor in (*context.parameters, *fixed.tensors)]
        self._leave_state_to_store()
        self._own_class = not user_class(context.optimizer).__module__.startswith("torch.")
        """Whether the optimizer's class is the user's own: it may have what no push tells."""
        self._groups = [list(group["params"]) for group in context.optimizer.param_groups]
        self._note_own_class()

    def moved_state(self) -> None:
        """The optimizer's state is with another holder now, which may step the optimizer elsewhere."""
        self._leave_state_to_store()
        self._note_own_class()

    def _note_own_class(self) -> None:
        """Note what an optimizer of the user's own class has that no push tells."""
        if self._own_class:
            self._attributes = _attributes(self._context.optimizer)
            self._unsent = _unsent(self._context.optimizer)

    @contextmanager
    def state_shown(self) -> Iterator[None]:
        """Let the optimizer's state be seen as of now, if the script has not looked at it in this step before."""
        self._hear_switches()
        held = self._context.optimizer.state is self._state and not self._state.looked_at
        try:
            yield
        finally:
            if held:
                self._state.forget()

    def state_came(self) -> None:
        """Note that the script has loaded an optimizer state, which is adopted if the optimizer steps here."""
        self._state_loaded = self.holder.keeps_state and not self._stepped

    def _fetch_state(self) -> Mapping[Tensor, dict[str, Any]]:
        self._state_shown = self._context.link.optimizer_state()
        if not self._state_shown:
            self._hear_switches()
            return self._context.optimizer.state
        numbered: State = unpacked(self._state_shown)
        return self._context.beside({self._context.parameters[number]: numbered[number] for number in numbered})

    def _state_before(self) -> State:
        """The optimizer's state before the script edited it."""
        if self._state_shown is None:
            self._state_shown = self._context.link.optimizer_state()
        before: State = unpacked(self._state_shown)
        return before

    def _state_edits(self) -> list[StateEdit] | None:
        """Return the script's edits of the state that the store has; None if edits can't express them.

        It may load back what it was shown: wrappers of optimizers do (Accelerate's, so transformers' Trainer too).
        Another worker may have trained meanwhile, so each may be shown another state, and the store has a newer one.
        """
        state = self._context.optimizer.state
        if state is self._state and not self._state.looked_at:
            return []
        now = self._context.optimizer_state()
        if not any(now.values()):
            loaded_back = not self._stepped and self._state_shown is not None and not self._state.cleared
            assigned = self._state.cleared or (state is not self._state and not loaded_back)
            emptied = assigned or any(self._state_before().values())
            return [CLEARED] if emptied else []
        if not self._stepped and self._state_shown is None:
            return None  # it is a loaded one, which may be equal to the store's: another worker's may be adopted by now
        return edits_of(self._state_before(), now)

    def discard(self, place: int) -> None:
        """Discard what the script has changed: the run goes on from a snapshot, which is in that place."""
        if self.holder.changed():
            self.holder.adopt()
            self.holder.show(place)
        self._fixed.discard()
        self._state_loaded = False
        self._leave_state_to_store()

    def moved(self) -> list[str]:
        """Return the names of all parameters that the script has changed."""
        return [*self.holder.changed(), *self._fixed.changed()]

    def first_batch(self) -> None:
        """Note what was changed before the first batch: later changes are a part of training."""
        self._before_batches = self._fixed.changed()
        if self.holder.has_buffers and self._buffers is None:
            self._buffers = {name: buffer.clone() for name, buffer in self._context.followed.buffers().items()}

    def _leave_to_script(self, names: list[str]) -> None:
        """Leave these parameters, which the optimizer lacks, to the script: a momentum encoder's, say."""
        if not self._fixed.moved:
            self._context.remark(
                f'moves the parameter "{names[0]}", which the optimizer does not have: each worker moves its own, and '
                "recorded versions have the lowest worker's"
            )
        self._fixed.moved.update(names)

    def see_to(self) -> Sequence[StateEdit]:
        """Adopt what the script changed before its first step, and refuse what it changed since.

        Return its edits of the optimizer's state, where the store has that.
        """
        self._refuse_other_groups()
        changed, fixed = self.holder.changed(), self._fixed.changed()
        in_forward = self._before_batches is not None and not (changed or self._state_loaded or self._before_batches)
        if fixed and (self._stepped or in_forward):
            self._leave_to_script(fixed)
        else:
            changed = [*changed, *fixed]
        if changed:
            self._refuse_another_device()
        edits = [] if self.holder.keeps_state else self._state_edits()
        if not self._stepped and (changed or self._state_loaded or edits != []):
            if self._resumed:
                what = f'the parameter "{changed[0]}"' if changed else STATE
                self._context.refuse(
                    f"the script changed {what} before its first step, "
                    "and the run goes on from a snapshot; change what training begins with only where "
                    "paceline.resumed() is false"
                )
            self._have_adopted(state=self._state_loaded or edits != [])
            edits = []
        elif changed:
            self.refuse_changed(changed[0])
        elif edits is None:
            self._context.refuse(
                "the script changed the optimizer's state after the first step, by optimizer.load_state_dict() or in "
                "optimizer.state, in a way that other workers can't follow; it may remove states "
                "(optimizer.state.clear()) and fill values with one number (zero_(), fill_()): load a state before the "
                "first step"
            )
        if self._own_class and not self.holder.keeps_state:
            self._refuse_changed_attributes()
        self._stepped, self._state_shown, self._buffers = True, None, None
        self._leave_state_to_store()
        return edits or ()

    def refuse_changed(self, name: str) -> NoReturn:
        """Refuse what the script has put into this parameter after its first step."""
        self._context.refuse(
            f'the script changed the parameter "{name}" after the first step, '
            + (RENAMED if self._context.followed.is_renamed(name) else CHANGED)
        )

    def _refuse_another_device(self) -> None:
        """Refuse parameters that the script has moved: their holder would bring them back, away from the batches."""
        entries = (*self._context.places.layout.moving, *self._fixed.entries)
        tensors = (*self._context.parameters, *self._fixed.tensors)
        for entry, tensor, before in zip(entries, tensors, self._devices, strict=True):
            if tensor.device != before:
                self._context.refuse(
                    f'the parameter "{entry.name}" is on {tensor.device} now and was on {before} in prepare(); call '
                    "prepare() once the model is on its device"
                )

    def _refuse_other_groups(self) -> None:
        """Refuse groups of other parameters than `prepare` was given: store and replicas are laid out by these."""
        groups = self._context.optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(_are_the_same, self._groups, groups)):
            self._context.refuse(
                "the script changed which parameters the optimizer's param_groups have, after prepare(); make the "
                "groups before it: a group whose parameters get no gradient costs nothing, and "
                "p.requires_grad_(False) or p.grad = None leaves a parameter out of steps"
            )

    def _refuse_changed_attributes(self) -> None:
        unsent, known = _unsent(self._context.optimizer), self._unsent
        for place in known | unsent:
            (value, count), (before, count_before) = unsent.get(place, (None, 0)), known.get(place, (None, 0))
            if count != count_before if value is before else not same(value, before):
                self._context.refuse(
                    f'the script changed "{place[1]}" in the optimizer\'s param_groups, which is no plain value and '
                    "does not reach the store; keep numbers, strings and lists of them there"
                )
        attributes, before = _attributes(self._context.optimizer), self._attributes
        if attributes != before:
            name = next(name for name in before | attributes if attributes.get(name) != before.get(name))
            self._context.refuse(
                f'the script changed the optimizer\'s attribute "{name}", which does not reach the store; keep what '
                "changes in its param_groups"
            )

    def _have_adopted(self, state: bool) -> None:
        link, holder, fixed = self._context.link, self.holder, self._fixed
        entries = (*self._context.places.layout.moving, *fixed.entries)
        tensors = (*self._context.parameters, *fixed.tensors)
        for entry, tensor in zip(entries, tensors, strict=True):
            if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
                self._context.refuse(
                    f'the parameter "{entry.name}" is {tensor.dtype} {list(tensor.shape)} now and was '
                    f"{entry.dtype} {list(entry.shape)} in prepare(); give the model its final form before it"
                )
        try:
            packing = packed(self._context.optimizer_state(), STATE) if state else b""
        except ConfigError as error:
            self._context.refuse(str(error))
        digest = hashlib.sha256(packing)
        for tensor in tensors:
            if tensor.numel():
                digest.update(octets(tensor).numpy().data)
        place = link.adopt(digest.hexdigest())
        if place is not None:  # this is the first of the workers, which all wrote the same
            holder.put(place, self._context.followed.buffers() if self._buffers is None else self._buffers)
            fixed.put()
            link.say(AdoptionWritten(), b"" if holder.keeps_state else packing)
        holder.adopt()
        fixed.adopt()
        self._state_loaded = False
        self._leave_state_to_store()

    def _leave_state_to_store(self) -> None:
        if not self.holder.keeps_state and (self._state.looked_at or self._context.optimizer.state is not self._state):
            self._state.forget()
            self._context.optimizer.state = self._state


def _are_the_same(parameters: list[Tensor], group: dict[str, Any]) -> bool:
    return len(parameters) == len(group["params"]) and all(map(is_, parameters, group["params"]))


def _unsent(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], tuple[Any, int]]:
    """What the groups of an optimizer of the user's own class have that no push tells, with each tensor's changes."""
    return {
        (number, key): (value, getattr(value, "_version", 0))
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key != "params" and not is_sent(value)
    }


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The plain values that an optimizer of the user's own class has in addition to its groups."""
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
