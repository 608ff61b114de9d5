"""The coordinator's line to the store's process: what the store says, and what its end means."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Literal

from paceline.core.items import Version
from paceline.core.listed import listed
from paceline.core.orders import ApplyUpdate
from paceline.errors import MessageUnreadable, PeerLost
from paceline.fabric.unix import Channel
from paceline.host import messages
from paceline.host.arithmetic import Arithmetic
from paceline.host.host import Host
from paceline.host.loop import Loop
from paceline.host.member import Member
from paceline.host.outbox import Outbox
from paceline.records.journal import Journal
from paceline.runtime.accounts import Accounts
from paceline.runtime.clock import Clock
from paceline.runtime.ending import Ending
from paceline.runtime.scores import Scores
from paceline.runtime.settings import Settings
from paceline.runtime.versions import Means, StoredVersions


class StoreLink:
    """Makes a client for the process that is to be forked, and passes on what that process says."""

    def __init__(
        self,
        settings: Settings,
        members: Mapping[int, Member],
        host: Host,
        versions: StoredVersions | Means,
        accounts: Accounts,
        scores: Scores,
        journal: Journal,
        ending: Ending,
        clock: Clock,
        loop: Loop,
        *,
        send: Callable[[Member, messages.Message, tuple[int, ...]], None],
        diverged: Callable[[str], None],
    ) -> None:
        """`diverged(what)` is told of a number that is NaN or infinite."""
        self.process: int | None = None
        """The store's process, once it says that it is there."""
        self._settings = settings
        self._members = members
        self._host = host
        self._versions = versions
        self._accounts = accounts
        self._scores = scores
        self._journal = journal
        self._ending = ending
        self._clock = clock
        self._loop = loop
        self._send = send
        self._diverged = diverged
        self._ready: Callable[[], None] = _unexpected
        self._not_forked: Callable[[], None] = _unexpected

    @property
    def arithmetic(self) -> Arithmetic:
        """The process, as the host sees it. The machine is told nothing before it is there."""
        assert self._host.arithmetic is not None
        return self._host.arithmetic

    @property
    def busy_with(self) -> str | None:
        """What the store is doing, if anything."""
        return None if self._host.busy_with is None else f"the store is {self._host.busy_with}"

    def listen(self, channel: Channel, ready: Callable[[], None], not_forked: Callable[[], None]) -> None:
        """A worker is told to fork the store, which is at the other end of this channel.

        `ready` is called when the store holds the first version, and `not_forked` if the worker can't set it up.
        """
        self._ready, self._not_forked = ready, not_forked
        self._loop.watch(channel, self._hear)
        full = "the parameter store does not read what it is sent"
        self._host.open(channel, Outbox(channel, self._loop, lambda: self._lost(full)))

    def look(self, member: Member, hold: bool) -> None:
        """Tell the worker where the newest version is, and keep that for it; see `messages.SnapshotWanted`."""
        worker = member.worker
        version = self._host.releases.hold(worker) if hold else self._host.releases.look(worker)
        self._send(member, messages.Snapshot(self._host.shelf.place(Version(version))), ())

    def abandon(self) -> None:
        """The worker that was to fork the store has ended before that."""
        if self._loop.watches(self.arithmetic.channel):
            self._loop.unwatch(self.arithmetic.channel)
        self.arithmetic.end()
        self._host.arithmetic = None

    def close(self) -> None:
        """Tell the store to end."""
        if self._host.arithmetic is not None:
            self._host.arithmetic.end()

    def _hear(self) -> None:
        store = self.arithmetic
        try:
            message, descriptors = store.channel.receive()
        except PeerLost:
            self._loop.unwatch(store.channel)
            if self.process is None:
                self._not_forked()
            return
        except MessageUnreadable as why:
            self._lost(f"the parameter store sent a message that can't be read ({why})")
            return
        match message:
            case messages.StoreReady(process=process, beginning=beginning):
                self._journal.ledger.note("beginning", beginning)
                self.process = process
                self._loop.await_end(process, self._died)
                self._ready()
            case messages.StoreFailed(error=error):
                self._lost(f"the parameter store failed: {error.strip()}")
            case messages.StateReady(worker=worker, error=error):
                self._pass_state_on(self._members[worker], error, descriptors)
            case messages.Committed():
                at = self._host.present = self._clock.at()  # workers that wait for it go on at the same moment
                self._host.made(message, at)
                self._host.present = None
            case messages.Recorded(version=version, sha256=sha256):
                self._host.written(version)
                self._written(version, sha256, None)
            case messages.MeanRecorded(version=version, sha256=sha256, distance=distance):
                self._host.written(version)
                self._written(version, sha256, distance)

    def _pass_state_on(self, member: Member, error: str | None, descriptors: list[int]) -> None:
        if error is not None:
            self._ending.refuse(error)
        elif member.here:
            self._send(member, messages.OptimizerState(), tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def _written(self, version: int, sha256: str, distance: float | None) -> None:
        self._versions.written(version, sha256, distance)
        self._scores.recorded()

    def not_finite(self, order: ApplyUpdate, parameter: str, worker: int | None) -> Literal[False]:
        """A commit found a NaN or an infinity. Return whether further ones matter."""
        if worker is None:
            steps = listed([f"step {step} of worker {w}" for w, step, _ in order.contributions])
            what = f'the parameter "{parameter}" is NaN or infinite in version {order.version}, made from {steps}'
        else:
            step = next(step for w, step, _ in order.contributions if w == worker)
            pushed = "gradient" if self._settings.choice.spec.optimizer == "store" else "update"
            what = f'the {pushed} of "{parameter}" is NaN or infinite in step {step} of worker {worker}'
        self._diverged(what)
        return False

    def idle_cores(self) -> int:
        """Cores that no worker computes on now."""
        computing = sum(member.trains and member.step is not None for member in self._members.values())
        return len(os.sched_getaffinity(0)) - computing * self._settings.threads

    def _died(self) -> None:
        self._lost("the parameter store's process died; the files in versions/ are whole")

    def _lost(self, message: str) -> None:
        if self._loop.watches(self.arithmetic.channel):  # what else it may say comes too late
            self._loop.unwatch(self.arithmetic.channel)
        self._host.lose()
        self._ending.fail(message)


def _unexpected() -> None:
    raise AssertionError("the store was not asked for")
