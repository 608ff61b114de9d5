"""The reference pages that are written by hand have what the code has: keys of scenarios and summaries, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.core.choice import choose
from paceline.core.facts import TrainingBegan
from paceline.protocols import registry
from paceline.records.ledger import TABLES
from paceline.records.summary import Tally, Target
from paceline.records.times import FetchTimes, StepTimes
from paceline.scenario.quantities import DURATIONS, SIZES
from paceline.scenario.scenario_file import KEYS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_scenario_page_has_every_key_of_every_table() -> None:
    page = (REFERENCE / "scenario.md").read_text()
    for table, keys in KEYS.items():
        section = re.search(rf"^## `\[+{table}\]+`\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
        assert section is not None, table
        assert sorted(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)) == sorted(keys), table
    units = re.search(r"^\| duration \| (.*?) \|", page, re.MULTILINE), re.search(r"^\| size \| (.*?) \|", page, re.M)
    assert [set(re.findall(r"`(\w+)`", row[1])) for row in units if row] == [set(DURATIONS), set(SIZES)]


def test_the_summary_page_has_every_key_of_a_summary() -> None:
    page = (REFERENCE / "summary.md").read_text()
    section = page.partition("## `summary.json`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    told = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert sorted(told) == sorted(set(told))
    others = {"stopped", "compress", "over_optimum"}  # flags, scripts' `stop`, and what no run with a switch has
    assert set(told) == set(simulated()) | set(counted()) | others


def test_the_page_of_a_run_s_folder_has_every_table_of_the_ledger() -> None:
    section = (REFERENCE / "summary.md").read_text().partition("## `ledger.sqlite`")[2]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    told = [table for row in rows for table in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(re.findall(r"CREATE TABLE (\w+)", TABLES))


def simulated() -> Iterator[str]:
    """Keys of a run in which a worker died and the protocol switched."""
    cluster = {"cluster": {"workers": 2, "compute": "10ms"}, "event": [{"worker": 1, "at_step": 3, "kill": True}]}
    return paths(paceline.simulate(cluster, "sync-switch:switch_at=0.5", steps=20, batch=4))


def counted() -> Iterator[str]:
    """Keys of a run that was evaluated, had a target and logged its metric, and was on several hosts and on devices."""
    tally = Tally()
    tally.record(TrainingBegan(members=((0, "node-0", 0),), version=0, at=0.0), ())
    tally.step_times(0, 0, StepTimes(0.0, 0.1, 0.0, 0.0, 0.0, 0.0, to_device=0.01, from_device=0.01))
    tally.recorded(1, 0.5, 32)
    tally.evaluated(1, {"accuracy": 0.9})
    tally.logs("accuracy", worker=0, step=1, version=1, at=0.7, value=0.95)
    tally.logs_any("loss", worker=0, step=1, version=1, at=0.7, value=0.2)
    tally.consensus(1, 0.5, 0.1)
    tally.fetched(FetchTimes(host="node-1", source="node-0", kind="other", bytes=8, began=0.1, ended=0.2))
    tally.moved({"node-0": 0.1, "node-1": 0.2})
    choice, targets = choose("all-reduce", registry()), [Target.parse("accuracy>=0.9")]
    summary = tally.summary(protocol=choice, workers=2, threads=1, seed=0, outcome="completed", targets=targets)
    found = (path for path in paths(summary) if path != "evaluations[].accuracy")
    found = (re.sub(r"^(logged\.\*)\.(?:last|highs\[\]|lows\[\])\.", r"\1.*.", path) for path in found)
    return (path for path in found if not re.match(r"scalars\.\*\.\w+\.", path))  # the same keys as those of `logged`


OWN_ROW = (
    *("per_worker[].left", "targets", "logged", "logged.*.last"),
    *("scalars", "scalars.*.first", "scalars.*.last"),
)
"""Objects that the page also says something of as a whole."""
OTHERSKEYS = ("protocol.config", "staleness.histogram")
"""Objects whose keys are not the summary's own."""


def paths(value: dict[str, Any], above: str = "") -> Iterator[str]:
    """Every key, as the page writes it."""
    for key, inner in value.items():
        path = above + ("*" if above in ("targets.", "logged.", "scalars.") else key)
        if isinstance(inner, list):
            yield f"{path}[]"
            for one in (one for one in inner if isinstance(one, dict)):
                yield from paths(one, f"{path}[].")
        if not isinstance(inner, list | dict) or path in OWN_ROW + OTHERSKEYS:
            yield path
        if isinstance(inner, dict) and path not in OTHERSKEYS:
            yield from paths(inner, f"{path}.")
