"""Turns: a worker may say what it was told to, once. What could harm the others out of turn is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.host.message_validation import MOST_QUESTIONS, MessageValidation
from paceline.ipc.endpoint import Message
from paceline.ipc.messages import worker as w
from support.run_state import OFFER

Course = list[Message | list[Message]]
"""What a worker says, and in lists what it is told in between."""

OFFERED = msgspec.structs.replace(OFFER, scalars=[{"lr": 0.1, "momentum": 0.9, "name": "a"}, {"lr": 0.2}], loads=True)
UNLOADED = msgspec.structs.replace(OFFERED, loads=False)
FINISHED = w.StepFinished(
    step=5, version=3, batches=[(0, 1)], skipped=[], scalars=None,
    began=0.0, compute=0.0, push=0.0, other=0.0, waited=0.0, pulled=0.0,
)  # fmt: skip
FORK = w.ForkStore(9, 2, 0, outer=None, begin=0, end=0)
BEGIN = w.Begin(slots=9, areas=2, state="store", local_steps=False, pushes="gradient")
COMPUTE = w.Compute(step=5, version=3, slot=1, area=0, ahead=[])
ROUND = w.Compute(step=5, version=3, slot=1, area=0, ahead=[], steps=2)
REVOKED = w.Declined(paused=True, revoked=True)
STOP = w.StopTraining(at_once=False)
DRAWN = w.OrderDrawn(epoch=1, block=2, digest="", order=[[1]], last=True, samples=1)
ADOPTS, WROTE = w.AdoptionWanted("digest"), w.AdoptionWritten()
EDITS = w.EditWanted(1, {}, {}, ties=True)
STEPS = [w.MakeStep(5, 0, 0, None), w.MakeStep(6, 0, 0, None)]
STARTED: Course = [[FORK], OFFERED, [BEGIN, COMPUTE]]


def finished(**changes: Any) -> w.StepFinished:
    return msgspec.structs.replace(FINISHED, **changes)


PROPER: dict[str, Course] = {
    "steps that it was told to compute": [*STARTED, FINISHED, [COMPUTE], FINISHED],
    "all steps of its round": [*STARTED, [ROUND], FINISHED, finished(step=6)],
    "that its round was ended": [*STARTED, [ROUND, w.Revoke()], FINISHED, REVOKED],
    "a step after it was stopped": [*STARTED, [STOP], FINISHED],
    "a step without a loader": [UNLOADED, [BEGIN, COMPUTE], finished(batches=None)],
    "other rates and momenta": [*STARTED, finished(scalars=[{"lr": 1, "momentum": 0.5}, {"lr": 2, "momentum": None}])],
    "what it keeps for two snapshots, the later one first": [
        *STARTED, [w.Keep(40, 4, 0), w.Keep(50, 4, 0), STOP], w.Kept(50, 4, 0, None), w.Kept(40, 4, 0, "a function"),
    ],
    "what it hands over, to a worker that joins twice before that": [
        *STARTED, [w.HandOver(1, 0), w.HandOver(1, 2)], w.Handed(1, 0, None), w.Handed(1, 2, "a function"),
    ],
    "a question for a batch": [*STARTED, w.LeaseWanted(0, 1, ""), w.LeaseWanted(0, 1, "")],
    "the order that it was asked for": [*STARTED, [w.OrderWanted(1, 2)], DRAWN],
    "steps of its replica": [*STARTED, STEPS, w.Stepped(5, None), w.Stepped(6, None)],
    "that it makes no step more, twice": [*STARTED, w.Declined(), w.Declined()],
    "its parser's end": [w.ParserEnded(2)],
    "that it can't fork the store": [OFFERED, [FORK], w.StoreNotForked("")],
    "what it began with": [*STARTED, ADOPTS, [w.AdoptInto(1)], WROTE],
    "what it began with, after it was stopped": [*STARTED, ADOPTS, [STOP], ADOPTS],
    "questions for versions": [*STARTED, w.SnapshotWanted(True), w.SnapshotWanted(False)],
    "questions for the state": [
        *STARTED, *([w.StateWanted()] * MOST_QUESTIONS), [w.OptimizerState()], w.StateWanted(),
    ],
    "that it waits for the end, twice": [*STARTED, w.FinishWanted(), w.FinishWanted()],
    "the metrics that it was asked for": [*STARTED, [w.Evaluate(7)], w.Evaluated(7, {})],
    "why it could not evaluate": [*STARTED, [w.Evaluate(7)], w.EvaluationFailed(7, "")],
    "a step after it has told what it changed": [*STARTED, EDITS, [w.TellEdit(1)], w.Edited(1), FINISHED],
    "a step after it was told what all have changed": [*STARTED, EDITS, [w.TakeEdit(1)], FINISHED],
    "what harms nobody": [w.Remarked(""), w.EpochsOver(), w.GivenBack([]), w.ScriptEnded(), w.SnapshotTaken()],
}  # fmt: skip
STRANGE: dict[str, Course] = {
    "a step that was never released": [*STARTED, finished(step=6)],
    "a step on a structure that nobody has told": [*STARTED, EDITS, FINISHED],
    "a step more than its round has": [*STARTED, [ROUND], FINISHED, finished(step=6), finished(step=7)],
    "that its round was ended, which it was not": [*STARTED, [ROUND], FINISHED, REVOKED],
    "that its round was ended, when it was over": [*STARTED, [ROUND, w.Revoke()], FINISHED, finished(step=6), REVOKED],
    "that its round was ended, in the next one": [*STARTED, [ROUND, w.Revoke(), ROUND], FINISHED, REVOKED],
    "a step of a round that was ended": [*STARTED, [ROUND, w.Revoke()], REVOKED, FINISHED],
    "a step on another version": [*STARTED, finished(version=2)],
    "a step twice": [*STARTED, FINISHED, FINISHED],
    "a step before the start": [OFFERED, FINISHED],
    "a step that it has declined": [*STARTED, w.Declined(), FINISHED],
    "a step released after it has declined": [*STARTED, w.Declined(), [COMPUTE], FINISHED],
    "a question for a batch without a loader": [UNLOADED, [BEGIN], w.LeaseWanted(0, 1, "")],
    "a question for a batch before the start": [OFFERED, w.LeaseWanted(0, 1, "")],
    "the order of another block": [*STARTED, [w.OrderWanted(1, 0)], DRAWN],
    "an order twice": [*STARTED, [w.OrderWanted(1, 2)], DRAWN, DRAWN],
    "a step of a replica that has none": [*STARTED, w.Stepped(5, None)],
    "a step of its replica twice": [*STARTED, STEPS[:1], w.Stepped(5, None), w.Stepped(5, None)],
    "what it was not told to keep": [*STARTED, [w.Keep(40, 4, 0)], w.Kept(50, 4, 0, None)],
    "what it was not told to hand over": [*STARTED, [w.HandOver(1, 0)], w.Handed(1, 2, None)],
    "that it joins, before it is let in": [UNLOADED, w.Joins()],
    "a second offer": [*STARTED, OFFERED],
    "its parser's end in training": [*STARTED, w.ParserEnded(0)],
    "that it can't fork a store nobody asked it for": [OFFERED, w.StoreNotForked("")],
    "that it can't fork the store when training goes on": [*STARTED, w.StoreNotForked("")],
    "what it began with, before it has begun": [OFFERED, ADOPTS],
    "what it began with, after its first step": [*STARTED, FINISHED, ADOPTS],
    "what it began with, twice": [*STARTED, ADOPTS, ADOPTS],
    "that it wrote what it only wants to": [*STARTED, ADOPTS, WROTE],
    "that it wrote its beginning, twice": [*STARTED, ADOPTS, [w.AdoptInto(1)], WROTE, WROTE],
    "a question for a version before the start": [OFFERED, w.SnapshotWanted(False)],
    "a question for a version where there is no store": [*STARTED, w.SnapshotWanted(False)],
    "a question for the state before the start": [OFFERED, w.StateWanted()],
    "a question for the state where there is no store": [*STARTED, w.StateWanted()],
    "too many questions for the state": [*STARTED, *([w.StateWanted()] * (MOST_QUESTIONS + 1))],
    "that it waits for the end before the start": [OFFERED, w.FinishWanted()],
    "metrics of another version": [*STARTED, [w.Evaluate(7)], w.Evaluated(8, {})],
    "metrics twice": [*STARTED, [w.Evaluate(7)], w.Evaluated(7, {}), w.Evaluated(7, {})],
    "a failure that nobody asked for": [*STARTED, w.EvaluationFailed(7, "")],
}
UNLIKE: dict[str, w.StepFinished] = {
    "no batches": finished(batches=None),
    "a group less": finished(scalars=[{"lr": 0.1, "momentum": 0.9}]),
    "a learning rate that is no number": finished(scalars=[{"lr": "0.1", "momentum": 0.9}, {"lr": 0.2}]),
    "no learning rate": finished(scalars=[{"momentum": 0.9}, {"lr": 0.2}]),
    "a momentum that is no number": finished(scalars=[{"lr": 0.1, "momentum": [0.9]}, {"lr": 0.2}]),
}


def wrong(course: Course, stored: bool = True) -> str:
    """What is wrong with the last message of this course."""
    turns, why = MessageValidation(stored=stored), ""
    for one in course:
        if isinstance(one, list):
            for told in one:
                turns.told(told)
        else:
            assert not why, f"the message before {one} was not to be wrong"
            why = turns.heard(one)
    return why


@pytest.mark.parametrize("name", PROPER)
def test_a_worker_may_say(name: str) -> None:
    assert wrong(PROPER[name]) == ""


@pytest.mark.parametrize("name", STRANGE)
def test_a_worker_may_not_say(name: str) -> None:
    course = STRANGE[name]
    assert wrong(course, stored="no store" not in name) == f"it sent {type(course[-1]).__name__} out of turn"


@pytest.mark.parametrize("name", ["", "loss\n", "\x1b[2J"])
@pytest.mark.parametrize("metrics", [False, True])
def test_what_a_worker_measures_has_names_that_a_table_can_have(name: str, metrics: bool) -> None:
    def measured(*names: str) -> Message:
        values = dict.fromkeys(names, 0.1)
        return w.Evaluated(7, values) if metrics else w.ScalarsLogged(1, 1, values)

    course: Course = [*STARTED, [w.Evaluate(7)]]
    assert wrong([*course, measured("loss", "véi 損失")]) == ""
    assert wrong([*course, measured("loss", name)]) == f"it measured {name!r}, which is no name"


@pytest.mark.parametrize("name", UNLIKE)
def test_a_step_has_batches_and_hyperparameters_such_as_were_offered(name: str) -> None:
    why = wrong([*STARTED, UNLIKE[name]])
    assert why == "it finished a step with other parameter groups or batches than it offered"


@pytest.mark.parametrize(
    "message",
    [
        ["LeaseWanted", -1, 1, ""],
        ["LeaseWanted", 1 << 63, 1, ""],
        ["LeaseWanted", 0, 0, ""],
        ["OrderDrawn", 0, 0, "", [], True, -1],
        ["ScalarsLogged", 1 << 63, {}],
        ["ParserEnded", 256],
    ],
)
def test_numbers_that_the_run_cannot_go_on_with_are_no_messages(message: list[Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=w.FromWorker)
