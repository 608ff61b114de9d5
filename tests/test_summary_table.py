"""What the summary says to people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.table import print_summary

EMPTY: Any = {
    "outcome": "completed", "error": None, "protocol": {"name": "bsp", "config": {}}, "wall_seconds": 1.0, "steps": 100,
    "versions": 50, "steps_per_second": 100.0, "samples_missed": 0, "staleness": {"mean": None}, "consensus": [],
    "evaluations": [], "targets": {}, "segments": 1, "undone": {"versions": 0, "samples": 0, "seconds": 0.0},
}  # fmt: skip


SECONDS = {f"{part}_seconds": 1.0 for part in ("compute", "wait", "transfer", "other")}


def shown(made: list[int], samples: float | None, capsys: pytest.CaptureFixture[str], **others: Any) -> str:
    rows = [
        {"worker": worker, "steps": steps, "max_lead": 0, "left": None, **SECONDS} for worker, steps in enumerate(made)
    ]
    summary = {**EMPTY, "workers": len(made), "samples_per_second": samples, "per_worker": rows, **others}
    print_summary(summary, Path())  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_where_no_batch_was_leased_every_worker_ran_a_loop_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = "no samples were counted: each of the 2 workers ran a loop of its own, {} steps\n"
    assert line.format("50") in shown([50, 50], None, capsys)
    assert line.format("48 to 50") in shown([50, 48], None, capsys)
    assert "samples were counted" not in shown([50, 50], 32.0, capsys)
    assert "samples were counted" not in shown([50], None, capsys)


def test_of_hundreds_of_workers_the_first_have_a_line_and_the_others_one(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown([50] * 16 + [7] * 483 + [9], 32.0, capsys)
    assert "and 484 more workers, with 7 to 9 steps each\n" in out
    assert len(out.splitlines()) == 21
    assert "more workers" not in shown([50] * 16, 32.0, capsys)


def test_each_worker_s_line_names_its_host_if_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    per_host = [{"host": "node-0", "workers": [0]}, {"host": "far", "workers": [1, 2]}]
    lines = shown([50, 50, 50], 32.0, capsys, per_host=per_host).splitlines()
    head = next(number for number, line in enumerate(lines) if "computing" in line)
    assert [line.split()[:3] for line in lines[head : head + 4]] == [
        ["host", "worker", "steps"],
        ["node-0", "0", "50"],
        ["far", "1", "50"],
        ["far", "2", "50"],
    ]
    assert "host" not in shown([50, 50, 50], 32.0, capsys)


@pytest.mark.parametrize(
    ("consensus", "did"), [([], "made a part of every version"), ([{"version": 1, "distance": 0.5}], "took no part")]
)
def test_a_host_without_workers_has_made_parts_of_versions_only_where_there_is_a_store(
    capsys: pytest.CaptureFixture[str], consensus: list[Any], did: str
) -> None:
    per_host = [{"host": "node-0", "workers": [0]}, {"host": "far", "workers": []}]
    assert f"host far had no workers, and {did}" in shown([50], 32.0, capsys, per_host=per_host, consensus=consensus)


def test_a_resumed_run_says_how_often_and_what_was_undone(capsys: pytest.CaptureFixture[str]) -> None:
    undone = {"versions": 4, "samples": 64, "seconds": 0.25}
    assert "resumed 2 times; undone: 4 versions, 64 samples and 0.25 s\n" in shown(
        [50], 32.0, capsys, segments=3, undone=undone
    )
    assert "resumed 1 time; nothing was undone\n" in shown([50], 32.0, capsys, segments=2)
    assert "resumed" not in shown([50], 32.0, capsys)


def test_those_that_died_before_it_was_resumed_with_fewer_are_not_missed(capsys: pytest.CaptureFixture[str]) -> None:
    left = ["finished", "finished", "died", "died"]
    rows = [
        {"worker": worker, "steps": 50, "max_lead": 0, "left": {"reason": why, "detail": None}, **SECONDS}
        for worker, why in enumerate(left)
    ]
    assert "bsp · 2 workers ·" in shown([50, 50], 32.0, capsys, per_worker=rows, segments=2)
    assert "bsp · 2 of 3 workers" in shown([50, 50, 50], 32.0, capsys, per_worker=rows, segments=2)


def test_copies_have_a_table_of_their_own_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    copies = (
        {"to_device_seconds": 0.4, "from_device_seconds": 1.2},
        {"to_device_seconds": None, "from_device_seconds": None},
    )
    rows = [
        {"worker": worker, "steps": 50, **SECONDS, **its, "max_lead": 3, "left": None}
        for worker, its in enumerate(copies)
    ]
    out = shown([50, 50], 32.0, capsys, per_worker=rows)
    assert " worker  copies to the device  copies from the device " in out
    assert [
        line.split()[-5:] if "25%" in line else line.split()[1:]
        for line in out.splitlines()
        if line.strip()[:1] in ("0", "1")
    ] == [
        *[["25%", "25%", "25%", "25%", "3"]] * 2,
        *(["10%", "30%"], ["-", "-"]),
    ]
    assert "\nThese copies overlap the other times and add nothing to them.\n" in out
    assert "device" not in shown([50, 50], 32.0, capsys)


def test_a_summary_names_the_protocol_without_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    def of(bound: int) -> str:
        return shown([50], 32.0, capsys, protocol={"name": "ssp", "config": {"bound": bound}})

    assert "ssp · 1 worker ·" in of(3)
    assert "ssp:bound=4 · 1 worker ·" in of(4)


def test_an_interruption_before_the_first_step_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    stopped: Any = {"outcome": "interrupted", "steps": 0}
    assert "\ninterrupted before the first step\n" in shown([], None, capsys, **stopped)
    assert "\ninterrupted\n" in shown([50], 32.0, capsys, outcome="interrupted")


def test_of_a_training_that_was_not_completed_nobody_knows_what_its_script_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    missed: Any = {"targets": {"accuracy>=0.9": None}}
    assert "the script registers no evaluate" in shown([50], 32.0, capsys, **missed)
    stopped = shown([50], 32.0, capsys, outcome="interrupted", **missed)
    assert "not met; metrics: none; evaluate measures the versions of a training that was completed" in stopped


def test_batches_that_no_worker_was_left_to_take_are_said_in_the_reader_s_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert " · 1 sample not trained on\n" in shown([50], 32.0, capsys, outcome="interrupted", samples_missed=1)
    assert " · 32 samples not trained on\n" in shown([50], 32.0, capsys, samples_missed=32)
