"""How the hosts of a run under torchrun find the head: through the key-value store of torchrun's own rendezvous.

The store lives as long as torchrun on the first host, so it outlives the processes that torchrun restarts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from paceline.errors import ConfigError
from paceline.launch.environment import Placement
from paceline.net.tcp import Address, shown

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

REACHED_WITHIN = 60.0
"""Seconds that torchrun's store has to answer."""
COMPLETE = "complete"
"""Stored by the head once the run has ended."""


def begin(placed: Placement) -> int:
    """Count an attempt at the run, at the head. Return how many there were, with this one."""
    with _answers(placed):
        return int(_store(placed).add(_key(placed, "attempts"), 1))


def publish(placed: Placement, address: Address, attempt: int) -> None:
    """Tell the other hosts where the head listens in this attempt."""
    host, port = address
    with _answers(placed):
        _store(placed).set(_key(placed, "head"), f"{host} {port} {attempt}")


def publish_complete(placed: Placement) -> None:
    """Tell the other hosts that the run is complete, and the head no longer listens."""
    with _answers(placed):
        _store(placed).set(_key(placed, "head"), COMPLETE)


class Published:
    """What the head has published, for another host."""

    def __init__(self, placed: Placement) -> None:
        self._placed, self._key = placed, _key(placed, "head")
        with _answers(placed):
            self._store = _store(placed)

    def head(self) -> tuple[Address, int] | None:
        """Return where the head listens, or did before a restart, and in which attempt. None: not known yet."""
        words = self._text().split()
        return ((words[0], int(words[1])), int(words[2])) if len(words) == 3 else None

    def is_complete(self) -> bool:
        """Return whether the run was completed before."""
        return self._text() == COMPLETE

    def _text(self) -> str:
        with _answers(self._placed):
            return self._store.get(self._key).decode() if self._store.check([self._key]) else ""


def _key(placed: Placement, name: str) -> str:
    return f"paceline/{placed.run}/{name}"


def _store(placed: Placement) -> TCPStore:
    """Connect to torchrun's store. A client has no thread, so the process may fork afterwards."""
    from torch._C._distributed_c10d import TCPStore

    assert placed.store is not None
    return TCPStore(
        placed.head,
        placed.store,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=REACHED_WITHIN),
    )


@contextmanager
def _answers(placed: Placement) -> Iterator[None]:
    """Raise ConfigError, in one line, if the store does not answer. It ends with torchrun on the first host."""
    assert placed.store is not None
    try:
        yield
    except (RuntimeError, ValueError) as error:  # torch's errors are subclasses of these
        why = str(error).splitlines()[0][:100]
        raise ConfigError(
            f"torchrun's store does not answer at {shown((placed.head, placed.store))} ({why}); see whether torchrun "
            "still runs on the first host"
        ) from None
