"""What the head of a run that an engine has started lets the other hosts know."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from paceline.errors import ConfigError
from paceline.files import write_whole
from paceline.launch import torchrun
from paceline.launch.environment import Placement
from paceline.net.tcp import Address

MARK = "attempt"
"""The file in the run's folder that names the attempt which writes there."""
PATIENCE = 900.0
"""Seconds in which an engine has to start all hosts: one of them may have to fetch its image."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """How the other hosts hear of one attempt at a run."""

    placed: Placement
    attempt: int
    leading: str
    """This machine's address on the way to them."""

    def mark(self, folder: Path) -> None:
        """Name the attempt in the run's folder. Call this before the head listens."""
        write_whole(folder / MARK, mark(self.placed, self.attempt))

    def publish(self, address: Address) -> None:
        """Tell the other hosts where the head listens, if they don't know it from the engine."""
        if self.placed.store is not None:
            host, port = address
            known = self.leading if ip_address(host).is_unspecified else host
            torchrun.publish(self.placed, (known, port), self.attempt)

    def complete(self) -> None:
        """Tell hosts that the engine begins anew after the run's end that there is nothing left to join."""
        if self.placed.store is not None:
            with suppress(ConfigError):  # torchrun has gone, and begins nothing
                torchrun.publish_complete(self.placed)


def mark(placed: Placement, attempt: int) -> str:
    """Return what the file in the run's folder says in that attempt."""
    return f"{placed.engine} {placed.run} {attempt}\n"
