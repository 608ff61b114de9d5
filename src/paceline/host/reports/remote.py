"""What hosts besides the head's say: whether they may, and what follows from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.facts import ParametersTaken
from paceline.core.items import Beginning, Item
from paceline.errors import MessageUnreadable, PacelineError, RunFailed
from paceline.files import of_disk, unforeseen
from paceline.host import messages as host_messages
from paceline.host.attachments import file_bytes
from paceline.host.events import (
    Attached,
    Averaged,
    AwaitsPlace,
    Computes,
    GivenUp,
    Report,
    StandInsCame,
    VersionBrought,
    WorkerEnded,
    WorkerSaid,
)
from paceline.host.remote_host import RemoteHost
from paceline.ipc import messages
from paceline.ipc.endpoint import Coding, Frames, framed, too_long
from paceline.net.numbered import LONGEST
from paceline.records.times import FetchTimes
from paceline.transfer.item_names import ADOPTED

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster
    from paceline.host.other_hosts import OtherHosts

MOST_SAID = 128 << 20
"""Bytes of what a worker says at once. The longest is an epoch's order, of some 5 bytes for each sample."""
_OF_WORKER = Coding(host_messages.OfWorker)
KEPT = 4
"""For each worker: how many fetches of versions are remembered. A worker needs three versions at most."""


class RemoteReports:
    """Hears other hosts. Whatever is wrong with what one says ends that host, and not the head."""

    def __init__(self, cluster: Cluster, others: OtherHosts, report: Report, now: Callable[[], float]) -> None:
        """`now()` is seconds since the run's start."""
        self._cluster = cluster
        self._others = others
        self._report = report
        self._now = now
        self._coding = Coding(messages.worker.FromWorker)
        self._behind: dict[int, bytearray] = {}
        """By worker whose message is being fetched: what its host has said of it since, as bytes."""
        self._fetched: dict[tuple[str, int], FetchTimes] = {}
        """By host and version: the last fetches."""

    def delivered(self, name: str, message: messages.Message) -> None:
        """That host has said this. What it says of a worker is heard in its order."""
        self._guarded(name, lambda: self._delivered(name, message))

    def hear_end(self, worker: int) -> None:
        """Hear at once that the worker's process has ended, if that waits for what the worker has said before."""
        for message in self._said_behind(worker):
            if isinstance(message, WorkerEnded):
                self._deliver(self._others.worker(worker).host.name, message)

    def lost(self, host: RemoteHost) -> None:
        """That host takes no part any more: what its workers have said is not waited for."""
        self._fetched = {item: one for item, one in self._fetched.items() if item[0] != host.name}
        for worker in host.workers:
            self._behind.pop(worker, None)

    # --- inside -------------------------------------------------------------------------------------

    def _delivered(self, name: str, message: messages.Message) -> None:
        self._may_say(name, message)
        self._deliver(name, message)

    def _guarded(self, name: str, hear: Callable[[], object]) -> None:
        """Hear what that host has said. Whatever is wrong with that ends the host, and not the head."""
        try:
            hear()
        except MessageUnreadable as error:
            self._others.directory.amiss(name, f"it has said what can't be: {error}")
        except PacelineError:  # it says by itself what is to end
            raise
        except Exception as error:
            if full := of_disk(error):  # which is not that host's
                raise RunFailed(full) from error
            self._others.directory.amiss(name, unforeseen(error, "head"))

    def _may_say(self, name: str, message: messages.Message) -> None:
        if isinstance(message, host_messages.OfShard) and name not in self._others.makers:
            raise MessageUnreadable("it makes no versions")
        if isinstance(message, host_messages.SaidOfSums) and not self._cluster.aggregation.adding(name):
            raise MessageUnreadable("it adds up no updates")
        if isinstance(message, host_messages.SaidOfReplicas) and not self._cluster.here.choice.has_replicas:
            raise MessageUnreadable("no worker there owns a replica")
        if isinstance(message, host_messages.StandsIn) and not self._others.host(name).awaits_offer:
            raise MessageUnreadable("nothing was to stand in for a worker there")
        match message:
            case WorkerSaid(worker=worker) | WorkerEnded(worker=worker) if self._others.worker(worker).gone:
                raise MessageUnreadable(f"worker {worker} has ended, and says more")
            case WorkerSaid(message=None, attached=None):
                raise MessageUnreadable("a worker has said nothing")
            case WorkerSaid(message=None, attached=Attached(size=size)) if size > MOST_SAID:
                raise MessageUnreadable(f"a message of worker {message.worker}: {too_long(size, MOST_SAID)}")
            case host_messages.StatePacked(error=None, attached=None):
                raise MessageUnreadable("its share has nothing in it")
            case WorkerSaid(message=messages.Message() as said, attached=attached):
                if said.descriptors == 0 and attached is not None:
                    raise MessageUnreadable(f"nothing comes along with a {type(said).__name__}")
                if isinstance(said, messages.worker.StoreNotForked) and name not in self._cluster.shards_on:
                    raise MessageUnreadable("it was to have no store")
            case WorkerEnded(status=status) if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
                raise MessageUnreadable(f"no process ends with status {status}")
            case host_messages.Taken(version=version) if (
                not self._others.host(name).begun or version > self._cluster.newest
            ):
                raise MessageUnreadable(f"version {version} is not there to be taken")
            case host_messages.Taken(worker=worker, version=version) if not self._others.worker(worker).left:
                one = self._others.worker(worker)
                order, one.pull = one.pull, None
                if order is None or order.version != version:
                    raise MessageUnreadable(f"worker {worker} was not to pull version {version}")

    def _deliver(self, name: str, message: messages.Message) -> None:
        if isinstance(message, host_messages.OfWorker) and message.worker in self._behind:
            behind = self._behind[message.worker]
            behind += framed(_OF_WORKER.encode(message))
            if len(behind) > LONGEST:
                raise MessageUnreadable(f"worker {message.worker} said {LONGEST:,} bytes after what is not here yet")
            return
        if (
            isinstance(message, host_messages.OfStep) and self._others.worker(message.worker).left
        ):  # its host had not heard of that
            return
        match message:
            case WorkerSaid(worker=worker, message=messages.worker.AdoptionWritten()):
                self._bring(name, message, self._written_by(name, worker))
            case WorkerSaid(worker=worker, message=messages.Message() as said, attached=None):
                self._heard(name, worker, said, [])
            case WorkerSaid():
                self._bring(name, message, [])
            case WorkerEnded(worker=worker, status=status):
                one = self._others.worker(worker)
                one.gone = True
                one.host.turns.pop(worker, None)
                self._report(WorkerEnded(worker, status))
            case host_messages.AttachmentFetched(attached=attached):
                self._others.attachments.host_has(name, attached)
            case host_messages.Lacks(worker=worker, why=why):
                self._others.never_comes(worker, why)
            case host_messages.Taken(worker=worker, version=version):
                if (fetched := self._fetched.get((name, version))) is not None:
                    began = max(fetched.began, self._others.made_at.get(version, fetched.began))
                    self._report(VersionBrought(worker, min(began, fetched.ended), fetched.ended))
                if (one := self._others.worker(worker)).computes_on == version:
                    one.computes_on = None
                    self._others.computes(worker, took=True)
                self._report(ParametersTaken(worker=worker, version=version, at=self._now()))
            case host_messages.StandsIn(offer=offer):
                self._others.host(name).offer = offer
                self._report(StandInsCame())
            case host_messages.Begun():
                self._cluster.versions.begun(name)
            case AwaitsPlace(worker=worker):
                self._others.worker(worker).computes_on = None
                self._report(message)
            case host_messages.Fetched():
                self._has_fetched(message.heard(name, self._now()))
            case host_messages.SumNotFinite(parameter=parameter, worker=worker):
                self._cluster.not_finite(parameter, worker)
            case host_messages.SumsLost(why=why):
                self._cluster.aggregation.ends(name)
                self._others.directory.sums_lost(name, why)
            case Averaged(number=number) | GivenUp(number=number):
                self._cluster.averages.has_made(number, name)
            case host_messages.ItemCopied(number=number):
                if not self._cluster.transfers.brought(number, name):
                    raise MessageUnreadable(f"it was to bring nothing by the number {number}")
            case Computes(worker=worker):
                self._others.computes(worker, took=False)
            case _ if isinstance(message, host_messages.OfShard):
                self._cluster.shard_reports.hear(name, message)

    def _heard(self, name: str, worker: int, said: messages.worker.FromWorker, descriptors: list[int]) -> None:
        if strange := self._others.worker(worker).host.turns_of(worker).heard(said):
            for one in descriptors:
                os.close(one)
            raise MessageUnreadable(f"worker {worker}: {strange}")
        self._cluster.worker_reports.hear(worker, said, descriptors)
        if isinstance(said, messages.worker.SnapshotWanted):
            self._others.tell_worker(worker, host_messages.Look(worker, self._cluster.newest, said.hold))

    def _written_by(self, name: str, worker: int) -> list[Item]:
        """What that host's worker has written for all to begin with: items that are to come here."""
        return [Beginning(worker), *self._others.attachments.comes_to(ADOPTED, name, self._cluster.memory.adopted)]

    def _bring(self, name: str, heard: WorkerSaid, items: list[Item]) -> None:
        """Hear what the worker has said once these items are here, and what came along."""
        worker, attached = heard.worker, heard.attached
        if attached is not None:
            self._others.attachments.require_new(attached, name)
            try:
                items += self._others.attachments.comes(attached, name)
            except OSError as error:
                self._others.never_comes(
                    worker, f"what comes along with its message has no room here: {error.strerror}"
                )
                return
        behind = self._behind[worker] = bytearray()

        def there() -> None:
            files = [] if attached is None else [self._others.attachments.take_file(attached)]
            if self._behind.get(worker) is not behind:  # it was ended meanwhile
                for file in files:
                    os.close(file)
                return
            if heard.message is None:
                try:
                    said = self._coding.decode(file_bytes(files[0]).memory, ())
                except MessageUnreadable as error:
                    lost(f"what it has said can't be read: {error}")
                    return
                finally:
                    os.close(files[0])
                self._guarded(name, lambda: self._heard(name, worker, said, []))
            else:
                message = heard.message
                self._guarded(name, lambda: self._heard(name, worker, message, files))
            if attached is not None:
                self._others.tell_worker(worker, host_messages.AttachmentFetched(attached.name))
            self._go_on(name, worker)

        def lost(why: str) -> None:
            if self._behind.get(worker) is behind:
                self._others.never_comes(worker, why)
                self._go_on(name, worker)

        self._others.attachments.bring(items, f"of worker {worker}", there, lost)

    def _go_on(self, name: str, worker: int) -> None:
        """Hear what the host has said of that worker since."""
        for message in self._said_behind(worker):
            if self._others.is_there(name):  # else what it has said before has ended it
                self._guarded(name, partial(self._deliver, name, message))

    def _said_behind(self, worker: int) -> list[host_messages.OfWorker]:
        bodies = Frames(LONGEST).receive(bytes(self._behind.pop(worker, b"")))
        return [_OF_WORKER.decode(body, ()) for body in bodies]

    def _has_fetched(self, fetch: FetchTimes) -> None:
        if fetch.kind == "version" and fetch.number is not None:
            if len(self._fetched) >= KEPT * max(1, len(self._others.workers)):
                del self._fetched[next(iter(self._fetched))]
            self._fetched[fetch.host, fetch.number] = fetch
        self._cluster.averages.fetched(fetch)
