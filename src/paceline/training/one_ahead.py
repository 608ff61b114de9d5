"""A loader's items, one after the other. Whether one is the last can be asked before it is used."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


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
        """Return that item, which it is the script's turn to have."""
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


class KnowsLast(DataLoader[Any]):
    """Mixed into the class of the user's own loader object in a script that runs alone: it has `last`, too."""

    _paceline_items: OneAhead | None = None

    def __iter__(self) -> Any:
        self._paceline_items = OneAhead(super().__iter__())
        return self._paceline_items

    @property
    def last(self) -> bool:
        """Whether the loop's present batch is its last one."""
        return self._paceline_items is not None and not self._paceline_items.fetch()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or pickle is of the script's own class."""
        made: DataLoader[Any] = object.__new__(type(self).__mro__[2])
        made.__dict__.update({name: value for name, value in vars(self).items() if name != "_paceline_items"})
        return copy.copy, (made,)


def with_last(loader: DataLoader[Any]) -> None:
    """Give this loader `last`, in place."""
    kind = type(loader)
    if not isinstance(loader, KnowsLast):
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        loader.__class__ = type(kind.__name__, (KnowsLast, kind), names)
