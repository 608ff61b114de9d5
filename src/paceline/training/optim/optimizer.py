"""The user's optimizer, with a `step` that goes through the store."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from paceline.store.chunks import user_class
from paceline.training.replaced import mixed_into
from paceline.training.uncompiled import uncompiled

if TYPE_CHECKING:
    from paceline.training.session import Session

    class _Base(torch.optim.Optimizer):
        """What the mixin is mixed into."""
else:
    _Base = object


OURS = ("paceline_session", "_step_supports_amp_scaling")
"""Attributes that a paced optimizer has in addition to the script's own."""


class PacedOptimizer(_Base):
    """Mixed into the class of the user's own optimizer object, which stays the same object.

    So a scheduler, say, that the script made before still holds the right object, and `isinstance`
    with its class is still true. Hyperparameters that the script or a scheduler changes in
    `param_groups` reach the store with the next push.
    """

    paceline_session: Session
    paceline_made = True

    @uncompiled
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradient, wait for the next release, install its version. Return the closure's value."""
        return self._step_watched(closure) if _watched(self) else self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it once more
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # so that no scheduler warns of a foreign step

    @torch.optim.Optimizer.profile_hook_step
    def _step_watched(self, closure: Callable[[], Any] | None) -> Any:
        value = self._step(closure)
        self.paceline_stepped = True  # see `other_training`
        return value

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._opt_called = True  # a scheduler asks whether the optimizer stepped before it
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        self.paceline_session.step()
        return value

    @uncompiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. Gradients that no step has used are gone, and their batches count as skipped."""
        self.paceline_session.thrown_away()
        super().zero_grad(set_to_none)

    @uncompiled
    def state_dict(self) -> dict[str, Any]:
        """As in torch, with the newest version's state, also where the store has it."""
        with self.paceline_session.changes.state_shown():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch. Before the first step the store takes the state over, if every worker loads the same."""
        super().load_state_dict(state_dict)
        self.paceline_session.changes.state_came()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or pickle is of the script's own class, with the state of the newest version.

        It uses the oldest pickle protocols: they name the class as an argument, so it can differ from this object's.
        """
        with self.paceline_session.changes.state_shown():
            state = self.paceline_session.context.beside(self.state)
        return plain_optimizer(self, state).__reduce_ex__(min(protocol, 1))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: groups are added before `prepare`, where memory is laid out."""
        self.paceline_session.refuse(
            "add_param_group() came after paceline.prepare(), which has laid out memory for all groups; add parameter "
            "groups before it (a group whose parameters get no gradient costs nothing until they do)"
        )


def _watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler runs, or the step has hooks. torch's wrapper for them costs 60 µs a step in any case.

    One hook after the steps of all optimizers is `other_training`'s.
    """
    hooks = (
        _global_optimizer_pre_hooks,
        len(_global_optimizer_post_hooks) > 1,
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
    )
    return profiler._is_profiler_enabled or any(hooks)


def is_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the object has a `step` of its own. A scheduler's patch, or a compiled step, calls the class's."""
    own = optimizer.__dict__.get("step")
    return own is not None and inspect.unwrap(getattr(own, "__func__", own)) is not inspect.unwrap(type(optimizer).step)


def pace(optimizer: torch.optim.Optimizer, session: Session) -> None:
    """Turn the optimizer into a paced one, in place."""
    optimizer.__dict__.pop("step", None)  # a scheduler's patch of the plain step
    mixed_into(optimizer, PacedOptimizer, f"Paced{type(optimizer).__name__}", paceline_made=True)
    optimizer.paceline_session = session  # type: ignore[attr-defined]
    # Otherwise GradScaler leaves it to a fused `step` to unscale and to look for infinities.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


def plain_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> torch.optim.Optimizer:
    """Return an optimizer of the script's own class with the same parameters, groups and attributes, and that state."""
    twin = object.__new__(user_class(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    for name in OURS:
        twin.__dict__.pop(name, None)
    twin.state = state
    return twin
