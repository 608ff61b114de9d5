"""A worker's end of its channel."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from paceline.errors import PeerLost, RunFailed
from paceline.ipc import messages
from paceline.ipc.channel import Channel, attached, attachment, pair
from paceline.ipc.messages.worker import Keep
from paceline.training import prepare
from paceline.training.data.orders import Orders
from paceline.training.seeding import order_digest
from paceline.worker_process.worker import WorkerLink
from support.run_state import SETTINGS

ORDER = [[4, 5], [6]]
FINISHED = messages.worker.StepFinished(
    step=6, version=0, batches=[], skipped=[], scalars=None,
    began=0.0, compute=0.0, push=0.0, other=0.0, waited=0.0, pulled=0.0,
)  # fmt: skip


@pytest.fixture
def ends() -> Any:
    """A worker's link, and the coordinator's end of its channel."""
    ours, theirs = pair()
    coordinator = Channel(ours, messages.worker.FromWorker, "worker 1")
    channel = Channel(theirs, messages.worker.ToWorker, "the coordinator")
    yield WorkerLink(1, replace(SETTINGS, workers=2), channel, launcher=0), coordinator
    coordinator.close()


def send_final(coordinator: Channel) -> None:
    """The last version is recorded: here it is."""
    file = attachment(b"final")
    coordinator.send(messages.worker.FinalRecorded(), (file,))
    os.close(file)


def test_a_stopped_worker_asks_for_no_more_leases(ends: Any) -> None:
    """Each would be answered, nobody would read the answers, and `finish` would miss its own in a full channel."""
    link, coordinator = ends
    coordinator.send(messages.worker.StopTraining(at_once=False))
    orders = Orders(ORDER, seed=0)
    assert link.lease(0, orders) == messages.worker.EpochOver()
    assert coordinator.receive()[0] == messages.worker.LeaseWanted(0, *orders.known(0))
    assert link.lease(1, orders) == messages.worker.EpochOver()
    assert not coordinator.ready()


def test_a_stopped_worker_still_gets_the_final_parameters(ends: Any) -> None:
    """The answers to what it had asked for before are passed over."""
    link, coordinator = ends
    coordinator.send(messages.worker.StopTraining(at_once=False))
    coordinator.send(messages.worker.EpochOver())
    send_final(coordinator)
    assert link.lease(0, Orders(ORDER, seed=0)) == messages.worker.EpochOver()
    assert attached(link.finish()[0]) == b"final"


def test_a_lease_of_a_new_epoch_is_given_after_its_order_is_told(ends: Any) -> None:
    link, coordinator = ends
    orders = Orders(ORDER, seed=0)
    coordinator.send(messages.worker.OrderWanted(3, 0))
    coordinator.send(messages.worker.Leased(3, 1))
    assert link.lease(3, orders) == messages.worker.Leased(3, 1)
    digest = order_digest(ORDER)
    told = [coordinator.receive()[0] for _ in range(3)]
    wanted = messages.worker.LeaseWanted(3, 1, digest)
    assert told == [wanted, messages.worker.OrderDrawn(3, 0, digest, ORDER, True, 3), wanted]


def test_a_process_that_the_script_forks_says_nothing_in_the_workers_name(ends: Any) -> None:
    link, coordinator = ends
    link.leave_to_parent()  # as in the child of a fork
    link.leave_to_parent()  # and in that one's child
    link.refuse("the script asks for LOCAL_RANK")
    link.say(messages.worker.ParserEnded(2))
    with pytest.raises(RuntimeError, match="a process that the script forked takes no part in the run"):
        link.lease(0, Orders(ORDER, seed=0))
    with pytest.raises(PeerLost):
        coordinator.receive()


def test_an_answer_out_of_turn_ends_the_worker_rather_than_being_passed_over(ends: Any) -> None:
    link, coordinator = ends
    coordinator.send(messages.worker.Compute(0, 0, 0, 0, []))
    with pytest.raises(RunFailed, match="worker 1 was sent Compute out of turn"):
        link.lease(0, Orders(ORDER, seed=0))


def test_each_of_two_threads_gets_its_own_answer(ends: Any) -> None:
    """One waits for its step, and receives; what it gets for the other, which asks for a batch, it passes on."""
    link, coordinator = ends
    orders = Orders(ORDER, seed=0)
    with ThreadPoolExecutor(1) as other:
        batch = other.submit(link.lease, 3, orders)
        wanted = messages.worker.LeaseWanted(3, 1, order_digest(ORDER))
        assert coordinator.receive()[0] == wanted  # the other receives, from now on
        link.say(FINISHED)
        coordinator.send(messages.worker.Compute(7, 1, 2, 0, []))
        assert link.released().step == 7
        coordinator.send(messages.worker.Leased(3, 1))
        assert batch.result(60) == messages.worker.Leased(3, 1)


def test_a_stop_ends_every_thread_and_the_one_that_trains_leaves_its_script(ends: Any) -> None:
    link, coordinator = ends
    orders = Orders(ORDER, seed=0)
    with ThreadPoolExecutor(1) as other:
        batch = other.submit(link.lease, 3, orders)
        assert coordinator.receive()[0] == messages.worker.LeaseWanted(3, 1, order_digest(ORDER))
        coordinator.send(messages.worker.StopTraining(at_once=True))
        assert batch.result(60) == messages.worker.EpochOver()
        with pytest.raises(SystemExit):
            link.pause(60.0)


# --- what is kept for snapshots


def test_an_order_to_keep_that_comes_with_a_batch_waits_for_its_turn(ends: Any) -> None:
    link, coordinator = ends
    assert link.heard_to_keep() == []
    coordinator.send(messages.worker.Keep(40, 5, 1))
    coordinator.send(messages.worker.Leased(3, 1))
    assert link.lease(3, Orders(ORDER, seed=0)) == messages.worker.Leased(3, 1)
    assert link.heard_to_keep() == [Keep(snapshot=40, step=5, epoch=1)]
    assert link.heard_to_keep() == []


@pytest.mark.parametrize("how", ["at once", "interrupted"])
def test_a_stopped_worker_leaves_its_script_once_it_has_kept_what_was_ordered_before(ends: Any, how: str) -> None:
    link, coordinator = ends
    link.say(FINISHED)
    coordinator.send(messages.worker.Keep(40, 6, 1))
    coordinator.send(messages.worker.StopTraining(at_once=how == "at once", interrupted=how == "interrupted"))
    order = link.released()
    assert order == Keep(snapshot=40, step=6, epoch=1)
    assert link.released() is None
    link.raise_if_interrupted()
    link.say(messages.worker.Kept(40, 6, 1, None), b"packed")
    with pytest.raises(SystemExit if how == "at once" else KeyboardInterrupt):
        link.raise_if_interrupted()


def test_an_order_to_keep_is_heard_even_if_another_thread_has_heard_of_the_stop(ends: Any) -> None:
    link, coordinator = ends
    link.say(FINISHED)
    coordinator.send(messages.worker.Keep(40, 6, 1))
    coordinator.send(messages.worker.StopTraining(at_once=False))
    assert link.lease(3, Orders(ORDER, seed=0)) == messages.worker.EpochOver()
    assert link.released() == Keep(snapshot=40, step=6, epoch=1)
    assert link.released() is None


def test_a_worker_that_waits_in_finish_keeps_what_is_ordered_meanwhile(ends: Any, monkeypatch: Any) -> None:
    link, coordinator = ends
    orders: list[Keep] = []
    monkeypatch.setattr(prepare.ScriptProcess, "session", Mock(asked=orders.append, live=False, as_left=[]))
    coordinator.send(messages.worker.Keep(40, 6, 1))
    send_final(coordinator)
    assert attached(link.finish()[0]) == b"final"
    assert orders == [Keep(snapshot=40, step=6, epoch=1)]
    coordinator.send(messages.worker.Keep(50, 6, 1))
    coordinator.send(messages.worker.Exit())
    link.serve_until_exit()
    assert orders[1:] == [Keep(snapshot=50, step=6, epoch=1)]


def test_what_comes_along_is_read_whole_wherever_another_process_reads_it() -> None:
    """Descriptors that were passed on share one place to read from."""
    file = attachment(b"the optimizer's state")
    os.lseek(file, 7, os.SEEK_SET)
    assert [attached(os.dup(file)) for _ in range(2)] == [b"the optimizer's state"] * 2
    assert os.lseek(file, 0, os.SEEK_CUR) == 7
    os.close(file)
