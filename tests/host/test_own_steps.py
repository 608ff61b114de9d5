"""Updates of several own steps: who makes them, and when a round is over."""

from __future__ import annotations

from unittest.mock import Mock, call

import pytest

from paceline.core.orders import Release, StartPush
from paceline.host.orders.own_steps import OwnSteps
from paceline.ipc.messages.worker import MakeUpdate

ROUND, PUSH = Release(worker=1, step=0, version=0, steps=3), StartPush(worker=1, step=1, since=0)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_round_is_over_with_its_push_or_if_steps_follow_that_with_the_next_round(overlaps: bool) -> None:
    done = Mock()
    steps = OwnSteps(Mock(), Mock(), lambda: overlaps)
    steps.released(ROUND)
    steps.after(1, done)
    steps.push(PUSH)
    steps.released(Release(worker=1, step=2, version=0, parameters="own"))
    assert done.called == (not overlaps)
    steps.released(Release(worker=1, step=3, version=1))
    done.assert_called_once_with()


def test_a_worker_that_has_made_its_update_is_not_asked_for_it_though_it_has_made_the_next_one_as_well() -> None:
    send, made = Mock(), Mock()
    steps = OwnSteps(send, made, lambda: True)
    for step in (1, 4):
        steps.made(1, step)
    steps.push(PUSH)
    made.assert_called_once_with(PUSH)
    asked = StartPush(worker=1, step=7, since=5)
    steps.push(asked)
    assert send.mock_calls == [call(1, MakeUpdate(7))]
    assert steps.awaits(1)
    steps.made(1, 7)
    assert made.call_args == call(asked)
