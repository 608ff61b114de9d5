"""The k-th edits of all workers' optimizer state are one, and it is made once."""

from __future__ import annotations

from paceline.core.state_edits import CLEARED, StateEdits

ZEROED = ([0, 1], "exp_avg", 0.0)


def test_an_edit_is_made_before_the_first_version_with_an_update_of_a_worker_that_made_it() -> None:
    edits = StateEdits()
    assert not edits.said(0, 0, [])
    assert not edits.said(1, 0, [])
    assert not edits.said(0, 1, [CLEARED])
    assert edits.due([(0, 0), (1, 0)]) == []
    assert edits.due([(0, 1)]) == [CLEARED]
    assert not edits.said(1, 1, [CLEARED])
    assert edits.due([(1, 1)]) == []


def test_an_edit_whose_update_is_dropped_is_made_with_the_worker_s_next_one() -> None:
    edits = StateEdits()
    edits.said(0, 0, [ZEROED])
    edits.dropped(0, 0)
    edits.said(0, 1, [CLEARED])
    assert edits.due([(0, 1)]) == [ZEROED, CLEARED]


def test_of_a_round_the_worker_that_came_furthest_counts_whichever_that_is() -> None:
    edits = StateEdits()
    edits.said(0, 0, [])
    edits.said(1, 0, [CLEARED])
    assert edits.due([(0, 0), (1, 0)]) == [CLEARED]


def test_another_edit_than_the_first_worker_s_is_refused_with_both_named() -> None:
    edits = StateEdits()
    assert not edits.said(0, 3, [ZEROED])
    assert "worker 1 changed the optimizer's state in another way" in edits.said(1, 3, [CLEARED])


def test_a_worker_that_joins_begins_with_what_was_edited() -> None:
    edits = StateEdits()
    edits.said(0, 0, [ZEROED])
    edits.joins(2)
    assert not edits.said(2, 0, [CLEARED])
    assert not edits.said(0, 1, [CLEARED])
    assert edits.due([(0, 0), (2, 0)]) == [ZEROED, CLEARED]
