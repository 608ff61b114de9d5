"""When snapshots are taken, and what workers are told of them."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

from paceline.coordinator.snapshots import LAST_ROUND, UNCOUNTED, Snapshots
from paceline.core.choice import choose
from paceline.core.facts import GradientReady
from paceline.protocols import registry


def snapshots(protocol: str, members: MagicMock, cluster: Mock) -> Snapshots:
    choice = choose(protocol, registry())
    cluster.spec = choice.spec
    cluster.switches.when_done = lambda call: call()
    settings, data = Mock(checkpoint=1, choice=choice, folder=Path("run")), Mock(epoch=0, batches=0, replicas={})
    data.samples = 1
    return Snapshots(settings, cluster, members, data, Mock(), Mock(), Mock(facts=3), Mock(), Mock())


def reported(taken: Snapshots, step: int) -> None:
    taken.tell(GradientReady(worker=0, step=step, version=step, samples=1, at=0.0))


def makes_round(taken: Snapshots, step: int, stopped: Mock | None = None) -> None:
    """Make a version of worker 0's step. `stopped`: the run is stopped meanwhile, and that is called at its end."""
    reported(taken, step)
    if stopped is not None:
        taken.stop(stopped)
    taken.ordered(step + 1, ((0, step, 1.0),))
    taken.go_on()


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
    reported(taken, 0)
    taken.stop(stopped)
    assert stopped.called == (not waits)


def test_a_stopped_run_makes_no_round_more_while_the_snapshot_before_is_written() -> None:
    """Else a worker goes on training after others have heeded the stop, for as long as a disk takes."""
    cluster, stopped = Mock(keep=Mock(return_value=["store"])), Mock()
    taken = snapshots("bsp", MagicMock(), cluster)
    taken.epoch_opened(1)
    makes_round(taken, 0)
    assert not taken.holds
    makes_round(taken, 1, stopped)
    assert taken.holds
    assert cluster.keep.call_count == 1
    assert not stopped.called
    taken.sealed()
    assert cluster.keep.call_count == 2
    assert (taken.holds, stopped.called) == (False, True)


def test_a_stop_does_without_its_snapshot_if_the_one_before_takes_too_long() -> None:
    taken, stopped = snapshots("bsp", MagicMock(), Mock(keep=Mock(return_value=["store"]))), Mock()
    taken.epoch_opened(1)
    makes_round(taken, 0)
    makes_round(taken, 1, stopped)
    (_, _), (seconds, give_up) = (call.args for call in taken._loop.after.call_args_list)
    assert seconds == LAST_ROUND
    give_up()
    assert (taken.holds, stopped.called) == (False, True)


def test_a_worker_that_never_packs_its_part_is_named_once_more_snapshots_are_due() -> None:
    """The others train on, and a failure would take them back to the last whole one."""
    taken = snapshots("asp", MagicMock(), Mock(keep=Mock(return_value=["store"])))
    taken._data.steps = 12
    taken.epoch_opened(1)
    taken._members.values.return_value = [Mock(worker=0), Mock(worker=3)]  # type: ignore[attr-defined]
    taken.tell(GradientReady(worker=3, step=0, version=0, samples=1, at=0.0))
    for step in range(6):
        taken._data.samples = step + 1
        makes_round(taken, step)
        taken.packed(0, 1, 0)
    (line,) = [call.args[0] for call in taken._output.say.call_args_list]  # type: ignore[attr-defined]
    assert line.startswith("the snapshot after 12 steps waits for worker 3 to answer, and no newer one is taken until")


def test_where_no_samples_are_counted_snapshots_are_due_by_time() -> None:
    """A stream has no epoch's samples, and a run over it would have none before its end."""
    cluster = Mock(keep=Mock(return_value=["store"]))
    taken = snapshots("asp", MagicMock(), cluster)
    for step, at in enumerate((0.0, UNCOUNTED - 1, UNCOUNTED + 1, UNCOUNTED + 2, 2 * UNCOUNTED)):
        taken.tell(GradientReady(worker=0, step=step, version=step, samples=None, at=at))
        taken.ordered(step + 1, ((0, step, 1.0),))
        taken.go_on()
        if taken._draft is not None:
            taken.sealed()
    assert cluster.keep.call_count == 2


@pytest.mark.parametrize(("leases", "epoch"), [(True, 0), (False, 7)])
def test_where_nothing_is_leased_a_run_goes_on_in_the_epoch_that_the_scripts_are_in(leases: bool, epoch: int) -> None:
    """The book of leases has opened no epoch, so it knows of none."""
    cluster = Mock(keep=Mock(return_value=["store"]))
    members = [Mock(worker=0), Mock(worker=1)]
    taken = snapshots("asp", MagicMock(), cluster)
    taken.leases, data, said = leases, taken._data, taken._ledger
    data.plain.return_value, data.epoch, data.steps = {}, 0, 9
    said.has.return_value, said.broken = True, None
    taken._plateaus.shared, taken._plateaus.plain.return_value = 0, []
    taken._versions.edits.known.return_value.edit = 0
    cluster.part = None
    for worker in (0, 1):
        taken.tell(GradientReady(worker=worker, step=0, version=0, samples=None, at=1.0))
    taken.ask(members)
    taken._take()
    for worker in (0, 1):
        taken.packed(worker, 1, 7 + worker)
        taken.written(f"worker-{worker}.safetensors", "digest")
    taken.written("store", "digest")
    ((text, _),) = [call.args for call in cluster.seal.call_args_list]
    assert json.loads(text)["epoch"] == epoch
