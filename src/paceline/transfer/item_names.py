"""Names of items, as hosts say them to each other."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec

from paceline.core.items import (
    Beginning,
    Blob,
    Buffers,
    EarlyVersion,
    Item,
    Mean,
    Partial,
    Replica,
    Sum,
    Update,
    Version,
)
from paceline.errors import MessageUnreadable
from paceline.ipc.endpoint import Count

_KINDS: dict[str, type[Any]] = {
    "version": Version,
    "early version": EarlyVersion,
    "update": Update,
    "buffers": Buffers,
    "sum": Sum,
    "replica": Replica,
    "mean": Mean,
    "partial": Partial,
    "beginning": Beginning,
    "blob": Blob,
}
FIXED = Blob("fixed")
"""What never moves."""
ADOPTED = Blob("adopted")
"""What takes its place, if a script changes that before its first step."""
Fields = Annotated[tuple[Count | Annotated[str, msgspec.Meta(max_length=200)], ...], msgspec.Meta(max_length=8)]


def fields_of(item: Item) -> Fields:
    """Return the item's name as it is said to another process."""
    return cast(Fields, tuple(item))


def item_of(fields: Fields) -> Item:
    """Return the item of that name. Raises MessageUnreadable."""
    kind = _KINDS.get(str(fields[-1])) if fields else None
    if kind is None:
        raise MessageUnreadable("it names no item")
    try:
        return cast(Item, msgspec.convert(fields, kind))
    except msgspec.ValidationError as error:
        raise MessageUnreadable(f"it names no {kind.__name__}: {error}") from error


def summand_of(fields: Fields) -> Update | Sum:
    """Return the item of that name, which is one that a version is made of. Raises MessageUnreadable."""
    item = item_of(fields)
    if not isinstance(item, Update | Sum):
        raise MessageUnreadable(f"{item} is nothing that a version is made of")
    return item
