"""The one sequencer of a run: facts come in as messages, the machine's orders go out as messages.

It touches no tensor, and waits only for its loop.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from paceline.cluster.group_links import GroupLinks
from paceline.core.facts import Fact, GradientReady, StepDeclined, TrainingBegan, WorkerLeft
from paceline.core.leases import Batch, Dealing, Leases
from paceline.core.listed import listed, workers_named
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.errors import ConfigError, MessageUnreadable, PeerLost
from paceline.fabric.channel import Channel, pair
from paceline.fabric.memory import Region, available_bytes
from paceline.records.journal import Journal
from paceline.records.times import StepTimes
from paceline.runtime import messages
from paceline.runtime.adoption import Adoption
from paceline.runtime.alike import Alike
from paceline.runtime.board import Board
from paceline.runtime.disk import Disk
from paceline.runtime.evaluations import Evaluations
from paceline.runtime.evaluator import Evaluator
from paceline.runtime.exchange import Exchange
from paceline.runtime.loop import Loop
from paceline.runtime.losses import loss_is_borne, why_it_ends
from paceline.runtime.member import Member
from paceline.runtime.offers import (
    dealing,
    difference,
    epochs_over,
    lack_of_metrics,
    lack_of_work,
    region_bytes,
    remarks,
    unfit,
    work,
)
from paceline.runtime.outbox import Outbox
from paceline.runtime.output import Output
from paceline.runtime.processes import end_group, exit_phrase
from paceline.runtime.progress import Shower, shower
from paceline.runtime.recordings import Recordings
from paceline.runtime.replica_exchange import ReplicaExchange
from paceline.runtime.settings import Settings
from paceline.runtime.starts import to_begin
from paceline.runtime.store_client import StoreClient
from paceline.runtime.unused import unused
from paceline.runtime.versions import Means, StoredVersions
from paceline.runtime.view import Watch
from paceline.runtime.waits import WaitReports

GRACE = 2.0  # seconds that scripts have to end after SIGTERM or a failure: all must be gone within 5
GRACE_AT_CTRL_C = 30.0  # seconds that scripts have to save and test what they have, after Ctrl-C
GRACE_FOR_PARSERS = 10.0  # seconds that the others have to come to the same --help: only worker 0's is shown
GRACE_AT_LIMIT = 30.0  # seconds that scripts have to end after --max-steps or --max-seconds


class Coordinator:
    """Takes a run from its first process to its last. `facts` and `carry_out` are `drive`'s two ends."""

    def __init__(
        self,
        settings: Settings,
        members: list[Member],
        journal: Journal,
        output: Output,
        loop: Loop,
        on_begin: Callable[[messages.Offered], None],
    ) -> None:
        """`on_begin` is called when the script's part of the configuration is known."""
        self.settings = settings
        self.members = {member.worker: member for member in members}
        self.journal = journal
        self.outcome = "completed"
        self.error: str | None = None
        self.usage_error: str | None = None
        """What the script asked for and can't have, in one line."""
        self.parser_ended: int | None = None
        """The exit code that the script's own argument parser ended it with, before training."""
        self.leases = Leases("queue", [])
        self.recordings = Recordings(settings.folder, settings.record, journal)
        self.store: StoreClient | None = None
        self.store_process: int | None = None
        self._output = output
        output.after = loop.after
        self._loop = loop
        self._on_begin = on_begin
        self._spec = settings.choice.spec
        self._adoption = Adoption()
        self._alike = Alike()
        self._origin = time.monotonic()
        """When training began. `at` counts from here, so imports and loading data do not count."""
        self._happened: deque[Fact] = deque()
        self._region: Region | None = None
        self._host: Member | None = None
        """The worker that was asked to fork the store."""
        self._offer: messages.Offered | None = None
        """The protocol that training began with."""
        self._stopping = False
        self._interrupted = False
        self._grace = GRACE
        """Seconds that a script has to end once the run is stopped, and then what it has started."""
        self._late: dict[int, None] = {}
        """Workers that were ended after their grace."""
        self._told_epochs_over = False
        self._evaluations = Evaluations(self._send)
        self._evaluator: Evaluator | None = None
        self._met: dict[str, None] = {}
        """Targets that recorded versions have met."""
        self._at_once = False
        """Whether the run is to end without its last version, if that is not written yet."""
        self._let_go = False
        """Whether the workers were told to exit."""
        self._waits = WaitReports(settings.report_waits)
        self._disk = Disk(journal.ledger, loop, output.say)
        self._watch = Watch(settings, self.members, journal.tally, self._evaluations)
        self._shower: Shower | None = None
        self._board = Board(settings.folder) if settings.tensorboard else None
        self._deaths: dict[str, str] = {}
        """By worker: how it died."""
        self._leaving: list[tuple[Member, Callable[[Member], None]]] = []
        """Workers that leave when their last update has arrived, and how."""
        self._exchange: Exchange | ReplicaExchange
        self._versions: StoredVersions | Means
        if self._spec.family == "decentralized":
            network, links = settings.scenario.network, GroupLinks.of(settings.scenario, settings.workers)
            self._exchange = replicas = ReplicaExchange(
                self.members,
                loop,
                journal,
                self._send,
                self._happened.append,
                self._at,
                self._give_up,
                links,
                None if network is None else network.message,
            )
            self._versions = Means(
                replicas, self._spec.averages == "gradients", self.members, self.recordings, journal, self._at
            )
        else:
            network, steps_in_store = settings.scenario.network, self._spec.optimizer == "store"
            self._exchange = transfers = Exchange(
                network,
                steps_in_store,
                settings.choice.unapplied,
                self.members,
                journal,
                self._send,
                self._happened.append,
                self._at,
            )
            self._versions = StoredVersions(transfers, self.members, self.recordings)

    def open(self) -> None:
        """Listen to every worker."""
        for member in self.members.values():
            self._loop.watch(member.channel, lambda m=member: self._hear(m))  # type: ignore[misc]
            self._loop.watch(member.watch, lambda m=member: self._ended(m))  # type: ignore[misc]
            if member.printed is not None:
                self._loop.watch(member.printed, lambda m=member: self._pass_on(m))  # type: ignore[misc]
        self._let_scripts_begin()

    def facts(self) -> Iterator[Fact]:
        """Yield everything that happens, as it happens, until every worker's process has ended."""
        self.open()
        if self.settings.max_seconds is not None:
            self._loop.after(self.settings.max_seconds, lambda: self._stop_at_limit("--max-seconds"))
        self._loop.after(self.settings.report_waits, self._report_waits)
        self._shower = shower(self.settings, self._output)
        self._show_progress()
        while True:
            while (fact := self._next()) is not None:
                self._disk.wait()
                self._exchange.present = fact.at
                self._exchange.tell(fact)
                yield fact
                self._exchange.present = None
                self._end_postponed()
            writing = self._conclude() and not self._at_once
            if not writing and not any(member.here for member in self.members.values()):
                break
            if not self._happened:
                self._loop.wait(self._exchange.due())
        self._look_at_ends()
        self._look_at_use()

    def _look_at_ends(self) -> None:
        finished = [member for member in self.members.values() if member.left == "finished"]
        if all(member.failed for member in finished):
            self._fail("all workers died" + (" after training" if len(finished) == len(self.members) else ""))

    def _look_at_use(self) -> None:
        if self._offer is None or self.outcome != "completed":
            return
        steps, opened = bool(self._adoption.pushed), bool(self.leases.epochs)
        if self._stopping and not steps:  # a limit left no time for one
            return
        line = unused(self._offer, self.settings.workers, steps=steps, opened=opened, fetched=self.leases.left_over())
        if line is not None:
            self._output.say(line)

    def interrupt(self, times: int = 1, keyboard: bool = False) -> None:
        """Ctrl-C or a similar signal has come so many times. The first ends the run cleanly, the second at once.

        After one from the keyboard, scripts that train see a KeyboardInterrupt, and may go on to what follows it.
        """
        if not times:
            return
        again, self._interrupted = times > 1 or self._interrupted, True
        if self.outcome == "completed":  # a run that has failed or diverged by then stays so, with its error
            self.outcome = "interrupted"
        if again:
            self._at_once = True
            self._stop(0.0)
            for member in self.members.values():
                self._kill(member)
            return
        self._output.say("interrupted: ending the run (interrupt again to end it at once)")
        if self._stopping:  # a limit had stopped it more gently
            self._loop.after(GRACE, self._end_stragglers)
        elif keyboard and any(member.trains for member in self.members.values()):
            self._stop(GRACE_AT_CTRL_C, at_once=False, interrupted=True)
        self._stop(GRACE)

    def fail(self, message: str) -> None:
        """The run can't go on, through no fault of its user: end it."""
        self._fail(message)
        self._stop(GRACE)

    def close(self) -> None:
        """Tell the store to end, and show no more of how it goes."""
        if self._shower is not None:
            self._shower.close()
        if self._board is not None:
            self._board.close()
        if self._evaluator is not None:
            self._evaluator.end()
        if self.store is not None:
            self.store.end()

    def _at(self) -> float:
        return time.monotonic() - self._origin

    def _next(self) -> Fact | None:
        """Return the next fact, in the order of time: a transfer's end, or what was heard."""
        until = self._happened[0].at if self._happened else self._at()
        return self._exchange.next(until) or (self._happened.popleft() if self._happened else None)

    # --- what the machine orders --------------------------------------------------------------------

    def carry_out(self, order: Order) -> None:
        """Carry out the order."""
        match order:
            case Release() | StartPull() | StartPush() | Reduce():
                self._exchange.carry_out(order)
            case ApplyUpdate() | StepReplica():
                self._exchange.carry_out(order)
                self._versions.ordered(order.version)
                self._look_at_max_steps()
            case Hold(worker=worker, why=why):
                self.members[worker].wait(self.settings.choice.sentence(why))
            case DropUpdate(worker=worker, step=step, samples=samples):
                self._exchange.dropped(self.members[worker], step)
                self.leases.drop(worker, step, samples)
            case AdjustTraining(worker=worker, learning_rate_scale=scale, momentum_scale=momentum):
                self.members[worker].rate_scale = scale * self.settings.learning_rate_scale
                self.members[worker].momentum_scale = momentum
            case LeaveOut(worker=worker):
                self.leases.leave_out(worker)
            case SwitchProtocol(to=name, members=members):
                for worker, _, _ in members:
                    self.leases.join(worker)
                part = next(part for part in self.settings.choice.parts if part.spec.name == name)
                self.leases.deal("rounds" if part.spec.rounds else "queue")
                if not self.settings.quiet:
                    self._output.say(f"{name} decides from here on: {self.settings.choice.sentence(order.why)}")

    def _look_at_max_steps(self) -> None:
        limit = self.settings.max_steps
        if limit is not None and self._exchange.steps >= limit and not self._stopping:
            # once the orders that came with this one are carried out: then workers and machine agree
            self._loop.after(0.0, lambda: self._stop_at_limit("--max-steps"))

    # --- the start ----------------------------------------------------------------------------------

    def _let_scripts_begin(self) -> None:
        """Tell workers whose scripts are to begin. Note what the others wait for."""
        if self._stopping or self.settings.start == "together":
            return
        if begin := to_begin(self.members.values()):
            for member in begin:
                member.begun = True
                member.wait(None)
                self._send(member, messages.Start())
            for member in self.members.values():
                if not member.begun and member.stage == "starting":
                    member.wait(f"the start waits until worker {begin[0].worker} calls prepare()")

    def _start_if_all_are_here(self) -> None:
        """Once no worker is still on its way to `prepare`, the lowest worker forks the store."""
        offered = [member for member in self.members.values() if member.stage == "offered"]
        on_the_way = any(member.stage == "starting" for member in self.members.values())
        if self._stopping or self._offer or self._host or on_the_way or not offered:
            return
        first = offered[0].offer
        assert first is not None
        for member in offered:
            assert member.offer is not None
            why = difference(first, member.offer)
            if why:
                self._refuse(f"worker {member.worker} differs from worker {offered[0].worker}: {why}")
                return
        slots, areas = self._exchange.slots, self._exchange.areas
        if self._region is None:
            why = lack_of_work(first, self.settings) or lack_of_metrics(first, self.settings)
            why = why or unfit(first, self.settings)
            why = why or self._exchange.lack_of_memory(first, available_bytes())
            if why:
                self._refuse(why)
                return
            self._region = Region.create(region_bytes(first, slots, self.settings.workers * areas))
        ours, theirs = pair()
        channel = Channel(ours, messages.FromStore, "the store")
        self._loop.watch(channel, self._hear_store)
        self.store = StoreClient(
            channel,
            Outbox(channel, self._loop, lambda: self._store_lost("the parameter store does not read what it is sent")),
            slots,
            idle_cores=self._idle_cores,
            timed=self._committed,
            applied=self._exchange.applied,
            made=self._versions.made,
            checked=self.journal.ledger.checked,
            written=self._written,
            not_finite=self._not_finite,
        )
        self._host = offered[0]
        self._host.wait("the store is being set up")
        ends = [theirs, *([self._listen_to_evaluator()] if self.settings.stop_at_target else [])]
        self._send(
            self._host, messages.ForkStore(slots, areas), (self._region.descriptor, *(end.fileno() for end in ends))
        )
        for end in ends:
            end.close()

    def _store_ready(self, process: int) -> None:
        self.store_process = process
        watch = os.pidfd_open(process)
        self._loop.watch(watch, lambda: self._store_died(watch))
        offered = [member for member in self.members.values() if member.stage == "offered"]
        if self._stopping or not offered:
            return
        assert self._region is not None
        self._offer = offer = offered[0].offer
        assert offer is not None
        self.leases = self._new_leases(dealing(offer, self.settings), [member.worker for member in offered])
        for member in offered:
            member.stage = "training"
            self._begin(member)
        for seconds, worker in self.settings.scenario.kills_by_time():
            self._loop.after(seconds, lambda w=worker: self._kill(self.members[w]))  # type: ignore[misc]
        for line in remarks(offer, self.settings):
            self._output.say(line)
        self._on_begin(offer)
        if absent := [worker for worker, member in self.members.items() if member.stage != "training"]:
            self.journal.ledger.note("absent", absent)
        self._exchange.begin(self._store(), self.leases, offer.model_bytes)
        self._versions.begin(self._store(), offer)
        self._origin = time.monotonic()
        hosts = self.settings.scenario.hosts(self.settings.workers)
        members = tuple((m.worker, hosts[m.worker], 0) for m in offered)
        self._watch.work = amount = work(offer, self.settings)
        seed = self.settings.seed
        self._happened.append(TrainingBegan(members=members, version=0, at=self._at(), work=amount, seed=seed))

    def _begin(self, member: Member) -> None:
        """Let the worker in: with the region, and what sockets it needs."""
        assert self._region is not None
        ends = self._exchange.connect(member)
        begin = messages.Begin(self._exchange.slots, self._exchange.areas)
        self._send(member, begin, (self._region.descriptor, *(end.fileno() for end in ends)))
        for end in ends:
            end.close()

    def _new_leases(self, dealing: Dealing, workers: list[int]) -> Leases:
        return Leases(dealing, workers)

    # --- what workers say ---------------------------------------------------------------------------

    def _hear(self, member: Member) -> None:
        try:
            message, descriptors = member.channel.receive()
        except PeerLost:
            self._loop.unwatch(member.channel)
            return
        except MessageUnreadable as why:
            self._give_up(member, f"it sent a message that can't be read ({why})")
            return
        member.heard = time.monotonic()
        match message:
            case messages.StepFinished():
                self._step_finished(member, message)
            case messages.LeaseWanted():
                self._lease(member, message)
            case messages.OrderDrawn():
                self._order_drawn(message)
            case messages.GivenBack(batches=batches):
                if member.trains and self._holds(member, batches):
                    self.leases.give_back(member.worker, _batches(batches))
            case messages.LookedAt(epoch=epoch, batches=batches, ran_out=ran_out):
                if member.trains:
                    if ran_out:
                        self.journal.ledger.looked_at(member.worker, epoch, None)
                    for batch in self.leases.put_back(member.worker, epoch, _batches(batches)):
                        self.journal.ledger.looked_at(member.worker, batch.epoch, batch.index)
            case messages.Logged(step=step, scalars=scalars):
                member.logged |= scalars
                if self._board is not None:
                    self._board.logged(member.worker, step, scalars)
                for name, value in scalars.items():
                    self.journal.ledger.logged(member.worker, step, self._at(), name, value)
            case messages.Remarked(line=line):
                self._output.say(f"worker {member.worker} {line}")
            case messages.Offered():
                member.offer, member.stage, member.scalars = message, "offered", message.scalars
                member.wait("the start waits for the other workers")
                self._let_scripts_begin()
                self._start_if_all_are_here()
            case messages.Refused(message=text):
                self._refuse(text)
            case messages.StoreNotForked(error=error):
                self.fail(f"the parameter store can't be started: {error}")
            case messages.ParserEnded(code=code):
                self.parser_ended = code
                self._fail(f"the script's own argument parser ended it, with exit code {code}")
                self._stop(GRACE_FOR_PARSERS)
            case messages.Stepped(step=step, not_finite=not_finite):
                assert isinstance(self._exchange, ReplicaExchange)
                self._exchange.stepped(member, step)
                if not_finite is not None:
                    what = (
                        f'the parameter "{not_finite}" is NaN or infinite after step {step} of worker {member.worker}'
                    )
                    self._diverged(what)
            case messages.Declined():
                if member.trains and member.step is not None:
                    step, member.step = member.step, None
                    self._exchange.dropped(member, step)
                    self._happened.append(StepDeclined(worker=member.worker, step=step, at=self._at()))
            case messages.EpochsOver():
                if not self._told_epochs_over and self._offer is not None and not self._stopping:
                    self._told_epochs_over = True
                    self._output.say(epochs_over(self._offer, self.settings))
            case messages.SnapshotWanted(hold=hold):
                self._snapshot(member, hold)
            case messages.SnapshotTaken():
                self._end_look(member)
            case messages.StateWanted():
                self._store().want_state(member.worker)
            case messages.AdoptionWanted(digest=digest):
                self._adoption_wanted(member, digest)
            case messages.Adopted():
                self._adopted(member, descriptors)
            case messages.FinishWanted():
                self._finish_wanted(member)
            case messages.ScriptEnded():
                self._script_ended(member)
            case messages.Evaluated(version=version, metrics=metrics):
                self._evaluated(version, metrics)
                self._evaluations.done()
            case messages.EvaluationFailed(version=version, error=error):
                self._evaluation_failed(f"evaluate() raised, on version {version}: {error}")

    def _step_finished(self, member: Member, message: messages.StepFinished) -> None:
        if member.finished is not None:
            self._step_times(member, message.waited, message.pulled)
        member.finished, member.finished_at = message, self._at()
        if message.scalars is not None:
            member.scalars = message.scalars
        self._exchange.gradient_ready(member, message.step)
        if not member.trains:
            return  # it was on its way when the run was stopped: its batches returned then
        self._adoption.pushed.add(member.worker)
        if not self._adoption.agrees(member.worker):
            self._refuse(self._adoption.disagreement(member.worker))
            return
        if message.gradient is not None and (line := self._alike.warning(member.worker, message.gradient)):
            self._output.say(line)
        worker, step, ledger = member.worker, message.step, self.journal.ledger
        if not self._holds(member, [*message.skipped, *(message.batches or ())]):
            return
        self.leases.skip(worker, _batches(message.skipped))
        for epoch, index in message.skipped:
            ledger.batch_used(worker, step, epoch, index, "skipped")
        samples = None
        if message.batches is not None:
            samples = self.leases.bind(worker, step, _batches(message.batches))
            for epoch, index in message.batches:
                ledger.batch_used(worker, step, epoch, index, "step")
        rates = [float(group.get("lr", 0.0)) for group in member.scalars]
        ledger.pushed(worker, step, rates, samples)
        member.step = None
        at = self._at()
        self._happened.append(GradientReady(worker=worker, step=step, version=message.version, samples=samples, at=at))

    def _holds(self, member: Member, batches: list[tuple[int, int]]) -> bool:
        """Whether these batches were leased to the worker, each once. If not, its message is false: give it up."""
        held = self.leases.held.get(member.worker, {})
        strange = [pair for pair in batches if Batch(*pair) not in held]
        if not strange and len(set(batches)) == len(batches):
            return True
        epoch, index = (strange or batches)[0]
        self._give_up(member, f"it used batch {index} of epoch {epoch}, which it was not leased")
        return False

    def _committed(self, version: int, at: float) -> None:
        self.journal.ledger.committed(version, at)

    def _step_times(self, member: Member, wait: float, pull: float) -> None:
        done, member.finished = member.finished, None
        assert done is not None
        began = done.began - self._origin
        pushing, pulling = member.exposed(self._at())
        wait = max(0.0, wait - pushing - pulling)
        times = StepTimes(began, done.compute, done.push + pushing, wait, pull + pulling, done.other)
        self.journal.step_times(member.worker, done.step, times)

    def _lease(self, member: Member, wanted: messages.LeaseWanted) -> None:
        if not member.trains:
            self._send(member, messages.EpochOver())
        elif (undrawn := self.leases.undrawn(member.worker, wanted.epoch)) is not None:
            self._send(member, messages.OrderWanted(*undrawn))
        else:
            try:
                batch = self.leases.take(member.worker, wanted.epoch, wanted.digest, wanted.blocks)
            except ConfigError as error:
                self._refuse(str(error))
                return
            leased = None if batch is None else (batch.epoch, batch.index)
            self.journal.ledger.leased(member.worker, wanted.epoch, leased)
            self._send(member, messages.EpochOver() if batch is None else messages.Leased(batch.epoch, batch.index))

    def _order_drawn(self, drawn: messages.OrderDrawn) -> None:
        """The worker asks for its batch once more. Another worker may have drawn the same block meanwhile."""
        opened = self.leases.epochs.get(drawn.epoch)
        if drawn.block != (0 if opened is None else len(opened.digests)):
            return
        first = 0 if opened is None else len(opened.sizes)
        self.leases.open(drawn.epoch, [len(batch) for batch in drawn.order], drawn.digest, drawn.last)
        self.journal.ledger.epoch_opened(drawn.epoch, drawn.order, drawn.digest, first, drawn.samples)
        if drawn.block == 0 and drawn.samples is not None:
            self.recordings.epoch_opened(drawn.samples)
            self._watch.epoch_opened(drawn.samples, self._offer.epochs if self._offer else None)

    def _snapshot(self, member: Member, hold: bool) -> None:
        store = self._store()
        version = store.slots.newest
        if hold:
            self._exchange.let_go_of_slot(member)
            member.reading = version
        else:
            self._end_look(member)
            member.looks_at = version
        store.when_made(version, lambda slot: self._send(member, messages.Snapshot(version, slot)))

    def _end_look(self, member: Member) -> None:
        if member.looks_at is not None and self.store is not None:
            self.store.unclaim(member.looks_at)
        member.looks_at = None

    def _adoption_wanted(self, member: Member, digest: str) -> None:
        """The worker's script changed the parameters or the optimizer before its first step."""
        if not member.trains:
            return
        self._adoption.wanted(member.worker, digest)
        self._go_on_with_adoption()

    def _adopted(self, member: Member, descriptors: list[int]) -> None:
        slot = self._adoption.done(member.worker)
        self.journal.ledger.note("beginning", self._adoption.adopted)
        self._exchange.adopt(slot, descriptors)
        self._go_on_with_adoption()

    def _go_on_with_adoption(self) -> None:
        """One worker writes what all begin with. The others, whose changes must be the same, go on after it."""
        worker = self._adoption.to_write()
        if worker is not None:
            if self._adoption.pushed:
                self._refuse(self._adoption.too_late(worker))
                return
            slot = self._exchange.reserve()
            self._adoption.writes(worker, slot)
            self._send(self.members[worker], messages.AdoptInto(slot))
        for worker in self._adoption.to_let_on():
            if not self._adoption.agrees(worker):
                self._refuse(self._adoption.disagreement(worker))
                return
            self._send(self.members[worker], messages.AdoptedAlready())

    # --- leaving ------------------------------------------------------------------------------------

    def _finish_wanted(self, member: Member) -> None:
        if self._postponed(member, self._finish_wanted):
            return
        member.finishing = True
        self._leave(member, "finished")
        member.wait("finish() waits until the other workers end")

    def _postponed(self, member: Member, end: Callable[[Member], None]) -> bool:
        """Whether the worker may not leave yet, as its last update is still on its way. It leaves after that."""
        if not (member.trains and member.here and member.on_the_way):
            return False
        member.wait("the last update is on its way to the store")
        member.step = None  # it was released for this step, and has no data for it
        self._leaving.append((member, end))
        return True

    def _end_postponed(self) -> None:
        """Workers that only waited for their last update leave now."""
        leaving, self._leaving = self._leaving, []
        for member, end in leaving:
            if member.here:
                end(member)  # or is put off once more

    def _script_ended(self, member: Member) -> None:
        if self._postponed(member, self._script_ended):
            return
        prepared = member.stage != "starting"
        self._leave(member, "finished")
        member.stage = "ended"
        if not prepared:
            self._fail(
                f"{self.settings.script} ended without calling paceline.prepare(); add the line "
                "model, optimizer, loader = paceline.prepare(model, optimizer, loader) before its loop"
            )
            self._stop(GRACE)
        member.wait("the script has ended, and the run goes on")
        self._start_if_all_are_here()

    def _leave(self, member: Member, reason: str) -> None:
        """The worker trains no more: tell the machine if it did, and return what the worker held."""
        if member.left is None:
            member.left = "finished" if reason == "finished" else "died" if reason == "died" else "stopped"
        if not member.trains:
            return
        member.stage, member.step = "closing", None
        member.wait(None)
        self._exchange.left(member)
        if member.finished is not None:
            self._step_times(member, member.waited_until(self._at()) - member.finished_at, 0.0)
        self.leases.leave(member.worker, died=reason == "died")
        self._happened.append(WorkerLeft(worker=member.worker, reason=reason, at=self._at()))

    def _ended(self, member: Member) -> None:
        """The process has ended: hear what it had still said, then see how it ended."""
        end_group(member.process)  # and whatever it had started and left behind
        while self._loop.watches(member.channel) and member.channel.ready():
            self._hear(member)
        while member.printed is not None and self._loop.watches(member.printed) and self._pass_on(member):
            pass
        for source in (member.channel, member.printed, member.watch):  # a stranger may hold their other ends open
            if source is not None and self._loop.watches(source):
                self._loop.unwatch(source)
        os.close(member.watch)
        member.channel.close()
        _, status = os.waitpid(member.process, 0)
        if status == 0 and member.stage != "ended":
            member.on_the_way.clear()  # no worker is waited for, as none is left that could be told
            self._script_ended(member)  # by os._exit(0), say: the script could not tell
        ended_well = member.stage == "ended"
        step = "" if member.step is None else f" in step {member.step}"
        if not ended_well:
            self._leave(member, "stopped" if self._stopping else "died")
        member.stage, member.finishing = "gone", False
        self._exchange.gone(member)
        self._end_look(member)
        unwritten = self._adoption.lost(member.worker)
        if unwritten is not None:
            self._exchange.unreserve(unwritten)
        self._go_on_with_adoption()
        if not ended_well and not self._stopping:
            self._died(member, status, step)
        if self._evaluations.lost(member):
            left = any(other.stage == "ended" for other in self.members.values())
            goes_on = left and self.outcome == "completed"
            how, at = exit_phrase(status), " while it evaluated a version"
            self._output.died(member, how, at + ("; another worker does" if goes_on else ""))
            if not goes_on:
                self._evaluation_failed(
                    f"worker {member.worker} died ({how}){at}, and no other worker is left to do so"
                )
        if self._host is member and self.store_process is None:
            assert self.store is not None
            if self._loop.watches(self.store.channel):
                self._loop.unwatch(self.store.channel)
            self.store.end()
            self.store = self._host = None  # another worker forks the store
        self._let_scripts_begin()
        self._start_if_all_are_here()

    def _died(self, member: Member, status: int, step: str) -> None:
        member.failed, how = True, exit_phrase(status)
        self._deaths[str(member.worker)] = how
        self.journal.ledger.note("deaths", self._deaths)
        others = any(other.here and other.stage != "ended" for other in self.members.values())
        goes_on = others and self._goes_on_without(member, status)
        self._output.died(member, how, step + ("; the others go on" if goes_on else ""))
        if not loss_is_borne(self.settings.on_loss, status):
            self._fail(f"worker {member.worker} died ({how}){step}{why_it_ends(self.settings.on_loss, others)}")
            self._stop(GRACE)

    def _goes_on_without(self, member: Member, status: int) -> bool:
        return loss_is_borne(self.settings.on_loss, status)

    def _give_up(self, member: Member, why: str) -> None:
        """The worker can't go on, through no fault of the others: end it, and say why."""
        if self._loop.watches(member.channel):  # what else it may say means nothing
            self._loop.unwatch(member.channel)
        if member.here:
            self._output.say(f"worker {member.worker} is ended: {why}")
        self._kill(member)

    def _kill(self, member: Member) -> None:
        if member.here:
            os.kill(member.process, signal.SIGKILL)

    # --- the end ------------------------------------------------------------------------------------

    def _stop(self, grace: float, at_once: bool = True, interrupted: bool = False) -> None:
        """Nothing is left to do: tell every worker, and give its script so long to end."""
        if self._stopping:
            return
        self._stopping, self._grace = True, grace
        for member in self.members.values():
            if member.here and member.stage != "ended":
                self._leave(member, "stopped")
                self._send(member, messages.Stop(at_once, interrupted))
        self._loop.after(grace, self._end_stragglers)

    def _stop_at_limit(self, limit: str) -> None:
        if self._stopping:
            return
        if self._offer is None:
            self._fail(f"{limit} was reached before training began")
        self._output.say(f"{limit} is reached: ending the run")
        self._stop(GRACE_AT_LIMIT, at_once=False)
        for member in self.members.values():
            member.left = "finished" if member.here else member.left

    def _end_stragglers(self) -> None:
        """Kill the workers whose scripts run on; of a run that is not to be completed, all others too."""
        running = [member for member in self.members.values() if member.here and member.stage != "ended"]
        if running:
            said = "has not ended its script" if len(running) == 1 else "have not ended their scripts"
            self._end_late(running, f"{said} in time")
        if self.outcome != "completed":  # else workers whose scripts have ended may evaluate versions
            self._end_leftovers()

    def _end_leftovers(self) -> None:
        """Kill the workers whose scripts have ended, but not what a script started: a thread that waits, say."""
        ended = [member for member in self.members.values() if member.here and member.stage == "ended"]
        if ended := [member for member in ended if member.worker not in self._late]:
            self._end_late(ended, "still runs after its script" if len(ended) == 1 else "still run after their scripts")

    def _end_late(self, members: list[Member], why: str) -> None:
        self._late.update((member.worker, None) for member in members)
        is_ended = "is ended" if len(members) == 1 else "are ended"
        self._output.say(f"{workers_named(member.worker for member in members)} {why} and {is_ended}")
        for member in members:
            self._kill(member)

    def _refuse(self, message: str) -> None:
        self.usage_error = self.usage_error or message
        self._fail(message)
        self._stop(GRACE)

    def _fail(self, message: str) -> None:
        if self.outcome == "completed":
            self.outcome, self.error = "failed", message

    def _conclude(self) -> bool:
        """When no worker trains any more: record the last version, have versions evaluated, let processes go.

        Return whether the last version is still to be written, though all workers may have gone.
        """
        members = self.members.values()
        if self._happened or any(member.stage in ("starting", "offered", "training") for member in members):
            return False
        if self._offer is not None and not self._store().lost and self.recordings.final is None:
            if not self._store().idle or self._versions.record_last():
                return True
            if self.recordings.newest.version in self.recordings.hashes:
                self.recordings.conclude()
        for member in members:
            if member.finishing:
                member.finishing = False
                member.wait(None)
                self._send(member, messages.FinalRecorded(self.recordings.final))
        if any(member.stage not in ("ended", "gone") for member in members) or self._evaluations.present:
            return False
        wanted = self.outcome == "completed" and self._offer is not None and self._offer.evaluates
        if wanted and self._evaluator is not None and not self._evaluator.idle:
            return True
        done = self.journal.tally.metrics
        self._evaluations.begin([one for one in self.recordings.files() if one[0] not in done] if wanted else [])
        ended = [member for member in members if member.stage == "ended"]
        if self._evaluations.pending and not ended:
            self._look_at_ends()  # that all have died is the better message
            self._evaluation_failed("no worker is left to evaluate the recorded versions: all processes have ended")
        if not self._evaluations.go_on(ended) and not self._let_go:
            self._let_go = True
            for member in ended:
                self._send(member, messages.Exit())
            if self._stopping or self.outcome != "completed":  # a completed run's scripts may take their time
                self._loop.after(self._grace, self._end_leftovers)
        return False

    # --- evaluating while workers train -------------------------------------------------------------

    def _listen_to_evaluator(self) -> socket.socket:
        """Listen to the process that is to be forked; returns its end."""
        if self._evaluator is not None:  # of a worker that died before it had forked the store
            self._evaluator.end()
        ours, theirs = pair()
        channel = Channel(ours, messages.FromEvaluator, "the process that evaluates")
        told = self._evaluated, self._could_not_evaluate, self._evaluator_lost
        self._evaluator = Evaluator(channel, self._loop, *told)
        return theirs

    def _written(self, version: int, sha256: str, distance: float | None = None) -> None:
        self._versions.written(version, sha256, distance)
        if self._evaluator is not None and self.outcome == "completed":
            self._evaluator.recorded(*self.recordings.files()[-1])

    def _evaluated(self, version: int, metrics: dict[str, float]) -> None:
        self.journal.evaluated(version, metrics)
        if self._board is not None:
            made, _ = self.journal.tally.recorded_versions[version]
            self._board.evaluated(version, self._at() - made, metrics)
        targets = self.settings.targets
        self._met |= {target.text: None for target in targets if target.met_by(metrics)}
        trains = any(member.trains for member in self.members.values())
        if self.settings.stop_at_target and trains and all(target.text in self._met for target in targets):
            self._stop_at_limit(f"--stop-at-target: {', '.join(self._met)}")

    def _could_not_evaluate(self, version: int, error: str) -> None:
        self.fail(
            f"evaluate() raised, on version {version}: {error}; with --stop-at-target it has what the script had made "
            "when it called prepare()"
        )

    def _evaluator_lost(self) -> None:
        if self.outcome == "completed":
            what = "the run does not stop at its target, and the other versions are evaluated after training"
            self._output.say(f"the process that evaluates has died: {what}")

    def _evaluation_failed(self, message: str) -> None:
        self._evaluations.give_up()
        self._fail(message)

    # --- the store ----------------------------------------------------------------------------------

    def _store(self) -> StoreClient:
        assert self.store is not None  # the machine is told nothing before the store is there
        return self.store

    def _idle_cores(self) -> int:
        """Cores that no worker computes on now."""
        computing = sum(member.trains and member.step is not None for member in self.members.values())
        return len(os.sched_getaffinity(0)) - computing * self.settings.threads

    def _hear_store(self) -> None:
        store = self._store()
        try:
            message, descriptors = store.channel.receive()
        except PeerLost:
            self._loop.unwatch(store.channel)
            if self.store_process is None and self._host is not None and self._host.here:
                self._kill(self._host)  # it could not set up the store: another one tries
            return
        except MessageUnreadable as why:
            self._store_lost(f"the parameter store sent a message that can't be read ({why})")
            return
        match message:
            case messages.StoreReady(process=process, beginning=beginning):
                self.journal.ledger.note("beginning", beginning)
                self._store_ready(process)
            case messages.StoreFailed(error=error):
                self._store_lost(f"the parameter store failed: {error.strip()}")
            case messages.StateReady(worker=worker, error=error):
                self._pass_state_on(self.members[worker], error, descriptors)
            case messages.Committed() | messages.Recorded() | messages.MeanRecorded():
                at = self._exchange.present = self._at()  # workers that wait for the version go on at the same moment
                store.handle(message, at)
                self._exchange.present = None

    def _pass_state_on(self, member: Member, error: str | None, descriptors: list[int]) -> None:
        if error is not None:
            self._refuse(error)
        elif member.here:
            self._send(member, messages.OptimizerState(), tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def _not_finite(self, order: ApplyUpdate, parameter: str, worker: int | None) -> bool:
        """A commit found a NaN or an infinity. Return whether further ones matter."""
        if worker is None:
            steps = listed([f"step {step} of worker {w}" for w, step, _ in order.contributions])
            what = f'the parameter "{parameter}" is NaN or infinite in version {order.version}, made from {steps}'
        else:
            step = next(step for w, step, _ in order.contributions if w == worker)
            pushed = "gradient" if self._spec.optimizer == "store" else "update"
            what = f'the {pushed} of "{parameter}" is NaN or infinite in step {step} of worker {worker}'
        self._diverged(what)
        return False

    def _diverged(self, what: str) -> None:
        if self.settings.on_divergence == "continue":
            self._output.say(f"{what}; going on (--on-divergence continue)")
        elif self.outcome == "completed":
            self.outcome, self.error = "diverged", what
            self._stop(GRACE)

    def _store_died(self, watch: int) -> None:
        self._loop.unwatch(watch)
        os.close(watch)
        self._store_lost("the parameter store's process died; the files in versions/ are whole")

    def _store_lost(self, message: str) -> None:
        if self._loop.watches(self._store().channel):  # what else it may say comes too late
            self._loop.unwatch(self._store().channel)
        self._store().lose()
        self._fail(message)
        self._stop(GRACE)

    # --- talking ------------------------------------------------------------------------------------

    def _send(self, member: Member, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        try:
            member.channel.send(message, descriptors, block=False)
        except PeerLost:  # it has died, or has not read hundreds of messages that it needs to go on
            self._kill(member)

    def _pass_on(self, member: Member) -> bool:
        """Pass on what is there. Return whether there was anything."""
        assert member.printed is not None
        size = self._output.pass_on(member.worker, member.log, member.printed)
        if size == 0:
            self._loop.unwatch(member.printed)
        return bool(size)

    def _report_waits(self) -> None:
        store = self.store.busy_with if self.store is not None else None
        besides = self._disk.busy_with or (f"the store is {store}" if store else None)
        for line in self._waits.lines(self.members.values(), besides, time.monotonic()):
            self._output.say(line)
        self._loop.after(self.settings.report_waits, self._report_waits)

    def _show_progress(self) -> None:
        if self._shower is not None:
            self._shower.show(self._watch.look(self._at()))
            self._loop.after(self._shower.every, self._show_progress)


def _batches(pairs: list[tuple[int, int]]) -> tuple[Batch, ...]:
    return tuple(Batch(epoch, index) for epoch, index in pairs)
