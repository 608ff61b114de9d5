"""A loader's items, one after the other. Whether one is the last can be asked before it is used."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from paceline.training.replaced import mixed_into


class OneAhead:
    """The items of one iteration. It keeps none that it has handed out."""

    def __init__(self, items: Iterator[Any], ends: type[BaseException] = StopIteration) -> None:
        """`ends`: what else the iterator may raise as nothing is left."""
        self._items = items
        self._ends = ends
        self._ahead: deque[Any] = deque()
        self.ended = False
        """Whether nothing is left to fetch."""

    def fetch(self) -> bool:
        """Fetch the next item, unless it is there. Return whether there is one."""
        if not self._ahead and not self.ended:
            try:
                self._ahead.append(next(self._items))
            except (StopIteration, self._ends):
                self.ended = True
        return bool(self._ahead)

    @property
    def first(self) -> Any:
        """The item that was fetched."""
        return self._ahead[0]

    def take(self) -> Any:
        """Return that item, to hand it out."""
        return self._ahead.popleft()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.fetch():
            raise StopIteration
        return self.take()

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_items":
            raise AttributeError(name)
        return getattr(self._items, name)


def is_last(items: weakref.ref[OneAhead] | None) -> bool:
    """Return whether nothing comes after the item that was taken last. None: no iteration has begun.

    A loader refers to its items weakly: as a loop is left, its iterator ends, with the iterator's processes.
    """
    if items is None:
        return False
    there = items()
    return there is None or not there.fetch()


class Last:
    """`loader.last`: whether the loop's present batch is this worker's last one. The next batch is fetched for that.

    What the script's own class, or the script itself, calls by that name comes first.
    """

    def __init__(self, of: Callable[[Any], bool]) -> None:
        self._of = of

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, loader: Any, kind: type | None = None) -> Any:
        if loader is None:
            return self
        theirs = getattr(super(self._owner, loader), self._name, self)
        return self._of(loader) if theirs is self else theirs


class KnowsLast(DataLoader[Any]):
    """Mixed into the class of the user's own loader object in a script that runs alone: it has `last`, too."""

    _paceline_items: weakref.ref[OneAhead] | None = None
    last = Last(lambda loader: is_last(loader._paceline_items))

    def __iter__(self) -> Any:
        items = OneAhead(super().__iter__())
        self._paceline_items = weakref.ref(items)
        return items

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or pickle is of the script's own class."""
        made: DataLoader[Any] = object.__new__(type(self).__mro__[2])
        made.__dict__.update({name: value for name, value in vars(self).items() if name != "_paceline_items"})
        return copy.copy, (made,)


def with_last(loader: DataLoader[Any]) -> None:
    """Give this loader `last`, in place."""
    if not isinstance(loader, KnowsLast):
        mixed_into(loader, KnowsLast)
