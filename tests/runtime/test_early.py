"""Early stopping: `paceline.stop` ends the run for all workers, and one that leaves by itself is named."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import paceline
from paceline.cli.main import main
from paceline.coordinator.adoption import Adoption
from paceline.coordinator.remarks import Remarks
from paceline.core.leases import Leases
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.summary import Tally
from support.launch import Launch
from support.scripts import training
from support.suites import each

LEAVES = """
    if epoch == 3 and me == 0:
        if "stop" in sys.argv:
            paceline.stop("no  gain for\\n3 epochs")
        break
"""
SCRIPT = training(
    before='if "before" in sys.argv: paceline.stop("too early")',
    each_epoch=LEAVES,
    after='paceline.finish()\nprint("ends with", sum(p.double().sum().item() for p in model.parameters()))',
    epochs=40,
).replace("in range(40)", "in paceline.epochs(40)")
TESTED = ("bsp", "ad-psgd")


@pytest.mark.parametrize("protocol", each(sorted(registry()), long=sorted(set(registry()) - set(TESTED))))
def test_one_worker_s_early_stopping_stops_the_run_and_all_have_its_last_version(protocol: str, launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "3", "-p", protocol, "--tee", "all", args=("stop",)).completed()
    assert run.err.count("paceline: worker 0 stops the run: no gain for 3 epochs\n") == 1
    assert "has left the training" not in run.err
    assert run.summary["outcome"] == "completed"
    assert run.summary["stopped"] == "no gain for 3 epochs"
    ((end,),) = run.rows("SELECT value FROM run WHERE key = 'end'")
    assert json.loads(end)["stopped"] == "no gain for 3 epochs"
    assert run.summary["samples"] < 20 * 64
    ends = [line.partition("ends with ")[2] for line in run.out.splitlines() if "ends with" in line]
    assert len(ends) == 3
    assert len(set(ends)) == 1
    assert main(["check", str(run.folder)]) == 0
    assert main(["replay", str(run.folder), "--out", str(run.folder / "again")]) == 0


def test_a_worker_that_leaves_its_loop_early_is_named_at_once_and_at_the_end(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp").completed()
    first, last = [line for line in run.err.splitlines() if "epochs" in line]
    assert first.startswith("paceline: worker 0 has left the training after 4 of 40 epochs, and worker 1 goes on")
    assert "paceline.stop(reason) ends the run for all workers" in first
    assert last == "paceline: worker 0 stopped after 4 of 40 epochs, worker 1 after 40"


def test_stop_before_prepare_is_refused_in_one_line(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp", args=("before",))
    assert run.code == 2
    assert "paceline.stop() came before paceline.prepare(): no training has begun that it could end" in run.err


@pytest.mark.parametrize("reason", ["", " \n", None, 3])
def test_stop_needs_a_reason(reason: object) -> None:
    with pytest.raises(ConfigError, match=r"paceline\.stop\(\) got .*; it must be a line that says why the run ends"):
        paceline.stop(reason)  # type: ignore[arg-type]


def test_alone_stop_does_nothing() -> None:
    paceline.stop("no gain")


def remarks_that(said: list[str]) -> Remarks:
    run_state: Any = SimpleNamespace(
        output=SimpleNamespace(say=said.append),
        settings=SimpleNamespace(epochs=None, targets=(), resumed=None),
        shutdown=SimpleNamespace(stopping=False),
        adopting=SimpleNamespace(book=Adoption(pushed={1})),
        data=SimpleNamespace(leases=Leases("queue", [])),
        journal=SimpleNamespace(tally=Tally()),
        members={},
    )
    return Remarks(run_state)


def test_a_worker_whose_script_ends_long_after_its_last_loop_is_named_though_others_are_done_by_then() -> None:
    said: list[str] = []
    remarks = remarks_that(said)
    remarks.begin(Mock(epochs=4, passes=1))
    for worker, epoch in ((0, 1), (1, 3), (2, 3)):
        remarks.goes_on(worker, epoch)
    remarks.finishes(1)
    assert not said
    remarks.finishes(0)
    (line,) = said
    assert line.startswith("worker 0 has left the training after 2 of 4 epochs, and worker 1 goes on without it")


def test_a_worker_is_early_only_if_another_one_goes_on_to_an_epoch_after_its_last() -> None:
    said: list[str] = []
    remarks = remarks_that(said)
    remarks.begin(Mock(epochs=None, passes=1))
    remarks.done(1, 4)
    remarks.goes_on(0, 3)  # worker 1 was in that epoch, too
    remarks.goes_on(1, 4)
    remarks.end()
    assert not said
    remarks.goes_on(2, 4)
    remarks.goes_on(0, 5)  # once is enough
    (line,) = said
    assert line.startswith("worker 1 has left the training after 4 epochs, and worker 2 goes on")
    remarks.done(2, 9)
    remarks.end()
    assert said[1:] == ["worker 1 stopped after 4 epochs, worker 2 after 9"]
    remarks.begin(Mock(epochs=40, passes=1))
    remarks.end()
    assert said[2:] == ["worker 1 stopped after 4 of 40 epochs, worker 2 after 9"]
