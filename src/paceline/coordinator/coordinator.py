"""The one sequencer of a run: facts come in as messages, the machine's orders go out as messages.

It touches no tensor, and waits only for its loop. It reads no clock and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from paceline.coordinator.ledger_backpressure import PAUSE, LedgerBackpressure
from paceline.coordinator.lifecycle import Closing, Gathering, Training, begin
from paceline.coordinator.member import Member
from paceline.coordinator.remarks import Alike, EarlyLeavers, unused
from paceline.coordinator.run_state import RunState
from paceline.core.facts import Fact, GradientReady, StepDeclined
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    CopyReplica,
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
from paceline.host.contract import called
from paceline.ipc import messages
from paceline.ipc.processes import exit_phrase
from paceline.job.compatibility import epochs_over, unmeasured
from paceline.job.interrupts import without_handler

GRACE_FOR_PARSERS = 10.0  # seconds that the others have to come to the same --help: only worker 0's is shown


class Coordinator:
    """Takes a run from its first process to its last. `facts` and `carry_out` are `drive`'s two ends.

    What happens and what is ordered is passed on to the rooms. What there is to know is in them.
    """

    def __init__(self, rooms: RunState, on_begin: Callable[[messages.Offered], None]) -> None:
        """`on_begin` is called when the script's part of the configuration is known, and as hosts come later."""
        self.rooms = rooms
        self.phase: Gathering | Training | Closing = Gathering(rooms)
        self.parser_ended: tuple[int, int] | None = None
        """The first of the workers whose script its own argument parser has ended, before training; the exit code."""
        self._on_begin = on_begin
        self._alike = Alike()
        self._early = EarlyLeavers()
        self._disk = LedgerBackpressure(rooms.journal.ledger, rooms.output.say)
        self._told_epochs_over = False

    def open(self) -> None:
        """Listen to every worker, and let scripts begin."""
        self.rooms.news.pass_on(self._hear, self._gone, self._begin)
        self.rooms.returns.in_vain = self._not_back
        if self.rooms.others is not None:
            self.rooms.others.gathered = self._go_on
        self.rooms.host.open()
        assert isinstance(self.phase, Gathering)
        self.phase.go_on()

    def facts(self) -> Iterator[Fact]:
        """Yield everything that happens, as it happens, until every worker's process has ended."""
        rooms = self.rooms
        self.open()
        rooms.limits.begin()
        rooms.display.report_waits(self._busy_with)
        rooms.display.show()
        while True:
            if self._disk.behind():  # no fact is under way: what the loop hears comes after those that wait
                rooms.loop.wait(PAUSE)
                continue
            if (fact := self._next()) is not None:
                rooms.clock.present = fact.at
                rooms.tell(fact)
                yield fact
                rooms.snapshots.go_on()
                rooms.clock.present = None
                rooms.leaving.go_on()
                continue
            rooms.returns.go_on()
            rooms.agreeing.go_on()
            self._take_in()
            if rooms.draining is not None and isinstance(self.phase, Training) and not rooms.ending.stopping:
                rooms.draining.go_on()
            if self.ended():
                break
            if not rooms.happened:
                rooms.loop.wait(rooms.host.due())
        self._look_at_use()

    def carry_out(self, order: Order) -> None:
        """Carry out the order."""
        rooms = self.rooms
        match order:
            case Release(worker=worker, step=step):
                rooms.snapshots.before_release()
                rooms.joining.released(order)
                rooms.agreeing.released(worker)
                self._tell_decisions(worker)
                if order.parameters == "own":
                    rooms.versions.counts(worker)  # a joiner has no copy of another's replica if nobody is left
                member = rooms.members[worker]
                if member.trains:
                    member.step, member.ordered_at = step, rooms.clock.moment()
                rooms.host.carry_out(replace(order, progress=rooms.applied.batches), rooms.clock.moment())
            case StartPull() | StartPush() | AdjustTraining():
                rooms.host.carry_out(order, rooms.clock.moment())
            case Reduce() | CopyReplica():
                if isinstance(order, CopyReplica):
                    rooms.agreeing.copies(order.worker)
                rooms.applied.ordered(order)
                rooms.host.carry_out(order, rooms.clock.moment())
            case ApplyUpdate() | StepReplica():
                if isinstance(order, StepReplica):
                    self._tell_decisions(order.worker)
                rooms.applied.ordered(order)
                rooms.host.carry_out(order, rooms.clock.moment())
                rooms.versions.ordered(order.version)
                rooms.snapshots.ordered(order.version)
                rooms.limits.stepped(rooms.applied.steps)
            case Hold(worker=worker, why=why):
                rooms.members[worker].wait(rooms.settings.choice.sentence(why))
            case DropUpdate(worker=worker, step=step, samples=samples):
                rooms.host.carry_out(order, rooms.clock.moment())
                rooms.applied.dropped(worker, step)
                rooms.data.leases.drop(worker, step, samples)
            case LeaveOut(worker=worker):
                rooms.data.leases.leave_out(worker)
            case SwitchProtocol():
                self._switch(order)

    def _tell_decisions(self, worker: int) -> None:
        """The worker, or its replica, is about to make a step, at the rates that were decided."""
        news, member = self.rooms.plateaus.news(worker), self.rooms.members[worker]
        if news is not None and member.trains:
            self.rooms.send(member, news)

    def pass_on(self, number: int) -> None:
        """The launcher has got a signal that is for scripts. Have those called that have a handler for it."""
        rooms = self.rooms
        handling = [member for member in rooms.membership.running() if number in member.handles]
        for member in handling:
            rooms.send(member, messages.Signal(number))
        if not handling:
            rooms.output.say(without_handler(number))

    def ended(self) -> bool:
        """Do what is due once no worker trains any more. Return whether all is done, and every process has ended."""
        rooms = self.rooms
        if not rooms.membership.through:
            return False
        if not isinstance(self.phase, Closing):
            rooms.returns.close()
            self.phase = Closing(rooms, self._training)
        waits = self.phase.go_on() and not rooms.ending.at_once
        if waits or rooms.membership.here():
            return False
        if why := rooms.membership.why_none_finished:
            rooms.ending.failed(why)
        return True

    def _take_in(self) -> None:
        """While workers train, have hosts take part that have come since."""
        others, rooms = self.rooms.others, self.rooms
        if others is None or not isinstance(self.phase, Training) or rooms.ending.stopping:
            return
        for host in others.take_in():
            rooms.adds(host)
            self._on_begin(self.phase.offer)
            rooms.journal.ledger.machines_noted()

    @property
    def _training(self) -> Training | None:
        """What workers train on, or have trained on; None if training has not begun."""
        match self.phase:
            case Closing(training=training):
                return training
            case Training():
                return self.phase
            case Gathering():
                return None

    def _next(self) -> Fact | None:
        """Return the next fact, in the order of time: a transfer's end, or what was heard."""
        happened = self.rooms.happened
        until = happened[0].at if happened else self.rooms.clock.at()
        return self.rooms.host.next(until) or (happened.popleft() if happened else None)

    def _busy_with(self) -> str | None:
        """What the run itself is doing, if anything."""
        return self._disk.busy_with or self.rooms.host.progress.busy_with

    def _switch(self, order: SwitchProtocol) -> None:
        """Deal data as the protocol does that decides from here on."""
        rooms, choice = self.rooms, self.rooms.settings.choice
        for worker, _, _ in order.members:
            rooms.data.leases.join(worker)
        part = next(part for part in choice.parts if part.spec.name == order.to)
        rooms.data.leases.deal("rounds" if part.spec.rounds else "queue")
        if not rooms.settings.quiet:
            rooms.output.say(f"{order.to} decides from here on: {choice.sentence(order.why)}")

    def _look_at_use(self) -> None:
        """Say what the script did not use of what `prepare` gave it, if the run ended well."""
        rooms, training = self.rooms, self._training
        if training is None or rooms.ending.outcome != "completed":
            return
        if line := self._early.at_end():
            rooms.output.say(line)
        leases, steps = rooms.data.leases, bool(rooms.adopting.book.pushed)
        if rooms.ending.stopping and not steps:  # a limit left no time for one
            return
        line = unused(
            training.offer,
            steps=steps,
            fetched=leases.left_over(),
            resumed=rooms.settings.resumed is not None,
        )
        if line is not None:
            rooms.output.say(line)
        names = {name for logged in rooms.accounts.logged.values() for name in logged} | set(rooms.journal.tally.logged)
        for line in unmeasured(rooms.settings.targets, training.offer.evaluates, names):
            rooms.output.say(line)

    # --- what workers say ---------------------------------------------------------------------------

    def _hear(self, worker: int, message: messages.Message) -> None:
        rooms, member = self.rooms, self.rooms.members[worker]
        member.heard = rooms.loop.now()
        match message:
            case messages.StepFinished():
                self._step_finished(member, message)
            case messages.LeaseWanted(epoch=epoch):
                if not rooms.ending.stopping and (line := self._early.goes_on(worker, epoch)):
                    rooms.output.say(line)
                if member.stage == "offered":
                    rooms.joining.wanted(member, epoch)
                rooms.data.wanted(member, message)
            case messages.BeginWanted():
                rooms.data.begins(member, message)
            case messages.Joins():
                rooms.joining.joins(member)
            case messages.OrderDrawn():
                rooms.data.drawn(message)
            case messages.GivenBack(batches=batches):
                rooms.data.given_back(member, batches)
            case messages.LookedAt():
                rooms.data.looked_at(member, message)
            case messages.Logged(step=step, version=version, scalars=scalars):
                at = rooms.accounts.logs(worker, step, scalars)
                rooms.scores.logged(worker, step, version, at, scalars)
                rooms.display.logs(worker, step, scalars)
            case messages.Handles(signals=signals):
                member.handles = frozenset(signals)
            case messages.Remarked(line=line):
                rooms.output.passes_on(f"worker {worker}", f"worker {worker} {line}")
            case messages.Decided(scheduler=scheduler, metric=metric):
                rooms.plateaus.heard(worker, scheduler, metric)
            case messages.Offered():
                self._offered(member, message)
            case messages.Kept(snapshot=snapshot, epoch=epoch):
                rooms.plateaus.packed(worker)
                rooms.snapshots.packed(worker, snapshot, epoch)
            case messages.Refused(message=text):
                rooms.ending.refuse(text)
            case messages.StoreNotForked(error=error):
                rooms.ending.fail(f"{called(rooms.settings.choice.spec)} can't be started: {error}")
            case messages.ParserEnded(code=code):
                self.parser_ended = min(self.parser_ended or (worker, code), (worker, code))
                why = f"the script's own argument parser ended it, with exit code {code}"
                rooms.ending.fail(why, GRACE_FOR_PARSERS)
            case messages.Stepped(step=step, not_finite=not_finite):
                if not_finite is not None:
                    what = f'the parameter "{not_finite}" is NaN or infinite after step {step} of worker {worker}'
                    rooms.diverged(what)
            case messages.Declined(paused=True):
                rooms.agreeing.paused(member)
            case messages.Declined(epoch=epoch):
                self._declined(member, epoch)
            case messages.Agrees():
                rooms.agreeing.wants(member, message)
            case messages.EpochsOver():
                self._epochs_over()
            case messages.AdoptionWanted(digest=digest):
                rooms.adopting.wanted(member, digest)
            case messages.Adopted():
                rooms.adopting.written(worker)
            case messages.EditWanted():
                rooms.edits.wanted(member, message)
            case messages.Edited(number=number):
                rooms.edits.told(number)
            case messages.OwnValues(number=number):
                rooms.edits.came(worker, number)
            case messages.FinishWanted():
                rooms.leaving.finish(member)
            case messages.StopWanted(reason=reason):
                if rooms.terms.measures:  # else the run is stopped where the recorded one was
                    rooms.limits.stop_asked(worker, reason)
            case messages.ScriptEnded():
                rooms.leaving.end(member)
                self._go_on()
            case messages.Evaluated(version=version, metrics=metrics):
                rooms.scores.worker_evaluated(version, metrics)
            case messages.EvaluationFailed(version=version, error=error):
                rooms.scores.give_up(f"evaluate() raised, on version {version}: {error}")

    def _offered(self, member: Member, offer: messages.Offered) -> None:
        match self.phase:
            case Gathering():
                self.phase.offered(member, offer)
                self._go_on()
            case Training(offer=first):
                self.rooms.joining.offered(member, first, offer)
            case Closing():  # it was told to stop on its way
                pass

    def _begin(self) -> None:
        """The store is there: training begins, unless the run was stopped and is over meanwhile."""
        if isinstance(self.phase, Gathering):
            self.phase.prepared = True
            self._go_on()

    def _step_finished(self, member: Member, done: messages.StepFinished) -> None:
        rooms, worker = self.rooms, member.worker
        if done.scalars is not None:
            member.scalars = done.scalars
        if not member.trains:
            return  # it was on its way when the run was stopped: its batches returned then
        if not rooms.adopting.pushed(worker) or not rooms.edits.pushed(worker, done.step):
            return
        if done.gradient is not None and (line := self._alike.warning(worker, done.gradient)):
            rooms.output.say(line)
        if not rooms.data.holds(member, [*done.skipped, *(done.batches or ())], done.again):
            rooms.drop(worker, done.step)
            return
        rooms.accounts.step_finished(member, done)
        rooms.agreeing.goes_on(worker, done.batches or ())  # a lease alone may be for a look at the data
        samples = rooms.data.used(worker, done)
        rooms.accounts.pushed(worker, done.step, member.scalars, samples)
        member.step = None
        at = rooms.clock.at()
        fact = GradientReady(
            worker=worker, step=done.step, version=done.version, samples=samples, weight=done.weight, at=at
        )
        rooms.happened.append(fact)

    def _declined(self, member: Member, epoch: int) -> None:
        if not self.rooms.ending.stopping:
            self._early.done(member.worker, epoch)
        if member.stage == "offered":  # its script has no more to do, and has taken no part
            self.rooms.leaving.leave(member, "finished")
        elif member.trains and member.step is not None:
            step, member.step = member.step, None
            declined = StepDeclined(worker=member.worker, step=step, at=self.rooms.clock.at())
            self.rooms.happened.append(declined)

    def _epochs_over(self) -> None:
        """Tell the user once that a script loops on after its last epoch."""
        training = self._training
        if training is not None and not self._told_epochs_over and not self.rooms.ending.stopping:
            self._told_epochs_over = True
            self.rooms.output.say(epochs_over(training.offer, self.rooms.settings))

    def _go_on(self) -> None:
        if isinstance(self.phase, Gathering):
            self.phase.go_on()
            if self.phase.complete():
                self.phase = begin(self.phase, self._on_begin)
                offer, settings = self.phase.offer, self.rooms.settings
                self._early.epochs = (settings.epochs or offer.epochs) if offer.passes == 1 else None

    def _gone(self, worker: int, status: int) -> None:
        """The worker's process has ended with this status, and all that it had said is heard."""
        rooms, member = self.rooms, self.rooms.members[worker]
        drained = member.left == "drained" or (rooms.draining is not None and rooms.draining.sees_off(worker))
        if status == 0 and member.stage != "ended" and not drained:
            rooms.leaving.end_now(member)  # by os._exit(0), say: the script could not tell
            self._go_on()
        step = member.step
        died = rooms.leaving.gone(member, "stopped" if rooms.ending.stopping else "drained" if drained else "died")
        rooms.host.gone(worker)
        rooms.adopting.gone(worker)
        rooms.edits.gone(worker)
        rooms.snapshots.gone(worker)
        if died and not rooms.ending.stopping and not drained:
            seconds = rooms.returns.due(member, step)
            if rooms.losses.died(member, status, step, seconds) and seconds is not None:
                rooms.returns.begin_after(member, seconds)
        rooms.scores.gone(member, exit_phrase(status))
        if isinstance(self.phase, Gathering):
            self.phase.gone(member)
            self._go_on()

    def _not_back(self, member: Member) -> None:
        """The worker was to come back, and its process can't be started."""
        if isinstance(self.phase, Gathering):
            self.phase.gone(member)
            self._go_on()
