"""One host: its shelf, and a module for each kind of order that carries it out over the shelf."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.cluster.group_links import GroupLinks
from paceline.cluster.network import SharedLink
from paceline.cluster.scenario import Network
from paceline.core.facts import Fact, ReduceFailed, ReduceFinished, WorkerLeft
from paceline.core.items import Beginning, Version
from paceline.core.leases import Leases
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
    StepReplica,
)
from paceline.fabric.unix import Channel
from paceline.host import messages
from paceline.host.arithmetic import Arithmetic
from paceline.host.averages import Averages
from paceline.host.commits import NEWEST, Commits, Heard
from paceline.host.copies import Copies
from paceline.host.fetch import Local
from paceline.host.loop import Loop
from paceline.host.member import Member
from paceline.host.outbox import Outbox
from paceline.host.paced import Paced
from paceline.host.plan import Plan
from paceline.host.pulls import Pulls
from paceline.host.pushes import Pushes
from paceline.host.releases import Releases
from paceline.host.shelf import Shelf
from paceline.host.steps import Steps
from paceline.records.journal import Journal
from paceline.records.times import TransferTimes


class Host:
    """Carries out orders for its workers. What is lasting lies on its shelf, and nothing is copied here.

    `present` is the time of the event that is being handled: a fact, whose orders are carried out, or a message of the
    arithmetic process.
    """

    def __init__(
        self,
        plan: Plan,
        members: Mapping[int, Member],
        journal: Journal,
        loop: Loop,
        heard: Heard,
        *,
        network: Network | None,
        groups: GroupLinks | None,
        steps_in_store: bool,
        rate_scale: float,
        send: Callable[[Member, messages.Message], None],
        happened: Callable[[Fact], None],
        now: Callable[[], float],
        give_up: Callable[[Member, str], None],
        idle_cores: Callable[[], int],
    ) -> None:
        """`network` paces pushes and pulls, and `groups` averages.

        `now()` is seconds since the run's start. `happened` takes the facts that an order causes.
        `give_up(member, why)` ends a worker that can't go on. See `Commits` for the others.
        """
        self.plan = plan
        self.shelf = Shelf()
        self.present: float | None = None
        self.arithmetic: Arithmetic | None = None
        self.lost: dict[int, None] = {}
        """Workers that the machine was told have died: their buffers and replicas count no more."""
        self._members = members
        self._journal = journal
        self._now = now
        self._network = network
        local = Local(now, happened)
        self._fetcher = Paced(SharedLink.of(network), groups, local, now, self._moment, self._transferred)
        self.averages = Averages(self.shelf, plan, self._fetcher, members, loop, happened, now, give_up)
        self.steps = Steps(self.shelf, plan, members, journal, send, self.averages.needs_no_mean)
        self.averages.steps = self.steps
        self.copies = Copies(self.shelf, plan, self.steps)
        self.pushes = Pushes(self.shelf, plan, self._fetcher, members)
        self.commits = Commits(
            self.shelf,
            plan,
            self.pushes,
            heard,
            idle_cores=idle_cores,
            steps_in_store=steps_in_store,
            rate_scale=rate_scale,
        )
        self.pulls = Pulls(self.shelf, self.commits, self._fetcher, members)
        self.releases = Releases(self.shelf, self.pulls, self.pushes, self.commits, self.steps, members, send, now)

    # --- how orders are going -----------------------------------------------------------------------

    @property
    def applied(self) -> int:
        """Steps whose updates are in a version that is ordered, or in a replica."""
        return self.commits.steps + self.steps.steps

    @property
    def samples(self) -> int:
        """Samples in these."""
        return self.commits.samples + self.steps.samples

    @property
    def settled(self) -> bool:
        """Whether all orders for replicas are done."""
        return self.steps.settled and self.averages.settled

    @property
    def idle(self) -> bool:
        """Whether all versions that were ordered are made, and written if they were to be."""
        return self.commits.idle and not (self.arithmetic and self.arithmetic.writing)

    @property
    def busy_with(self) -> str | None:
        """What the arithmetic process is doing, if anything."""
        if self.commits.making is not None:
            return f"making version {self.commits.making}"
        return "writing a version to disk" if self.arithmetic and self.arithmetic.writing else None

    # --- the start ----------------------------------------------------------------------------------

    def open(self, channel: Channel, outbox: Outbox) -> None:
        """The arithmetic process is being forked, at the other end of that channel."""
        self.arithmetic = Arithmetic(channel, outbox, self.shelf)

    def begin(self, leases: Leases, model_bytes: int, replicas: Sequence[int]) -> None:
        """Training begins, with these leases of data. The first version is there. These workers own replicas of it."""
        assert self.arithmetic is not None
        self.steps.leases = self.commits.leases = leases
        self.commits.begin(self.arithmetic)
        given = None if self._network is None else self._network.message
        self._fetcher.size = model_bytes if given is None else given
        if replicas:
            self.steps.begin(replicas, Version(0))
            self.shelf.release(NEWEST)  # no store makes another one of it

    def reserve(self, worker: int) -> int:
        """Reserve a place for what that worker's script begins with, until `adopt` or `unreserve`."""
        place = self.shelf.put(Beginning(worker), ("beginning", worker), self.plan.shared)
        assert place is not None  # only the first version is there, and averages of it
        return place

    def unreserve(self, worker: int) -> None:
        """Nothing is written there any more, and no worker adopts it."""
        self.shelf.release(("beginning", worker))

    def adopt(self, worker: int, descriptors: list[int]) -> None:
        """The first version is what that worker has written from now on. The optimizer's state may come along.

        Replicas may have been averaged before. All were alike, and they are so now. So the averages under way are void.
        """
        assert self.arithmetic is not None
        self.arithmetic.adopt(descriptors)
        for other in self.steps.workers:
            self.steps.becomes(other, Beginning(worker))
        self.averages.void()
        if self.shelf.has(Version(0)):
            self.commits.adopted(worker)
        self.unreserve(worker)

    # --- orders and facts ---------------------------------------------------------------------------

    def carry_out(self, order: Order) -> None:
        """Carry out an order about items."""
        match order:
            case Release():
                self.releases.carry_out(order)
            case StartPull():
                self.pulls.carry_out(order)
            case StartPush():
                self.pushes.carry_out(order)
            case ApplyUpdate() | AdjustTraining():
                self.commits.carry_out(order)
            case StepReplica():
                self.steps.carry_out(order)
            case Reduce():
                self.averages.carry_out(order)
            case _:
                raise TypeError(f"{type(order).__name__} is not about items")

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now, so what the fact says of items takes effect at this moment.

        So what is read of replicas, for a mean say, depends only on the order of the facts.
        """
        match fact:
            case ReduceFinished(group=group):
                self.averages.finished(group)
            case ReduceFailed(group=group):
                self.averages.failed(group)
            case WorkerLeft(worker=worker, reason="died"):
                self.lost[worker] = None

    def next(self, until: float) -> Fact | None:
        """Return the fact of the earliest fetch that has ended by `until`."""
        return self._fetcher.next(until)

    def due(self) -> float | None:
        """Seconds until the next fetch ends, if one is under way."""
        return self._fetcher.due()

    # --- what workers and the arithmetic process say ------------------------------------------------

    def computed(self, member: Member, step: int) -> None:
        """The worker's step is computed: it no longer reads that version, and its update is about to come."""
        self.releases.computed(member.worker)
        if member.trains and not self.steps.owned_by(member.worker):
            self.pushes.ready(member.worker, step)
            self.commits.said(member.worker, step, member.scalars)
        self.commits.go_on()

    def dropped(self, worker: int, step: int) -> None:
        """There will be no update of this step, or none that counts: its place is free."""
        self.commits.dropped(worker, step)
        self.pushes.dropped(worker, step)
        self.steps.dropped(worker, step)

    def looked(self, worker: int) -> None:
        """The worker has copied the version that it looked at."""
        self.releases.looked(worker)
        self.commits.go_on()

    def left(self, member: Member) -> None:
        """The worker takes no part any more: what was on the way to it or from it never ends.

        What it shows stays claimed until its process ends, as its script may go on with the model.
        """
        self.pulls.left(member.worker)
        self.pushes.left(member.worker)
        if member.left != "died":  # the replica of any other counts in the means from now on
            self.steps.share(member.worker)
        self.averages.left(member.worker)
        self.commits.go_on()

    def gone(self, worker: int) -> None:
        """The worker's process has ended."""
        self.pushes.gone(worker)
        self.averages.gone(worker)
        self.steps.gone(worker)
        self.releases.gone(worker)
        self.commits.go_on()

    def made(self, message: messages.Committed, at: float) -> None:
        """The arithmetic process has made a version, heard at that moment."""
        self.commits.committed(message, at)

    def written(self, version: int) -> None:
        """The arithmetic process has written a version."""
        assert self.arithmetic is not None
        self.arithmetic.written(version)
        self.commits.go_on()

    def lose(self) -> None:
        """The arithmetic process has gone: its orders will not be done."""
        assert self.arithmetic is not None
        self.arithmetic.lose()
        self.commits.lost()

    def _moment(self) -> float:
        return self._now() if self.present is None else self.present

    def _transferred(self, worker: int, direction: str, number: int, size: int, times: TransferTimes) -> None:
        if direction != "average":  # a share that is made later ends an average later
            self._members[worker].transfers.append((direction, times.began, times.ended))
        self._journal.ledger.transferred(worker, direction, number, size, times)
