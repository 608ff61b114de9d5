"""Trees of tensors and plain values as bytes: tensors as safetensors have them, the rest as JSON in their header.

A tree is a tensor, a plain value (None, a bool, a number, a string), or a list, tuple, set or dict of trees. What is
unpacked has the same types, strides included. There is no pickle.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import save_file  # by its name: in a worker the module's is guarded for scripts
from torch import Tensor

from paceline.errors import ConfigError
from paceline.training.tensor_bits import octets

Tree = Any
Pieces = Sequence[bytes | memoryview]
"""Bytes in pieces, one after another."""
ALIGNED = 8  # bytes: data begins at a multiple of it in a safetensors file
DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
OTHERS: dict[str, type[Any]] = {"tuple": tuple, "set": set}


def packed(tree: Tree, whole: str) -> bytes:
    """Pack the tree. See `check` for what it raises."""
    return b"".join(pieces(tree, whole))


def pieces(tree: Tree, whole: str) -> Pieces:
    """Pack the tree without a copy: return a header, and each tensor's memory, to be written before that changes.

    These are the bytes of a safetensors file. The library's own functions copy them.
    """
    packing = _Packing(whole)
    header: dict[str, Any] = {"__metadata__": packing.header(tree)}
    found: list[bytes | memoryview] = []
    end = 0
    widest_first = sorted(packing.tensors.items(), key=lambda one: -one[1].element_size())  # so each is aligned
    for name, tensor in widest_first:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _code(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [begin, end]}
        found.append(octets(tensor).numpy().data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *found]


@cache
def _code(dtype: torch.dtype) -> str:
    """Return what safetensors calls that dtype."""
    data = safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    code: str = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])[""]["dtype"]
    return code


def unpacked(data: bytes) -> Tree:
    """Unpack what `packed` has packed."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])["__metadata__"]
    return _plain(json.loads(header["tree"]), safetensors.torch.load(data))


def save(tree: Tree, whole: str, file: Path) -> None:
    """Write the tree to that file. See `packed`."""
    packing = _Packing(whole)
    header = packing.header(tree)
    save_file(packing.tensors, file, header)


def load(file: Path, *, copied: bool = False) -> Tree:
    """Read what `save` has written.

    Tensors are the file's pages, copied as they are written to, and any of them keeps the whole file in memory. With
    `copied` none does.
    """
    with safe_open(file, framework="pt") as saved:
        tensors = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118  # it is no dict
        if copied:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return _plain(json.loads(saved.metadata()["tree"]), tensors)


def check(tree: Tree, whole: str) -> None:
    """Raise ConfigError, which names the tree as `whole` does, for a value that can't be packed."""
    _Packing(whole).header(tree)


def packs(value: Tree) -> bool:
    """Whether the value can be packed."""
    try:
        check(value, "")
    except ConfigError:
        return False
    return True


class _Packing:
    """Takes a tree apart: its tensors by the path to each, and the rest as JSON that refers to these."""

    def __init__(self, whole: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._whole = whole
        self._taken: set[int] = set()
        """Where the tensors' memory begins: safetensors refuses two over the same memory."""

    def header(self, tree: Tree) -> dict[str, str]:
        return {"tree": json.dumps(self._node(tree, ()))}

    def _node(self, value: Tree, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized:
            return self._tensor(value.detach(), path)
        if isinstance(value, numpy.bool_ | numpy.number) and not isinstance(value, numpy.complexfloating):
            return {"numpy": value.dtype.name, "value": value.item()}
        if kind is list:
            return [self._node(item, (*path, str(place))) for place, item in enumerate(value)]
        for name, other in OTHERS.items():
            if kind is other:
                return {name: [self._node(item, (*path, str(place))) for place, item in enumerate(value)]}
        for name, mapping in DICTS.items():
            if kind is mapping:
                return self._dict(name, value, path)
        where = path[-1] if path else ""
        above = f" in {'/'.join(path[:-1])}" if path[:-1] else ""
        raise ConfigError(
            f'{self._whole} has "{where}"{above}, a {kind.__name__}; only tensors, plain values, and lists, tuples and '
            "dicts of them can be packed"
        )

    def _dict(self, name: str, value: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        node: dict[str, Any] = {
            name: [
                [self._node(key, (*path, "a key")), self._node(item, (*path, str(key)))] for key, item in value.items()
            ]
        }
        about = getattr(value, "_metadata", None)  # a module's state_dict has the versions of its layers there
        if about is not None:
            node["about"] = self._node(about, (*path, "_metadata"))
        return node

    def _tensor(self, value: Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        node: dict[str, Any] = {"tensor": "/".join(path)}
        while node["tensor"] in self.tensors:
            node["tensor"] += "'"  # the keys 1 and "1" are two
        if value.is_complex():
            value, node["complex"] = torch.view_as_real(value.resolve_conj()), True
        if not value.is_contiguous() and torch.empty_like(value, device="meta").stride() == value.stride():
            node["stride"] = value.stride()
        value = value.to("cpu").contiguous()
        if value.untyped_storage().data_ptr() in self._taken:
            value = value.clone()
        self._taken.add(value.untyped_storage().data_ptr())
        self.tensors[node["tensor"]] = value
        return node


def _plain(node: Any, tensors: dict[str, Tensor]) -> Tree:
    """Put a tree together again."""
    if isinstance(node, list):
        return [_plain(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    if "tensor" in node:
        value = tensors[node["tensor"]]
        if "stride" in node:
            value = torch.empty_strided(value.shape, node["stride"], dtype=value.dtype).copy_(value)
        return torch.view_as_complex(value) if "complex" in node else value
    if "numpy" in node:
        return numpy.dtype(node["numpy"]).type(node["value"])
    for name, other in OTHERS.items():
        if name in node:
            return other(_plain(item, tensors) for item in node[name])
    for name, mapping in DICTS.items():
        if name in node:
            found: Any = mapping({_plain(key, tensors): _plain(item, tensors) for key, item in node[name]})
            if "about" in node:
                found._metadata = _plain(node["about"], tensors)
            return found
    raise ValueError(f"a tree has a node of an unknown kind: {sorted(node)}")
