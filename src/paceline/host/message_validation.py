"""What a worker may say, by what it was told. A worker that says anything else is ended, and the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.ipc import messages

MOST_QUESTIONS = 100
"""Questions for the optimizer's state that one worker may have open: the store answers each with a copy of it."""


class MessageValidation:
    """One worker's turns to speak. Pure: `told` what it is sent, and asked about what is `heard` from it.

    Only messages are judged that would do harm to the run out of turn. The others may come late: from a script that an
    exception led out of a call, or from another of its threads.
    """

    def __init__(self, *, stored: bool, forks_store: bool = False) -> None:
        """`stored`: whether versions and the optimizer's state are with a store. `forks_store`: it may be told to."""
        self._stored = stored
        self._offered: messages.worker.Offered | None = None
        self._forks_store = forks_store
        self._begun = self._stopped = self._declined = False
        self._computes: tuple[int, int] | None = None
        """The step that it computes, and the version that it computes on."""
        self._further = 0
        """How many further steps it may make by itself."""
        self._finished = False
        """Whether it has finished a step."""
        self._last: int | None = None
        """The last step that it has finished, until it says that its update is made."""
        self._steps: set[int] = set()
        """Steps that its replica is to make."""
        self._keeps: set[int] = set()
        """Snapshots that it is to say for what its script keeps."""
        self._hands: set[int] = set()
        """Joinings of workers that it is to hand over to what its script keeps."""
        self._gives = False
        """Whether it is to give what its optimizer has."""
        self._edits: set[int] = set()
        """Changes of the model's structure that it is to tell."""
        self._edited = 0
        """How many it has made."""
        self._edits_now = False
        """Whether the last one's values are not there: a step would be of none that the store knows."""
        self._draws: set[tuple[int, int]] = set()
        """(epoch, block) whose order it is to tell."""
        self._adoption: type[messages.Message] | None = messages.worker.AdoptionWanted
        """What it may say next for its beginning to be adopted."""
        self._evaluates: int | None = None
        """The version that it evaluates."""
        self._pauses = False
        """Whether it is to decline its step for now."""
        self._revoked = False
        """Whether it may do so since its round was ended."""
        self._names: set[str] = set()
        """Of what its script measures."""
        self._questions = 0
        """For the optimizer's state, and not answered."""

    def told(self, message: messages.Message) -> None:
        """The worker is sent this."""
        match message:  # each batch and each step comes by here: the most frequent messages come first
            case messages.worker.Leased():
                pass
            case messages.worker.Compute(step=step, version=version, steps=steps):
                self.released(step, version, steps)
            case messages.worker.MakeStep(step=step):
                self.steps(step)
            case messages.worker.Keep(snapshot=snapshot):
                self._keeps.add(snapshot)
            case messages.worker.HandOver(joining=joining):
                self._hands.add(joining)
            case messages.worker.GiveState():
                self._gives = True
            case messages.worker.OrderWanted(epoch=epoch, block=block):
                self._draws.add((epoch, block))
            case messages.worker.ForkStore():
                self._forks_store = True
            case messages.worker.Begin():
                self.begins()
            case messages.worker.AdoptInto():
                self.adopts()
            case messages.worker.TellEdit(number=number):
                self._edits.add(number)
            case messages.worker.TakeEdit():
                self._edits_now = False
            case messages.worker.OptimizerState():
                self._questions -= 1
            case messages.worker.Evaluate(version=version):
                self._evaluates = version
            case messages.worker.Pause():
                self._pauses = True
            case messages.worker.Revoke():
                self._revoked = True
            case messages.worker.StopTraining():
                self._stopped = True

    def released(self, step: int, version: int, steps: int = 1) -> None:
        """The worker is to compute that step on that version, and may make so many from that one on."""
        self._computes = None if self._declined else (step, version)
        self._further, self._revoked = steps - 1, False

    def steps(self, step: int) -> None:
        """The worker's replica is to make that step."""
        self._steps.add(step)

    def begins(self) -> None:
        """The worker is told what training begins with."""
        self._begun, self._forks_store = True, False

    def adopts(self) -> None:
        """The worker is to write what its script begins with."""
        self._adoption = messages.worker.AdoptionWritten

    def heard(self, message: messages.Message) -> str:
        """The worker has said this. Return why it may not, as the end of a sentence; empty if it may."""
        if not self._may(message):
            return f"it sent {type(message).__name__} out of turn"
        if isinstance(message, messages.worker.StepFinished) and not self._as_offered(message):
            return "it finished a step with other parameter groups or batches than it offered"
        if isinstance(message, messages.worker.ScalarsLogged | messages.worker.Evaluated):
            return self._names_of(
                message.scalars if isinstance(message, messages.worker.ScalarsLogged) else message.metrics
            )
        return ""

    def _names_of(self, measured: Mapping[str, float]) -> str:
        if not self._names.issuperset(measured):
            for name in measured:
                if not name or not name.isprintable():
                    return f"it measured {name!r}, which is no name"
            self._names.update(measured)
        return ""

    def _may(self, message: messages.Message) -> bool:
        match message:  # as in `told`
            case messages.worker.LeaseWanted() | messages.worker.BeginWanted():
                return self._begun and self._offered is not None and self._offered.loads
            case messages.worker.StepFinished(step=step, version=version):
                return self._finishes((step, version))
            case messages.worker.OrderDrawn(epoch=epoch, block=block):
                return _taken(self._draws, (epoch, block))
            case messages.worker.Stepped(step=step):
                return _taken(self._steps, step)
            case messages.worker.Kept(snapshot=snapshot):
                return _taken(self._keeps, snapshot)
            case messages.worker.Handed(joining=joining):
                return _taken(self._hands, joining)
            case messages.worker.StateGiven():
                told, self._gives = self._gives, False
                return told
            case messages.worker.UpdateMade(step=step):
                last, self._last = self._last, None
                return step == last
            case messages.worker.Joins():
                return self._begun
            case messages.worker.Declined(paused=False):
                self._computes, self._declined = None, True
            case messages.worker.Declined(revoked=True):
                told, self._revoked, self._computes = self._revoked and self._computes is not None, False, None
                return told
            case messages.worker.Declined():
                told, self._pauses, self._computes = self._pauses, False, None
                return told
            case messages.worker.Agrees(how=how, value=value):
                return self._begun and (how != "mean" or isinstance(value, int | float))
            case messages.worker.Offered():
                first, self._offered = self._offered is None, message
                return first and all(isinstance(group.get("lr", 0.0), int | float) for group in message.scalars)
            case messages.worker.ParserEnded():
                return self._offered is None
            case messages.worker.StoreNotForked():
                return self._forks_store
            case messages.worker.AdoptionWanted() | messages.worker.AdoptionWritten():
                return self._adopts(type(message))
            case messages.worker.Edited(number=number):
                self._edits_now = False
                return _taken(self._edits, number)
            case messages.worker.EditWanted(number=number):
                self._edited, self._edits_now = self._edited + 1, True
                return self._begun and number == self._edited
            case messages.worker.OwnValues():
                return self._begun
            case messages.worker.SnapshotWanted():
                return self._begun and self._stored
            case messages.worker.StateWanted():
                self._questions += 1
                return self._begun and self._stored and self._questions <= MOST_QUESTIONS
            case messages.worker.FinishWanted():
                return self._begun
            case messages.worker.Evaluated(version=version) | messages.worker.EvaluationFailed(version=version):
                asked, self._evaluates = self._evaluates, None
                return version == asked
        return True

    def _finishes(self, step: tuple[int, int]) -> bool:
        """Whether it was told to compute that step on that version, and has not said so before."""
        told, self._computes, self._finished, self._last = self._computes, None, True, step[0]
        if self._further:
            self._further, self._computes = self._further - 1, (step[0] + 1, step[1])
        return step == told and not self._edits_now

    def _as_offered(self, finished: messages.worker.StepFinished) -> bool:
        """Whether it has batches if they are leased, and hyperparameters to go on with."""
        offer = self._offered
        if offer is None or (finished.batches is not None) != offer.loads:
            return False
        return finished.scalars is None or _alike(offer.scalars, finished.scalars)

    def _adopts(self, kind: type[messages.Message]) -> bool:
        """Whether it may say this of what it began with: once."""
        if (
            kind is messages.worker.AdoptionWanted and self._stopped
        ):  # an exception may have led its script out of the first
            return True
        due, self._adoption = self._adoption, None
        return self._begun and not self._finished and kind is due


def _taken(owed: set[Any], one: Any) -> bool:
    """Take it out of what is owed. Return whether it was there."""
    if one not in owed:
        return False
    owed.remove(one)
    return True


def _alike(offered: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    """Whether there are as many parameter groups, and the factors that protocols scale are numbers still."""
    return len(now) == len(offered) and all(
        isinstance(after.get(key), int | float) or not isinstance(before.get(key), int | float)
        for before, after in zip(offered, now, strict=True)
        for key in ("lr", "momentum")
    )
