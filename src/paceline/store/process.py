"""The store's process: it makes versions, or means of replicas, and writes recorded ones to disk.

It goes on committing while it writes a version.
"""

from __future__ import annotations

import gc
import os
import posix
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError

from paceline.errors import ConfigError, PeerLost
from paceline.files import to_disk, traced
from paceline.ipc import messages
from paceline.ipc.channel import Channel, attached, attachment
from paceline.ipc.memory import keep_freed_memory
from paceline.ipc.processes import fork_orphan
from paceline.records import snapshots
from paceline.store.chunks import STATE, NotFinite
from paceline.store.shares import StateShare, pack_share, pack_whole, unpack_share, unpack_whole
from paceline.store.snapshots import StateSnapshot, pack, taken, write_packed
from paceline.store.store import CommitResult, NamedVersion, Store
from paceline.training.averages import Policy
from paceline.training.packing import Pieces, load, pieces, unpacked


def fork_store(make_store: Callable[[], Store], end: socket.socket, launcher: int) -> None:
    """Fork the store from this worker, which has called `prepare`. The launcher becomes the store's parent.

    The store is built before the fork, as a device's tensors can't be read after it.
    """
    elsewhere = torch.get_default_device().type != "cpu"  # the script may have set a GPU, which the store can't use
    with torch.device("cpu") if elsewhere else nullcontext():  # this context costs each torch call some microseconds
        store = make_store()
        fork_orphan(lambda: _serve(store, end), launcher)
    end.close()


def _serve(store: Store, end: socket.socket) -> int:
    _let_go(end)
    torch.set_num_threads(1)  # the worker may have computed with more, and libgomp's threads don't survive a fork
    gc.freeze()
    store.let_go_of_script()
    keep_freed_memory()
    channel = Channel(end, messages.store.ToStore, "the coordinator")
    recorder, gatherings = _Recorder(channel), _Gatherings()
    held: dict[str, Callable[[], None]] = {}
    """By file: writes it, once all of the version has come from other hosts."""
    try:
        channel.send(messages.store.StoreReady(os.getpid(), store.beginning()))
        while True:
            order, descriptors = channel.receive()
            match order:
                case messages.store.Commit():
                    made = _commit(store, order, recorder)
                    found = _not_finite(made.not_finite)
                    recorder.send(messages.store.Committed(order.version, made.checksum, found))
                case messages.store.MakeEarly():
                    recorder.send(_make_early(store, order))
                case messages.store.TakeNorms():
                    recorder.send(_norms(store, order))
                case messages.store.MakeSum(number=number):
                    recorder.send(messages.store.Summed(number, _not_finite(_sum_up(store, order, recorder))))
                case messages.store.InstallAdopted():
                    store.adopted = True
                    if descriptors:
                        store.load(unpacked(attached(descriptors[0])))
                case messages.store.Restructure(file=file):
                    store.restructure(load(Path(file)))
                case messages.store.TakeValues(worker=worker, number=number):
                    store.take_values((worker, number), unpacked(attached(descriptors[0])))
                case messages.store.SendWhole():
                    _send_packed(recorder, messages.store.WholeReady, lambda: pack_whole(store.pass_on()))
                case messages.store.Load():
                    store.begin_with(unpack_whole(attached(descriptors[0])))
                case messages.store.ExtendRange():
                    store.take_over((order.begin, order.end), unpack_share(attached(descriptors[0])))
                case messages.store.SendShare(number=number):
                    recorder.share(store, number)
                case messages.store.TakeShare(number=number, error=error):
                    gatherings.take(number, error, descriptors)
                case messages.store.SendState(worker=None) if (mean := store.mean_of_taken()) is not None:
                    _send_packed(recorder, partial(messages.store.StateReady, None), partial(pack, mean.for_worker()))
                case messages.store.SendState(worker=worker, number=number, shares=shares):
                    # without others' shares it is packed before the next order, and has to be copied by nobody
                    keeping = store.begin_keeping(copied=shares > 0)
                    send = partial(_send_state, recorder, worker, store, keeping)
                    gatherings.begin(number, shares, send)
                case messages.store.Record():
                    version = store.version(order.slot, order.workers, cast(Policy, order.buffers), order.known)
                    if order.waits:
                        held[order.file] = partial(recorder.write, version, order)
                    else:
                        recorder.write(version, order)
                case messages.store.GoOn(file=file):
                    held.pop(file)()
                case messages.store.RecordMean():
                    version, distance = store.mean(
                        order.sources, order.target, cast(Policy, order.buffers), order.known
                    )
                    sha256 = version.record(Path(order.file))
                    recorder.send(messages.store.MeanRecorded(order.version, sha256, distance))
                case messages.store.MakeBeginning(of_store=of_store):
                    version, distance = store.make_beginning(
                        order.sources,
                        order.workers,
                        order.target,
                        cast(Policy, order.buffers),
                        order.known,
                        of_store=of_store,
                    )
                    recorder.send(messages.store.BeginningMade(order.version, None if of_store else distance))
                    recorder.write(version, order)
                case messages.store.TakeState():
                    store.take_state(taken(descriptors[0], copied=False))
                case messages.store.Become(outer=outer):
                    store.become(outer)
                case messages.store.KeepState(file=file, number=number, shares=shares):
                    keep = partial(_keep_state, recorder, order, store, store.begin_keeping(order.workers))
                    gatherings.begin(number, shares, keep)
                case messages.store.KeepReplica(area=area, file=file):
                    recorder.keep(file, partial(store.keep_replica, area, Path(file)))
                case messages.store.KeepWorker(file=file):
                    recorder.keep(file, partial(_keep_worker, Path(file), descriptors[0]))
                case messages.store.Seal():
                    recorder.seal(order)
                case messages.store.DropDraft(folder=folder):
                    recorder.drop(folder)
                case messages.store.Restore():
                    recorder.send(_restored(store, order))
                case messages.store.Quit():
                    recorder.close()
                    return 0
    except PeerLost:
        return 1
    except Exception as error:
        recorder.send(messages.store.StoreFailed(traced(error, "store")))
        return 1


def _commit(store: Store, order: messages.store.Commit, recorder: _Recorder) -> CommitResult:
    if order.first:
        store.prepare_slot(order.target)
    if order.scalars is not None:
        store.set_scalars(order.scalars)
    if order.edits:
        store.edit(order.edits)

    def made(begin: int, end: int) -> None:
        recorder.send(messages.store.Making(order.version, begin, end))

    return store.commit(
        order.source,
        order.target,
        order.pushed,
        threads=order.threads,
        look=order.look,
        made=made if order.tells else None,
        summed=order.summed,
        norms=order.norms,
        early=order.early,
    )


def _make_early(store: Store, order: messages.store.MakeEarly) -> messages.store.MadeEarly:
    if order.first:
        store.prepare_slot(order.target)
    within = order.begin, order.end
    of = order.number, order.source, order.target, order.pushed
    try:
        made = store.make_early(*of, within, scalars=order.scalars, look=order.look)
    except Exception:  # of hyperparameters that the step may never have; if it does, the commit fails alike
        made = False
    return messages.store.MadeEarly(order.number, *within, made)


def _norms(store: Store, order: messages.store.TakeNorms) -> messages.store.Norms:
    if order.first:
        store.prepare_slot(order.target)
    return messages.store.Norms(order.version, store.norms(order.target, order.pushed, threads=order.threads))


def _sum_up(store: Store, order: messages.store.MakeSum, recorder: _Recorder) -> NotFinite | None:
    def made(begin: int, end: int) -> None:
        recorder.send(messages.store.Summing(order.number, begin, end))

    return store.sum_up(order.target, order.terms, look=order.look, made=made)


def _not_finite(found: NotFinite | None) -> tuple[str, int | None] | None:
    return None if found is None else (found.parameter, found.worker)


def _keep_worker(file: Path, descriptor: int) -> str:
    try:
        return write_packed(file, descriptor)
    finally:
        os.close(descriptor)


def _seal(draft: Path, state: bytes) -> None:
    """Complete the draft of a snapshot, on disk. Raises OSError."""
    file, whole = draft / snapshots.STATE, snapshots.whole_of(draft)
    file.write_bytes(state)
    to_disk(file)
    to_disk(draft)
    draft.rename(whole)
    to_disk(whole.parent)


def _restored(store: Store, order: messages.store.Restore) -> messages.store.Restored:
    policy, areas = cast(Policy, order.buffers), dict(order.areas)
    try:
        beginning = store.restore(Path(order.file), order.slot, areas, policy)
        if order.replicas:
            store.restore_replicas({worker: Path(file) for worker, file in order.replicas}, areas)
    except ConfigError as error:
        return messages.store.Restored("", str(error))
    return messages.store.Restored(beginning, None)


def _send_state(
    recorder: _Recorder, worker: int | None, store: Store, keeping: StateSnapshot, shares: Iterable[StateShare]
) -> None:
    def packing() -> Pieces:
        whole = store.whole(keeping, shares)
        return pack(whole.for_worker()) if worker is None else pieces(whole.state, STATE)

    _send_packed(recorder, partial(messages.store.StateReady, worker), packing)


def _keep_state(
    recorder: _Recorder,
    order: messages.store.KeepState,
    store: Store,
    keeping: StateSnapshot,
    shares: Iterable[StateShare],
) -> None:
    recorder.keep(order.file, partial(store.keep, keeping, order.slot, Path(order.file), shares))


def _send_packed(
    recorder: _Recorder, said: Callable[[str | None], messages.Message], packing: Callable[[], Pieces]
) -> None:
    """Send what can be packed along with the message of `said`, or the error in that message."""
    try:
        descriptor = attachment(packing())
    except ConfigError as error:
        recorder.send(said(str(error)))
        return
    recorder.send(said(None), (descriptor,))
    os.close(descriptor)


class _Gatherings:
    """Requests that wait for other ranges' shares of the optimizer's state, by number."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Gathering] = {}

    def begin(self, number: int, shares: int, go_on: Callable[[Iterable[StateShare]], None]) -> None:
        """Go on once so many shares have come. Iterating reads them, or raises ConfigError."""
        if shares:
            self._waiting[number] = _Gathering(shares, go_on)
        else:
            go_on(())

    def take(self, number: int, error: str | None, descriptors: list[int]) -> None:
        """Take a share that has come, or the error of one that can't be packed."""
        gathering = self._waiting[number]
        gathering.lacking -= 1
        gathering.error = gathering.error or error
        gathering.come += descriptors
        if not gathering.lacking:
            gathering.go_on(self._waiting.pop(number).read())


@dataclass(slots=True)
class _Gathering:
    lacking: int
    """Shares that are still to come."""
    go_on: Callable[[Iterable[StateShare]], None]
    come: list[int] = field(default_factory=list)
    """The descriptors of shares that have come."""
    error: str | None = None
    """Why a share can't be packed."""

    def read(self) -> Iterator[StateShare]:
        if self.error is not None:
            for descriptor in self.come:
                os.close(descriptor)
            raise ConfigError(self.error)
        for descriptor in self.come:
            yield unpack_share(attached(descriptor))


class _Recorder:
    """Writes versions in a thread. The host keeps their slots until that is done."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, version: NamedVersion, order: messages.store.Record | messages.store.MakeBeginning) -> None:
        def write() -> None:
            try:
                digest = version.record(Path(order.file))
                self.send(messages.store.VersionRecorded(order.version, digest))
            except (OSError, SafetensorError) as error:
                self.send(
                    messages.store.StoreFailed(f"version {order.version} can't be written to {order.file}: {error}")
                )

        self._work.put(write)

    def keep(self, file: str, write: Callable[[], str]) -> None:
        """Write a file of a snapshot. If that fails, the run goes on with the earlier snapshots."""

        def keep() -> None:
            try:
                draft = Path(file).parent
                for folder in (draft.parent, draft):  # never the run's own, which a user may have removed
                    folder.mkdir(exist_ok=True)
                self.send(messages.store.FileKept(file, write(), None))
            except ConfigError as error:
                self.send(messages.store.FileKept(file, "", str(error)))
            except Exception as error:
                why = error if isinstance(error, OSError) else traced(error, "recorder")
                self.send(messages.store.FileKept(file, "", f"{file} can't be written: {why}"))

        self._work.put(keep)

    def share(self, store: Store, number: int) -> None:
        """Send the present state of the store's range, while commits go on."""
        keeping = store.begin_keeping()

        def send() -> None:
            _send_packed(self, partial(messages.store.ShareReady, number), lambda: pack_share(store.share(keeping)))

        self._work.put(send)

    def seal(self, order: messages.store.Seal) -> None:
        """Complete a snapshot, after all that was to be written before."""

        def write() -> None:
            try:
                _seal(Path(order.folder), order.state)
                for old in order.old:
                    shutil.rmtree(old, ignore_errors=True)
                self.send(messages.store.Sealed(None))
            except OSError as error:
                self.send(messages.store.Sealed(f"{order.folder} can't be written: {error.strerror}"))

        self._work.put(write)

    def drop(self, folder: str) -> None:
        """Remove a snapshot that can't be completed. The disk may be full."""
        self._work.put(partial(shutil.rmtree, folder, ignore_errors=True))

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        with self._sending:
            self._channel.send(message, descriptors)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)
        while (write := self._work.get()) is not None:
            try:
                write()
            except PeerLost:
                return
            except Exception as error:  # the host would otherwise wait for the file
                self.send(messages.store.StoreFailed(traced(error, "recorder")))


def _let_go(end: socket.socket) -> None:
    """Close the worker's descriptors, as its sockets and pipes would seem open after its death."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kept = end.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    os.mkdir = posix.mkdir  # the worker's own one notes each folder in a file that is closed now
