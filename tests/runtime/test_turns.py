"""Turns: a worker may say what it was told to, once. What could harm the others out of turn is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from paceline.host.message_validation import MOST_QUESTIONS, MessageValidation
from paceline.ipc import messages as m
from paceline.ipc.endpoint import Message
from paceline.protocols import registry

OFFERED = m.worker.Offered(
    forms=[], fixed_bytes=0, slot_bytes=0, push_bytes=0, flags_bytes=0, buffers_bytes=0, cuts=[0, 0],
    state_bytes=0, model_bytes=0,
    optimizer="SGD",
    scalars=[{"lr": 0.1, "momentum": 0.9, "name": "a"}, {"lr": 0.2}], loads=True, epoch_samples=None, data=None,
    streams=False, epochs=None, buffers=None, shards=None, evaluates=True, keeps=False, metrics=None, code={},
)  # fmt: skip
UNLOADED = msgspec.structs.replace(OFFERED, loads=False)
FINISHED = m.worker.StepFinished(
    step=5, version=3, batches=[(0, 1)], skipped=[], scalars=None,
    began=0.0, compute=0.0, push=0.0, other=0.0, waited=0.0, pulled=0.0,
)  # fmt: skip
BEGIN = m.worker.Begin(slots=9, areas=2, holder="window", pushes="gradients")
COMPUTE = m.worker.Compute(step=5, version=3, slot=1, area=0, ahead=[])
STOP = m.worker.StopTraining(at_once=False)
DRAWN = m.worker.OrderDrawn(epoch=1, block=2, digest="", order=[[1]], last=True, samples=1)
WANTS_TO_ADOPT = m.worker.AdoptionWanted("digest")
FORK = m.worker.ForkStore(9, 2, 0, steps=True, begin=0, end=0)
EDITS = m.worker.EditWanted(1, {}, {}, ties=True)
STARTED: list[str | Message] = ["told", FORK, "heard", OFFERED, "told", BEGIN, COMPUTE]


def finished(**changes: Any) -> m.worker.StepFinished:
    return msgspec.structs.replace(FINISHED, **changes)


def said(turns: MessageValidation, course: list[str | Message]) -> str:
    """What is wrong with the last message of this course. `told` and `heard` say what those after them are."""
    how, why = "heard", ""
    for one in course:
        if isinstance(one, str):
            how = one
        elif how == "told":
            turns.told(one)
        else:
            assert not why, f"the message before {one} was not to be wrong"
            why = turns.heard(one)
    assert how == "heard"
    return why


PROPER: dict[str, tuple[str, list[str | Message]]] = {
    "the step that it was told to compute": ("asp", [*STARTED, "heard", FINISHED]),
    "the step after that": ("asp", [*STARTED, "heard", FINISHED, "told", COMPUTE, "heard", FINISHED]),
    "a step after it was stopped": ("asp", [*STARTED, STOP, "heard", FINISHED]),
    "what it keeps for a snapshot": (
        "asp",
        [*STARTED, m.worker.Keep(40, 4, 0), "heard", m.worker.Kept(40, 4, 0, None)],
    ),
    "what it keeps for two snapshots, the later one first": (
        "asp",
        [
            *STARTED,
            m.worker.Keep(40, 4, 0),
            m.worker.Keep(50, 4, 0),
            STOP,
            "heard",
            m.worker.Kept(50, 4, 0, None),
            m.worker.Kept(40, 4, 0, "a function"),
        ],
    ),
    "what it hands over, to a worker that joins twice before that": (
        "asp",
        [
            *STARTED,
            m.worker.HandOver(1, 0),
            m.worker.HandOver(1, 2),
            "heard",
            m.worker.Handed(1, 0, None),
            m.worker.Handed(1, 2, "a function"),
        ],
    ),
    "a changed learning rate": ("asp", [*STARTED, "heard", finished(scalars=[{"lr": 1, "momentum": 0.5}, {"lr": 2}])]),
    "a further hyperparameter": (
        "asp",
        [*STARTED, "heard", finished(scalars=[{"lr": 0.1, "momentum": 0.5}, {"lr": 0.1, "momentum": None}])],
    ),
    "a step without a loader": ("asp", ["heard", UNLOADED, "told", BEGIN, COMPUTE, "heard", finished(batches=None)]),
    "a question for a batch": (
        "asp",
        [*STARTED, "heard", m.worker.LeaseWanted(0, 1, ""), m.worker.LeaseWanted(0, 1, "")],
    ),
    "the order that it was asked for": ("asp", [*STARTED, m.worker.OrderWanted(1, 2), "heard", DRAWN]),
    "a replica's step": (
        "ripples",
        [
            *STARTED,
            m.worker.MakeStep(5, 0, 0, None),
            m.worker.MakeStep(6, 0, 0, None),
            "heard",
            m.worker.Stepped(5, None),
            m.worker.Stepped(6, None),
        ],
    ),
    "that it makes no step more, twice": ("asp", [*STARTED, "heard", m.worker.Declined(), m.worker.Declined()]),
    "its parser's end": ("asp", [m.worker.ParserEnded(2)]),
    "that it can't fork the store": (
        "asp",
        ["heard", OFFERED, "told", FORK, "heard", m.worker.StoreNotForked("")],
    ),
    "what it began with": (
        "asp",
        [*STARTED, "heard", WANTS_TO_ADOPT, "told", m.worker.AdoptInto(1), "heard", m.worker.AdoptionWritten()],
    ),
    "what it began with, after it was stopped": (
        "asp",
        [*STARTED, "heard", WANTS_TO_ADOPT, "told", STOP, "heard", WANTS_TO_ADOPT],
    ),
    "questions for versions": (
        "asp",
        [*STARTED, "heard", m.worker.SnapshotWanted(True), m.worker.SnapshotWanted(False)],
    ),
    "questions for the state": (
        "asp",
        [
            *STARTED,
            "heard",
            *([m.worker.StateWanted()] * MOST_QUESTIONS),
            "told",
            m.worker.OptimizerState(),
            "heard",
            m.worker.StateWanted(),
        ],
    ),
    "that it waits for the end, twice": (
        "ripples",
        [*STARTED, "heard", m.worker.FinishWanted(), m.worker.FinishWanted()],
    ),
    "the metrics that it was asked for": ("asp", [*STARTED, m.worker.Evaluate(7), "heard", m.worker.Evaluated(7, {})]),
    "why it could not evaluate": ("asp", [*STARTED, m.worker.Evaluate(7), "heard", m.worker.EvaluationFailed(7, "")]),
    "a step after it has told what it changed": (
        "asp",
        [*STARTED, "heard", EDITS, "told", m.worker.TellEdit(1), "heard", m.worker.Edited(1), FINISHED],
    ),
    "a step after it was told what all have changed": (
        "asp",
        [*STARTED, "heard", EDITS, "told", m.worker.TakeEdit(1), "heard", FINISHED],
    ),
    "what harms nobody": (
        "asp",
        [
            m.worker.Remarked(""),
            m.worker.EpochsOver(),
            m.worker.GivenBack([]),
            m.worker.ScriptEnded(),
            m.worker.SnapshotTaken(),
        ],
    ),
}
STRANGE: dict[str, tuple[str, list[str | Message]]] = {
    "a step that was never released": ("asp", [*STARTED, "heard", finished(step=6)]),
    "a step on a structure that nobody has told": ("asp", [*STARTED, "heard", EDITS, FINISHED]),
    "a step on another version": ("asp", [*STARTED, "heard", finished(version=2)]),
    "a step twice": ("asp", [*STARTED, "heard", FINISHED, FINISHED]),
    "a step before the start": ("asp", [OFFERED, FINISHED]),
    "a step that it has declined": ("asp", [*STARTED, "heard", m.worker.Declined(), FINISHED]),
    "a step released after it has declined": (
        "asp",
        [*STARTED, "heard", m.worker.Declined(), "told", COMPUTE, "heard", FINISHED],
    ),
    "a question for a batch without a loader": ("asp", [UNLOADED, m.worker.LeaseWanted(0, 1, "")]),
    "an order that nobody asked for": ("asp", [*STARTED, "heard", DRAWN]),
    "the order of another block": ("asp", [*STARTED, m.worker.OrderWanted(1, 0), "heard", DRAWN]),
    "an order twice": ("asp", [*STARTED, m.worker.OrderWanted(1, 2), "heard", DRAWN, DRAWN]),
    "a step of a replica that has none": ("asp", [*STARTED, "heard", m.worker.Stepped(5, None)]),
    "another step of its replica": (
        "ripples",
        [*STARTED, m.worker.MakeStep(5, 0, 0, None), "heard", m.worker.Stepped(6, None)],
    ),
    "a step of its replica twice": (
        "ripples",
        [*STARTED, m.worker.MakeStep(5, 0, 0, None), "heard", m.worker.Stepped(5, None), m.worker.Stepped(5, None)],
    ),
    "what it was not told to hand over": (
        "asp",
        [*STARTED, m.worker.HandOver(1, 0), "heard", m.worker.Handed(1, 2, None)],
    ),
    "what it hands over, twice": (
        "asp",
        [*STARTED, m.worker.HandOver(1, 0), "heard", m.worker.Handed(1, 0, None), m.worker.Handed(1, 0, None)],
    ),
    "that it joins, before it is let in": ("asp", [UNLOADED, m.worker.Joins()]),
    "a second offer": ("asp", [*STARTED, "heard", OFFERED]),
    "its parser's end in training": ("asp", [*STARTED, "heard", m.worker.ParserEnded(0)]),
    "that it can't fork a store nobody asked it for": ("asp", [OFFERED, m.worker.StoreNotForked("")]),
    "that it can't fork the store when training goes on": ("asp", [*STARTED, "heard", m.worker.StoreNotForked("")]),
    "what it began with, before it has begun": ("asp", [OFFERED, WANTS_TO_ADOPT]),
    "what it began with, after its first step": ("asp", [*STARTED, "heard", FINISHED, WANTS_TO_ADOPT]),
    "what it began with, twice": ("asp", [*STARTED, "heard", WANTS_TO_ADOPT, WANTS_TO_ADOPT]),
    "that it wrote what nobody told it to": ("asp", [*STARTED, "heard", m.worker.AdoptionWritten()]),
    "that it wrote what it only wants to": ("asp", [*STARTED, "heard", WANTS_TO_ADOPT, m.worker.AdoptionWritten()]),
    "that it wrote its beginning, twice": (
        "asp",
        [
            *STARTED,
            "heard",
            WANTS_TO_ADOPT,
            "told",
            m.worker.AdoptInto(1),
            "heard",
            m.worker.AdoptionWritten(),
            m.worker.AdoptionWritten(),
        ],
    ),
    "a question for a version before the start": ("asp", [OFFERED, m.worker.SnapshotWanted(False)]),
    "a question for a version where there is no store": (
        "ripples",
        [*STARTED, "heard", m.worker.SnapshotWanted(False)],
    ),
    "a question for the state before the start": ("asp", [OFFERED, m.worker.StateWanted()]),
    "a question for the state where there is no store": ("ripples", [*STARTED, "heard", m.worker.StateWanted()]),
    "too many questions for the state": (
        "asp",
        [*STARTED, "heard", *([m.worker.StateWanted()] * (MOST_QUESTIONS + 1))],
    ),
    "that it waits for the end before the start": ("asp", [OFFERED, m.worker.FinishWanted()]),
    "metrics that nobody asked for": ("asp", [*STARTED, "heard", m.worker.Evaluated(7, {})]),
    "metrics of another version": ("asp", [*STARTED, m.worker.Evaluate(7), "heard", m.worker.Evaluated(8, {})]),
    "metrics twice": (
        "asp",
        [*STARTED, m.worker.Evaluate(7), "heard", m.worker.Evaluated(7, {}), m.worker.Evaluated(7, {})],
    ),
    "a failure that nobody asked for": ("asp", [*STARTED, "heard", m.worker.EvaluationFailed(7, "")]),
}
UNLIKE: dict[str, m.worker.StepFinished] = {
    "no batches": finished(batches=None),
    "a group less": finished(scalars=[{"lr": 0.1, "momentum": 0.9}]),
    "a learning rate that is no number": finished(scalars=[{"lr": "0.1", "momentum": 0.9}, {"lr": 0.2}]),
    "no learning rate": finished(scalars=[{"momentum": 0.9}, {"lr": 0.2}]),
    "a momentum that is no number": finished(scalars=[{"lr": 0.1, "momentum": [0.9]}, {"lr": 0.2}]),
}


@pytest.mark.parametrize("course", PROPER.values(), ids=PROPER)
def test_a_worker_may_say(course: tuple[str, list[str | Message]]) -> None:
    name, messages = course
    assert said(MessageValidation(stored=registry()[name].versions == "stored"), messages) == ""


@pytest.mark.parametrize("course", STRANGE.values(), ids=STRANGE)
def test_a_worker_may_not_say(course: tuple[str, list[str | Message]]) -> None:
    name, messages = course
    turns = MessageValidation(stored=registry()[name].versions == "stored")
    assert said(turns, messages) == f"it sent {type(messages[-1]).__name__} out of turn"


@pytest.mark.parametrize("name", ["", "loss\n", "\x1b[2J"])
@pytest.mark.parametrize(
    "measured", [lambda names: m.worker.ScalarsLogged(1, 1, names), lambda names: m.worker.Evaluated(7, names)]
)
def test_what_a_worker_measures_has_names_that_a_table_can_have(
    name: str, measured: Callable[[dict[str, float]], Message]
) -> None:
    course: list[str | Message] = [*STARTED, m.worker.Evaluate(7), "heard"]
    assert said(MessageValidation(stored=True), [*course, measured({"loss": 0.1, "véi 損失": 0.2})]) == ""
    found = said(MessageValidation(stored=True), [*course, measured({"loss": 0.1, name: 0.2})])
    assert found == f"it measured {name!r}, which is no name"


@pytest.mark.parametrize("message", UNLIKE.values(), ids=UNLIKE)
def test_a_step_has_batches_and_hyperparameters_such_as_were_offered(message: m.worker.StepFinished) -> None:
    why = said(MessageValidation(stored=True), [*STARTED, "heard", message])
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
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=m.worker.FromWorker)
