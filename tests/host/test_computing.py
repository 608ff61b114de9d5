"""Where bytes of an update are that a worker of this host computes."""

from __future__ import annotations

from paceline.core.items import Update
from paceline.host.overlap import Computing

LAST, NEXT = Update(2, 4), Update(2, 5)


def test_only_bytes_that_were_told_are_here_before_a_step_is_finished() -> None:
    computing = Computing()
    computing.told(2, 5, 8, 16)
    computing.told(2, 5, 4, 8)
    assert computing.look(NEXT, 4, 16, laid=True) == "here"
    assert computing.look(NEXT, 0, 16, laid=True) == "coming"
    assert computing.look(Update(3, 5), 4, 16, laid=True) == "coming"


def test_what_was_told_of_one_step_says_nothing_of_the_next() -> None:
    computing = Computing()
    computing.told(2, 4, 0, 16)
    assert computing.look(NEXT, 0, 16, laid=True) == "coming"
    computing.told(2, 5, 8, 16)
    assert computing.look(NEXT, 8, 16, laid=True) == "here"
    assert computing.look(NEXT, 0, 16, laid=True) == "coming"


def test_a_finished_update_is_here_as_long_as_it_has_a_place() -> None:
    computing = Computing()
    computing.finished(2, 4)
    assert computing.look(LAST, 0, 16, laid=True) == "here"
    assert computing.look(LAST, 0, 16, laid=False) == "gone"


def test_an_update_is_coming_whose_worker_has_not_begun_it_or_has_left() -> None:
    """Its host may be asked for it before the head's order has come, and after its place is free."""
    computing = Computing()
    assert computing.look(NEXT, 0, 16, laid=False) == "coming"
    computing.told(2, 5, 0, 16)
    assert computing.look(NEXT, 0, 16, laid=False) == "coming"
