"""A host whose versions another host's store makes: what its workers compute on is there, whole."""

from __future__ import annotations

import os
import signal
from unittest.mock import Mock

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.facts import ParametersTaken
from paceline.core.items import Update, Version
from paceline.core.orders import Release, StartPush
from paceline.host import messages as host_messages
from paceline.host.events import Attached, WorkerEnded
from paceline.host.host import Host
from paceline.host.memory_plan import plan
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from support.planes import plane_of
from support.reports import Reports
from support.run_state import OFFER

HEAD = Peer("node-0", 1)


class OneHost:
    """A host with workers 2 and 3, whose bytes the test brings in place of the head."""

    def __init__(self, fixed_bytes: int = OFFER.fixed_bytes, goes_on: host_messages.GoesOn | None = None) -> None:
        choice = choose("asp", registry())
        workers, self.reports = Mock(numbers=[2, 3]), Reports()
        self.workers = workers
        places = plan(choice.spec, choice.unapplied, 4)
        self.carrier = TransferManager("node-1", lambda: 0.0)
        self.carrier.meet(*HEAD)
        self.host = Host(
            places,
            choice.spec,
            workers,
            self.carrier,
            self.reports,
            Mock(),
            name="node-1",
            host_of={0: HEAD.host, 1: HEAD.host, 2: "node-1", 3: "node-1"}.__getitem__,
            head=HEAD.host,
            threads=1,
            now=lambda: 0.0,
        )
        self.carrier.begins(0, self.host.items)
        plane_of(self.carrier).connected(HEAD)
        self.host.tell(host_messages.BeginScripts())
        self._hear = workers.open.call_args.args[0]
        self.says(2, msgspec.structs.replace(OFFER, fixed_bytes=fixed_bytes))
        self.host.tell(host_messages.Train({2: goes_on, 3: None}, 0, 0.0))

    def says(self, worker: int, message: messages.Message) -> None:
        """The worker says this."""
        self._hear(worker, message, [])

    def comes(self, request: int, count: int | None = None) -> None:
        """So many bytes of the request come, or the rest."""
        there = plane_of(self.carrier).memory(HEAD, request)
        assert there is not None
        count = there.nbytes if count is None else count
        there.memory[:count] = bytes([request]) * count
        plane_of(self.carrier).came(HEAD, request, count)

    def lacking(self) -> list[tuple[int, str]]:
        """Which workers lack what will never come, and why."""
        return self.reports.told(host_messages.Lacks)

    def taken(self) -> list[tuple[int, int]]:
        """Which workers have which versions."""
        return [(fact.worker, fact.version) for fact in self.reports.of(ParametersTaken)]


@pytest.fixture
def host() -> OneHost:
    """A host that trains, and was told of version 1. Two requests are over: what training begins with."""
    host = OneHost()
    for request in (1, 2):
        host.comes(request)
    assert len(host.reports.of(host_messages.Begun)) == 1
    host.host.tell(host_messages.VersionMade(1))
    return host


def pulls(worker: int) -> Release:
    return Release(worker=worker, step=1, version=1)


def test_a_version_comes_once_for_all_workers_of_the_host(host: OneHost) -> None:
    host.host.carry_out(pulls(2))
    host.comes(3, 7)
    host.host.carry_out(pulls(3))
    assert host.taken() == []
    host.comes(3)
    assert host.taken() == [(2, 1), (3, 1)]
    assert bytes(host.host.items.view(Version(1)).memory[: OFFER.cuts[-1]]) == bytes([3]) * OFFER.cuts[-1]
    assert host.carrier.pending() == []


def test_a_version_is_fetched_while_it_is_being_made_and_computed_on_once_it_is_made(host: OneHost) -> None:
    """Its pieces come as they are made. That all are is for the head to say."""
    for worker in (2, 3):
        host.host.carry_out(Release(worker=worker, step=1, version=2))
    host.comes(3)
    assert host.taken() == []
    host.host.tell(host_messages.VersionMade(2))
    assert host.taken() == [(2, 2), (3, 2)]


def test_a_version_that_comes_too_late_for_its_worker_is_not_taken(host: OneHost) -> None:
    host.host.carry_out(Release(worker=2, step=1, version=2))
    host.comes(3)
    host.host.tell(host_messages.WorkerGone(2, False))
    host.host.tell(host_messages.VersionMade(2))
    assert host.taken() == []


def test_a_version_that_did_not_come_whole_is_asked_for_again(host: OneHost) -> None:
    """A worker that left keeps its claim until its process ends. What lies in the place is no version yet."""
    host.host.carry_out(pulls(2))
    host.comes(3, 7)
    host.host.tell(host_messages.WorkerGone(2, True))
    assert not host.host.shelf.has(Version(1))
    host.host.carry_out(pulls(3))
    assert host.taken() == []
    host.comes(4)
    assert host.taken() == [(3, 1)]
    assert bytes(host.host.items.view(Version(1)).memory[: OFFER.cuts[-1]]) == bytes([4]) * OFFER.cuts[-1]


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_update_of_a_worker_that_leaves_stays_if_the_head_has_asked_for_it(host: OneHost, asked_for: bool) -> None:
    host.host.carry_out(pulls(2))
    host.comes(3)
    host.says(2, messages.worker.StepFinished(1, 1, None, [], None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    if asked_for:
        host.host.carry_out(StartPush(worker=2, step=1))
    host.host.tell(host_messages.WorkerGone(2, True))
    host.host.tell(host_messages.ForgetWorker(2))
    assert host.host.shelf.has(Update(2, 1)) == asked_for


def test_who_lacks_a_version_that_will_never_come_is_told(host: OneHost) -> None:
    host.host.carry_out(pulls(2))
    plane_of(host.carrier).refused(HEAD, 3, "it is not here any more")
    assert host.lacking() == [(2, f"{Version(1)} can't come: it is not here any more")]
    assert host.taken() == []


def test_what_comes_along_for_several_workers_is_brought_once(host: OneHost) -> None:
    """Each of them gets all of it, and the head hears of each."""
    for worker in (2, 3):
        host.host.tell(
            host_messages.TellWorker(worker, messages.worker.FinalRecorded(), Attached("the final version", 7))
        )
    files: list[bytes] = []
    host.workers.send.side_effect = lambda worker, message, given: files.append(os.pread(given[0], 9, 0))
    host.comes(3)
    assert files == [bytes([3]) * 7] * 2
    assert [call.args[0] for call in host.workers.send.call_args_list[-2:]] == [2, 3]
    assert host.reports.told(host_messages.AttachmentFetched) == [("the final version",)] * 2
    host.host.tell(host_messages.TellWorker(2, messages.worker.Evaluate(7), Attached("the final version", 7)))
    host.comes(4)
    assert files[2:] == [bytes([4]) * 7], "it may come again"


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_worker_is_ended_that_waits_for_what_the_head_has_for_it_and_that_can_t_come(
    host: OneHost, begins_anew: bool
) -> None:
    """Though it trains no more: its script waits in `finish`, or for a version to evaluate. Not so a later process."""
    host.host.tell(host_messages.WorkerGone(2, False))
    host.host.tell(host_messages.TellWorker(2, messages.worker.FinalRecorded(), Attached("attached 0", 7)))
    if begins_anew:
        host.host.tell(host_messages.StartWorker(2))
    plane_of(host.carrier).refused(HEAD, 3, "why")
    ended = [call.args for call in host.workers.give_up.call_args_list]
    assert ended == ([] if begins_anew else [(2, "what the head has for it can't come: why")])


MORE = 1 << 44
"""Bytes for which no machine has memory."""
FULL = "this host has no room for it: it is more than there is memory"


def test_a_worker_is_ended_if_its_host_has_no_room_for_what_the_head_has_for_it(host: OneHost) -> None:
    host.host.tell(host_messages.TellWorker(2, messages.worker.FinalRecorded(), Attached("attached 0", MORE)))
    assert [call.args for call in host.workers.give_up.call_args_list] == [
        (2, f"what the head has for it can't come: {FULL}")
    ]
    assert host.reports.told(host_messages.AttachmentFetched) == [("attached 0",)]


def test_a_host_takes_no_part_if_it_has_no_room_for_what_training_begins_with() -> None:
    goes_on = host_messages.GoesOn(1, None, Attached("kept", MORE))
    host = OneHost(goes_on=goes_on)
    assert host.reports.told(host_messages.Leaves) == [(f"what training begins with can't come: {FULL}",)]


def test_a_host_takes_no_part_if_it_has_no_room_for_what_a_worker_has_changed_that_to(host: OneHost) -> None:
    host.host.tell(host_messages.Adopted(0, Attached("state", MORE), {}))
    assert host.reports.told(host_messages.Leaves) == [(f"what training begins with can't come: {FULL}",)]


@pytest.mark.parametrize("request_", [1, 2])
def test_a_host_takes_no_part_if_what_training_begins_with_will_never_come(request_: int) -> None:
    """What waits for the beginning waits for ever then, so the host can't go on without these workers."""
    host = OneHost()
    if request_ == 2:
        host.comes(1)
    plane_of(host.carrier).refused(HEAD, request_, "why")
    assert host.reports.told(host_messages.Leaves) == [("what training begins with can't come: why",)]
    assert not host.reports.of(host_messages.Begun)


def test_a_model_of_which_nothing_is_fixed_begins_with_its_parameters() -> None:
    host = OneHost(fixed_bytes=0)
    host.comes(1)
    assert len(host.reports.of(host_messages.Begun)) == 1


@pytest.fixture
def early() -> OneHost:
    """A host to which what training begins with is on its way."""
    return OneHost()


def begins(host: OneHost) -> None:
    """What training begins with is there."""
    for request in (1, 2):
        host.comes(request)


@pytest.mark.parametrize("why", [None, "it lacks a version"])
def test_a_worker_is_ended_though_training_has_yet_to_begin_there(early: OneHost, why: str | None) -> None:
    early.host.tell(host_messages.EndWorker(2, why))
    if why is None:
        early.workers.end.assert_called_once_with(2)
    else:
        early.workers.give_up.assert_called_once_with(2, why)


def test_what_else_the_head_says_waits_for_training_s_beginning_in_order(early: OneHost) -> None:
    early.host.tell(host_messages.TellWorker(2, messages.worker.Pause()))
    early.host.tell(host_messages.WorkerGone(2, True))
    early.host.tell(host_messages.TellWorker(3, messages.worker.Pause()))
    early.workers.send.assert_not_called()
    begins(early)
    told = [(call.args[0], type(call.args[1])) for call in early.workers.send.call_args_list]
    pauses = [(2, messages.worker.Pause), (3, messages.worker.Pause)]
    assert told == [(2, messages.worker.Begin), (3, messages.worker.Begin), *pauses]


def test_a_worker_that_is_ended_before_its_turn_to_begin_never_begins_and_its_end_is_told(early: OneHost) -> None:
    early.host.tell(host_messages.StartWorker(2))
    early.host.tell(host_messages.EndWorker(2, None))
    assert early.reports.told(WorkerEnded) == [(2, signal.SIGKILL)]
    early.workers.end.assert_not_called()
    begins(early)
    early.workers.start.assert_not_called()


def test_a_worker_that_is_started_once_more_after_that_begins_once(early: OneHost) -> None:
    for order in (host_messages.StartWorker(2), host_messages.EndWorker(2, None), host_messages.StartWorker(2)):
        early.host.tell(order)
    begins(early)
    early.workers.start.assert_called_once_with([2])
