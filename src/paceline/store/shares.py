"""What stores send each other where each makes a range of every version: one range's state, or that of all ranges.

`training.packing` packs both as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy
import torch
from torch import Tensor

from paceline.store.chunks import CAPTURABLE, STATE, ChunkSpan, PartState, State
from paceline.store.snapshots import OfWorker
from paceline.training.packing import Pieces, Tree, pieces, unpacked

COUNT = "step"
"""What torch's optimizers call their counts of steps, which are floating-point numbers."""
NOT_PLAIN = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """What a store's optimizer has for the store's range."""

    state: PartState
    groups: list[dict[str, Tree]]
    """As in `Whole`. A group without a parameter in the range has nothing."""
    attributes: dict[str, Tree]
    """As in `Whole`. There are none if nothing is in the range."""
    apart: list[tuple[int, int]]
    """`Chunk.first` of each chunk that steps its parameters apart. A version's checksum depends on this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the optimizer has for all ranges."""

    state: State
    groups: list[dict[str, Tree]]
    """The optimizer's parameter groups, without parameters."""
    attributes: dict[str, Tree]
    """What a user's own optimizer has besides groups and state."""
    told: list[dict[str, Any]]
    """The script's hyperparameters, as a worker last sent them."""

    def for_worker(self) -> OfWorker:
        """Return what a worker's optimizer goes on with. Of hyperparameters, that is what no worker has sent."""
        changed = [
            {key: value for key, value in group.items() if key not in there or not _is(value, there[key])}
            for group, there in zip(self.groups, self.told, strict=True)
        ]
        for group in changed:
            group.pop(CAPTURABLE, None)  # only a GPU can do this
        return OfWorker(state=self.state, groups=changed, attributes=self.attributes)


def _is(value: Any, told: Any) -> bool:
    """Whether the optimizer's hyperparameter is the one that was told, as far as a tensor of its type can be."""
    if isinstance(value, Tensor) and isinstance(told, int | float):
        return bool(value == value.new_tensor(told))
    return bool(plain(value) == told)


class StateMean:
    """The mean of what workers' optimizers have, in the order in which they are added. Whole numbers are the largest.

    What is no number is the first worker's, and so are hyperparameters.
    """

    def __init__(self) -> None:
        self._first: OfWorker | None = None
        self._sums: dict[tuple[int, str], Any] = {}
        self._counts: dict[tuple[int, str], int] = {}
        self._kinds: dict[tuple[int, str], Any] = {}

    def add(self, one: OfWorker) -> None:
        """Add what a worker's optimizer has. It is not to be used any more: the first one's tensors become the sum."""
        self._first = self._first or one
        for number, values in (one.state or {}).items():
            for key, value in values.items():
                self._add((number, key), value)

    def whole(self) -> Whole | None:
        """Return the mean; None if nothing was added."""
        first, state = self._first, dict[int, dict[str, Any]]()
        for (number, key), total in self._sums.items():
            state.setdefault(number, {})[key] = self._mean((number, key), total)
        if first is None:
            return None
        groups = [{key: value for key, value in group.items() if key != CAPTURABLE} for group in first.groups]
        return Whole(state=state, groups=groups, attributes=first.attributes, told=scalars_in(groups))

    def _add(self, place: tuple[int, str], value: Any) -> None:
        before = self._sums.get(place)
        if before is None:
            self._sums[place], self._counts[place], self._kinds[place] = _wide(value), 1, value
        elif _is_count(place[1], value):
            self._sums[place] = torch.maximum(before, value) if isinstance(value, Tensor) else max(before, value)
        elif isinstance(value, Tensor | float):
            self._sums[place] = _added(before, _wide(value))
            self._counts[place] += 1

    def _mean(self, place: tuple[int, str], total: Any) -> Any:
        kind = self._kinds[place]
        if _is_count(place[1], kind) or not isinstance(kind, Tensor | float):
            return total
        count = self._counts[place]
        mean = total.div_(count) if isinstance(total, Tensor) and count > 1 else total / count
        return mean.to(kind.dtype) if isinstance(kind, Tensor) else mean


def _is_count(key: str, value: Any) -> bool:
    if isinstance(value, Tensor):
        return key == COUNT or not (value.is_floating_point() or value.is_complex())
    return isinstance(value, int) or (key == COUNT and isinstance(value, float))


def _added(total: Any, value: Any) -> Any:
    """Return the sum, in the memory of `total` if it fits there: memory that is new costs more than the sum."""
    fits = isinstance(total, Tensor) and isinstance(value, Tensor)
    if fits and (total.dtype, total.shape) == (value.dtype, value.shape):
        return total.add_(value)
    return total + value


def _wide(value: Any) -> Any:
    """Return the value so that many can be added up: half precision would lose what it adds."""
    halves = (torch.float16, torch.bfloat16)
    return value.float() if isinstance(value, Tensor) and value.dtype in halves else value


def scalars_in(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the hyperparameters in each of these groups that can be sent as plain values."""
    return [
        {key: sent for key, value in group.items() if key != "params" and (sent := plain(value)) is not NOT_PLAIN}
        for group in groups
    ]


def plain(value: Any) -> Any:
    """Return the value as it can be sent, or `NOT_PLAIN`."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, tuple | list):
        items = [plain(item) for item in value]
        return NOT_PLAIN if NOT_PLAIN in items else items
    return value if value is None or isinstance(value, bool | int | float | str) else NOT_PLAIN


def pack_share(share: StateShare) -> Pieces:
    """Pack the share. Raises ConfigError if that fails."""
    state = [(span.number, span.in_parameter, span.count, values) for span, values in share.state]
    return pieces({"state": state, "groups": share.groups, "attributes": share.attributes, "apart": share.apart}, STATE)


def unpack_share(data: bytes) -> StateShare:
    """Unpack the result of `pack_share`, in one piece."""
    tree = unpacked(data)
    state = [(ChunkSpan(number, first, 0, count), values) for number, first, count, values in tree["state"]]
    apart = [(number, first) for number, first in tree["apart"]]
    return StateShare(state=state, groups=tree["groups"], attributes=tree["attributes"], apart=apart)


def pack_whole(whole: Whole) -> Pieces:
    """Pack the state. Raises ConfigError if that fails."""
    return pieces({field.name: getattr(whole, field.name) for field in fields(whole)}, STATE)


def unpack_whole(data: bytes) -> Whole:
    """Unpack the result of `pack_whole`, in one piece."""
    return Whole(**unpacked(data))
