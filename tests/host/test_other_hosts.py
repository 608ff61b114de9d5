"""The hosts of a run, as one: what is kept for other hosts, and what becomes of one that is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from msgspec import structs

from paceline.core.items import Blob
from paceline.core.orders import Release, StartPull
from paceline.core.shards import Shard
from paceline.errors import MessageUnreadable, RunFailed
from paceline.host import messages as host_messages
from paceline.host.attachments import Attachments
from paceline.host.contract import NotHere
from paceline.host.events import Attached, VersionBrought, WorkerEnded, WorkerSaid
from paceline.host.item_table import ItemTable
from paceline.host.other_hosts import OtherHosts
from paceline.host.remote_host import RemoteHost
from paceline.host.reports.shards import ShardReports
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.records.times import FetchTimes
from support.reports import Reports
from support.run_state import OFFER

DECLINED = messages.worker.Declined()
HALVES = [Shard("node-0", 0, 32), Shard("node-1", 32, 64)]


class Several:
    """The head, and one other host with workers 2 and 3."""

    def __init__(self, shards: Sequence[Shard] = ()) -> None:
        self.head, self.carrier, self.reports = (
            Mock(shards=shards, owns_replicas=False, shards_on=()),
            Mock(),
            Reports(),
        )
        self.head.name = "node-0"
        self.told: list[messages.Message] = []
        self.at = 0.0
        self.head.goes_on.return_value = None
        self.head.newest = 7
        self.head.aggregation.adding.return_value = False
        self.heard: list[tuple[int, messages.Message, list[bytes]]] = []
        """What the head's host has heard: of whom, and the bytes of what came along."""
        self.head.worker_reports.hear = self._hear
        self.head.averages.fetched = self.reports
        self.head.attachments = Attachments("node-0", self.carrier)
        self.head.here.items = ItemTable(Shelf(), {Blob: self.head.attachments}, Mock(), Mock())
        self.head.shard_reports = ShardReports(self.head, self.reports, lambda: self.at)
        self.neighbours = Mock(return_value=())
        self.directory = Mock(amiss=self._amiss, neighbours=self.neighbours)
        other = RemoteHost("node-1", range(2, 4), self.told.append)
        self.hosts = OtherHosts(self.head, [other], self.carrier, self.reports, self.directory, lambda: self.at)
        self.head.others = self.hosts
        for snapshot in (1, 2):
            other.turns_of(2).told(messages.worker.Keep(snapshot, 4, 0))

    def before_waiting(self) -> None:
        """Do what the head does before it waits for anything."""
        for (call,), _ in self.directory.before_waiting.call_args_list:
            call()
        self.directory.before_waiting.reset_mock()

    def _amiss(self, host: str, why: str) -> None:
        assert host == "node-1"
        raise MessageUnreadable(why)

    def _hear(self, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        self.heard.append((worker, message, [os.pread(one, 1000, 0) for one in descriptors]))
        for one in descriptors:
            os.close(one)

    def say(self, *said: messages.Message) -> None:
        """The other host says this."""
        for message in said:
            self.hosts.reports.delivered("node-1", message)

    def takes(self, worker: int, version: int) -> None:
        """The worker is to have that version, and the other host says that it has."""
        self.hosts.carry_out(StartPull(worker=worker, version=version))
        self.say(host_messages.Taken(worker, version))

    def comes(self, name: str) -> Callable[..., object]:
        """Return what ends the fetch of that name: with its bytes, or with why it can't come."""
        (call,) = [call for call in self.carrier.fetch.call_args_list if call.args[0] == Blob(name)]
        item, _, arrived, lost = call.args

        def ends(data: bytes = b"", why: str = "") -> None:
            ((host, begin, end),) = self.hosts.items.ranges(item)
            assert (host, begin) == ("node-1", 0)
            there = self.hosts.items.lay(item, 0)
            self.hosts.items.free(item, bool(data))
            if data:
                there.memory[begin:end] = data
                arrived()
            else:
                lost(why)

        return ends

    def hands(self) -> Blob:
        """Tell worker 2 something that a file comes along with, and return the file's name."""
        file = os.memfd_create("attached")
        os.write(file, b"what comes along")
        self.hosts.hands(2, messages.worker.SnapshotReady(0), file)
        os.close(file)
        (said,) = self.told
        assert isinstance(said, host_messages.TellWorker)
        assert said.attached is not None
        return Blob(said.attached.name)


def test_the_end_of_another_hosts_fetch_is_when_the_head_hears_of_it() -> None:
    """Clocks of two hosts are never compared: only the length is the other host's."""
    several = Several()
    several.at = 7.5
    there = FetchTimes(host="node-1", source="node-0", kind="version", number=3, bytes=40, began=5000.0, ended=5000.5)
    several.hosts.reports.delivered("node-1", host_messages.Fetched.of(there))
    assert several.reports.of(FetchTimes) == [replace(there, began=7.0, ended=7.5)]


def test_a_worker_that_takes_a_version_had_waited_for_its_hosts_last_fetch_of_it() -> None:
    several = Several()
    several.hosts.begin([0, 1, 2, 3])
    fetched = host_messages.Fetched("node-0", "version", None, 3, 40, 0.5)
    for at, worker in ((1.0, None), (1.5, 2), (2.0, 3), (4.0, None)):
        several.at = at
        if worker is None:
            several.say(fetched)
        else:
            several.takes(worker, 3)
    assert several.reports.told(VersionBrought) == [(2, 0.5, 1.0), (3, 0.5, 1.0)]
    several.takes(2, 3)
    several.takes(2, 7)
    assert several.reports.told(VersionBrought)[2:] == [(2, 3.5, 4.0)]


@pytest.mark.parametrize("at_the_head", [False, True])
def test_a_worker_that_lacks_what_will_never_come_is_ended_unless_it_has_left(at_the_head: bool) -> None:
    several = Several()

    def lost(worker: int) -> None:
        if at_the_head:
            several.hosts.never_comes(worker, "why")
        else:
            several.hosts.reports.delivered("node-1", host_messages.Lacks(worker, "why"))

    lost(2)
    several.hosts.left(3, died=False)
    del several.told[1:]
    lost(3)
    several.hosts.lost("node-1", "silent for 15.0 s")
    lost(2)
    assert several.told == [host_messages.EndWorker(2, "why")]


def test_what_comes_along_with_a_message_stays_until_the_other_host_has_it() -> None:
    """However often it is sent: a connection may break after its last byte was written."""
    several = Several()
    name = several.hands()
    for number in range(2):
        assert several.hosts.items.look(name, 0, 1) == "here"
        several.hosts.items.claim(name, ("serve", number))
        assert several.hosts.items.view(name).memory == b"what comes along"
        several.hosts.items.release(name, ("serve", number))
    several.hosts.reports.delivered("node-1", host_messages.AttachmentFetched(name.name))
    several.head.look.return_value, several.head.view.side_effect = "gone", NotHere("it is not here")
    assert several.hosts.items.look(name, 0, 1) == "gone"


def test_what_is_recorded_stays_until_the_other_host_has_it_for_all_of_its_workers(tmp_path: Path) -> None:
    """Under one name, so that it may come once. Nothing of its path is told."""
    several, file = Several(), tmp_path / "final.safetensors"
    file.write_text("final")
    for worker in (2, 3):
        several.hosts.show_recorded(worker, messages.worker.FinalRecorded(), str(file))
    names = {
        said.attached.name for said in several.told if isinstance(said, host_messages.TellWorker) and said.attached
    }
    assert len(several.told) == 2
    (name,) = names
    assert str(tmp_path) not in name
    several.head.look.return_value = "gone"
    for there in ("here", "gone"):
        several.say(host_messages.AttachmentFetched(name))
        assert several.hosts.items.look(Blob(name), 0, 1) == there
    several.say(host_messages.AttachmentFetched(name))


PACKED = b"what the script keeps"


def kept_of(name: str) -> messages.worker.Kept:
    """What worker 2 says as it has packed what its script keeps, for one snapshot or the next."""
    return messages.worker.Kept(snapshot=["one", "two"].index(name) + 1, step=4, epoch=0, error=None)


def kept(name: str) -> WorkerSaid:
    """Worker 2 has packed something, which is to be fetched by that name."""
    return WorkerSaid(2, kept_of(name), Attached(name, len(PACKED)))


def test_a_worker_that_is_ended_is_not_awaited_for_what_it_had_said_before() -> None:
    """Its bytes may never come: what moves them may have stopped."""
    for said_before in (True, False):
        several = Several()
        several.say(kept("one"), WorkerSaid(2, DECLINED))
        if said_before:
            several.say(WorkerEnded(2, 9))
            assert not several.reports.of(WorkerEnded)
        several.hosts.reports.hear_end(2)
        if not said_before:
            several.say(WorkerEnded(2, 9))
        assert several.reports.told(WorkerEnded) == [(2, 9)]
        several.comes("one")(PACKED)
        assert several.heard == []


def test_what_a_worker_says_is_heard_in_order_though_some_of_it_has_to_be_fetched() -> None:
    several = Several()
    several.say(
        kept("one"),
        WorkerSaid(2, DECLINED),
        kept("two"),
        WorkerEnded(2, 0),
        WorkerSaid(3, DECLINED),
    )
    assert several.heard == [(3, DECLINED, [])]
    several.comes("one")(PACKED)
    assert several.heard[1:] == [(2, kept_of("one"), [PACKED]), (2, DECLINED, [])]
    assert not several.reports.of(WorkerEnded)
    several.comes("two")(PACKED)
    assert several.heard[3:] == [(2, kept_of("two"), [PACKED])]
    assert several.reports.told(WorkerEnded) == [(2, 0)]
    assert several.told == [host_messages.AttachmentFetched("one"), host_messages.AttachmentFetched("two")]


def test_a_worker_is_ended_whose_message_lacks_what_came_along() -> None:
    several = Several()
    several.say(kept("one"))
    several.comes("one")(why="it is gone")
    assert several.heard == []
    assert several.told == [host_messages.EndWorker(2, "it is gone")]
    several.say(WorkerEnded(2, 9))
    assert several.reports.told(WorkerEnded) == [(2, 9)]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (WorkerSaid(2, None), "a worker has said nothing"),
        (WorkerSaid(2, None, Attached("one", (128 << 20) + 1)), "it would have 134,217,729 bytes"),
        (WorkerEnded(3, 127), "no process ends with status 127"),
        (host_messages.Taken(2, 8), "version 8 is not there to be taken"),
        (host_messages.Taken(2, 6), "worker 2 was not to pull version 6"),
        (WorkerSaid(2, messages.worker.Stepped(4, None)), "it sent Stepped out of turn"),
        (WorkerSaid(2, messages.worker.StoreNotForked("why")), "it was to have no store"),
        (WorkerSaid(2, DECLINED, Attached("one", 4)), "nothing comes along with a Declined"),
        (host_messages.RangeTaken(), "it was to take over no range"),
        (host_messages.SumNotFinite("weight", 2), "it adds up no updates"),
    ],
)
def test_what_a_host_may_not_say_is_refused_before_anybody_hears_of_it(said: messages.Message, why: str) -> None:
    several = Several()
    with pytest.raises(MessageUnreadable, match="version 0 is not there to be taken"):
        several.say(host_messages.Taken(2, 0))
    several.hosts.begin([0, 1, 2, 3])
    several.head.shards = HALVES
    with pytest.raises(MessageUnreadable, match=why):
        several.say(said)
    assert several.heard == several.reports.events == []


def test_a_sum_that_is_not_finite_is_told_with_its_worker() -> None:
    several = Several()
    several.head.aggregation.adding.return_value = True
    several.say(host_messages.SumNotFinite("weight", 2))
    several.head.not_finite.assert_called_once_with("weight", 2)


def test_a_worker_that_has_ended_says_no_more() -> None:
    several = Several()
    several.say(WorkerEnded(2, 0))
    for said in (WorkerSaid(2, DECLINED), WorkerEnded(2, 0)):
        with pytest.raises(MessageUnreadable, match="worker 2 has ended, and says more"):
            several.say(said)
    assert several.reports.told(WorkerEnded) == [(2, 0)]
    several.hosts.returns(2)
    several.say(WorkerSaid(2, DECLINED))
    assert several.heard == [(2, DECLINED, [])]


def test_a_worker_is_ended_whose_message_that_comes_along_can_not_be_read() -> None:
    several = Several()
    several.say(WorkerSaid(2, None, Attached("one", 4)))
    several.comes("one")(b"\xc1\xc1\xc1\xc1")
    (told,) = several.told
    assert isinstance(told, host_messages.EndWorker)
    assert told.why is not None
    assert told.why.startswith("what it has said can't be read: ")
    assert several.heard == []


@pytest.mark.parametrize("size", [1 << 62, 1 << 44])  # an empty file of the second takes nothing
def test_a_worker_is_ended_if_there_is_no_room_for_what_comes_along(size: int) -> None:
    several = Several()
    several.say(WorkerSaid(2, kept_of("one"), Attached("one", size)))
    (told,) = several.told
    assert isinstance(told, host_messages.EndWorker)
    assert (told.why or "").startswith("what comes along with its message has no room here: ")


def test_a_host_whose_worker_says_without_end_while_something_is_to_come_along_is_ended() -> None:
    several = Several()
    several.say(kept("one"))
    with pytest.raises(MessageUnreadable, match="worker 2 said 16,777,216 bytes after what"):
        several.say(*20 * [WorkerSaid(2, messages.worker.Remarked((1 << 20) * "x"))])
    assert several.heard == []


def test_a_host_can_not_say_that_another_one_has_what_comes_along() -> None:
    several = Several()
    several.hosts.adds(RemoteHost("node-2", range(4, 6), several.told.append))
    several.told.clear()
    file = os.memfd_create("attached")
    os.write(file, b"abcd")
    several.hosts.hands(4, messages.worker.TakeUp(), file)
    os.close(file)
    said = several.told[-1]
    assert isinstance(said, host_messages.TellWorker)
    assert said.attached is not None
    several.say(host_messages.AttachmentFetched(said.attached.name))
    assert several.hosts.items.view(Blob(said.attached.name)).nbytes == 4


@pytest.mark.parametrize("room", [True, False])
def test_a_share_of_the_state_that_can_not_come_or_has_no_room_is_said_to_be_lacking(room: bool) -> None:
    several, why = Several(HALVES), "can't come: it is not here any more"
    said = host_messages.StatePacked(3, None, Attached("share 3 of node-1", 40))
    if room:
        several.say(said)
        several.comes("share 3 of node-1")(why="it is not here any more")
    else:
        why = "has no room here: No space left on device"
        with patch("paceline.host.attachments.empty_file", side_effect=OSError(28, "No space left on device")):
            several.say(said)
        assert several.told == [host_messages.AttachmentFetched("share 3 of node-1")]
    several.head.shares.came.assert_called_once_with(3, f"host node-1's part of it {why}", None)


def test_whatever_a_host_s_message_raises_ends_that_host_and_not_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.files.traces", tmp_path)
    several, ended = Several(), list[tuple[str, str]]()
    several.directory.amiss = lambda host, why: ended.append((host, why))
    several.reports.error = KeyError(2)
    several.say(WorkerEnded(2, 0))
    ((host, why),) = ended
    assert host == "node-1"
    assert why.startswith("an error in Paceline that should not be: KeyError: 2 (")
    several.reports.error = RunFailed("it says by itself what is to end")
    with pytest.raises(RunFailed):
        several.say(WorkerEnded(3, 0))
    several = Several()
    several.reports.error = OSError(errno.ENOSPC, "No space left on device", "run/edit-1")
    with pytest.raises(RunFailed, match="run/edit-1: No space left on device; is the disk full, or failing"):
        several.say(WorkerEnded(2, 0))


def test_a_step_is_finished_by_the_worker_that_was_released_for_it_and_once() -> None:
    several = Several()
    several.hosts.begin([0, 1, 2, 3])
    offer = structs.replace(OFFER, loads=False)
    several.say(WorkerSaid(2, offer))
    finished = messages.worker.StepFinished(0, 3, None, [], None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for _ in range(2):
        with pytest.raises(MessageUnreadable, match="worker 2: it sent StepFinished out of turn"):
            several.say(WorkerSaid(2, finished))
        several.hosts.carry_out(Release(worker=2, step=0, version=3))
        several.say(WorkerSaid(2, finished))
    assert [message for _, message, _ in several.heard] == [offer, finished, finished]


def test_the_releases_of_a_round_go_to_each_host_in_one_message() -> None:
    several = Several()
    elsewhere: list[messages.Message] = []
    several.hosts.adds(RemoteHost("node-2", range(4, 6), elsewhere.append))
    several.told.clear()
    elsewhere.clear()
    releases = [Release(worker=worker, step=0, version=3, batches=worker) for worker in (2, 3, 4, 5)]
    for release in releases:
        several.hosts.carry_out(release)
    told = [host_messages.VersionMade(3), host_messages.CarryOutReleases.of(releases[:2])]
    assert several.told == told  # as soon as another host's come
    assert elsewhere == [host_messages.VersionMade(3)]
    several.before_waiting()
    assert elsewhere[1:] == [host_messages.CarryOutReleases.of(releases[2:])]
    assert several.told[1].orders == releases[:2]


def test_what_is_told_of_a_worker_after_its_release_comes_after_it() -> None:
    several = Several()
    several.hosts.carry_out(Release(worker=2, step=0, version=3))
    several.hosts.left(2, died=False)
    several.hosts.carry_out(Release(worker=3, step=0, version=3))
    several.before_waiting()
    _, two, gone, three = several.told
    assert [one.worker for one in (*two.orders, gone, *three.orders)] == [2, 2, 3]


def test_a_host_that_comes_again_is_told_no_release_of_before_it_was_lost() -> None:
    several = Several()
    several.hosts.carry_out(Release(worker=2, step=0, version=3))
    several.hosts.lost("node-1", "it is cut off")
    several.hosts.back("node-1")
    several.before_waiting()
    assert [type(one) for one in several.told] == [host_messages.VersionMade, host_messages.BeginScripts]


def test_nothing_comes_along_twice_by_one_name() -> None:
    several = Several()
    several.say(kept("one"))
    with pytest.raises(MessageUnreadable, match="one comes along already"):
        several.say(WorkerSaid(3, None, Attached("one", 4)))
