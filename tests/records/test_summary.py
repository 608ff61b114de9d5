"""What a summary's numbers mean."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import (
    Fact,
    GradientReady,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import ApplyUpdate, Order
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records import summary as records
from paceline.records.ledger import Ledger, connect
from paceline.records.spans import Busy
from paceline.records.summary import Tally, Target
from paceline.records.times import FetchTimes, StepTimes
from records.histories import PROTOCOLS, History

SEEDS = range(4)
PARTS = ("compute_seconds", "wait_seconds", "transfer_seconds", "other_seconds")


def summed_up(tally: Tally, protocol: str = "asp", **more: Any) -> records.Summary:
    more = {"outcome": "completed", **more}
    return tally.summary(protocol=choose(protocol, registry()), workers=4, threads=1, seed=0, **more)


def told(*facts: Fact | tuple[Fact, Order]) -> Tally:
    tally = Tally()
    for fact in facts:
        tally.record(*((fact[0], (fact[1],)) if isinstance(fact, tuple) else (fact, ())))
    return tally


def fetch(host: str, source: str, size: int, began: float, ended: float) -> FetchTimes:
    return FetchTimes(host=host, source=source, kind="version", number=0, bytes=size, began=began, ended=ended)


def test_a_host_s_share_is_that_of_its_workers_and_of_what_it_exchanged() -> None:
    members = ((0, "node-0", 0), (1, "node-1", 0), (2, "node-1", 0))
    tally = told(TrainingBegan(members=members, version=0, at=0.0))
    for worker in range(3):
        tally.record(GradientReady(worker=worker, step=0, version=0, samples=8, at=1.0), ())
        applied = ApplyUpdate(version=worker + 1, contributions=((worker, 0, 1.0),))
        tally.record(UpdateArrived(worker=worker, step=0, at=1.0), (applied,))
    tally.fetched(fetch("node-1", "node-0", 40, 0.0, 1.0))
    tally.fetched(fetch("node-1", "node-0", 40, 0.5, 1.5))
    tally.fetched(fetch("node-0", "node-1", 48, 2.0, 2.25))
    tally.moved({"node-1": 0.5, "elsewhere": 9.0})
    tally.moved({"node-1": 0.25})
    head, other = summed_up(tally)["per_host"]
    exchanged = ("bytes_in", "bytes_out", "fetching_seconds")
    assert (head["host"], head["workers"], head["steps"], head["samples"]) == ("node-0", [0], 1, 8)
    assert [head[key] for key in exchanged] == [48, 80, 0.25]
    assert (other["host"], other["workers"], other["steps"], other["samples"]) == ("node-1", [1, 2], 2, 16)
    assert [other[key] for key in exchanged] == [80, 48, 1.5]
    assert other["moving_cpu_seconds"] == 0.75
    assert "moving_cpu_seconds" not in head, "nobody knows"
    assert "per_host" not in summed_up(told(began(0, 1))), "it was on one host"


@pytest.mark.parametrize("seed", SEEDS)
def test_time_in_which_several_things_are_under_way_counts_once(seed: int) -> None:
    """In ticks, whose sums are exact: as many as are within any of the spans."""
    lots = random.Random(seed)
    spans = sorted((ended, ended - lots.choice((0, 1, 3, 40))) for ended in (lots.randrange(2000) for _ in range(300)))
    busy = Busy()
    for ended, since in spans:
        busy.add(float(since), float(ended))
    assert busy.seconds == len({tick for ended, since in spans for tick in range(since, ended)})


def began(*workers: int, at: float = 0.0) -> TrainingBegan:
    return TrainingBegan(members=tuple((worker, "here", 0) for worker in workers), version=0, at=at)


def update(worker: int, step: int, version: int, at: float = 0.0, samples: int | None = 8) -> list[Any]:
    """A step on that version, applied on arrival as the next."""
    return [
        GradientReady(worker=worker, step=step, version=version, samples=samples, at=at),
        (
            UpdateArrived(worker=worker, step=step, at=at),
            ApplyUpdate(version=version + 1, contributions=((worker, step, 1.0),)),
        ),
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_counts_and_staleness_are_what_the_ledger_says(protocol: str, seed: int, tmp_path: Path) -> None:
    tally, ledger = Tally(), Ledger(tmp_path / "ledger.sqlite")

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        tally.record(fact, orders)
        ledger.record(fact, orders)

    history = History(protocol, seed, on_record=record).run()
    ledger.close()
    summary = summed_up(tally, protocol)
    database = connect(tmp_path / "ledger.sqlite")
    steps = database.execute(
        "SELECT applied.version - 1 - facts.version, facts.worker, json_extract(facts.body, '$.samples') "
        "FROM applied_updates AS applied JOIN facts USING (worker, step) WHERE facts.kind = 'GradientReady'"
    ).fetchall()
    (versions,) = database.execute("SELECT max(version) FROM orders WHERE kind = 'ApplyUpdate'").fetchone()
    database.close()
    stale = Counter(staleness for staleness, _, _ in steps)
    assert summary["staleness"]["histogram"] == {str(key): stale[key] for key in sorted(stale)}
    assert summary["staleness"]["max"] == max(stale)
    assert summary["staleness"]["mean"] == pytest.approx(sum(stale.elements()) / len(steps))
    assert summary["versions"] == versions
    assert summary["steps"] == len(steps)
    assert summary["samples"] == sum(samples for _, _, samples in steps) == 100
    for row in summary["per_worker"]:
        mine = [samples for _, worker, samples in steps if worker == row["worker"]]
        assert (row["steps"], row["samples"]) == (len(mine), sum(mine))
    assert summary["wall_seconds"] == pytest.approx(history.at - 0.5)
    assert summary["steps_per_second"] == pytest.approx(len(steps) / (history.at - 0.5))
    assert summary["samples_per_second"] == pytest.approx(100 / (history.at - 0.5))
    assert not tally.model.outcomes.ready, "what is applied or dropped is forgotten"


def test_an_update_that_arrives_after_its_worker_declined_another_step_has_no_lead() -> None:
    ready, (arrived, apply) = update(0, 0, 0)
    tally = told(began(0, 1), ready, StepDeclined(worker=0, step=1, at=0.0), (arrived, apply))
    assert [row["max_lead"] for row in summed_up(tally)["per_worker"]] == [0, 0]
    assert summed_up(tally)["steps"] == 1


def test_copies_of_devices_add_up_beside_the_parts_of_a_worker_s_time_and_are_null_where_it_had_none() -> None:
    tally = told(began(0, 1, 2))
    for copies in ((0.5, 0.25), (0.125, None)):
        tally.step_times(0, 0, StepTimes(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, *copies))
    tally.step_times(1, 0, StepTimes(1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    tally.step_times(2, 0, StepTimes(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0))
    rows = summed_up(tally, ended=9.0)["per_worker"]
    assert [row["to_device_seconds"] for row in rows] == [0.625, None, 0.0]
    assert [row["from_device_seconds"] for row in rows] == [0.25, None, 0.0]
    assert [row["transfer_seconds"] for row in rows] == [4.0, 2.0, 2.0]
    assert [sum(row[part] for part in PARTS) for row in rows] == [9.0, 9.0, 9.0]


def test_seconds_that_are_too_many_are_taken_from_the_largest_part() -> None:
    tally = told(began(0, at=1.0))
    tally.step_times(0, 0, StepTimes(1.0, 6.0, 0.5, 2.0, 0.5, 9.0))
    (row,) = summed_up(tally, ended=9.0)["per_worker"]
    assert [row[part] for part in PARTS] == [5.0, 2.0, 1.0, 0.0]
    (row,) = summed_up(tally, ended=11.0)["per_worker"]
    assert [row[part] for part in PARTS] == [6.0, 2.0, 1.0, 1.0]
    (row,) = summed_up(tally, ended=2.5)["per_worker"]
    assert [row[part] for part in PARTS] == [0.0, 0.5, 1.0, 0.0]
    tally.step_times(0, 0, StepTimes(1.0, 0.1, 0.3, 0.2, 0.0, 0.0))
    (row,) = summed_up(tally, ended=1.0)["per_worker"]
    assert [row[part] for part in PARTS] == [0.0, 0.0, 0.0, 0.0]


def test_left_says_why_and_when_and_is_null_for_who_is_still_here_or_here_again() -> None:
    tally = told(
        began(0, 1, 2),
        WorkerLeft(worker=0, reason="died", at=1.0),
        WorkerLeft(worker=1, reason="died", at=2.0),
        WorkerJoined(worker=1, host="here", step=5, at=4.0),
    )
    rows = summed_up(tally, ended=5.0)["per_worker"]
    assert [row["left"] for row in rows] == [{"reason": "died", "at": 1.0}, None, None]
    assert [row["other_seconds"] for row in rows] == [1.0, 3.0, 5.0]


def test_training_that_begins_again_goes_on_with_whoever_was_here_and_counts_leads_anew() -> None:
    alternating = [one for step in range(1, 9) for worker in (1, 0) for one in update(worker, step, 0, at=4.0)]
    tally = told(began(0, 1, at=1.0), *update(0, 0, 0, at=2.0), began(0, 1, at=3.0), *alternating)
    summary = summed_up(tally, ended=5.0)
    assert summary["wall_seconds"] == 3.0, "nobody trained between the segments"
    assert [row["other_seconds"] for row in summary["per_worker"]] == [3.0, 3.0]
    assert [row["max_lead"] for row in summary["per_worker"]] == [1, 1]


def test_one_gradient_without_its_samples_makes_every_number_of_samples_null() -> None:
    tally = told(began(0), *update(0, 0, 0, samples=None), *update(0, 1, 1, at=1.0))
    tally.recorded(2, 1.0, 8)
    tally.evaluated(2, {"loss": 0.5})
    summary = summed_up(tally, targets=[Target.parse("loss<1")], samples_missed=0)
    assert summary["steps"] == 2
    assert summary["samples"] is summary["samples_missed"] is summary["samples_per_second"] is None
    assert summary["per_worker"][0]["samples"] is None
    assert summary["evaluations"] == [{"version": 2, "at_seconds": 1.0, "samples": None, "loss": 0.5}]
    assert summary["targets"] == {"loss<1": {"at_seconds": 1.0, "samples": None}}


def evaluated(*values: float) -> Tally:
    tally = told(began(0))
    for version in range(len(values)):
        tally.recorded(version, version / 4, version * 8)
    for version, value in enumerate(values):
        tally.evaluated(version, {"accuracy": value})
    return tally


@pytest.mark.parametrize(
    ("text", "at_seconds"),
    [
        ("accuracy>=0.9", 0.25),
        ("accuracy>0.9", 0.75),
        ("accuracy<=0.5", 0.0),
        ("accuracy < 0.5", 0.5),
        ("accuracy>=2", None),
        ("precision>=0", None),
    ],
)
def test_a_target_is_the_first_recorded_version_that_meets_it_else_null(text: str, at_seconds: float | None) -> None:
    target = Target.parse(text)
    summary = summed_up(evaluated(0.5, 0.9, 0.2, 0.95), targets=[target])
    found = None if at_seconds is None else {"at_seconds": at_seconds, "samples": int(at_seconds * 32)}
    assert summary["targets"] == {text.replace(" ", ""): found}


@pytest.mark.parametrize(
    "text", ["", "accuracy", "accuracy=0.9", ">=0.9", "accuracy>=high", "accuracy>=nan", "a>=1>=2"]
)
def test_what_is_no_target_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="METRIC>=VALUE") as caught:
        Target.parse(text)
    assert "\n" not in str(caught.value)


def test_a_metric_cannot_hide_where_it_was_measured() -> None:
    tally = evaluated(0.5)
    tally.evaluated(0, {"version": 99.0, "loss": 1.0})
    (row,) = summed_up(tally)["evaluations"]
    assert row == {"version": 0, "at_seconds": 0.0, "samples": 0, "accuracy": 0.5, "loss": 1.0}


def test_what_is_written_is_json_and_is_read_back_equal(tmp_path: Path) -> None:
    summary = summed_up(evaluated(1 / 3, math.nan, math.inf, 3e-8), ended=2 / 3)
    path = tmp_path / "summary.json"
    records.write(path, summary)
    records.write(path, summary)
    assert records.read(path) == summary
    assert list(tmp_path.iterdir()) == [path]
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert summary["wall_seconds"] == 0.666666667
    assert [row["accuracy"] for row in summary["evaluations"]] == [0.333333333, None, None, 3e-8]


def test_a_summary_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no json")
    for name in ("missing", "text"):
        with pytest.raises(ConfigError, match=name):
            records.read(tmp_path / name)


def test_of_a_run_that_failed_before_training_began_every_number_is_there_and_zero() -> None:
    targets = [Target.parse("accuracy>=0.95")]
    early = summed_up(Tally(), "ssp:bound=2", outcome="failed", error="worker 1 did not come", targets=targets)
    assert list(early) == list(summed_up(told(began(0), *update(0, 0, 0, at=2.0))))
    assert early["protocol"] == {"name": "ssp", "config": {"bound": 2}}
    assert early["error"] == "worker 1 did not come"
    assert early["wall_seconds"] == early["steps"] == early["samples"] == early["steps_per_second"] == 0
    assert early["staleness"] == {"mean": None, "max": None, "histogram": {}}
    assert early["targets"] == {"accuracy>=0.95": None}
