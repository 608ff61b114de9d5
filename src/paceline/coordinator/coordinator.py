"""The one sequencer of a run: facts come in as messages, the machine's orders go out as messages.

It touches no tensor, and waits only for its loop. It reads no clock and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast, get_args

from paceline.coordinator.host_events import note
from paceline.coordinator.ledger_backpressure import PAUSE, LedgerBackpressure
from paceline.coordinator.lifecycle import Closing, Gathering, Training, begin
from paceline.coordinator.member import Member
from paceline.coordinator.remarks import Remarks
from paceline.coordinator.run_state import RunState
from paceline.coordinator.shutdown import loss_is_borne
from paceline.core.facts import AlarmRang, Fact, GradientReady, StepDeclined
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    EndRound,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    SetAlarm,
    ShareOut,
    StartPull,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.host.contract import called
from paceline.host.events import HostEvent, Prepared, StandInsCame, WorkerEnded, WorkerSaid
from paceline.ipc import messages
from paceline.ipc.processes import exit_phrase
from paceline.job.interrupts import without_handler

_FACTS = frozenset(get_args(Fact))
GRACE_FOR_PARSERS = 10.0  # seconds that the others have to come to the same --help: only worker 0's is shown


class Coordinator:
    """Takes a run from its first process to its last. `facts` and `carry_out` are `drive`'s two ends.

    What happens and what is ordered is passed on to the parts of the run state, which know it.
    """

    def __init__(self, run_state: RunState, on_begin: Callable[[messages.worker.Offered], None]) -> None:
        """`on_begin` is called when the script's part of the configuration is known, and as hosts come later."""
        self.run_state = run_state
        self.phase: Gathering | Training | Closing = Gathering(run_state)
        self.parser_ended: tuple[int, int] | None = None
        """The first of the workers whose script its own argument parser has ended, before training; the exit code."""
        self._on_begin = on_begin
        self._remarks = Remarks(run_state)
        self._disk = LedgerBackpressure(run_state.journal.ledger, run_state.output.say)

    def open(self) -> None:
        """Listen to every worker, and let scripts begin."""
        self.run_state.inbox.open(self._hear_host)
        self.run_state.cluster.open()
        assert isinstance(self.phase, Gathering)
        self.phase.go_on()

    def facts(self) -> Iterator[Fact]:
        """Yield everything that happens, as it happens, until every worker's process has ended."""
        run_state = self.run_state
        self.open()
        run_state.shutdown.begin()
        run_state.display.report_waits(self._busy_with)
        run_state.display.show()
        while True:
            run_state.inbox.hear()
            if self._disk.behind() or run_state.snapshots.holds:
                # no fact is under way: what the loop hears comes after those that wait
                run_state.inbox.wait(PAUSE)
                continue
            if (fact := self._next()) is not None:
                run_state.clock.present = fact.at
                run_state.tell(fact)
                yield fact
                run_state.inbox.hear()
                run_state.snapshots.go_on()
                run_state.clock.present = None
                run_state.departures.go_on()
                continue
            self.bring_back()
            run_state.agreeing.go_on()
            self._take_in()
            if run_state.draining is not None and isinstance(self.phase, Training) and not run_state.shutdown.stopping:
                run_state.draining.go_on()
            run_state.inbox.hear()
            if self.ended():
                run_state.inbox.hear()
                break
            if not run_state.happened:
                run_state.inbox.wait(run_state.cluster.due())
        if run_state.shutdown.outcome == "completed":
            self._remarks.end()

    def carry_out(self, order: Order) -> None:
        """Carry out the order."""
        run_state, at = self.run_state, self.run_state.clock.moment()
        match order:
            case Release(worker=worker, step=step):
                run_state.snapshots.before_release()
                run_state.joining.released(order)
                run_state.agreeing.released(worker)
                if order.parameters != "own" or run_state.data.owned:  # in a round it hears nothing new
                    self._tell_decisions(worker)
                if order.parameters == "own" and run_state.data.owned:
                    run_state.versions.counts(worker)  # a joiner has no replica if no other worker is left
                told = order.at(*run_state.data.progress(order), run_state.policy.directed and order.steps > 1)
                member = run_state.members[worker]
                if member.trains:
                    member.step, member.last, member.ordered_at = step, told.last, at
                run_state.cluster.carry_out(told, at)
            case StartPull() | StartPush() | AdjustTraining() | EndRound():
                if isinstance(order, StartPush):
                    run_state.data.pushed(order)
                elif isinstance(order, AdjustTraining):
                    self._remarks.rates(order)
                run_state.cluster.carry_out(order, at)
            case Reduce() | CopyReplica():
                if isinstance(order, CopyReplica):
                    run_state.agreeing.copies(order.worker)
                run_state.data.ordered(order)
                run_state.cluster.carry_out(order, at)
            case ApplyUpdate() | StepReplica():
                if isinstance(order, StepReplica):
                    self._tell_decisions(order.worker)
                run_state.data.ordered(order)
                run_state.cluster.carry_out(order, at)
                run_state.versions.ordered(order.version)
                applied = order.contributions if isinstance(order, ApplyUpdate) else ((order.worker, order.step, 1.0),)
                run_state.snapshots.ordered(order.version, applied)
                run_state.shutdown.stepped(run_state.data.steps)
            case Hold(worker=worker, why=why):
                run_state.members[worker].wait(why)
            case DropUpdate():
                run_state.cluster.carry_out(order, at)
                run_state.data.dropped(order)
            case LeaveOut(worker=worker):
                run_state.data.leases.leave_out(worker)
            case ShareOut():
                self._remarks.shares(order)
            case SwitchProtocol():
                self._switch(order)
            case SetAlarm(number=number, seconds=seconds):
                if not run_state.policy.directed:  # else it rings when the recorded one did
                    run_state.loop.after(seconds, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        """The alarm rings, unless training is over."""
        if not self.run_state.members.through:
            self.run_state.inbox.report(AlarmRang(number=number, at=self.run_state.clock.at()))

    def _tell_decisions(self, worker: int) -> None:
        """The worker, or its replica, is about to make a step, at the rates that were decided."""
        news, member = self.run_state.plateaus.news(worker), self.run_state.members[worker]
        if news is not None and member.trains:
            self.run_state.members.send(member, news)

    def pass_on(self, number: int) -> None:
        """The launcher has got a signal that is for scripts. Have those called that have a handler for it."""
        run_state = self.run_state
        handling = [member for member in run_state.members.running() if number in member.handles]
        for member in handling:
            run_state.members.send(member, messages.worker.Signal(number))
        if not handling:
            run_state.output.say(without_handler(number))

    def ended(self) -> bool:
        """Do what is due once training is over. Return whether all is done, and every process has ended."""
        run_state = self.run_state
        if not run_state.members.through:
            return False
        if not isinstance(self.phase, Closing):
            run_state.returns.close()
            self.phase = Closing(run_state, self.phase if isinstance(self.phase, Training) else None)
        waits = self.phase.go_on() and not run_state.shutdown.at_once
        if waits or run_state.members.here():
            return False
        if why := run_state.members.why_none_finished:
            run_state.shutdown.failed(why)
        return True

    def bring_back(self) -> None:
        """Begin processes that are due in the place of dead ones."""
        for member in self.run_state.returns.go_on():
            if isinstance(self.phase, Gathering):
                self.phase.gone(member)
                self._go_on()

    def _take_in(self) -> None:
        """While workers train, have hosts take part that have come since."""
        others, run_state = self.run_state.others, self.run_state
        if others is None or not isinstance(self.phase, Training) or run_state.shutdown.stopping:
            return
        for host in others.take_in():
            run_state.adds(host)
            self._on_begin(self.phase.offer)
            run_state.journal.ledger.machines_noted()

    def _next(self) -> Fact | None:
        """Return the next fact, in the order of time: a transfer's end, or what was heard."""
        happened = self.run_state.happened
        until = happened[0].at if happened else self.run_state.clock.at()
        return self.run_state.cluster.next(until) or (happened.popleft() if happened else None)

    def _busy_with(self) -> str | None:
        """What the run itself is doing, if anything."""
        return self._disk.busy_with or self.run_state.cluster.progress.busy_with

    def _switch(self, order: SwitchProtocol) -> None:
        """Deal data as the new part of the protocol does."""
        run_state, choice = self.run_state, self.run_state.settings.choice
        members = [worker for worker, _, _ in order.members]
        for worker in members:
            run_state.data.leases.join(worker)
        number = choice.part_of(order)
        run_state.data.leases.deal("rounds" if choice.part(number).rounds else "queue")
        if not run_state.settings.quiet:
            before = choice.part(1 - number).spec.name
            run_state.output.say(f"switched from {before} to {order.to}: {choice.sentence(order.why)}")
        makes = None if order.version is None else run_state.versions.switches(order.version)
        if makes is not None:
            run_state.data.switches(members, owned=choice.part(number).spec.state == "replicas")
            run_state.joining.switches(members)
            run_state.snapshots.switches(makes.version)
        if number != run_state.cluster.part or makes is not None:
            run_state.cluster.switch(number, members, makes)
            if run_state.cluster.switches.part is not None:
                run_state.snapshots.postpone()

    # --- what hosts report, and workers say ---------------------------------------------------------

    def _hear_host(self, event: HostEvent) -> None:
        if type(event) in _FACTS:  # each step brings several
            self.run_state.happened.append(cast(Fact, event))
            return
        match event:
            case WorkerSaid(worker=worker, message=messages.Message() as message):
                self._hear(worker, message)
            case WorkerEnded(worker=worker, status=status):
                self._gone(worker, status)
            case Prepared(beginning=beginning):
                self.run_state.journal.ledger.note("beginning", beginning)
                self._begin()
            case StandInsCame():
                self._go_on()
            case _:
                note(self.run_state, event)

    def _hear(self, worker: int, message: messages.Message) -> None:
        member = self.run_state.members[worker]
        member.heard = self.run_state.loop.now()
        with self.run_state.shutdown.refusals:
            self._take_up(member, message)

    def _take_up(self, member: Member, message: messages.Message) -> None:
        run_state, worker = self.run_state, member.worker
        match message:
            case messages.worker.StepFinished():
                self._step_finished(member, message)
            case messages.worker.LeaseWanted(epoch=epoch):
                if not run_state.shutdown.stopping:
                    self._remarks.goes_on(worker, epoch)
                    if member.stage == "offered":
                        run_state.joining.wanted(member, epoch)
                run_state.data.wanted(member, message)
            case messages.worker.BeginWanted():
                run_state.data.begins(member, message)
            case messages.worker.Joins():
                if not run_state.shutdown.stopping:
                    run_state.joining.joins(member)
            case messages.worker.OrderDrawn():
                if (samples := run_state.data.drawn(message)) is not None:
                    run_state.epoch_opened(samples)
            case messages.worker.GivenBack(batches=batches):
                run_state.data.given_back(member, batches)
            case messages.worker.LookedAt():
                run_state.data.looked_at(member, message)
            case messages.worker.ScalarsLogged(step=step, version=version, scalars=scalars):
                at = run_state.timing.logs(member, step, scalars)
                run_state.evaluation.logged(worker, step, version, at, scalars)
                run_state.display.logs(worker, step, scalars)
            case messages.worker.Handles(signals=signals):
                member.handles = frozenset(signals)
            case messages.worker.Remarked(line=line):
                run_state.output.passes_on(f"worker {worker}", f"worker {worker} {line}")
            case messages.worker.Decided(scheduler=scheduler, metric=metric):
                run_state.plateaus.heard(worker, scheduler, metric)
            case messages.worker.Offered():
                self._offered(member, message)
            case messages.worker.Kept(snapshot=snapshot, epoch=epoch):
                run_state.plateaus.packed(worker)
                run_state.snapshots.packed(worker, snapshot, epoch)
            case messages.worker.ScriptRefused(message=text):
                run_state.shutdown.refuse(text)
            case messages.worker.StoreNotForked(error=error):
                run_state.shutdown.fail(f"{called(run_state.settings.choice)} can't be started: {error}")
            case messages.worker.ParserEnded(code=code):
                self.parser_ended = min(self.parser_ended or (worker, code), (worker, code))
                why = f"the script's own argument parser ended it, with exit code {code}"
                run_state.shutdown.fail(why, GRACE_FOR_PARSERS)
            case messages.worker.Stepped(step=step, not_finite=not_finite):
                if not_finite is not None:
                    what = f'the parameter "{not_finite}" is NaN or infinite after step {step} of worker {worker}'
                    run_state.shutdown.diverge(what)
            case messages.worker.Declined(paused=True, revoked=revoked):
                run_state.agreeing.paused(member, revoked=revoked)
            case messages.worker.Declined(epoch=epoch):
                self._declined(member, epoch)
            case messages.worker.Agrees():
                run_state.agreeing.wants(member, message)
            case messages.worker.EpochsOver():
                self._remarks.epochs_over()
            case messages.worker.AdoptionWanted(digest=digest):
                run_state.adopting.wanted(member, digest)
            case messages.worker.AdoptionWritten():
                run_state.adopting.written(worker)
            case messages.worker.EditWanted(ties=ties):
                if not ties:
                    run_state.evaluation.apart()
                run_state.edits.wanted(member, message)
            case messages.worker.Edited(number=number):
                run_state.edits.told(number)
            case messages.worker.OwnValues(number=number):
                run_state.edits.came(worker, number)
            case messages.worker.FinishWanted():
                self._remarks.finishes(worker)
                run_state.departures.finish(member)
            case messages.worker.StopWanted(reason=reason):
                if not run_state.policy.directed:  # else the run is stopped where the recorded one was
                    run_state.shutdown.stop_asked(worker, reason)
            case messages.worker.ScriptEnded():
                self._script_ended(member)
            case messages.worker.Evaluated(version=version, metrics=metrics):
                run_state.evaluated(version, metrics)
                run_state.evaluation.done()
            case messages.worker.EvaluationFailed(version=version, error=error):
                run_state.evaluation.give_up(f"evaluate() raised, on version {version}: {error}")

    def _offered(self, member: Member, offer: messages.worker.Offered) -> None:
        match self.phase:
            case Gathering():
                self.phase.offered(member, offer)
                self._go_on()
            case Training(offer=first):
                if (epoch := self.run_state.joining.offered(member, first, offer)) is not None:
                    self.run_state.agreeing.joins(member.worker, epoch)
            case Closing():  # it was told to stop on its way
                pass

    def _begin(self) -> None:
        """The store is there: training begins, unless the run was stopped and is over meanwhile."""
        if isinstance(self.phase, Gathering):
            self.phase.prepared = True
            self._go_on()

    def _step_finished(self, member: Member, done: messages.worker.StepFinished) -> None:
        run_state, worker = self.run_state, member.worker
        if done.scalars is not None:
            member.scalars = done.scalars
        if not member.trains:
            return  # it was on its way when the run was stopped: its batches returned then
        run_state.adopting.pushed(worker)
        run_state.edits.pushed(worker, done.step)
        if done.gradient is not None:
            self._remarks.first_gradient(worker, done.gradient)
        if not run_state.data.holds(member, [*done.skipped, *(done.batches or ())], done.again):
            dropped = DropUpdate(worker=worker, step=done.step, samples="return")
            run_state.cluster.carry_out(dropped, run_state.clock.moment())
            return
        run_state.timing.step_finished(member, done)
        run_state.agreeing.goes_on(worker, done.batches or ())  # a lease alone may be for a look at the data
        samples = run_state.data.used(worker, done)
        run_state.timing.pushed(worker, done.step, member.scalars, samples)
        at = run_state.clock.at()
        member.step = None
        if done.step < member.last:  # it goes on by itself
            member.step, member.ordered_at, member.released_at = done.step + 1, at, at
        fact = GradientReady(
            worker=worker, step=done.step, version=done.version, samples=samples, weight=done.weight, at=at
        )
        run_state.inbox.report(fact)

    def _declined(self, member: Member, epoch: int) -> None:
        self._remarks.done(member.worker, epoch)
        if member.stage == "offered":  # its script has no more to do, and has taken no part
            self.run_state.departures.leave(member, "finished")
        elif member.trains and member.step is not None:
            step, member.step = member.step, None
            declined = StepDeclined(worker=member.worker, step=step, at=self.run_state.clock.at())
            self.run_state.inbox.report(declined)

    def _go_on(self) -> None:
        if isinstance(self.phase, Gathering):
            self.phase.go_on()
            if self.phase.complete():
                self.phase = begin(self.phase, self._on_begin)
                self._remarks.begin(self.phase.offer)

    def _gone(self, worker: int, status: int) -> None:
        """The worker's process has ended with this status, and all that it had said is heard."""
        run_state, member = self.run_state, self.run_state.members[worker]
        drained = member.left == "drained" or (run_state.draining is not None and run_state.draining.sees_off(worker))
        if status == 0 and member.stage != "ended" and not drained:
            self._script_ended(member, at_once=True)  # by os._exit(0), say
        step = member.step
        died = run_state.departures.gone(
            member, "stopped" if run_state.shutdown.stopping else "drained" if drained else "died"
        )
        run_state.cluster.gone(worker)
        with run_state.shutdown.refusals:
            run_state.adopting.gone(worker)
        run_state.edits.gone(worker)
        run_state.snapshots.gone(worker)
        if died and not run_state.shutdown.stopping and not drained:
            seconds, borne = run_state.returns.due(member, step), loss_is_borne(run_state.settings.on_loss, status)
            run_state.journal.died(worker, exit_phrase(status))
            run_state.shutdown.died(member, status, step, seconds, run_state.policy.goes_on_without(worker, borne))
            if borne and seconds is not None:
                run_state.returns.begin_after(member, seconds)
        run_state.evaluation.gone(member, exit_phrase(status))
        if isinstance(self.phase, Gathering):
            self.phase.gone(member)
            self._go_on()

    def _script_ended(self, member: Member, at_once: bool = False) -> None:
        run_state, unprepared = self.run_state, member.stage == "starting"
        self._remarks.finishes(member.worker)
        run_state.departures.end(member, at_once)
        if unprepared:
            run_state.shutdown.fail(
                f"{run_state.settings.script} ended without calling paceline.prepare(); add the line "
                "model, optimizer, loader = paceline.prepare(model, optimizer, loader) before its loop"
            )
        self._go_on()
