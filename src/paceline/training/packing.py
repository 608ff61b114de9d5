"""An optimizer's state as bytes: tensors as safetensors have them, plain values as JSON in their header. No pickle."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.training.parts import State


def packed(state: State) -> bytes:
    """Pack the state, by the parameter's number.

    Raises ConfigError for a value that is neither a tensor nor plain (None, a bool, a number, a string).
    """
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for number, values in state.items():
        plain[str(number)] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{number}/{key}"] = value.detach().to("cpu").contiguous().clone()
            elif value is None or isinstance(value, bool | int | float | str):
                plain[str(number)][key] = value
            else:
                raise ConfigError(
                    f'the optimizer\'s state has "{key}", a {type(value).__name__}; only tensors and plain values '
                    "can be passed between a worker and the store"
                )
    return safetensors.torch.save(tensors, metadata={"plain": json.dumps(plain)})


def unpacked(data: bytes) -> State:
    """Unpack what `packed` has packed."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    state: State = {int(number): dict(values) for number, values in json.loads(header["__metadata__"]["plain"]).items()}
    for name, value in safetensors.torch.load(data).items():
        number, key = name.split("/", 1)
        state[int(number)][key] = value
    return state
