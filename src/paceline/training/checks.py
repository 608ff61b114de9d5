"""What `prepare` refuses in one line: models, optimizers, loaders and options that can't be trained or followed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from paceline.errors import ConfigError
from paceline.store.store import scalars_of, unfit_rate
from paceline.training.averages import POLICIES
from paceline.training.device import accelerator
from paceline.training.misuse import TRAINERS_OPTIMIZER, where_prepare_goes
from paceline.training.optim.optimizer import is_replaced


def check(model: Any, optimizer: Any, epochs: Any, buffers: Any, shards: Any) -> None:
    """Raise ConfigError if these arguments of `prepare` can't be trained together, or mean nothing."""
    _check_kinds(model, optimizer)
    _check_parameters(model, optimizer)
    _check_buffers(model)
    _check_views(model)
    _check_optimizer(model, optimizer)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ConfigError(
                f'the layer "{name}" makes sparse gradients, which can\'t be pushed; build it with sparse=False'
            )
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or not 1 <= epochs <= 2**53):
        bound = f"{2**53} or less" if isinstance(epochs, int) and epochs > 1 else "1 or more"
        raise ConfigError(f"prepare() got epochs={epochs!r}; it must be a whole number, {bound}")
    if buffers is not None and buffers not in POLICIES:
        raise ConfigError(f'prepare() got buffers="{buffers}"; allowed: {", ".join(POLICIES)}')
    if shards is not None and shards not in ("dynamic", "static"):
        raise ConfigError(f'prepare() got shards="{shards}"; allowed: dynamic, static')


def check_loader(loader: Any) -> None:
    """Raise ConfigError unless the loader's batches can be leased, or it is a stream."""
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"prepare() got a loader of type {type(loader).__name__}; it must be a torch.utils.data.DataLoader, "
            "or be left out by a script that draws its own batches" + where_prepare_goes(loader)
        )
    if loader.batch_sampler is None and not isinstance(loader.dataset, IterableDataset):
        raise ConfigError("prepare() got a loader with batch_size=None; give it a batch_size or a batch_sampler")
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        raise ConfigError(
            "prepare() got a loader with a DistributedSampler, which gives each process a part of its own; Paceline "
            "shares out the batches itself: give the loader shuffle=True in its place"
        )


def _check_kinds(model: Any, optimizer: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"prepare() got a {type(model).__name__} as its model; it must be a torch.nn.Module"
            + where_prepare_goes(model)
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"prepare() got a {type(optimizer).__name__} as its optimizer; it must be a torch.optim.Optimizer"
            + (TRAINERS_OPTIMIZER if optimizer is None else where_prepare_goes(optimizer))
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates its closure several times a step; use an optimizer that takes one gradient")
    if why := unfit_rate(scalars_of(optimizer)):
        raise ConfigError(why)


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's are the model's, on one device, dense, and each has memory of its own."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    if not any(parameter.requires_grad for parameter in names):
        raise ConfigError("the model has no trainable parameters; at least one must have requires_grad=True")
    optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    accelerator.device_of(optimized)  # before their addresses are compared, which a device without memory has none of
    taken: dict[int, str] = {}
    for parameter, name in names.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f'the parameter "{name}" has no shape yet; run one batch through the model first')
        _check_dense("parameter", name, parameter)
        if parameter.numel() and taken.setdefault(parameter.data_ptr(), name) != name:
            raise ConfigError(
                f'the parameters "{taken[parameter.data_ptr()]}" and "{name}" share memory; '
                "tie them by making them one Parameter"
            )
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise ConfigError(
                    f"the optimizer's parameter {place} of group {number}, of shape {list(parameter.shape)}, is not "
                    "one of the model's; build the optimizer from model.parameters(), once the model has its final form"
                )
    if not any(parameter.requires_grad for parameter in optimized):
        raise ConfigError("the optimizer has none of the model's trainable parameters; give it model.parameters()")


def _names_by_memory(model: nn.Module) -> dict[int, str]:
    """Return each parameter's name, by the address of its memory."""
    named = model.named_parameters()
    return {parameter.untyped_storage().data_ptr(): name for name, parameter in named if parameter.numel()}


def _check_buffers(model: nn.Module) -> None:
    """They are dense, and lie in memory of their own."""
    stored = _names_by_memory(model)
    for name, buffer in model.named_buffers():
        _check_dense("buffer", name, buffer)
        if buffer.numel() and (owner := stored.get(buffer.untyped_storage().data_ptr())):
            raise ConfigError(
                f'the buffer "{name}" shares the memory of the parameter "{owner}", which moves in prepare(); '
                "make it in the forward, or keep a copy"
            )
        sizes = zip(buffer.stride(), buffer.shape, strict=True)
        if buffer.numel() and any(stride == 0 and size > 1 for stride, size in sizes):
            raise ConfigError(
                f'elements of the buffer "{name}" share memory, as expand() leaves them; '
                "give it memory of its own by clone()"
            )


def _check_views(model: nn.Module) -> None:
    """No module keeps a view of a parameter: the parameter moves, and the view would show what it was for ever."""
    stored, own = _names_by_memory(model), set(map(id, model.parameters()))
    for place, module in model.named_modules():
        if module._forward_pre_hooks:  # spectral_norm and its like make it anew before each forward
            continue
        for attribute, value in vars(module).items():
            kept = value if isinstance(value, list | tuple) else (value,)
            tensors = [one for one in kept if isinstance(one, Tensor) and id(one) not in own and one.numel()]
            for one in tensors:
                if one.layout is torch.strided and (name := stored.get(one.untyped_storage().data_ptr())):
                    view = ".".join(filter(None, (place, attribute)))
                    raise ConfigError(
                        f'"{view}" is a view of the parameter "{name}", which moves in prepare(); make it in the '
                        "forward, or keep a copy"
                    )


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All that it steps by is in its groups and its state, and only its `step` moves parameters."""
    ids = set(map(id, model.parameters()))
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state") and _holds_one_of(value, ids):
            raise ConfigError(
                f'the optimizer keeps parameters in its attribute "{name}"; Paceline steps others in their place: '
                "let it find them in param_groups, or mark each by an attribute of its own"
            )
    if any(not isinstance(key, Tensor) for key in optimizer.state):
        raise ConfigError("the optimizer's state has keys that are no parameters; keep them in its param_groups")
    if is_replaced(optimizer):
        raise ConfigError(
            "the optimizer's step() was replaced before prepare(), which gives it one of its own; replace it after "
            "prepare(), by a function that calls the one before, or write an optimizer class of your own"
        )
    if any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values()):
        raise ConfigError(
            f"the optimizer, of class {type(optimizer).__name__}, wraps another one, and Paceline can't tell which of "
            "them has the parameters; give prepare() an optimizer of its own" + where_prepare_goes(optimizer)
        )
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        raise ConfigError(
            f"the optimizer, of class {type(optimizer).__name__}, changes the parameters in its train() and eval(), "
            "which does not reach the other workers; use an optimizer that changes them in step() only"
        )


def _check_dense(what: str, name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").lstrip("_")
        raise ConfigError(f'the {what} "{name}" is {kind}, not dense; replace it by its to_dense()')


def _holds_one_of(value: Any, ids: set[int]) -> bool:
    """Whether a parameter with one of these ids is in there, or such an id."""
    if isinstance(value, Tensor | int):
        return (value if isinstance(value, int) else id(value)) in ids
    items = (*value, *value.values()) if isinstance(value, dict) else value
    return isinstance(items, list | tuple | set | frozenset) and any(_holds_one_of(item, ids) for item in items)
