"""Training that the run would lose: what moves the model's parameters beside the prepared optimizer's steps.

Another optimizer, or code that subtracts gradients by itself, moves this worker's parameters only. The next step
refuses them, but a script may never make one. So this is looked at where such training shows: after another optimizer's
step, where gradients are erased that no step has used, at the end of a loop over the loader, and at the end.

After a worker's last step its model is the script's own, to put the best state back or to go on with. What is training
and what is that is told apart by gradients and batches: training uses some, and makes no step of them. `finish()` would
put the final version in the place of what has trained on, so it refuses that.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.store.chunks import user_class

if TYPE_CHECKING:
    from paceline.training.session import Session

_watching: weakref.WeakSet[OtherTraining] = weakref.WeakSet()
_hooked: list[Any] = []


BESIDE = 3
"""Steps beside which an optimizer steps that trains on. One that perturbs a batch is made for that batch."""


class OtherTraining:
    """Refuses in one line what moves a session's parameters beside the prepared optimizer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tensors = {*session.context.parameters, *session.fixed.tensors}
        self._process = os.getpid()
        self._beside: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[int]] = weakref.WeakKeyDictionary()
        """By optimizer of other parameters: the worker's steps beside which it has stepped, `BESIDE` at most."""
        self._gradients_erased = False
        """Whether a gradient was erased before the first step."""
        self._erased_moved = -1
        """How many steps the worker had made as a gradient was erased that no step had used, with parameters moved."""
        self._moved_at_begin = self._moved_in_loop = False
        """Before the first step: whether the parameters were moved as the last loop began, and in some loop."""
        self._moved: list[str] = []
        """What was moved as the last loop was over."""
        self._left_as_stepped = -1
        """How many steps the worker had made as a loop ended that left the parameters as the last step had."""
        self._trains_on = ""
        """What has moved the parameters by gradients since the worker's last step; empty: nothing, as far as shows."""
        self._seen: tuple[int, Tensor] | None = None
        """The parameter whose gradient came first after that step: its number, and what it was then."""
        self._moves = 0
        """How often its values had changed when a further gradient of it came."""
        _watching.add(self)
        if not _hooked:
            _hooked.append(register_optimizer_step_post_hook(_after_step))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Check after a step of any optimizer."""
        session = self._session
        if os.getpid() != self._process:
            return
        if not self._has_ours(optimizer):
            if session.go is not None and session.looping:
                beside = self._beside.setdefault(optimizer, set())
                if len(beside) < BESIDE:  # further ones tell nothing more
                    beside.add(session.steps)
                if len(beside) == BESIDE:
                    session.remark_once("other optimizer", not_prepared(user_class(optimizer).__name__))
            return
        if self._is_over():
            if session.changes.moved():
                self._trains_on = f"the script steps the optimizer {user_class(optimizer).__name__}"
            return
        if session.go is None:
            return
        if not session.steps and not session.batches_in_step:
            return  # all adopt what training begins with, if all workers do the same
        moved = session.changes.moved()
        if not moved:
            return  # it is a wrapper that has the prepared one step, say
        prepared = user_class(session.context.optimizer).__name__
        if optimizer is session.context.optimizer:
            session.refuse(
                f"the script calls {prepared}.step() itself, past the step() that prepare() has given the optimizer; "
                "call optimizer.step()"
            )
        session.refuse(
            f'the script steps another optimizer, {type(optimizer).__name__}, over the parameter "{moved[0]}" of the '
            f"prepared model; the run trains with the one that prepare() was given, {prepared}: change its "
            "hyperparameters in optimizer.param_groups, give prepare() one optimizer with a group for each part, or "
            "train with the other one in a run of its own, which loads what this one saves"
        )

    def erases(self) -> None:
        """Check as the script erases gradients that no step has used.

        It may put the parameters back before it steps, as after the first gradient of sharpness-aware minimization. So
        the second time between two steps is training.
        """
        session = self._session
        self._gradients_erased = True
        if session.steps and session.go is not None and (moved := session.changes.moved()):
            if self._erased_moved == session.steps:
                self._refuse(moved[0])
            self._erased_moved = session.steps

    def loop_begins(self) -> None:
        """Note whether parameters were moved as a loop over the loader begins."""
        if not self._session.steps:
            self._moved_at_begin = bool(self._session.changes.moved())

    def loop_left(self) -> None:
        """Note what was moved as a loop is over. A script may leave it early, to put other values in."""
        session = self._session
        self._moved = session.changes.moved() if session.go is not None else []
        if not self._moved:
            self._left_as_stepped = session.steps
        elif not session.steps:
            self._moved_in_loop |= not self._moved_at_begin

    def loop_ended(self) -> None:
        """Check at a loop's natural end."""
        if self._moved and self._session.steps and self._session.batches_in_step:
            self._refuse(self._moved[0])

    def ends(self) -> None:
        """Check as the worker makes no further step."""
        session = self._session
        if session.go is None or self._left_as_stepped == session.steps:
            return
        trained = (
            bool(session.batches.window)
            or self._erased_moved == session.steps
            or (not session.steps and (self._gradients_erased or self._moved_in_loop))
        )
        if trained and (moved := session.changes.moved()):
            self._refuse(moved[0])

    def gradient(self, number: int, parameter: Tensor) -> None:
        """Check as a gradient of this parameter comes.

        After the worker's last step it may be of an attack, or of a saliency map. If the parameter was moved twice
        between gradients since, the script trains on by hand.
        """
        if not self._is_over():
            return
        if self._seen is None or (self._seen[0] == number and not torch.equal(self._seen[1], parameter)):
            self._moves += self._seen is not None
            self._seen = number, parameter.detach().clone()
        if self._moves >= 2:
            self._trains_on = self._trains_on or "the script trains by hand"

    def finishes(self) -> None:
        """Check before `finish()` installs the final version."""
        if self._trains_on and (moved := self._session.changes.moved()):
            self._session.refuse(
                f'{self._trains_on} over the parameter "{moved[0]}" of the prepared model after its last epoch and '
                "before paceline.finish(), which installs the final version in its place; do this after finish(), or "
                "in a run of its own, which loads what this one saves"
            )

    def script_ends(self) -> None:
        """Tell the user as a script ends without `finish()`."""
        if self._trains_on and self._session.link.worker == 0 and self._session.changes.moved():
            self._session.link.remark(
                "has trained its model on after the last epoch: versions/final.safetensors and evaluate have the model "
                "as it was before that"
            )

    def _is_over(self) -> bool:
        """Whether the worker makes no further step, and the final version is not installed yet."""
        session = self._session
        return session.go is None and not session.joins and session.live and session.steps > 0

    def _has_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(not self._tensors.isdisjoint(group["params"]) for group in optimizer.param_groups)

    def _refuse(self, name: str) -> None:
        self._session.refuse(
            f'the script changes the parameter "{name}" as it trains, and makes no step of the gradient: what moves '
            "parameters beside the optimizer that prepare() was given reaches no other worker; have its step() do it"
        )


def not_prepared(name: str) -> str:
    """What a worker does that trains parameters of the script's in its loop that are no part of the prepared model."""
    return (
        f"steps another optimizer in its loop, {name}, over parameters that prepare() was not given: each worker "
        "trains its own on its share of the data, and saves that; put both parts into one model, and give prepare() "
        "one optimizer with a group for each"
    )


def _after_step(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    if optimizer.__dict__.pop("paceline_stepped", False):  # the prepared one's own step, which has hooks of the script
        return
    for one in tuple(_watching):
        one.after_step(optimizer)
