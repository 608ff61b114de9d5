"""What a recorded run prescribes to its replay."""

from __future__ import annotations

import sqlite3
from collections import deque
from types import SimpleNamespace
from typing import Any

from paceline.records.ledger import TABLES
from paceline.runs.prescribed import Part


def test_a_segment_that_ended_before_its_first_lease_prescribes_none() -> None:
    ledger = sqlite3.connect(":memory:")
    ledger.executescript(TABLES)
    ledger.execute("INSERT INTO leases (worker, during, epoch, batch) VALUES (0, 0, 0, 0)")
    ledger.execute("INSERT INTO marks VALUES (5, 0, 0, 0, 0)")
    parts: dict[str, Any] = {
        "segment": SimpleNamespace(workers=1),
        "recorded": SimpleNamespace(ledger=ledger),
        "begins": None,
        "ends": SimpleNamespace(fact=5),
    }
    assert Part(**parts).leases() == {0: deque()}
