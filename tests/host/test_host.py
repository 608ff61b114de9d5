"""A host whose versions another host's store makes: what its workers compute on is there, whole."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from paceline.core.items import Update, Version
from paceline.core.orders import StartPush
from paceline.host import messages as host_messages
from paceline.host.events import Attached, WorkerEnded
from paceline.ipc import messages
from support.one_host import OneHost
from support.run_state import OFFER


@pytest.fixture
def early() -> OneHost:
    """A host with workers 2 and 3, to which what training begins with is on its way: requests 1 and 2."""
    host = OneHost((2, 3), 4)
    host.trains((2, 3))
    return host


@pytest.fixture
def host(early: OneHost) -> OneHost:
    """A host that trains, and was told of version 1."""
    begins(early)
    assert len(early.reports.of(host_messages.Begun)) == 1
    early.host.tell(host_messages.VersionMade(1))
    return early


def begins(host: OneHost) -> None:
    """What training begins with is there."""
    for request in (1, 2):
        host.comes(request)


def bytes_of(host: OneHost, version: int) -> bytes:
    return bytes(host.host.items.view(Version(version)).memory[: OFFER.cuts[-1]])


def test_a_version_comes_once_for_all_workers_of_the_host(host: OneHost) -> None:
    host.pulls(2)
    host.comes(3, 7)
    host.pulls(3)
    assert host.taken() == []
    host.comes(3)
    assert host.taken() == [(2, 1), (3, 1)]
    assert bytes_of(host, 1) == bytes([3]) * OFFER.cuts[-1]
    assert host.carrier.pending() == []


def test_a_version_is_fetched_while_it_is_being_made_and_computed_on_once_it_is_made(host: OneHost) -> None:
    """Its pieces come as they are made. That all are is for the head to say."""
    for worker in (2, 3):
        host.pulls(worker, 2)
    host.comes(3)
    assert host.taken() == []
    host.host.tell(host_messages.WorkerGone(3, False))
    host.host.tell(host_messages.VersionMade(2))
    assert host.taken() == [(2, 2)], "it comes too late for worker 3"


@pytest.mark.parametrize("asked_for", [True, False])
def test_the_update_of_a_worker_that_leaves_stays_if_the_head_has_asked_for_it(host: OneHost, asked_for: bool) -> None:
    host.pulls(2)
    host.comes(3)
    host.finished(2, 1, 1)
    if asked_for:
        host.host.carry_out(StartPush(worker=2, step=1))
    host.host.tell(host_messages.WorkerGone(2, True))
    host.host.tell(host_messages.ForgetWorker(2))
    assert host.host.shelf.has(Update(2, 1)) == asked_for


def test_who_lacks_a_version_that_will_never_come_is_told(host: OneHost) -> None:
    host.pulls(2)
    host.refused(3, "it is not here any more")
    assert host.reports.told(host_messages.Lacks) == [(2, f"{Version(1)} can't come: it is not here any more")]
    assert host.taken() == []


def test_what_comes_along_for_several_workers_is_brought_once(host: OneHost) -> None:
    """Each of them gets all of it, and the head hears of each."""
    final = Attached("the final version", 7)
    for worker in (2, 3):
        host.host.tell(host_messages.TellWorker(worker, messages.worker.FinalRecorded(), final))
    files: list[bytes] = []
    host.workers.send.side_effect = lambda worker, message, given: files.append(os.pread(given[0], 9, 0))
    host.comes(3)
    assert files == [bytes([3]) * 7] * 2
    assert host.told(messages.worker.FinalRecorded) == [2, 3]
    assert host.reports.told(host_messages.AttachmentFetched) == [("the final version",)] * 2
    host.host.tell(host_messages.TellWorker(2, messages.worker.Evaluate(7), final))
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
    host.refused(3)
    ended = [call.args for call in host.workers.give_up.call_args_list]
    assert ended == ([] if begins_anew else [(2, "what the head has for it can't come: why")])


MORE = 1 << 44
"""Bytes for which no machine has memory."""
FULL = "this host has no room for it: it is more than there is memory"


def test_a_worker_is_ended_if_its_host_has_no_room_for_what_the_head_has_for_it(host: OneHost) -> None:
    host.host.tell(host_messages.TellWorker(2, messages.worker.FinalRecorded(), Attached("attached 0", MORE)))
    host.workers.give_up.assert_called_once_with(2, f"what the head has for it can't come: {FULL}")
    assert host.reports.told(host_messages.AttachmentFetched) == [("attached 0",)]


@pytest.mark.parametrize("lacks", ["the version", "what is fixed", "what it goes on with", "what a worker has changed"])
def test_a_host_takes_no_part_that_has_no_room_for_what_training_begins_with_or_never_gets_it(lacks: str) -> None:
    """What waits for the beginning waits for ever then, so the host can't go on without these workers."""
    host, why = OneHost((2, 3), 4), FULL
    if lacks == "what it goes on with":
        host.host.tell(host_messages.Train({2: host_messages.GoesOn(1, None, Attached("kept", MORE))}, 0, 0.0))
    else:
        host.trains((2, 3))
    if lacks == "what a worker has changed":
        begins(host)
        host.host.tell(host_messages.Adopted(0, Attached("state", MORE), {}))
    elif lacks != "what it goes on with":
        why = "why"
        if lacks == "what is fixed":
            host.comes(1)
        host.refused(1 + (lacks == "what is fixed"))
        assert not host.reports.of(host_messages.Begun)
    assert host.reports.told(host_messages.Leaves) == [(f"what training begins with can't come: {why}",)]


def test_a_model_of_which_nothing_is_fixed_begins_with_its_parameters() -> None:
    host = OneHost((2, 3), 4, offer=msgspec.structs.replace(OFFER, fixed_bytes=0))
    host.trains((2, 3))
    host.comes(1)
    assert len(host.reports.of(host_messages.Begun)) == 1


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


@pytest.mark.parametrize("once_more", [False, True])
def test_a_worker_that_is_ended_before_its_turn_to_begin_never_begins_unless_it_is_started_once_more(
    early: OneHost, once_more: bool
) -> None:
    early.host.tell(host_messages.StartWorker(2))
    early.host.tell(host_messages.EndWorker(2, None))
    assert early.reports.told(WorkerEnded) == [(2, signal.SIGKILL)]
    early.workers.end.assert_not_called()
    if once_more:
        early.host.tell(host_messages.StartWorker(2))
    begins(early)
    assert [call.args for call in early.workers.start.call_args_list] == [([2],)] * once_more
