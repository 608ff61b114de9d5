"""What `state_dict()` returns of a prepared model: clones of the newest version, as the model's own code names them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from paceline.training.process import ScriptProcess
from paceline.training.replaced import Patch
from paceline.training.signals import held_back

LACKS_OWN_STEPS = (
    "takes the newest version by state_dict(), which lacks the own steps that it has made since and validates with; "
    "prepare(..., evaluate=...) measures versions"
)


def _with_newest(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The model computes its dictionary while its own tensors show that version.

    So ties, renamed parameters, hooks, a prefix, and code of the user's own come out as they do in plain PyTorch. It is
    `nn.Module`'s method that is replaced: a hook of the model's would miss its parts and modules around it, and
    scripted modules take no hooks.
    """
    within: int | None = None
    one_thread = threading.Lock()  # else a second thread would put back what the first shows, before that is copied

    def state_dict(module: nn.Module, *args: Any, **named: Any) -> Any:
        nonlocal within
        session = ScriptProcess.session
        keeps_variables = named.get("keep_vars") or args[2:3] == (True,)
        if within == threading.get_ident() or keeps_variables or session is None:
            return plain(module, *args, **named)
        if not (session.live and session.followed.has_some_of(module)):  # its tensors show no versions of the run's
            return plain(module, *args, **named)
        session.look_at_structure()
        given = named.get("destination", args[0] if args else None)
        before = dict(given) if isinstance(given, dict) else {}
        with held_back, one_thread:
            within = threading.get_ident()
            try:
                # before the first step, and where the script has written into them, parameters are its own
                its_own = not session.steps or session.holder.changed()
                if not its_own and not session.looping and session.holder.has_steps_of_its_own:
                    session.remark_once("saves", LACKS_OWN_STEPS)
                with nullcontext() if its_own else session.holder.showing_newest():
                    state = plain(module, *args, **named)
                    made = {key: value for key, value in state.items() if value is not before.get(key)}
                    tensors = {key: value.detach() for key, value in made.items() if isinstance(value, Tensor)}
                    state.update(copy.deepcopy(tensors))  # what shares memory shares it in the copies
            finally:
                within = None
        return state

    return state_dict


STATE_DICTS = (Patch((nn.Module,), ("state_dict",), _with_newest, "a model shows an older version than the store has"),)
