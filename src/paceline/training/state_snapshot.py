"""The optimizer's state of one version, copied while later versions are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from paceline.store.chunks import Chunk, PartState


class StateSnapshot:
    """Copies the state part by part. Two come to each part: who writes it down, and the next commit, before its step.

    The first of them copies the part's state. The other waits for that, and for no other part.
    """

    def __init__(
        self,
        parts: Sequence[Chunk],
        *,
        groups: list[dict[str, Any]],
        attributes: dict[str, Any],
        told: list[dict[str, Any]],
        buffers: dict[int, dict[str, Tensor]],
    ) -> None:
        """All but the parts' state is small, and copied already. See `store.snapshots.OfStore`."""
        self.groups, self.attributes, self.told, self.buffers = groups, attributes, told, buffers
        self.apart = [part.first for part in parts if part.is_split]
        """See `Share`."""
        self._parts = parts
        self._locks = {id(part): threading.Lock() for part in parts}
        self._taken: dict[int, PartState] = {}

    def take(self, part: Chunk) -> None:
        """Copy the part's state, unless that is done. A part that came after the moment has nothing of it."""
        if id(part) not in self._locks:
            return
        with self._locks[id(part)]:
            if id(part) not in self._taken:
                self._taken[id(part)] = part.state()

    def states(self) -> Iterator[PartState]:
        """Each part's state as it was. Each is let go of when the next one is asked for."""
        for part in self._parts:
            self.take(part)
            state, self._taken[id(part)] = self._taken[id(part)], []
            yield state
