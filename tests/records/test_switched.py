"""Ledgers of simulated switches: from any protocol to any other, `check` finds them right."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import pytest

from paceline.protocols import registry
from paceline.records.reading import open_run
from paceline.scenario.scenario import Kill, Scenario
from support.recorded import checked, simulated

PROTOCOLS = [spec.name for spec in registry().values() if not spec.parts]
BRIEF = {"local-sgd": "local-sgd:every=3", "diloco": "diloco:every=2", "async-diloco": "async-diloco:every=2"}


@pytest.mark.parametrize(("first", "then"), list(permutations(PROTOCOLS, 2)))
def test_every_pair_switches_in_virtual_time_with_a_death_and_a_return(first: str, then: str, tmp_path: Path) -> None:
    kill = Kill(worker=1, at=0.31, rejoin_after=0.2)
    scenario = Scenario(compute=0.05, jitter=0.2, speeds={2: 0.7}, events=(kill,))
    protocol = f"sync-switch:switch_at=0.5,first={BRIEF.get(first, first)},then={BRIEF.get(then, then)}"
    folder = simulated(tmp_path / "run", protocol, 3, math.inf, None, scenario=scenario, data=36)
    found = checked(folder)
    assert found.ok, found.wrong
    with open_run(folder, registry()).ledger as ledger:
        (switches,) = ledger.execute("SELECT count(*) FROM orders WHERE kind = 'SwitchProtocol'").fetchone()
        (applied,) = ledger.execute("SELECT json_extract(value, '$.outcome') FROM run WHERE key = 'end'").fetchone()
    assert (switches, applied) == (1, "completed")
