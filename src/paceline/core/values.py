"""`value`: a dataclass whose fields are set once, as it is made. mypy holds that, and no run pays for it.

`dataclass(frozen=True)` sets each field by a call of its own, so an object takes two to four times as long to make.
A simulated step makes seven of them, and a head makes them for every step of every worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:

    def value(*, frozen: bool, **options: bool) -> object:
        """Make a dataclass that is frozen to mypy. It is equal and hashed by its fields, as a frozen one is."""
        return dataclass(unsafe_hash=frozen, **options)
