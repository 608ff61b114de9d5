"""Install the final version in `paceline.finish()`, and tell the user where the model differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.training.model.recorded_version import install, structure_of
from paceline.training.model.structure import UNSAVED, Structure
from paceline.training.session import Session
from paceline.training.tensor_bits import checksum


def install_final(session: Session, file: Path) -> None:
    """Install the final version from that file, and repeat what the script has done to it by `prune.remove`."""
    followed, added = session.followed, session.followed.added
    written = session.holder.changed()
    remade = session.structure_edits.remade()
    masks = {name: mask for name, mask in remade.items() if mask is not None}
    own = remade.keys() - masks.keys()
    before = _sum_of(session) if own else ""
    held = followed.buffers() | {name: followed.parameters[name] for name in session.fixed.moved}
    # the newest version is in memory, so only parameters that have left it, as by model.half(), need the file
    unshown = session.holder.changed() if session.holder.hold_newest() else followed.parameters.keys()
    held |= {name: followed.parameters[name] for name in unshown if name not in own}
    install(held, file, added)
    with torch.no_grad():
        for name, mask in masks.items():
            followed.parameters[name].mul_(mask)
    session.live = False
    if own and _sum_of(session) != before:
        session.link.remark(
            f'has put values of its own into "{min(own)}" before finish(), and given it another name: these stay, '
            "and the other parameters are the final version's; do this after finish()"
        )
    overwritten = [name for name in written if name not in remade]
    if overwritten:
        session.context.remark(
            f'has put values of its own into "{overwritten[0]}" since its last step, and finish() has put the final '
            "version's in their place: put them in after finish(), or save them before"
        )
    with safe_open(file, framework="pt") as recorded:
        number, names = structure_of(recorded.metadata())
        if number != followed.structure.number:
            then = names or session.structure_edits.began_with.names
            news = {name: id(added.get(name)) for name in sorted(recorded.keys() - then.keys())}
            _tell(session, {**then, **news})


def tell_of_structure(session: Session) -> None:
    """Tell the user if a script that ends without `finish()` has changed the model since training ended."""
    then = names_of(session.followed.structure, session.followed.added)
    if session.steps and session.followed.look() is not None:
        _tell(session, then)


def names_of(structure: Structure, added: Mapping[str, Tensor]) -> dict[str, str | int]:
    """Return the saved tensors by name: the name that each had in `prepare`, or the id of a later one."""
    saved = [name for name, form in structure.added.items() if not form.endswith(UNSAVED)]
    return {**structure.names, **{name: id(added[name]) for name in saved}}


def difference(then: Mapping[str, str | int], now: Mapping[str, str | int]) -> str | None:
    """Return how a version with the names `then` differs from the model; None if it does not."""
    kinds = {
        "with": [name for name in then if name not in now],
        "without": [name for name in now if name not in then],
        "with another": [name for name in now if name in then and then[name] != now[name]],
    }
    said = [f'{kind} "{names[0]}"' for kind, names in kinds.items() if names]
    return " and ".join(said) or None


def _tell(session: Session, then: Mapping[str, str | int]) -> None:
    now = names_of(session.followed.structure, session.followed.added)
    said = difference(then, now)
    if said is None:
        return
    news = [name for name, tensor in now.items() if isinstance(tensor, int) and then.get(name) != tensor]
    session.context.remark(
        "has changed the model's structure since its last step: versions/final.safetensors and evaluate have the "
        f"model as it was, {said}"
        + (f'; "{news[0]}" is new, and has each worker\'s own values' if news else "")
        + "; what the script saves has the model as it is now"
    )


def _sum_of(session: Session) -> str:
    return checksum([parameter.detach() for parameter in session.context.parameters])
