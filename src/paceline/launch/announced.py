"""How the head of a run that an engine has started tells the other hosts where it listens."""

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
"""The file in the run's folder that names the attempt that writes there."""
PATIENCE = 900.0
"""Seconds that an engine has to start all hosts. A host may first have to fetch its image."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """How the other hosts find the head in one attempt at a run."""

    placed: Placement
    attempt: int
    leading: str
    """This machine's address towards them."""

    def mark(self, folder: Path) -> None:
        """Name the attempt in the run's folder, before the head listens."""
        write_whole(folder / MARK, mark(self.placed, self.attempt))

    def publish(self, address: Address) -> None:
        """Tell the other hosts where the head listens, unless they know it from the engine."""
        if self.placed.store is not None:
            host, port = address
            known = self.leading if ip_address(host).is_unspecified else host
            torchrun.publish(self.placed, (known, port), self.attempt)

    def complete(self) -> None:
        """Tell hosts that the engine restarts after the run's end that there is nothing left to join."""
        if self.placed.store is not None:
            with suppress(ConfigError):  # torchrun has ended, and restarts nothing
                torchrun.publish_complete(self.placed)


def mark(placed: Placement, attempt: int) -> str:
    """Return the text of the file in the run's folder, for that attempt."""
    return f"{placed.engine} {placed.run} {attempt}\n"
