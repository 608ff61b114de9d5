"""The optimizer's state where the store has it: what a script sees of it, and what the store is told of its edits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.core.state_edits import StateEdit
from paceline.errors import ConfigError
from paceline.store.chunks import STATE, State
from paceline.training.packing import packed
from paceline.training.tensor_bits import octets


class NewestState(defaultdict[Tensor, dict[str, Any]]):
    """What `optimizer.state` shows in a worker: a copy of the newest version's state, as of the first look in a step.

    The script may edit it. Its edits count from the next step on.
    """

    def __init__(self, fetch: Callable[[], Mapping[Tensor, dict[str, Any]]]) -> None:
        super().__init__(dict)
        self._fetch = fetch
        self.looked_at = False
        """Whether the copy is here. Nothing is fetched before."""
        self.cleared = False

    def look(self) -> None:
        """Fetch the copy, unless it is here."""
        if not self.looked_at:
            self.looked_at = True  # first, as `update` looks
            super().update(self._fetch())

    def forget(self) -> None:
        """The next look is at the newest version then."""
        super().clear()
        self.looked_at = self.cleared = False

    def clear(self) -> None:
        """Remove every parameter's state. This does not look at it."""
        super().clear()
        self.looked_at = self.cleared = True

    def copy(self) -> Any:
        """Return torch's kind of dictionary."""
        return defaultdict(dict, self.items())

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """A deep copy or a pickle is torch's kind of dictionary, too."""
        return defaultdict, (dict,), None, None, iter(self.items())


def _looking(name: str) -> Callable[..., Any]:
    plain = getattr(defaultdict, name)

    def method(self: NewestState, *args: Any, **kwargs: Any) -> Any:
        self.look()
        return plain(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__"),
    *("__repr__", "__reversed__", "__setitem__", "get", "items", "keys", "pop", "popitem"),
    *("setdefault", "update", "values"),
):
    setattr(NewestState, _name, _looking(_name))


def edits_of(before: State, after: State) -> list[StateEdit] | None:
    """Return the edits that make the second state of the first; None if there is more to it than they can say."""
    found: dict[tuple[str | None, str, Any], list[int]] = {}
    for number in sorted(before.keys() | after.keys()):
        old, new = before.get(number) or {}, after.get(number) or {}
        if old and not new:
            found.setdefault((None, "", None), []).append(number)
            continue
        if old.keys() != new.keys():
            return None
        for key in old:
            if same(old[key], new[key]):
                continue
            value = _filled_with(old[key], new[key])
            if value is _MORE:
                return None
            found.setdefault((key, type(value).__name__, value), []).append(number)
    return [(numbers, key, value) for (key, _, value), numbers in found.items()]


_MORE = object()


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal bit for bit, as far as they can be packed."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and (one is other or torch.equal(octets(one), octets(other)))
    if type(one) is not type(other):
        return False
    try:
        return packed(one, STATE) == packed(other, STATE)
    except ConfigError:  # the script's own value can't be passed on
        return False


def _filled_with(old: Any, new: Any) -> Any:
    """The number that a value is filled with, or None; `_MORE` if it is anything else."""
    if new is None or (_is_number(new) and (_is_number(old) or (isinstance(old, Tensor) and old.numel() == 1))):
        return new
    if not isinstance(new, Tensor) or new.is_complex() or not new.numel():
        return _MORE
    if isinstance(old, Tensor):
        alike = old.shape == new.shape and old.dtype == new.dtype
    else:
        alike = _is_number(old) and new.numel() == 1
    first = new.detach().reshape(-1)[0]
    return first.item() if alike and bool((new == first).all()) else _MORE


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def by_parameter(edits: list[StateEdit], parameters: int) -> Iterator[tuple[int, str | None, Any]]:
    """Yield each parameter's number, key and value. `parameters`: how many there are."""
    for numbers, key, value in edits:
        for number in numbers or range(parameters):
            yield number, key, value
