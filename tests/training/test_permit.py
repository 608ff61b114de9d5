"""How far a worker goes on by itself, and when it makes the update of what it has done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from paceline.ipc.messages.worker import Compute, Declined
from paceline.training.permit import Permit

GO = Compute(step=5, version=3, slot=1, area=0, ahead=[], progress=40, steps=3, pace=2)


class Session:
    """Stands in for a worker's session. It has heard that it is to end its round, or not."""

    def __init__(self, go: Compute, *, revoked: bool = False, stopped: bool = False) -> None:
        self.go: Compute | None = go
        self.did: list[Any] = []
        self.epoch = self.batches_in_step = 0
        self.link = SimpleNamespace(
            was_stopped=stopped, goes_on=lambda step: not (revoked or stopped), say=self.did.append
        )
        permitted: Any = self
        self.permit = Permit(permitted)

    def make_update(self) -> None:
        self.did.append("update")

    def makes(self, *batches: int) -> list[tuple[int, int, int]]:
        """Steps of so many batches each. Return the further ones that it goes on to: step, slot and progress."""
        made = []
        for number in batches:
            self.permit.used(number)
            self.go = self.permit.further()
            if self.go is not None:
                made.append((self.go.step, self.go.slot, self.go.progress))
        return made


def test_a_worker_makes_the_steps_of_its_release_and_then_its_update_unasked() -> None:
    """The run counts on by what all its workers use while this one uses a batch."""
    session = Session(GO)
    assert session.permit.batches == 3
    assert session.makes(1, 2, 1) == [(6, -1, 42), (7, -1, 46)]
    assert session.did == ["update"]


def test_with_an_overlap_it_makes_its_update_before_the_last_steps_which_go_into_another_area() -> None:
    session = Session(structs.replace(GO, steps=4, overlap=2, next_area=7))
    areas = []
    for _ in range(3):
        assert session.makes(1)
        areas.append(session.go.area if session.go is not None else None)
        session.did.append(areas[-1])
    assert session.makes(1) == []
    assert session.did == [0, "update", 7, 7], "what it has done in the last ones goes on with its next release"


def test_where_further_releases_permit_the_rest_it_makes_no_update() -> None:
    session = Session(structs.replace(GO, steps=1, cut=True))
    assert session.makes(1) == []
    assert session.did == []


@pytest.mark.parametrize(("stopped", "did"), [(False, ["update", Declined(paused=True, revoked=True)]), (True, [])])
def test_a_worker_whose_round_is_ended_says_once_what_it_has_made(stopped: bool, did: list[Any]) -> None:
    """Unless the run is stopped. A wait that a handler has led out of goes on without another word."""
    session = Session(GO, revoked=True, stopped=stopped)
    assert session.permit.further() is None
    assert session.permit.further() is None
    assert session.did == did


def test_a_worker_that_pauses_goes_on_only_by_its_next_release() -> None:
    session = Session(GO)
    session.permit.ends()
    assert session.permit.further() is None
