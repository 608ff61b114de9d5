"""Recorded versions in their files: which structure of the model each has, and how it comes into a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from paceline.store.store import STRUCTURE


def install(held: Mapping[str, Tensor], file: Path, added: Mapping[str, Tensor] | None = None) -> None:
    """Copy those of these tensors that a recorded version has, in place.

    `held` are tensors by their names in `prepare`, and `added` are later ones by their names now. Without these the
    model is as it was in `prepare`, and names are what counts.
    """
    with torch.no_grad(), safe_open(file, framework="pt") as recorded:
        _, names = structure_of(recorded.metadata())
        places = dict(held)
        if names and added is not None:
            places = {name: held[entry] for name, entry in names.items() if entry in held} | dict(added)
        for name in recorded.keys() & places.keys():  # further names of a tied parameter are not in both
            places[name].copy_(recorded.get_tensor(name))


def structure_of(metadata: Mapping[str, str] | None) -> tuple[int, dict[str, str]]:
    """Return a recorded version's structure, as its number and names; no names if it is as in `prepare`.

    A version that plain DDP has recorded has no metadata.
    """
    number, names = json.loads((metadata or {}).get(STRUCTURE, "[0, {}]"))
    return number, names
