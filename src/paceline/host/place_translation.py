"""Places that messages to workers name. Where each worker owns a replica, the head numbers them for all hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from paceline.ipc import messages

PLACES: dict[type[messages.Message], tuple[str, ...]] = {
    messages.worker.Compute: ("slot",),
    messages.worker.MakeStep: ("source", "target", "gradients"),
    messages.worker.TakeUp: ("area",),
}
"""By message: its fields that are places of replicas and of what groups average to. An update's place is its worker's
own on every host."""


def places_of(message: messages.Message) -> Iterator[int]:
    """Return the places that this message names."""
    for field in PLACES.get(type(message), ()):
        if (place := getattr(message, field)) is not None:
            yield place


def placed(message: Any, at: Callable[[int], int]) -> Any:
    """Return the message with other places: that of each is `at(place)`."""
    fields = PLACES.get(type(message), ())
    named = {field: place for field in fields if (place := getattr(message, field)) is not None}
    if not named:
        return message
    return msgspec.structs.replace(message, **{field: at(place) for field, place in named.items()})
