"""When snapshots are taken, and what workers are told of them."""

from __future__ import annotations

from unittest.mock import MagicMock, Mock

import pytest

from paceline.coordinator.snapshots import Snapshots
from paceline.core.choice import choose
from paceline.core.facts import GradientReady
from paceline.protocols import registry


def snapshots(protocol: str, members: MagicMock, cluster: Mock) -> Snapshots:
    choice = choose(protocol, registry())
    cluster.spec = choice.spec
    cluster.switches.when_done = lambda call: call()
    return Snapshots(
        Mock(checkpoint=1, choice=choice), cluster, members, Mock(epoch=0, batches=0), *(Mock() for _ in range(5))
    )


def test_workers_are_told_which_of_their_steps_the_snapshot_s_version_has() -> None:
    """A worker may have pushed another one by then, which the resumed run computes again."""
    members = MagicMock()
    taken = snapshots("asp", members, Mock())
    for worker, step in ((0, 4), (0, 5), (1, 2)):
        taken.tell(GradientReady(worker=worker, step=step, version=0, samples=1, at=0.0))
    taken.ordered(7, ((0, 4, 1.0),))
    taken.ask([Mock(worker=worker) for worker in (0, 1)])
    told = [call.args[1] for call in members.send.call_args_list]
    assert [(order.step, order.applied) for order in told] == [(5, 4), (2, -1)]


@pytest.mark.parametrize(
    ("protocol", "waits"),
    [
        *(("bsp", False), ("asp", False), ("ps-plus", True), ("local-sgd", True)),
        *(("diloco", True), ("async-diloco", True), ("ad-psgd", False)),
    ],
)
def test_a_stop_waits_for_a_version_where_a_worker_may_have_stepped_its_own_optimizer_unheard(
    protocol: str, waits: bool
) -> None:
    """Else its state in the snapshot would be a step further than the version."""
    taken, stopped = snapshots(protocol, MagicMock(), Mock()), Mock()
    taken.stop(stopped)
    assert stopped.called == (not waits)


@pytest.mark.parametrize(("protocol", "waits"), [("bsp", True), ("quorum", True), ("rennala", True), ("asp", False)])
def test_a_stop_waits_for_the_end_of_an_open_round(protocol: str, waits: bool) -> None:
    """Else fewer gradients than the protocol needs would make the last version, as workers leave the round."""
    taken, stopped = snapshots(protocol, MagicMock(), Mock()), Mock()
    taken.tell(GradientReady(worker=0, step=0, version=0, samples=1, at=0.0))
    taken.stop(stopped)
    assert stopped.called == (not waits)
