"""What befalls hundreds of workers is said in a few lines, and what befalls a few in a line each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.coordinator.member import Member
from paceline.core.phrases import MOST
from paceline.display.waits import WaitReports
from paceline.host.worker_output import WorkerOutput
from support.outputs import output_to


def member(worker: int, **known: Any) -> Member:
    found = Member(worker=worker, stage="training", step=1)
    for name, value in known.items():
        setattr(found, name, value)
    return found


@pytest.fixture
def later() -> list[Callable[[], None]]:
    """What the output wants to be called later."""
    return []


@pytest.fixture
def output(later: list[Callable[[], None]], tmp_path: Path) -> Iterator[WorkerOutput]:
    found = output_to(sys.stdout, tmp_path, shows=False)
    found.after = lambda _, call: later.append(call)
    yield found
    found.close()


def test_of_hundreds_that_die_at_once_the_first_are_told_one_by_one_and_the_others_in_one_line(
    output: WorkerOutput, later: list[Callable[[], None]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for worker in range(200):
        (tmp_path / f"worker-{worker}.log").write_text(f"the last word of worker {worker}\n")
        output.died(worker, "killed by SIGKILL", f" in step {worker}; the others go on")
    said = capsys.readouterr().err.splitlines()
    assert said[-3:] == [
        "paceline: worker 7 died (killed by SIGKILL) in step 7; the others go on",
        f"paceline:   its last lines, of {tmp_path}/worker-7.log:",
        "  | the last word of worker 7",
    ]
    assert len(said) == 3 * MOST
    (tell,) = later
    tell()
    rest = f"paceline: workers 8-199 died, too (killed by SIGKILL); what was printed there is in {tmp_path}\n"
    assert capsys.readouterr().err == rest
    output.died(200, "killed by SIGKILL", "")
    assert len(later) == 2, "the next ones are told as soon"
    output.died(201, "exit code 1", "")
    assert capsys.readouterr().err == "paceline: worker 201 died (exit code 1)\n", "another kind is told at once"
    output.close()
    assert capsys.readouterr().err == rest.replace("workers 8-199", "worker 200")


def test_logs_that_can_t_be_written_are_told_in_a_few_lines(
    output: WorkerOutput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for worker in range(30):
        (tmp_path / f"worker-{worker}.log").symlink_to("/dev/full")
        output.printed(worker, b"word\n")
    assert len(capsys.readouterr().err.splitlines()) == MOST
    output.say_gathered()
    lack = "can't be written (No space left on device): they lack the rest of what these workers print"
    assert capsys.readouterr().err == f"paceline: the logs of workers 8-29 {lack}\n"


def waiting(workers: range, reason: Callable[[int], str], **known: Any) -> list[Member]:
    return [member(worker, waits=(reason(worker),), since=0.0, **known) for worker in workers]


def test_many_workers_that_wait_for_the_same_share_a_line() -> None:
    members = [*waiting(range(299), lambda _: "version 3 waits for worker 299"), member(299, heard=-5.0)]
    members[5].since = -20.0
    (line,) = WaitReports(10.0, {}, {}).lines(members, None, 10.0)
    said = "workers 0-298 have waited for 10 s or more: version 3 waits for worker 299; worker 299 computes step 1, "
    assert line == f"{said}last heard of 15 s ago"


def test_a_few_workers_that_wait_have_a_line_each_with_their_own_time_once_their_scripts_have_begun() -> None:
    one, two = waiting(range(2), lambda _: "the disk")
    two.since = -3.0
    lines = WaitReports(10.0, {}, {}).lines([one, two], None, 10.0)
    assert lines == ["worker 0 has waited for 10 s: the disk", "worker 1 has waited for 13 s: the disk"]
    starting = waiting(range(2), lambda _: "the start", stage="starting")
    assert WaitReports(10.0, {}, {}).lines(starting, None, 10.0) == ["workers 0, 1 have waited for 10 s: the start"]


def test_of_many_reasons_to_wait_the_first_are_told_and_the_others_counted() -> None:
    members = waiting(range(300), lambda worker: f"reason {worker}")
    lines = WaitReports(10.0, {}, {}).lines(members, None, 10.0)
    assert lines[MOST - 1 :] == [
        "worker 7 has waited for 10 s: reason 7",
        "workers 8-299 have waited for 10 s, too, for other reasons",
    ]


def test_a_host_none_of_whose_workers_waits_is_named() -> None:
    hosts = {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1", 4: "node-2", 5: "node-2"}
    waits = waiting(range(1), lambda _: "a turn") + waiting(range(4, 5), lambda _: "a turn")
    members = [*waits, *(member(worker, heard=0.0) for worker in (1, 2, 3, 5))]
    lines = WaitReports(10.0, hosts, {}).lines(members, "the store", 10.0)
    assert len(lines) == 2
    assert all(line.endswith("last heard of 10 s ago; no worker of host node-1 waits; the store") for line in lines)


def test_of_many_that_compute_those_are_told_that_were_heard_of_longest_ago() -> None:
    computing = [member(worker, heard=float(worker % 100)) for worker in range(1, 300)]
    (line,) = WaitReports(10.0, {}, {}).lines([*waiting(range(1), lambda _: "a turn"), *computing], "the store", 200.0)
    named = [f"worker {worker} computes step 1" for worker in (1, 2, 100, 101, 102, 200, 201, 202)]
    assert [part.partition(",")[0] for part in line.split("; ")[1:-2]] == named
    assert line.endswith("; 291 other workers were heard of since then; the store")
