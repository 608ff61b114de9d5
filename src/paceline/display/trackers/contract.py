"""What each tracker must do, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from paceline.ipc.messages.tracker import End, Open, Plain, RunOpened, Values


class Tracker(Protocol):
    """Writes one run to one tracker. One thread calls it: `open`, then `log` any number of times, then `end`.

    Each call may take as long as it likes, and raise anything.
    """

    def open(self, order: Open) -> RunOpened:
        """Begin a run, or go on with `order.before`. Write the parameters."""
        ...

    def log(self, rows: Sequence[Values]) -> None:
        """Write these values."""
        ...

    def end(self, order: End) -> None:
        """Write the results, and end the tracker's run as what the run has come to."""
        ...


def flat(nested: Any, name: str = "") -> dict[str, Plain]:
    """Return the nested values under names with slashes. A None is left out; what is no plain value becomes text.

    >>> flat({"lr": 0.1, "betas": [0.9, None], "protocol": {"name": "ssp", "bound": 3}})
    {'lr': 0.1, 'betas/0': 0.9, 'protocol/name': 'ssp', 'protocol/bound': 3}
    """
    return dict(_flat(nested, name))


def _flat(value: Any, name: str) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _flat(inner, f"{name}/{key}" if name else str(key))
    elif value is not None:
        plain = next((kind for kind in (bool, int, float) if isinstance(value, kind)), str)
        yield name, plain(value)  # torch's version and numpy's numbers are subclasses
