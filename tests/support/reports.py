"""What a host reports, kept for a test to look at."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from paceline.core import facts


class Reports:
    """Takes events in the place of a coordinator or of an agent."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.facts: list[facts.Fact] = []
        """Those of the events that are for the machine. A test may take them out."""
        self.error: Exception | None = None
        """Raised for each event that comes."""

    def __call__(self, event: Any) -> None:
        if self.error is not None:
            raise self.error
        self.events.append(event)
        if isinstance(event, facts.Fact):
            self.facts.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def told(self, kind: type) -> list[tuple[Any, ...]]:
        return [_fields(event) for event in self.of(kind)]


def _fields(event: Any) -> tuple[Any, ...]:
    if is_dataclass(event):
        return tuple(getattr(event, field.name) for field in fields(event))
    return msgspec.structs.astuple(event)
