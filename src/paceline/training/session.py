"""One worker's training: what its model, optimizer and loader share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from paceline.core.leases import Batch, pairs
from paceline.ipc.memory import keep_freed_memory
from paceline.ipc.messages.worker import (
    Arrives,
    Compute,
    Declined,
    GiveState,
    HandOver,
    Keep,
    MakeStep,
    MakeUpdate,
    Offered,
    PlateauMetrics,
    StepFinished,
    Stepped,
    UpdateMade,
)
from paceline.store.store import Scalars, rates_of, scalars_of, set_groups, unfit_rate
from paceline.training.agreements import AgreeCalls
from paceline.training.data.batches import Batches, Stands, in_variables
from paceline.training.data.loop import EpochLoop, Loops
from paceline.training.holders.choice import copier_of, holder_of
from paceline.training.link import Asked, Started, Switched, TakenUp
from paceline.training.model.non_optimized import NonOptimized
from paceline.training.model.structure_edits import StructureEdits
from paceline.training.optim.clipping import OwnClipping
from paceline.training.optim.gradient_sum import GradientSum
from paceline.training.optim.gradients import Gradients
from paceline.training.optim.other_training import OtherTraining
from paceline.training.optim.pre_training_edits import PreTrainingEdits
from paceline.training.optim.schedules import RunSchedules, Schedule
from paceline.training.permit import Permit
from paceline.training.resuming import Resuming
from paceline.training.seeding import seed_between, seed_step
from paceline.training.signals import undisturbed
from paceline.training.training_context import TrainingContext
from paceline.training.uncompiled import uncompiled
from paceline.training.user_state import SnapshotOrders, UserState

REPEATS = (
    "trains again on batches that its script keeps since an earlier loop, as itertools.cycle(loader) does: each worker "
    "repeats its own share, and sees no other data; begin a loop over the loader anew to have all of the data shared "
    "out again (while True: for batch in loader: ...)"
)
UNSURE = (
    "has several batches at hand as a gradient comes. The gradient counts as all of theirs, or as the first one's if "
    "the script has copied them; if that is wrong, call paceline.weigh(len(x)) before each backward()"
)


@dataclass(slots=True)
class StepClock:
    """When the present step was released and began, and the seconds of what came before and meanwhile."""

    waited: float = 0.0
    """For its release."""
    pulled: float = 0.0
    """For its version."""
    released_at: float = 0.0
    began: float = 0.0
    """When the script got its first batch."""
    fetching: float = 0.0
    """Of further batches."""


class Session:
    """Takes the worker from step to step: counts batches, has gradients pushed, waits for releases, keeps the times.

    The holder shows the parameters, and makes of the gradients what is pushed. All else that follows the script from
    step to step is a part with one job.
    """

    def __init__(
        self,
        context: TrainingContext,
        started: Started,
        offered: Offered,
        kept: UserState,
        schedules: Sequence[Schedule],
    ) -> None:
        """Show what all workers begin with."""
        begin, resumed = started.begin, started.resumed
        self.context = context
        self.link = context.link
        self.followed = context.followed
        self.followed.watch()
        self._copier = copier_of(context)
        """What copies to a device and from it, for each holder."""
        self.holder = holder_of(begin, context, self._copier)
        self.holder.show(begin.place)
        self.fixed = NonOptimized(context.places, self.followed)
        self.fixed.begin()
        self.structure_edits = StructureEdits(context, self.holder, self.fixed, offered.evaluates)
        self.changes = PreTrainingEdits(context, self.holder, self.fixed, resumed is not None, self.hear_switches)
        self.other_training = OtherTraining(self)
        self.gradients = Gradients(context.parameters)
        self._several = GradientSum(context)
        """Where a release is for several batches: the gradients of its steps so far."""
        self.batches = Batches(leased=offered.loads, named=partial(in_variables, thread=threading.get_ident()))
        """What the script has fetched, and what its gradients are of."""
        self.snapshots = SnapshotOrders(self, kept)
        self.schedules = RunSchedules(self, schedules)
        self.agreements = AgreeCalls(self)
        self.permit = Permit(self)
        epoch = None if resumed is None else resumed.epoch
        self.loops = Loops(offered.epochs, offered.passes, epoch, kept.schedulers_left_out, context.remark)
        self.joins = begin.joins
        """Whether the run has begun without this worker, which has made no step yet, and takes no part."""
        self.resuming = Resuming(context, started, self.holder, self.changes, self.loops, kept, self.schedules.plateaus)
        self.live = True
        """Whether the store may be newer than the model; false once the final version is installed."""
        self.as_left: list[tuple[Tensor, Tensor]] = []
        """The model's tensors, with what the script has left in them, if versions are evaluated there."""
        self.go: Compute | None = None
        """The step that is being computed; None when nothing is left to do."""
        self._declined: Compute | None = None
        """The step that the script leaves uncomputed, as it has ended its training."""
        self.steps = 0
        """Steps that this worker has made."""
        self.last_step = 0
        """The number of the last one."""
        self.step_discarded = False
        """Whether the script has made a step that counts for nothing, and no gradient since: it logs nothing then."""
        self.epoch = 0
        """The epoch that the script is in; after a loop's end, the next one."""
        self.loop = EpochLoop(-1, over=True)
        """The script's present loop over its prepared loader, if batches are leased, or its last one."""
        self.streams = False
        """Whether its prepared loader shares a stream of batches, which are neither leased nor counted."""
        self.loop_is_due = False
        """Whether the script has a prepared loader with its part of the data, and has not begun to iterate over it."""
        self.batches_in_step = 0
        self._pieces_in_step = 0
        """Leased batches in these, where one has several."""
        self.used = 0
        """Batches that this worker's script has used, or left out."""
        self.run_used = 0
        """Batches that the run had used as the present step was released, or the last one."""
        self._loads = offered.loads
        self._sent: Scalars = scalars_of(context.optimizer)
        self._place = begin.place
        """Where the version is that is shown before the first step; -1: it is not the one that is to be shown."""
        self._clock = StepClock()
        self._awaits: float | None = None
        """Since when it has awaited the next step's release; None: it does not."""
        self._elsewhere = 0
        """Steps since the last one of the prepared loader's batches, outside a loop over it."""
        self._remarked: set[str] = set()
        self._thread = threading.get_ident()
        keep_freed_memory()  # from here on, so that the memory of the script's own parameters goes back
        for number, parameter in enumerate(context.parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Give the script what the run goes on with, and take its first release, unless it joins at its first step."""
        if not self.joins:
            self.resuming.begin()
            self._await_release(time.monotonic())

    @undisturbed
    def join(self) -> None:
        """The script makes its first step in a run that has begun without it: take part from now on."""
        since = time.monotonic()
        taken = self.link.take_up(announce=not self._loads)
        self.hear_switches()
        self.joins = False
        if taken is not None:
            self.resuming.join(taken)
        self._place = -1
        self._await_release(since)

    def look_at_structure(self, *, whole: bool = False) -> None:
        """Have the run told how the script has changed the model's structure.

        `whole`: look at the model even if nothing was registered: what is deleted is not seen otherwise.
        """
        if (whole or self.followed.touched) and self.here and (self.go is not None or self.joins):
            self.structure_edits.look(self.steps)

    def tell_values(self) -> None:
        """Tell of the newest values of what no step moves, if there is such a thing."""
        if self.here and self.go is not None:
            self.structure_edits.tell_values(self.steps)

    @undisturbed
    def step(self) -> None:
        """Push this step's gradient, wait for the next release, install its version.

        Where its release is for several batches, only take the gradient until the last one.
        """
        self.come_by()
        if self.joins:  # nobody has ordered this gradient: its parameters may be gone by now
            self.batches.discard()
            self.step_discarded = True
            self.join()
            return
        if self.go is None:
            return
        if self._steps_of(self.go) == 1:
            self._make_step(self.go)
            return
        stands = self.batches.step(bool(self.gradients.there()))
        self.used += len(stands.batches) + len(stands.skipped)
        self._several.add(stands)
        if self.absorbs:
            self._tell_of_batches()
        else:
            self._make_step_of_several(self.go)

    def _steps_of(self, go: Compute) -> int:
        """How many of the script's steps make one step of the run."""
        return go.batches if self.link.pieces == 1 else 1

    @property
    def absorbs(self) -> bool:
        """Whether the script's last step was not the last one of its release, which makes one step of several."""
        return self.go is not None and 0 < len(self._several.steps) < self._steps_of(self.go)

    @undisturbed
    def make_step_so_far(self) -> None:
        """Make the step of what there is of its batches, as none come for now."""
        if self.absorbs:
            assert self.go is not None
            self._make_step_of_several(self.go)
            self.schedules.come_to(self.run_used)  # the script has called their `step` already

    def _make_step_of_several(self, go: Compute) -> None:
        stands = Stands.of(self._several.steps)
        with self._several.shown():
            self._make_step(go, stands)

    def _make_step(self, go: Compute, stands: Stands | None = None) -> None:
        """`stands`: for what, if the script has stepped several times."""
        computed = self._computed(go.step)
        moved = bool(self.fixed.moved)
        edits = self.changes.see_to()
        if self.fixed.moved and not moved:  # from here on the run knows that versions have such values
            self.tell_values()
        if stands is None:
            stands = self.batches.step(bool(self.gradients.there()))
            self.used += len(stands.batches) + len(stands.skipped)
        self._tell_of_batches()
        self.permit.used(len(stands.batches) if self._loads else 0)
        self._tell_of_another_loader(stands)
        gradient = None if self.steps else self._first_gradient(stands)
        if self.loop_is_due and not self.steps:
            self.context.remark(never_iterated(self.link.workers))
        self.steps += 1
        if self.holder.keeps_state:  # the step may change what is to be kept
            self.snapshots.keep(self.link.heard_to_keep())
            self.snapshots.send()
        self.holder.step()
        self.last_step = go.step
        scalars = self._changed_scalars()
        pushed = time.monotonic()
        to_device, from_device = self.holder.copied() or (None, None)
        clock = self._clock
        self.link.say(
            StepFinished(
                step=go.step,
                version=go.version,
                batches=pairs(stands.batches) if self._loads else None,
                skipped=pairs(stands.skipped),
                again=pairs(stands.again),
                weight=stands.weight,
                scalars=scalars,
                began=clock.began,
                compute=computed - clock.began - clock.fetching,
                push=pushed - computed,
                other=clock.began - clock.released_at + clock.fetching,
                waited=clock.waited,
                pulled=clock.pulled,
                edits=list(edits),
                gradient=gradient,
                to_device=to_device,
                from_device=from_device,
            )
        )
        self._await_release(pushed)

    def _computed(self, step: int) -> float:
        """Wait until the step is computed, and for as long as the scenario says. Return when that was."""
        self.holder.settle()
        batches = self._pieces_in_step / self.link.pieces if self.link.pieces > 1 else max(1, len(self._several.steps))
        self.link.stretch(step, time.monotonic() - self._clock.began, batches)
        return time.monotonic()

    def _tell_of_another_loader(self, stands: Stands) -> None:
        """Tell the user of steps that are not of the prepared loader: each counts as one more of its last batch."""
        of_it = stands.batches or stands.again or self.looping or not self._loads
        self._elsewhere = 0 if of_it else self._elsewhere + 1
        if self._elsewhere == ELSEWHERE:
            self.remark_once("another loader", ANOTHER_LOADER)

    def _first_gradient(self, stands: Stands) -> str | None:
        """Return what tells it from those of workers with other data; None if no other worker has its data."""
        return None if self.link.workers == 1 or stands.batches else self.gradients.checksum()

    def _changed_scalars(self) -> Scalars | None:
        """Return the optimizer's hyperparameters if the run does not know them."""
        scalars = scalars_of(self.context.optimizer)
        changed = scalars != self._sent
        if changed:
            if why := unfit_rate(scalars):
                self.refuse(why)
            if self.looping and self.steps - self.loop.steps > 1 and rates_of(scalars) != rates_of(self._sent):
                self.schedules.rate_changed()
        self._sent = scalars
        return scalars if changed or (self.resuming.at and self.steps == 1) else None

    @property
    def looping(self) -> bool:
        """Whether the script is in a loop over its prepared loader, if batches are leased."""
        return not self.loop.over

    def script_clips(self, own: OwnClipping) -> None:
        """The script is about to clip this worker's gradients by itself."""
        if self.go is None:
            return  # training is over
        if self.context.clip is not None:
            self.refuse(own.refused(self.context.clip))
        self.remark_once("clips", own.remark(self.link.in_means))

    def remark_once(self, what: str, line: str) -> None:
        """Tell the user of several workers what all of them do. `what`: a key of this line."""
        if self.link.workers > 1 and self.link.worker == 0:
            self._remark_once(what, line)

    def _remark_once(self, what: str, line: str) -> None:
        if what not in self._remarked:
            self._remarked.add(what)
            self.link.remark(line)

    def asked(self, order: Asked | Switched) -> None:
        """Do what the run asks for while the script waits, and makes no step: what it keeps is packed at once."""
        match order:
            case Switched():
                self._switch(order)
            case GiveState():
                self.snapshots.give()
            case Keep():
                self.snapshots.keep([order])
                self.snapshots.send()
                self.tell_values()
            case HandOver():
                self.snapshots.hand_over(order)
            case PlateauMetrics():
                self.schedules.step_plateaus(order)
            case MakeUpdate(step=step):
                if step == self.last_step:  # else that update is made, and another one has begun
                    self.make_update()
            case Arrives():
                pass  # the step is not made

    def hear_switches(self) -> None:
        """Another part of the protocol may decide by now."""
        for order in self.link.heard_switches():
            self._switch(order)

    def _switch(self, to: Switched) -> None:
        """Another part of the protocol decides from now on: show parameters, and push, as it needs that.

        The optimizer's state goes to where it steps. A worker that awaits its release is shown a version by that. One
        that has no step left to make is shown the newest one, and one that is still to join what it has been shown.
        """
        self.holder.let_go()
        self.holder = holder_of(to.order, self.context, self._copier)
        self.structure_edits.holder = self.changes.holder = self.resuming.holder = self.holder
        if to.kept is not None:
            self.context.load_optimizer(to.kept)
            set_groups(self.context.optimizer, to.kept.groups)
        self.changes.moved_state()
        if self.joins:
            self.holder.show(self._place)
            return
        self._place = -1
        if self._awaits is None:
            self.holder.hold_newest()

    def come_by(self, epoch: int | None = None) -> None:
        """The script begins something new in its own thread: what it has to keep is as it is after the last step.

        `epoch`: it only asks for the next batch of this epoch. If none is left of that, it ends the epoch first.
        """
        waits = self._awaits is not None or self.followed.touched or self.snapshots.due or self.go is None
        if waits and self.here:
            self._see_to_news(epoch)

    @undisturbed
    def _see_to_news(self, epoch: int | None) -> None:
        self.end_wait()
        self.look_at_structure()
        self.snapshots.send(epoch)
        if self.go is None:
            self.link.raise_if_interrupted()

    def end_wait(self) -> None:
        """Wait on for a release if a signal handler has led out of that wait: a replica makes its step before."""
        if self._awaits is not None:
            self._await_release(self._awaits)

    @undisturbed
    def handed_out(self, batch: Batch | None, samples: int, data: Any, seconds: float) -> None:
        """The loader hands `data` to the script, after fetching it for `seconds`. `batch` is None: it is not leased."""
        if not self.here:  # the script fetches ahead
            if self.go is not None or self.joins:
                self.batches.fetched(batch, samples, data, ahead=True)
            return
        self.look_at_structure()
        if self.joins:
            self.join()
        if self.go is None:
            return
        self.resuming.go_on()
        if not self.steps and not self.batches_in_step:
            self.changes.first_batch()
        if self.batches.window and self.gradients.zeroed():
            self.thrown_away()
        if self.batches_in_step == 0:
            self._clock.began = time.monotonic()
        else:
            self._clock.fetching += seconds
        self.batches.fetched(batch, samples, data)
        seed_step(self.link.seed, self.link.worker, self.go.step, self.batches_in_step)
        self.batches_in_step += 1
        self._pieces_in_step += 0 if batch is None else len(pairs([batch]))

    @undisturbed
    def loop_begins(self) -> None:
        """The script begins another loop over its loader."""
        self.look_at_structure(whole=True)
        if self.structure_edits.told_after != self.steps:  # the store keeps the last three only, of steps in versions
            self.tell_values()

    def loop_left(self, epoch: int, steps: int) -> None:
        """The script has left its loop over that epoch, before which it had made so many steps, or come to its end."""
        self.other_training.loop_left()
        if self.steps > steps and threading.get_ident() == self._thread:  # a look seeds nothing
            seed_between(self.link.seed, epoch)

    def forget_look(self) -> None:
        """The batches that were fetched last went back. Draws and times are now as if they had not been fetched."""
        if not self.batches.pending:
            self.batches_in_step, self._pieces_in_step, self._clock.fetching = 0, 0, 0.0

    def thrown_away(self) -> None:
        """The script zeroes its gradients: they are in no step, unless those of the same batches come anew."""
        if self.batches.window:
            self.other_training.erases()
            self.batches.zeroed()

    @undisturbed
    def done_computing(self) -> None:
        """Make no further step: no worker is to wait for this one."""
        self.make_step_so_far()
        self.other_training.ends()
        self.tell_values()
        if self.go is not None or self.joins:
            if number := self.batches.left_over():
                self.link.remark(lost(number, "left over at the end"))
            self.make_update()
            self.go, self.joins, self._declined = None, False, self.go
            self.holder.settle()  # the version that the script has may be written over from now on
            self.link.say(Declined(self.epoch))

    def make_update(self) -> None:
        """Make the update of own steps, if there are any that are in none."""
        if self.holder.make_update():
            self.link.say(UpdateMade(self.last_step))

    @undisturbed
    def pause(self) -> None:
        """Make no step until the run says so. Other workers' steps don't wait for this one meanwhile."""
        self.make_step_so_far()
        self.holder.settle()
        self.make_update()
        self.permit.ends()
        self._awaits = time.monotonic()
        self.link.pauses(self.epoch)

    @property
    def shown(self) -> Compute | None:
        """The step on whose version the script sees the model. None: the script logs nothing now."""
        return None if self.step_discarded else self.go or (self._declined if self.live else None)

    @property
    def here(self) -> bool:
        """Whether this is the thread that called `prepare` and trains. Another thread only fetches ahead."""
        return threading.get_ident() == self._thread

    def refuse(self, message: str) -> NoReturn:
        """End the run with this line."""
        self.context.refuse(message)

    def _await_release(self, since: float) -> None:
        self._awaits = since
        go = self.permit.further() or self._released()
        self._awaits = None
        if go is None:
            self.tell_values()
            self.go = None
            self.holder.let_go()
            self.holder.hold_newest()
            self.link.raise_if_interrupted()
            return
        self.go, self.run_used, granted = go, go.progress // self.link.pieces, time.monotonic()
        self.context.dropped(go.dropped)
        if go.slot < 0:
            self.holder.go_on()
        elif self.steps or go.slot != self._place:  # the first version is shown already
            self.holder.install(go.slot, go.ahead, go.version)
        self.holder.use(go.area)
        now = time.monotonic()
        self._clock = StepClock(waited=granted - since, pulled=now - granted, released_at=now, began=now)
        self.batches_in_step = self._pieces_in_step = 0
        seed_step(self.link.seed, self.link.worker, go.step)

    def _released(self) -> Compute | None:
        """Wait for the order to go on. Make what steps of the replica are ordered before it."""
        while True:
            match self.link.released():
                case Arrives(slot=slot, ranges=ranges):
                    self.holder.bring(slot, ranges)
                case MakeStep() as order:
                    self.link.say(Stepped(order.step, self.holder.step_replica(order)))
                case Keep() as order:
                    self.snapshots.keep([order])
                case HandOver() | PlateauMetrics() | MakeUpdate() | GiveState() | Switched() as order:
                    self.asked(order)
                case TakenUp(kept=kept):  # the replica is another worker's now, which has stepped meanwhile
                    if kept is not None:
                        self.context.load_optimizer(kept)
                case go:
                    return go

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        """Return the function that autograd calls when this parameter has its gradient."""

        @uncompiled
        @undisturbed
        def take(parameter: Tensor) -> None:
            if self.snapshots.due and self.here:
                self.snapshots.send()
            self.step_discarded = False
            if self.go is None:
                self.other_training.gradient(number, parameter)
            if self.batches.changed:
                self.batches.gradient(number)
                self.gradients.first = number
            if self.go is not None and self._steps_of(self.go) == 1:  # else they come into the push area as one
                self.holder.take(number)
            self.gradients.made(number)

        return take

    def _tell_of_batches(self) -> None:
        """Have the user told once of what the script may not mean to do with its batches."""
        if self.batches.lost:
            self._remark_once("lost", lost(self.batches.lost, "zeroed in a later loop"))
        if self.batches.unsure:
            self.remark_once("unsure", UNSURE)
        if self.batches.repeats and self.link.worker == 0:
            self._remark_once("repeats", REPEATS)


def lost(batches: int, how: str) -> str:
    """What a worker does whose script has made gradients that are in no step."""
    what = "1 batch" if batches == 1 else f"{batches} batches"
    return (
        f"has made gradients of {what} that are in no step: they were {how}. Step after a worker's last batch of a "
        "loop: loader.last tells which one it is, while len(loader) counts the batches of all workers"
    )


ELSEWHERE = 20
"""Steps outside a loop over the prepared loader, after which they are taken for steps of another one."""
ANOTHER_LOADER = (
    f"has made {ELSEWHERE} steps since its last batch of the loader that prepare() returned, outside a loop over it: "
    "every worker trains on all of what it gets elsewhere; give each loader a run of its own, which loads what this "
    "one saves"
)


def never_iterated(workers: int) -> str:
    """What a worker does that makes its first step without the loader that it was given."""
    what = "every worker trains on all of the data" if workers > 1 else "its samples are not counted"
    return (
        f"makes its first step and has not iterated over the loader that prepare() returned: {what}; write "
        "model, optimizer, loader = paceline.prepare(…) and iterate over that loader"
    )
