"""The steps that a worker's last release permits. It makes those after the first without another word of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from paceline.ipc.messages.worker import Compute, Declined

if TYPE_CHECKING:
    from paceline.training.session import Session


class Permit:
    """How far a worker may go on by itself."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: int | None = None
        """The step after which nothing is permitted, whatever its release says."""
        self._used = 1
        """Batches in the last step."""

    def ends(self) -> None:
        """Permit no further step of the last release."""
        self._last = None if self._session.go is None else self._session.go.step

    def used(self, batches: int) -> None:
        """The present step has so many batches."""
        self._used = batches

    @property
    def batches(self) -> int:
        """How many batches the script may use until it waits again, as far as the last step tells."""
        steps = 1 if self._session.go is None else self._session.go.steps
        return 1 if steps == 1 else max(1, steps * max(1, self._used) - self._session.batches_in_step)

    @property
    def pieces(self) -> int:
        """How many pieces of batches the script's next batch has, where they are cut."""
        session = self._session
        return session.link.pieces if session.go is None else session.go.batches

    def further(self) -> Compute | None:
        """Return the next step, if it is permitted. Else the worker waits for a release, and tells why if it has to."""
        session, go = self._session, self._session.go
        if go is None or go.step == self._last:
            return None
        self.ends()
        if go.steps == 1:
            if not (go.cut or go.overlap):
                session.make_update()
            return None
        area = go.area
        if go.steps == go.overlap + 1:  # the others go into another update
            session.make_update()
            area = go.next_area
        if session.link.goes_on(go.step + 1):
            used = go.progress + go.pace * self._used
            return structs.replace(go, step=go.step + 1, slot=-1, area=area, steps=go.steps - 1, progress=used)
        if not session.link.was_stopped:
            session.make_update()
            session.link.say(Declined(session.epoch, paused=True, revoked=True))
        return None
