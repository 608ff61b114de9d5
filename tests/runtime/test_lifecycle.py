"""A run's phases, one after the other, without any process: who is told what, and when."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.coordinator.host_events import note
from paceline.coordinator.lifecycle import Closing, Gathering, Training
from paceline.coordinator.run_state import RunState
from paceline.core.facts import GradientReady, ParametersTaken, StepDeclined, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.core.orders import DropUpdate, Release
from paceline.host.events import ProcessLost, WorkerSaid
from paceline.ipc import messages
from paceline.records.times import FetchTimes
from paceline.scenario.scenario import Kill, Scenario
from support.run_state import OFFER, Stage

READY = messages.store.StoreReady(99, "digest")
KILLED, FAILED = int(signal.SIGKILL), 1 << 8
"""Statuses, as waitpid returns them."""


def gathered(stage: Stage) -> Stage:
    """All workers have come to `prepare`, and the lowest is told to fork the store."""
    stage.coordinator.open()
    for worker in stage.crew.numbers:
        stage.crew.hear(worker, OFFER)
    stage.crew.take()
    return stage


def training(stage: Stage) -> Stage:
    """Training has begun."""
    gathered(stage)
    stage.loop.hear("the store", READY)
    stage.crew.take()
    record(stage)
    return stage


def record(stage: Stage) -> None:
    """Whatever has happened is told."""
    while stage.run_state.happened:
        stage.run_state.journal.record(stage.run_state.happened.popleft(), ())


def come_back(stage: Stage) -> None:
    """Workers that are to come back do."""
    stage.loop.pass_time(0.1)
    stage.coordinator.bring_back()


def dies_and_comes_again(stage: Stage, worker: int) -> None:
    """Its next process has come to `prepare`."""
    stage.crew.gone(worker, KILLED)
    told(stage)
    come_back(stage)
    stage.crew.hear(worker, OFFER)
    told(stage)


def told(stage: Stage) -> None:
    """The machine is told of all that has happened."""
    while stage.run_state.happened:
        stage.run_state.tell(stage.run_state.happened.popleft())


def finish(stage: Stage, step: int) -> None:
    """Worker 0 has computed that step, and its update has not arrived."""
    stage.coordinator.carry_out(Release(worker=0, step=step, version=0, parameters="held"))
    stage.crew.hear(0, messages.worker.StepFinished(step, 0, None, [], None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    record(stage)


# --- gathering


def test_scripts_begin_one_after_the_other_and_the_lowest_worker_forks_the_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=3)
    stage.coordinator.open()
    assert stage.crew.take() == [(0, "Start")]
    assert stage.run_state.members[2].waits == ("begins-after", 0)
    stage.crew.hear(0, OFFER)
    assert stage.crew.take() == [(1, "Start"), (2, "Start")]
    stage.crew.hear(2, OFFER)
    assert stage.crew.take() == []
    stage.crew.hear(1, OFFER)
    assert stage.crew.take() == [(0, "ForkStore")]
    assert isinstance(stage.coordinator.phase, Gathering)


def test_where_scripts_start_together_no_worker_is_told_to(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=2, start="together")
    stage.coordinator.open()
    assert stage.crew.take() == []


def test_a_worker_that_differs_from_the_lowest_ends_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=2)
    stage.coordinator.open()
    stage.crew.hear(0, OFFER)
    stage.crew.hear(1, msgspec.structs.replace(OFFER, loads=True))
    assert stage.run_state.shutdown.usage_error is not None
    assert stage.run_state.shutdown.usage_error.startswith("worker 1 differs from worker 0: one of them has a loader")
    assert stage.crew.take()[-2:] == [(0, "StopTraining"), (1, "StopTraining")]


def test_if_the_worker_that_forks_the_store_dies_another_one_does(tmp_path: Path) -> None:
    stage = gathered(Stage(tmp_path, workers=3))
    stage.crew.gone(2, KILLED)
    assert stage.crew.take() == [], "while one sets up the store no other is told to"
    stage.crew.gone(0, KILLED)
    assert stage.crew.take() == [(1, "ForkStore")]
    stage.loop.hear("the store", READY)
    assert stage.crew.take() == [(1, "Begin")]


@pytest.mark.parametrize("forks", [False, True])
def test_a_worker_that_dies_while_the_store_is_set_up_and_comes_back_is_waited_for(forks: bool, tmp_path: Path) -> None:
    """If it forks the store, the next store is forked after that."""
    stage = gathered(Stage(tmp_path, workers=2, restart=1))
    stage.crew.gone(0 if forks else 1, KILLED)
    if not forks:
        stage.loop.hear("the store", READY)
    come_back(stage)
    assert stage.crew.take() == [(0 if forks else 1, "Start")]
    stage.crew.hear(0 if forks else 1, OFFER)
    assert stage.crew.take() == ([(0, "ForkStore")] if forks else [(0, "Begin"), (1, "Begin")])


def test_a_script_that_ends_without_prepare_fails_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=2)
    stage.coordinator.open()
    stage.crew.hear(0, messages.worker.ScriptEnded())
    assert stage.run_state.shutdown.error is not None
    assert stage.run_state.shutdown.error.startswith("train.py ended without calling paceline.prepare()")


def test_a_store_that_is_there_after_the_run_was_stopped_begins_nothing(tmp_path: Path) -> None:
    stage = gathered(Stage(tmp_path))
    stage.run_state.shutdown.conclude()
    stage.crew.hear(0, messages.worker.ScriptEnded())
    assert not stage.coordinator.ended(), "its process runs"
    stage.loop.hear("the store", READY)
    assert list(stage.run_state.happened) == []
    assert isinstance(stage.coordinator.phase, Closing)


def test_a_store_whose_worker_died_before_it_was_there_is_heard_no_more(tmp_path: Path) -> None:
    stage = gathered(Stage(tmp_path))
    stage.crew.gone(0, KILLED)
    assert not stage.loop.watches(stage.loop.lines["the store"])
    assert stage.coordinator.ended()
    assert stage.run_state.shutdown.error == "all workers died"


# --- training


def test_training_begins_with_all_workers_that_are_there_at_time_zero(tmp_path: Path) -> None:
    stage = gathered(Stage(tmp_path, workers=2))
    stage.loop.pass_time(30.0)
    stage.loop.hear("the store", READY)
    assert stage.crew.take() == [(0, "Begin"), (1, "Begin")]
    (began,) = stage.run_state.happened
    assert isinstance(began, TrainingBegan)
    assert [worker for worker, _, _ in began.members] == [0, 1]
    assert (began.at, stage.run_state.clock.at()) == (0.0, 0.0)
    assert isinstance(stage.coordinator.phase, Training)


def test_a_worker_that_declines_its_step_waits_for_no_other(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path))
    stage.coordinator.carry_out(Release(worker=0, step=0, version=0, parameters="held"))
    assert stage.crew.take() == [(0, "Compute")]
    stage.loop.pass_time(2.0)
    stage.crew.hear(0, messages.worker.Declined())
    stage.crew.hear(0, messages.worker.Declined())
    assert list(stage.run_state.happened) == [StepDeclined(worker=0, step=0, at=2.0)]


def test_a_worker_whose_last_update_is_on_its_way_leaves_after_that(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path))
    member = stage.run_state.members[0]
    finish(stage, 4)
    stage.crew.hear(0, messages.worker.ScriptEnded())
    assert (member.stage, member.waits) == ("training", ("last-update",))
    stage.run_state.departures.go_on()
    assert stage.run_state.departures.awaits(member)
    stage.coordinator.carry_out(DropUpdate(worker=0, step=4, samples="return"))
    stage.run_state.departures.go_on()
    assert member.stage == "ended"
    assert list(stage.run_state.happened) == [WorkerLeft(worker=0, reason="finished", at=0.0)]


@pytest.mark.parametrize(
    ("on_loss", "status", "error"),
    [
        ("auto", KILLED, None),
        ("auto", FAILED, "worker 1 died (exit code 1) in step 3: its script failed"),
        ("continue", FAILED, None),
        ("stop", KILLED, "worker 1 died (killed by SIGKILL) in step 3, and --on-loss is stop"),
    ],
)
def test_a_death_is_told_and_borne_or_ends_the_run(
    on_loss: Any, status: int, error: str | None, tmp_path: Path
) -> None:
    stage = training(Stage(tmp_path, workers=2, on_loss=on_loss))
    stage.run_state.members[1].step = 3
    stage.crew.gone(1, status)
    ((worker, _, at),) = stage.output.died_of
    assert (worker, at) == (1, " in step 3" + ("" if error else "; the others go on"))
    assert (stage.run_state.shutdown.error or "").startswith(error or "")
    assert stage.run_state.shutdown.stopping == (error is not None)


def test_a_process_that_exits_well_though_its_script_could_not_tell_has_finished(tmp_path: Path) -> None:
    """By `os._exit(0)`, say."""
    stage = training(Stage(tmp_path))
    finish(stage, 4)
    stage.crew.gone(0, 0)
    assert stage.output.died_of == []
    assert list(stage.run_state.happened) == [WorkerLeft(worker=0, reason="finished", at=0.0)]


def test_a_store_that_fails_fails_the_run(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path))
    stage.loop.ends[99]()
    assert stage.run_state.shutdown.error == "the parameter store's process died; the files in versions/ are whole"
    assert stage.crew.take() == [(0, "StopTraining")]


def test_a_replica_that_is_not_finite_after_a_step_ends_the_run(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path, workers=2))
    stage.run_state.inbox.report(WorkerSaid(1, messages.worker.Stepped(3, "bias")))
    stage.run_state.inbox.hear()
    why = 'the parameter "bias" is NaN or infinite after step 3 of worker 1'
    assert (stage.run_state.shutdown.outcome, stage.run_state.shutdown.error) == ("diverged", why)


# --- closing


def test_processes_exit_once_all_scripts_have_ended_and_the_last_version_is_on_disk(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path, workers=2))
    stage.crew.hear(0, messages.worker.ScriptEnded())
    assert not stage.coordinator.ended()
    assert isinstance(stage.coordinator.phase, Training), "the other one trains"
    stage.crew.hear(1, messages.worker.FinishWanted())
    stage.run_state.happened.clear()
    assert not stage.coordinator.ended()
    assert isinstance(stage.coordinator.phase, Closing)
    assert stage.crew.take() == [], "the last version is being written"
    record = stage.loop.lines["the store"].sent[-1]
    assert isinstance(record, messages.store.Record)
    Path(record.file).write_bytes(b"version 0")
    stage.loop.hear("the store", messages.store.VersionRecorded(0, "sha"))
    assert not stage.coordinator.ended()
    assert stage.crew.take() == [(1, "FinalRecorded")]
    assert stage.crew.handed == [(1, "version 0")]
    stage.crew.hear(1, messages.worker.ScriptEnded())
    assert not stage.coordinator.ended()
    assert stage.crew.take() == [(0, "Exit"), (1, "Exit")]
    for worker in range(2):
        stage.crew.gone(worker, 0)
    assert stage.coordinator.ended()
    assert stage.run_state.shutdown.outcome == "completed"


def test_a_return_that_the_scenario_orders_is_none_of_the_restarts(tmp_path: Path) -> None:
    kill = Kill(worker=1, at=1.0, rejoin_after=0.0)
    stage = training(Stage(tmp_path, workers=2, restart=1, scenario=Scenario(events=(kill,))))
    stage.loop.pass_time(1.0)
    for times in (1, 2, 2):
        stage.crew.gone(1, KILLED)
        stage.loop.pass_time(1.0)
        stage.coordinator.bring_back()
        assert stage.crew.started == [1] * times


def test_a_worker_that_comes_to_its_first_step_as_the_run_is_stopped_takes_no_part(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path, workers=2, restart=1))
    dies_and_comes_again(stage, 1)
    stage.run_state.shutdown.conclude()
    stage.crew.hear(1, messages.worker.Joins())
    assert [type(fact) for fact in stage.run_state.happened] == [WorkerLeft]
    assert not stage.run_state.members.any_trains


@pytest.mark.parametrize(("hosts", "ends"), [(2, True), (1, False)])
def test_a_worker_that_comes_back_with_files_unlike_those_of_another_host_is_ended(
    hosts: int, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, workers=2, restart=1, hosts=hosts, scenario=Scenario(nodes=hosts))
    ended: list[tuple[int, str]] = []
    monkeypatch.setattr(stage.crew, "give_up", lambda worker, why: ended.append((worker, why)), raising=False)
    stage.coordinator.open()
    for worker in range(2):
        stage.crew.hear(worker, msgspec.structs.replace(OFFER, code={"model.py": "old"}))
    stage.loop.hear("the store", READY)
    record(stage)
    stage.crew.gone(1, KILLED)
    come_back(stage)
    stage.crew.hear(1, msgspec.structs.replace(OFFER, code={"model.py": "new"}))
    line = "host node-1: model.py differs from the head's; copy the same files to all hosts"
    assert ended == ([(1, line)] if ends else [])


def test_a_worker_that_has_joined_and_was_stopped_before_the_machine_heard_of_that_is_given_nothing(
    tmp_path: Path,
) -> None:
    stage = training(Stage(tmp_path, workers=2, restart=1))
    dies_and_comes_again(stage, 1)
    stage.crew.hear(1, messages.worker.Joins())
    stage.run_state.shutdown.conclude()
    joined = stage.run_state.happened.popleft()
    assert isinstance(joined, WorkerJoined)
    stage.crew.take()
    stage.run_state.tell(joined)
    stage.coordinator.carry_out(Release(worker=1, step=0, version=0))
    assert stage.crew.take() == []
    assert {type(fact) for fact in stage.run_state.happened} == {WorkerLeft}


def test_no_fact_of_a_worker_comes_after_it_has_left_whatever_was_reported_in_one_go(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path, workers=2))
    inbox = stage.run_state.inbox
    inbox._waits = False  # orders are being carried out
    inbox.report(ProcessLost("the store has died"))
    inbox.report(ParametersTaken(worker=1, version=0, at=0.0))
    inbox.hear()
    assert [type(fact) for fact in stage.run_state.happened] == [ParametersTaken, WorkerLeft, WorkerLeft]


def test_a_worker_that_is_to_be_killed_does_not_leave_before_that(tmp_path: Path) -> None:
    """In a replay. The recorded one died between its last step and its end, and what its replica had was lost."""
    stage = training(Stage(tmp_path, workers=2, restart=1, policy={"leaving": {0: deque(["died"])}}))
    for worker in range(2):
        stage.crew.hear(worker, messages.worker.ScriptEnded())
    stage.run_state.departures.go_on()
    assert [fact.worker for fact in stage.run_state.happened if isinstance(fact, WorkerLeft)] == [1]
    stage.crew.gone(0, KILLED)
    stage.loop.pass_time(0.1)
    stage.coordinator.bring_back()
    stage.run_state.departures.go_on()
    assert stage.run_state.members[0].stage == "starting", "its next process has not ended"


def test_once_no_worker_trains_none_comes_back(tmp_path: Path) -> None:
    kill = Kill(worker=1, at=1.0, rejoin_after=5.0)
    stage = training(Stage(tmp_path, workers=3, restart=1, scenario=Scenario(events=(kill,))))
    stage.loop.pass_time(1.0)
    stage.crew.gone(1, KILLED)
    for worker in (0, 2):
        stage.crew.hear(worker, messages.worker.FinishWanted())
    record(stage)
    assert not stage.coordinator.ended()
    assert isinstance(stage.coordinator.phase, Closing)
    stage.crew.gone(2, KILLED)
    stage.loop.pass_time()
    stage.coordinator.bring_back()
    assert stage.crew.started == []
    assert stage.run_state.members[1].stage == stage.run_state.members[2].stage == "gone"


def test_a_run_that_is_to_end_at_once_waits_for_no_version(tmp_path: Path) -> None:
    stage = training(Stage(tmp_path))
    stage.run_state.shutdown.interrupt(2, signal.SIGINT)
    stage.crew.gone(0, KILLED)
    stage.run_state.happened.clear()
    assert stage.coordinator.ended()


# --- workers that come back


def test_no_process_begins_before_the_machine_was_told_how_the_last_one_ended(tmp_path: Path) -> None:
    """That the last one had joined is not said of the next one, which has not even begun."""
    stage = gathered(Stage(tmp_path, workers=2, restart=2))
    stage.loop.hear("the store", READY)
    told(stage)
    dies_and_comes_again(stage, 1)
    assert stage.crew.started == [1]
    stage.crew.hear(1, messages.worker.Joins())
    stage.crew.gone(1, KILLED)
    stage.crew.take()
    stage.loop.pass_time(0.1)
    assert stage.crew.started == [1]
    told(stage)
    stage.coordinator.carry_out(Release(worker=1, step=0, version=0))
    come_back(stage)
    assert stage.crew.started == [1, 1]
    assert stage.crew.take() == [(1, "Start")]


def test_a_worker_that_came_back_packs_for_snapshots_only_once_a_gradient_of_it_was_told(tmp_path: Path) -> None:
    """Until then it may lack what others hand over to it."""
    stage = gathered(Stage(tmp_path, workers=2, restart=1, checkpoint=1))
    stage.loop.hear("the store", READY)
    dies_and_comes_again(stage, 1)
    stage.crew.hear(1, messages.worker.Joins())
    told(stage)
    stage.crew.take()
    member = stage.run_state.members[1]
    assert member.trains
    stage.run_state.snapshots.ask([member])
    assert stage.crew.take() == []
    stage.run_state.tell(GradientReady(worker=1, step=0, version=0, samples=None, at=0.0))
    stage.run_state.snapshots.ask([member])
    assert stage.crew.take() == [(1, "Keep")]


# --- scripts that have ended, and processes of theirs that go on

STOPS: dict[str, Callable[[RunState], None]] = {
    "a failure": lambda run: run.shutdown.fail("worker 1 died"),
    "an interrupt": lambda run: run.shutdown.interrupt(1, signal.SIGTERM),
    "evaluate() that raises": lambda run: run.evaluation.give_up("evaluate() raised"),
    "a limit": lambda run: run.shutdown.conclude(),
    "nothing": lambda run: None,
}


def outlives_its_script(stage: Stage) -> list[int]:
    """Let the workers' processes go, and wait for longer than any grace. Return those that are killed."""
    stage.run_state.members.ends(0)
    stage.coordinator.ended()
    stage.loop.pass_time()
    return stage.crew.killed


@pytest.mark.parametrize("why", STOPS)
def test_what_a_script_has_started_is_ended_some_time_after_the_run_is_told_to_stop(why: str, tmp_path: Path) -> None:
    """In a run that is completed it may go on for ever."""
    stage = Stage(tmp_path)
    STOPS[why](stage.run_state)
    assert outlives_its_script(stage) == ([] if why == "nothing" else [0])


def test_a_worker_that_evaluates_after_a_limit_is_not_ended_before_it_is_let_go(tmp_path: Path) -> None:
    """Its script has ended in time; recorded versions may take longer than that."""
    stage = Stage(tmp_path)
    (tmp_path / "versions" / "00000001.safetensors").touch()
    stage.run_state.versions.hashes[1] = "its checksum"
    stage.run_state.shutdown.conclude()
    stage.run_state.members.ends(0)
    stage.run_state.evaluation.after_training(wanted=True)
    assert outlives_its_script(stage) == []
    stage.run_state.evaluation.done()
    assert outlives_its_script(stage) == [0]


def test_the_upload_of_a_sum_is_a_push_of_each_worker_of_its_host_and_that_of_an_update_of_its_worker(
    tmp_path: Path,
) -> None:
    stage = training(Stage(tmp_path, workers=2))
    here = stage.run_state.cluster.name
    when = {"bytes": 8, "began": 1.0, "ended": 2.0}
    note(stage.run_state, FetchTimes(host="other", source=here, kind="sum", number=1, **when))
    note(stage.run_state, FetchTimes(host="other", source=here, kind="update", worker=1, number=0, **when))
    note(stage.run_state, FetchTimes(host="other", source="gone", kind="sum", number=2, **when))
    note(stage.run_state, FetchTimes(host=here, source=here, kind="version", number=2, **when))
    pushed = [stage.run_state.members[worker].transfers for worker in range(2)]
    assert pushed == [[("push", 1.0, 2.0)], [("push", 1.0, 2.0), ("push", 1.0, 2.0)]]
