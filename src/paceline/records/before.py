"""What the ledger of a run that goes on has from before, which its next segment needs."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from paceline.core.agreements import Call, Value
from paceline.records.ledger import connect
from paceline.records.reading import LEDGER


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What was before, with all that came after the snapshot taken away already."""

    recorded: dict[int, str]
    """By recorded version: the hash of its parameters."""
    went_on_from: set[int]
    """Facts whose snapshots segments of the run began from."""
    epoch_samples: int | None
    """Samples in its first epoch, if an epoch was opened, and they are counted."""
    agreed: dict[Call, Value]
    """What workers have decided together, by when they called `agree`."""


def read_before(folder: Path) -> Before:
    """Read it from the ledger in that folder."""
    with closing(connect(folder / LEDGER)) as ledger:
        first = ledger.execute("SELECT expected FROM epochs ORDER BY rowid LIMIT 1").fetchone()
        snapshots = ledger.execute("SELECT snapshot FROM segments WHERE snapshot IS NOT NULL")
        return Before(
            recorded=dict(ledger.execute("SELECT version, sha256 FROM versions")),
            went_on_from={fact for (fact,) in snapshots},
            epoch_samples=first[0] if first else None,
            agreed={
                Call(epoch, nth): json.loads(result)
                for epoch, nth, result in ledger.execute("SELECT epoch, nth, result FROM agreed")
            },
        )
