"""The names that a user's script calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from paceline.errors import ConfigError
from paceline.fabric.memory import Region
from paceline.training.alone import unjoined
from paceline.training.buffers import POLICIES
from paceline.training.layout import Layout, Places
from paceline.training.link import Evaluate, Link, Offer
from paceline.training.loader import PacedLoader, PacedStream, checked, epoch_samples
from paceline.training.optimizer import pace
from paceline.training.seeding import mixed, seed_all
from paceline.training.session import Session
from paceline.training.store import Store, scalars_of


class _Process:
    """This process's part in a run: none while a script runs alone."""

    link: Link | None = None
    session: Session | None = None
    prepared = False


def attach(link: Link) -> None:
    """Let `prepare` join the run behind this link. The runtime calls it before the script starts."""
    _Process.link = link


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any = None,
    *,
    epochs: int | None = None,
    evaluate: Evaluate | None = None,
    buffers: str | None = None,
    shards: str | None = None,
) -> tuple[Any, ...]:
    """Join the run: the one line that a training script needs. Alone, everything stays as it is.

    Args:
        model: the model to train; every worker builds the same. All begin with the lowest worker's values.
        optimizer: any `torch.optim.Optimizer` over the model's parameters. It stays the same object; its
            `step()` pushes the gradient, waits for the next release and installs that version. What the
            script changes in the parameters or loads into the optimizer is adopted before the first step,
            if every worker does the same, and an error after it.
        loader: a `DataLoader`, or nothing if the script draws its own batches. A map-style dataset is leased
            batch by batch; of an `IterableDataset` each worker iterates its own stream.
        epochs: how many passes over the loader there will be, if known.
        evaluate: `evaluate(model) -> {metric: value}`, run on recorded versions after training.
        buffers: what a version's buffers are: `mean` (default), `leader` or `local`.
        shards: how batches are shared out: `dynamic` (default) or `static`.

    Returns:
        (model, optimizer, loader), or (model, optimizer) without a loader.

    Raises:
        ConfigError: in one line, when these cannot be trained together.

    Example:
        >>> model, optimizer, loader = paceline.prepare(model, optimizer, loader)  # doctest: +SKIP
    """
    link = _Process.link
    try:
        if _Process.prepared:
            raise ConfigError(
                "prepare() is called twice; call it once, with one module that holds all that is trained and one "
                "optimizer with groups for its parts"
            )
        _check(model, optimizer, epochs, buffers, shards)
        checked_loader = None if loader is None else checked(loader)
    except ConfigError as error:
        if link is not None:
            link.refuse(str(error))
        raise
    _Process.prepared = True
    if link is None:
        if line := unjoined(os.environ):
            print(line, file=sys.stderr)
        return (model, optimizer) if loader is None else (model, optimizer, loader)

    layout = Layout.of(model, optimizer)
    if link.replicas:
        layout = layout.for_replicas()
    workers, epochs = link.workers, link.epochs or epochs
    leased = checked_loader is not None and not isinstance(checked_loader.dataset, IterableDataset)

    def make_store(region: Region, slots: int, areas: int) -> Store:
        return Store.of(
            model,
            optimizer,
            Places(layout, region, slots, workers, areas),
            steps=not (link.steps_here or link.replicas),
        )

    started = link.start(
        Offer(
            layout=layout,
            state_bytes=_state_bytes(optimizer, layout),
            make_store=make_store,
            scalars=scalars_of(optimizer),
            loads=leased,
            epoch_samples=(
                epoch_samples(checked_loader, link.seed)
                if checked_loader is not None and leased and link.wants_work
                else None
            ),
            streams=checked_loader is not None and not leased,
            epochs=epochs,
            buffers=buffers,
            shards=shards,
            evaluate=evaluate,
        )
    )
    session = _Process.session = Session(link, model, optimizer, layout)
    session.loads, session.epochs = leased, epochs
    pace(optimizer, session)
    model.register_state_dict_post_hook(_newest_version)  # type: ignore[no-untyped-call]
    session.begin(started)
    if checked_loader is None:
        return model, optimizer
    return model, optimizer, PacedLoader(checked_loader, session) if leased else PacedStream(checked_loader, session)


def finish() -> None:
    """Wait until every worker has ended its training, and install the final parameters and buffers.

    Alone, or before `prepare`, it returns at once.
    """
    session = _Process.session
    if session is None:
        return
    session.done_computing()
    file = session.link.finish()
    if file is not None:
        held = dict(session.model.named_buffers())
        if session.link.replicas:
            held |= dict(session.model.named_parameters())
        else:
            session.hold_newest()  # the last one: its parameters need not be read from the file
        _install(held, file)
        session.live = False


def _install(held: dict[str, Tensor], file: Path) -> None:
    """Copy what a recorded version has of these, in place."""
    with torch.no_grad(), safetensors.safe_open(file, framework="pt") as recorded:
        for name in recorded.keys() & held.keys():  # a further name of a tied parameter is not among them
            held[name].copy_(recorded.get_tensor(name))


def evaluated(evaluate: Evaluate, version: int, file: Path) -> dict[str, float]:
    """The metrics of a recorded version, after training, in the model that the script prepared.

    What `evaluate` draws depends on the version alone: not on who evaluates it, nor on what was drawn before.
    """
    session = _Process.session
    assert session is not None  # who evaluates has prepared
    session.live = False
    seed_all(mixed("evaluate", session.link.seed, version))
    _install({**dict(session.model.named_parameters()), **dict(session.model.named_buffers())}, file)
    training = session.model.training
    try:
        return {name: float(value) for name, value in evaluate(session.model).items()}
    finally:
        session.model.train(training)


def log(**scalars: float) -> None:
    """Record values of the present step in the run's ledger: `paceline.log(loss=loss.item())`."""
    session = _Process.session
    if session is not None and session.go is not None:
        session.link.log(session.go.step, {name: float(value) for name, value in scalars.items()})


def worker() -> int:
    """This worker's index, from 0; 0 alone."""
    return _Process.link.worker if _Process.link else 0


def workers() -> int:
    """How many workers the run began with; 1 alone."""
    return _Process.link.workers if _Process.link else 1


def _check(model: Any, optimizer: Any, epochs: int | None, buffers: str | None, shards: str | None) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"prepare() got a {type(model).__name__} as its model; it must be a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"prepare() got a {type(optimizer).__name__} as its optimizer; it must be a torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates its closure several times a step; use an optimizer that takes one gradient")
    names = {parameter: name for name, parameter in model.named_parameters()}
    if not any(parameter.requires_grad for parameter in names):
        raise ConfigError("the model has no trainable parameters; at least one must have requires_grad=True")
    taken: dict[int, str] = {}
    for parameter, name in names.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f'the parameter "{name}" has no shape yet; run one batch through the model first')
        if parameter.numel() and taken.setdefault(parameter.data_ptr(), name) != name:
            raise ConfigError(
                f'the parameters "{taken[parameter.data_ptr()]}" and "{name}" share memory; '
                "tie them by making them one Parameter"
            )
    stored = {parameter.untyped_storage().data_ptr(): name for parameter, name in names.items() if parameter.numel()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise ConfigError(
                    f"the optimizer's parameter {place} of group {number}, of shape {list(parameter.shape)}, is not "
                    "one of the model's; build the optimizer from model.parameters(), once the model has its final form"
                )
    if not any(parameter.requires_grad for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigError("the optimizer has none of the model's trainable parameters; give it model.parameters()")
    for name, buffer in model.named_buffers():
        if buffer.numel() and (owner := stored.get(buffer.untyped_storage().data_ptr())):
            raise ConfigError(
                f'the buffer "{name}" shares the memory of the parameter "{owner}", which moves in prepare(); '
                "make it in the forward, or keep a copy"
            )
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state") and _holds_one_of(value, names):
            raise ConfigError(
                f'the optimizer keeps parameters in its attribute "{name}"; the store steps others in their place: '
                "let it find them in param_groups"
            )
    if any(not isinstance(key, Tensor) for key in optimizer.state):
        raise ConfigError("the optimizer's state has keys that are no parameters; keep them in its param_groups")
    if any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values()):
        raise ConfigError(
            f"the optimizer, a {type(optimizer).__name__}, wraps another one, and the store can't tell which of them "
            "has the parameters; give prepare() an optimizer of its own"
        )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ConfigError(
                f'the layer "{name}" makes sparse gradients, which can\'t be pushed; build it with sparse=False'
            )
    if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
        raise ConfigError(f"prepare() got epochs={epochs!r}; it must be a whole number, 1 or more")
    if buffers is not None and buffers not in POLICIES:
        raise ConfigError(f'prepare() got buffers="{buffers}"; allowed: {", ".join(POLICIES)}')
    if shards is not None and shards not in ("dynamic", "static"):
        raise ConfigError(f'prepare() got shards="{shards}"; allowed: dynamic, static')


def _holds_one_of(value: Any, parameters: Any) -> bool:
    if isinstance(value, Tensor):
        return value in parameters
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(_holds_one_of(item, parameters) for item in items)


def _state_bytes(optimizer: torch.optim.Optimizer, layout: Layout) -> int:
    """What the optimizer's state will take: two tensors a parameter at most, for those that torch has."""
    stateless = isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups)
    one = isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad)
    return layout.slot_bytes * (0 if stateless else 1 if one else 2)


def _newest_version(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Put the newest version, whole, in the place of this worker's parameters; clone everything.

    A clone, because the originals change with the next step.
    """
    session = _Process.session
    if session is None or not session.live or model is not session.model:  # a copy has its own parameters
        return
    if not session.steps:  # what it begins with, which the script may have changed
        for name, value in state.items():
            state[name] = value.clone() if isinstance(value, Tensor) else value
        return
    with session.newest() as newest:
        for name in newest.keys() | session.layout.aliases.keys():
            if prefix + name in state:
                state[prefix + name] = newest[session.layout.aliases.get(name, name)].clone()
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, Tensor) and name.removeprefix(prefix) in session.buffers:
            state[name] = value.clone()
