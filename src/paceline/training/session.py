"""One worker's training: what its model, optimizer and loader share."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import safe_open
from torch import Tensor, nn

from paceline.core.agreements import Call, How, Value, result_of
from paceline.core.leases import Batch, pairs
from paceline.core.machine import HolderKind
from paceline.errors import ConfigError
from paceline.ipc import messages
from paceline.ipc.channel import path_of
from paceline.ipc.memory import keep_freed_memory
from paceline.ipc.messages.worker import (
    Arrives,
    Compute,
    Decided,
    Declined,
    GivenBack,
    Handed,
    HandOver,
    Keep,
    Kept,
    LookedAt,
    MakeStep,
    PlateauMetrics,
    StepFinished,
    Stepped,
)
from paceline.store.snapshots import OfWorker
from paceline.store.store import STRUCTURE, OwnValues, Scalars, scalars_of, unfit_rate
from paceline.training import schedules
from paceline.training.batches import Batches, Stands
from paceline.training.clipping import Clip, OwnClipping
from paceline.training.holders.choice import holder_of
from paceline.training.layout import Layout, Places
from paceline.training.link import Link, ResumedWorker, Started, TakenUp
from paceline.training.loop import EpochLoop
from paceline.training.non_optimized import NonOptimized
from paceline.training.orders import BLOCK
from paceline.training.other_training import OtherTraining
from paceline.training.packing import packed, unpacked
from paceline.training.pre_training_edits import PreTrainingEdits
from paceline.training.schedules import Plateau, Schedule
from paceline.training.seeding import seed_step
from paceline.training.signals import undisturbed
from paceline.training.structure import Followed, Shape, Structure
from paceline.training.tensor_bits import checksum
from paceline.training.training_context import TrainingContext
from paceline.training.uncompiled import uncompiled
from paceline.training.user_state import UserState, begins_anew, past_epochs

if TYPE_CHECKING:
    from paceline.training.loader import Iterated

REPEATS = (
    "trains again on batches that its script keeps since an earlier loop, as itertools.cycle(loader) does: each worker "
    "repeats its own share, and sees no other data; begin a loop over the loader anew to have all of the data shared "
    "out again (while True: for batch in loader: ...)"
)
UNSURE = (
    "has several batches at hand as a gradient comes. The gradient counts as all of theirs, or as the first one's if "
    "the script has copied them; if that is wrong, call paceline.weigh(len(x)) before each backward()"
)


class Session:
    """Takes the worker from step to step: counts batches, has gradients pushed, waits for releases, keeps the times.

    The holder shows the parameters, and makes of the gradients what is pushed.
    """

    def __init__(
        self,
        link: Link,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        kept: UserState,
        clip: Clip | None = None,
    ) -> None:
        self.link = link
        self.model = model
        self.optimizer = optimizer
        self.layout = layout
        self.kept = kept
        self.clip = clip
        self._remarked: set[str] = set()
        self._shown_by: HolderKind = "window"
        self._told_lost = False
        self.resumed: ResumedWorker | None = None
        """What the run goes on with; None if it began here."""
        self.epoch = 0
        """The epoch that the script is in; after a loop's end, the next one."""
        self._calls = Call(0, 0)
        """Its next call of `agree`, if it comes in that epoch."""
        self.past_loops = 0
        """Loops of epochs that are used up."""
        self.goes_on_in: int | None = None
        """The script's next loop, counting from 0, if the script has asked for it."""
        self._told_of_repeats = False
        self._keeps: list[tuple[Keep, OfWorker | None]] = []
        """What is to be kept as the script next comes here, and what the optimizer had when that was ordered."""
        self._buffers: dict[str, Tensor] = {}
        """Of a worker that joins: the buffers as its script had made them by `prepare`."""
        self._took_up = True
        """Whether the script has got what the run goes on with, and no longer can change it."""
        self._last = 0
        """The last step that this worker has finished."""
        self.go: Compute | None = None
        """The step that is being computed; None when nothing is left to do."""
        self._declined: Compute | None = None
        """The step that the script leaves uncomputed, as it has ended its training."""
        self.joins = False
        """Whether the run has begun without this worker, which has made no step yet, and takes no part."""
        self.live = True
        """Whether the store may be newer than the model; false once the final version is installed."""
        self.loads = False
        self.evaluates = False
        """Whether recorded versions are evaluated."""
        self.epochs: int | None = None
        """Loops that the script makes over the loader, if it says so."""
        self._epochs_of_loop = False
        """Whether `epochs` is what the script's first `paceline.epochs()` counts."""
        self.passes = 1
        """Epochs of the data in each of these."""
        self.steps = 0
        """Steps that this worker has made."""
        self.loop_is_due = False
        """Whether the script has a prepared loader with its part of the data, and has not begun to iterate over it."""
        self.run_used = 0
        """Batches that the run had used as the present step was released, or the last one."""
        self._before_loop = 0
        """Steps that this worker had made before the present loop."""
        self._told_schedule = False
        self.schedules: Sequence[Schedule] = ()
        """The schedulers that follow the run."""
        self.plateaus: Sequence[Plateau] = ()
        """Those of these that are stepped by metrics."""
        self._decides = False
        """Whether this worker's metrics step them in all workers."""
        self.loader: Callable[[], Iterated | None] = lambda: None
        """Returns the prepared loader, as long as the script has it: its processes end with it."""
        self.used = 0
        """Batches that this worker's script has used, or left out."""
        self.step_discarded = False
        """Whether the script has made a step that counts for nothing, and no gradient since: it logs nothing then."""
        self.batches = Batches(leased=False)
        """What the script has fetched, and what its gradients are of. `prepare` says whether batches are leased."""
        self._first_given = 0
        """The parameter whose gradient came first since the batches may have changed."""
        self._accumulated: tuple[int, int] | None = None
        """That gradient, as autograd left it."""
        self.sent: Scalars = scalars_of(optimizer)
        self.batches_in_step = 0
        self._thread = threading.get_ident()
        self._awaits: float | None = None
        """Since when it has awaited the next step's release; None: it does not."""
        self._waited = self._pulled = 0.0
        """Seconds, for the present step's release and its version."""
        self._began = self._released_at = 0.0
        self._fetching = 0.0

    def begin(self, started: Started) -> None:
        """Install what all workers begin with, and take the first step's release."""
        begin = started.begin
        places = Places(self.layout, started.region, begin.slots, self.link.workers, begin.areas)
        self.followed = Followed(self.model)
        self.followed.watch()
        self.began_with = self.followed.structure
        self._told_values: list[tuple[int, int]] = []
        self._times_told = 0
        """How often it has told its own values."""
        self._told_after = -1
        """How many steps it had made as it told its own values last."""
        self.shapes = [Shape(self.model)] if self.evaluates else []
        """By number of the structure."""
        self.parameters: list[Tensor] = [self.followed.parameters[entry.name] for entry in self.layout.moving]
        self.context = TrainingContext(
            link=self.link,
            places=places,
            followed=self.followed,
            optimizer=self.optimizer,
            parameters=self.parameters,
            clip=self.clip,
        )
        self._shown_by = begin.holder
        self.holder = holder_of(begin.holder, begin.pushes, self.context, tells=begin.tells)
        self._place = begin.place
        self.holder.show(begin.place)
        self.fixed = NonOptimized(places, self.followed)
        self.fixed.begin()
        self.resumed, self._took_up = started.resumed, started.resumed is None
        self.changes = PreTrainingEdits(self.context, self.holder, self.fixed, resumed=started.resumed is not None)
        self.other_training = OtherTraining(self)
        self.joins = begin.joins
        if self.joins:
            self._buffers = {name: buffer.clone() for name, buffer in self.followed.buffers().items()}
        else:
            self._take_up(kept=True)
        keep_freed_memory()  # from here on, so that the memory of the script's own parameters goes back
        for number, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
        if not self.joins:
            self._await_release(time.monotonic())

    @undisturbed
    def join(self) -> None:
        """The script makes its first step in a run that has begun without it: take part from now on.

        What the script has changed by now, in past loops too, is gone.
        """
        self.joins, since = False, time.monotonic()
        taken = self.link.take_up(announce=not self.loads)
        if taken is not None:
            assert self.resumed is not None
            self._took_up = True
            self.changes.discard(self._place)
            self.resumed = replace(self.resumed, buffers=taken.area, kept=taken.kept)
            if taken.area is not None and taken.file is not None:
                with path_of(taken.file) as file:
                    self._fill(taken.area, file)
            self._reset_buffers()
            self._take_up(kept=True)
            for one in self.plateaus:
                one.begins_late = taken.kept is None
        self._place = -1  # what is shown by now is not what the first step begins with
        self._await_release(since)

    def look_at_structure(self, *, whole: bool = False) -> None:
        """Have the run told how the script has changed the model's structure. The first worker's new tensors hold.

        `whole`: look at the model even if nothing was registered: what is deleted is not seen otherwise.
        """
        if not (whole or self.followed.touched) or not self.here or (self.go is None and not self.joins):
            return
        before = self.followed.structure
        structure = self.followed.look()
        if structure is None:
            return
        if self.steps and self._remade(before):  # prune.remove() after training, say: see `finish`
            self.followed.structure = before
            return
        if self.evaluates:
            self.shapes.append(Shape(self.model))
        added = self.followed.added
        lacking = [name for name, one in added.items() if isinstance(one, nn.Parameter) and one.requires_grad]
        if lacking and self.link.worker == 0:
            self.link.remark(
                f'has a new parameter "{lacking[0]}", which no step moves: the optimizer did not have it in prepare(); '
                "give the model its final parameters before prepare()"
            )
        tree = {"number": structure.number, "names": structure.names, "forms": structure.added, "added": added}
        try:
            packing = packed(tree, "the model")
        except ConfigError as error:
            self.refuse(str(error))
        first = self.link.edit(structure, structure.only_ties(self.began_with), lambda: packing)
        if first is not None:
            values = unpacked(first)["added"]
            with torch.no_grad():
                for name, tensor in added.items():
                    tensor.copy_(values[name])
        self._told_values = self._values_now()[1]

    def remade(self) -> dict[str, Tensor | None]:
        """Return the parameters that the script has given other names, and values, since its last step.

        With each comes its mask, if it was pruned until then: `prune.remove` has multiplied it by that.
        """
        before, added = self.followed.structure, self.followed.added
        if self.followed.look() is None:
            return {}
        names = {entry: name for name, entry in before.names.items()}
        return {name: added.get(f"{names.get(name, name).removesuffix('_orig')}_mask") for name in self._remade(before)}

    def _remade(self, before: Structure) -> set[str]:
        now = self.followed.structure.names
        kept = {entry for name, entry in now.items() if before.names.get(name) == entry}
        return {name for name in self.holder.changed() if name not in kept}

    def tell_values(self) -> None:
        """Tell of the newest values of what no step moves, if there is such a thing."""
        values, marks = self._values_now()
        if marks and marks != self._told_values and self.here and self.go is not None:
            self._told_values, self._told_after = marks, self.steps
            self._times_told += 1
            self.link.say(messages.worker.OwnValues(self._times_told), packed(values, "the model"))

    def _values_now(self) -> tuple[OwnValues, list[tuple[int, int]]]:
        """Return these values, and what tells them from others."""
        moved, added = {name: self.followed.parameters[name] for name in self.fixed.moved}, self.followed.added
        marks = [(id(tensor), tensor._version) for tensor in (*moved.values(), *added.values())]
        return {"moved": moved, "added": dict(added)}, [*marks, *[(self.steps, 0)] * bool(moved)]

    @undisturbed
    def step(self) -> None:
        """Push this step's gradient, wait for the next release, install its version."""
        self.come_by()
        if self.joins:  # nobody has ordered this gradient: its parameters may be gone by now
            self.batches.discard()
            self.step_discarded = True
            self.join()
            return
        if self.go is None:
            return
        step = self.go.step
        self.holder.settle()
        measured = time.monotonic() - self._began
        padding = self.link.stretched(step, measured) - measured
        if padding > 0:
            self.link.pause(padding)
        computed = time.monotonic()
        told = bool(self.fixed.moved)
        edits = self.changes.see_to()
        if self.fixed.moved and not told:  # from here on the run knows that versions have such values
            self.tell_values()
        stands = self.batches.step(self._has_gradient())
        self._tell_of_batches()
        self.used += len(stands.batches) + len(stands.skipped)
        gradient = self._first_gradient(stands) if not self.steps else None
        if self.loop_is_due and not self.steps and self.link.worker == 0:  # the others would say the same
            self.link.remark(never_iterated(self.link.workers))
        self.steps += 1
        if self.holder.keeps_state:  # the step may change what is to be kept
            self.keep(self.link.heard_to_keep())
            self.send_kept()
        self.holder.step()
        self._last = step
        scalars = scalars_of(self.optimizer)
        if scalars != self.sent:
            if why := unfit_rate(scalars):
                self.refuse(why)
            self._look_for_schedulers()
        pushed = time.monotonic()
        to_device, from_device = self.holder.copied() or (None, None)
        self.link.say(
            StepFinished(
                step=step,
                version=self.go.version,
                batches=pairs(stands.batches) if self.loads else None,
                skipped=pairs(stands.skipped),
                again=pairs(stands.again),
                weight=stands.weight,
                scalars=scalars if scalars != self.sent or (self.resumed and self.steps == 1) else None,
                began=self._began,
                compute=computed - self._began - self._fetching,
                push=pushed - computed,
                other=self._began - self._released_at + self._fetching,
                waited=self._waited,
                pulled=self._pulled,
                edits=list(edits),
                gradient=gradient,
                to_device=to_device,
                from_device=from_device,
            )
        )
        self.sent = scalars
        self._await_release(pushed)

    @property
    def _looping(self) -> bool:
        loader = self.loader()
        return loader is not None and loader.looping

    def _look_for_schedulers(self) -> None:
        """The rate has changed. If that is between two steps of a loop, a scheduler should follow the run."""
        in_loop = self._looping and self.steps - self._before_loop > 1
        if in_loop and not self._told_schedule:
            self._told_schedule = True
            if line := schedules.unprepared(self.optimizer):
                self.remark_once("schedule", line)

    def script_clips(self, own: OwnClipping) -> None:
        """The script is about to clip this worker's gradients by itself."""
        if self.go is None:
            return  # training is over
        if self.clip is not None:
            self.refuse(own.refused(self.clip))
        self.remark_once("clips", own.remark(self.link.in_means))

    def script_steps_plateau(self) -> None:
        """The script steps a ReduceLROnPlateau, by this worker's metric."""
        if self.go is not None:
            self.remark_once("plateau", schedules.plateau_remark(self._shown_by, self.link.in_means))

    def _step_plateaus(self, news: PlateauMetrics) -> None:
        """Make the steps that were decided."""
        self._decides = news.decides
        for scheduler, number, metric in news.metrics:
            self.plateaus[scheduler].told(number, metric)

    def decides(self) -> bool | None:
        """See `schedules.FollowedRun`."""
        if self.here:
            self.end_wait()
        past = self.joins or (self.past_loops and not self._took_up)
        stopped = self.go is None and self.link.was_stopped and not self._keeps  # a snapshot may need one more call
        return None if past or stopped else self._decides

    def decided(self, scheduler: Plateau, metric: float) -> None:
        """See `schedules.FollowedRun`."""
        self.link.say(Decided(self.plateaus.index(scheduler), metric))

    def progress(self) -> tuple[int, int] | None:
        """See `schedules.FollowedRun`."""
        return (self.run_used, self.used) if self._looping else None

    def remark_once(self, what: str, line: str) -> None:
        """Tell the user of several workers what all of them do. `what`: a key of this line."""
        if self.link.workers > 1 and self.link.worker == 0 and what not in self._remarked:
            self._remarked.add(what)
            self.link.remark(line)

    def keep(self, orders: Sequence[Keep]) -> None:
        """Pack what the script keeps once the script comes by. What its optimizer has is packed at once.

        A script calls its scheduler after the step in which the order is read. If it is a step further already, it has
        not called the scheduler for that step, and all is packed at once.
        """
        for order in orders:
            keeps = self.holder.keeps_state
            self._keeps.append((order, self.context.optimizer_kept() if keeps else None))
        if any(order.step < self._last for order, _ in self._keeps):
            self.send_kept()

    def asked(self, order: Keep | HandOver | PlateauMetrics | Arrives) -> None:
        """Do what the run asks for while the script waits, and makes no step: what it keeps is packed at once."""
        match order:
            case Keep():
                self.keep([order])
                self.send_kept()
                self.tell_values()
            case HandOver():
                self._hand_over(order)
            case PlateauMetrics():
                self._step_plateaus(order)
            case Arrives():
                pass  # the step is not made

    def _hand_over(self, order: HandOver) -> None:
        """Pack what the script has for a worker that joins, as it is now: at the end of this worker's last step."""
        state = self.context.optimizer_kept() if self.holder.keeps_state else None
        packing, why = self.kept.packing(state, self.followed.buffers())
        self.link.say(Handed(order.worker, order.joining, why), packing)

    def send_kept(self, epoch: int | None = None) -> None:
        """Pack what is to be kept, and send it. `epoch`: only what is to be kept within that epoch."""
        due = [(order, state) for order, state in self._keeps if epoch is None or order.epoch <= epoch]
        for order, state in due:
            self._keeps.remove((order, state))
            packing, why = self.kept.packing(state)
            self.link.say(Kept(order.snapshot, self._last, self.epoch, why), packing)

    def come_by(self, epoch: int | None = None) -> None:
        """The script begins something new in its own thread: what it has to keep is as it is after the last step.

        `epoch`: it only asks for the next batch of this epoch. If none is left of that, it ends the epoch first.
        """
        nothing_new = self._awaits is None and not self.followed.touched and not self._keeps and self.go is not None
        if not nothing_new and self.here:
            self._see_to_news(epoch)

    @undisturbed
    def _see_to_news(self, epoch: int | None) -> None:
        self.end_wait()
        self.look_at_structure()
        self.send_kept(epoch)
        if self.go is None:
            self.link.raise_if_interrupted()

    def end_wait(self) -> None:
        """Wait on for a release if a signal handler has led out of that wait: a replica makes its step before."""
        if self._awaits is not None:
            self._await_release(self._awaits)

    def go_on(self) -> None:
        """The script has its first batch, or it gets none: what it has changed by now, in past loops too, is gone."""
        if not self._took_up:
            self._took_up = True
            self.changes.discard(self._place)
            self._take_up(kept=self.past_loops > 0)

    def past_loop(self, epoch: int) -> None:
        """The script loops over an epoch that was used up before the run went on."""
        if self.resumed is not None and self.here:
            self.past_loops += 1
            loop = self.resumed.epoch // self.passes  # the script calls it an epoch
            if self.past_loops == 1 and self.link.worker == 0 and epoch // self.passes < loop:
                self.link.remark(past_epochs(loop, self.kept.schedulers_left_out()))

    def goes_on(self, epochs: int) -> int:
        """The script asks for the loop that it begins with, of so many."""
        if self.epochs is None:
            self.epochs, self._epochs_of_loop = epochs, True
        elif epochs != self.epochs and self.link.worker == 0 and "epochs" not in self._remarked:
            self._remarked.add("epochs")
            self.link.remark(other_epochs(epochs, self.epochs, by_prepare=not self._epochs_of_loop))
        if self.resumed is None or self.steps:
            return 0
        loop, left_out = self.resumed.epoch // self.passes, self.kept.schedulers_left_out()
        if left_out and self.resumed.epoch and self.link.worker == 0:
            self.link.remark(begins_anew(loop, left_out))
        self.goes_on_in = loop
        return loop

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
        self.go_on()
        if not self.steps and not self.batches_in_step:
            self.changes.first_batch()
        if self.batches.window and self._zeroed():
            self.thrown_away()
        if self.batches_in_step == 0:
            self._began = time.monotonic()
        else:
            self._fetching += seconds
        self.batches.fetched(batch, samples, data)
        seed_step(self.link.seed, self.link.worker, self.go.step, self.batches_in_step)
        self.batches_in_step += 1

    @undisturbed
    def loop_begins(self, last: EpochLoop) -> bool:
        """The script begins another loop. A last batch of the previous loop that it did not use goes back.

        Return whether the script only looked at that loop's data, and made no gradient of any. Then all of that data
        goes back, with what had been fetched ahead for it, as if the loop had never been.
        """
        if not self.here:
            return False
        self._before_loop = self.steps
        self.look_at_structure(whole=True)
        if self._told_after != self.steps:  # the store keeps the last three only: of steps that versions may be made of
            self.tell_values()
        if last.ended:
            return False
        if last.handed_out and self.only_looked(last):
            return True
        if last.handed_out and self.batches.ends_with(last.handed_out[-1:]):
            self.link.say(GivenBack(pairs(self.batches.take_back(1))))
        return False

    def only_looked(self, loop: EpochLoop) -> bool:
        """Return whether no gradient came of this loop's batches. Then they go back, with what was fetched ahead."""
        if not self.batches.ends_with(loop.handed_out):
            return False
        self.batches.take_back(len(loop.handed_out))
        if not self.batches.pending:
            self.batches_in_step, self._fetching = 0, 0.0  # draws and times are now as without the look
        for start in reversed(range(0, max(1, len(loop.batches)), BLOCK)):  # the batches leased last go back first
            some = pairs(loop.batches[start : start + BLOCK])
            self.link.say(LookedAt(loop.epoch, some, loop.ran_out and not start))
        return True

    @undisturbed
    def loop_ended(self, loop: EpochLoop) -> None:
        """The loop has come to its end."""
        loop.ended = True
        if self.here:
            self.batches.loop_ended(loop.handed_out)

    def thrown_away(self) -> None:
        """The script zeroes its gradients: they are in no step, unless those of the same batches come anew."""
        if self.batches.window:
            self.other_training.erases()
            self.batches.zeroed()

    @undisturbed
    def done_computing(self) -> None:
        """Make no further step: no worker is to wait for this one."""
        self.other_training.ends()
        self.tell_values()
        if self.go is not None or self.joins:
            if number := self.batches.left_over():
                self.link.remark(lost(number, "left over at the end"))
            self.go, self.joins, self._declined = None, False, self.go
            self.holder.settle()  # the version that the script has may be written over from now on
            self.link.say(Declined(self.epoch))

    def agree(self, how: How, value: Value) -> Value:
        """Return what the values of all workers come to. Other workers' steps don't wait for this one meanwhile."""
        self.come_by()
        if self._looping:
            self.refuse(
                "the script calls paceline.agree() inside a loop over the prepared loader, where workers are in "
                "different steps; call it between loops, after an epoch, or paceline.stop(reason) to end the run from "
                "inside one"
            )
        if not self.live:
            self.remark_once(
                "agree", "calls paceline.agree() after finish(): it gets its own value, as each worker does"
            )
            return result_of(how, {self.link.worker: value})
        if self.go is not None and self.steps and (changed := self.holder.changed()):
            self.changes.refuse_changed(changed[0])
        loader = self.loader()
        epoch = self.epoch - 1 if loader is not None and loader.looked else self.epoch
        call = self._calls if self._calls.epoch == epoch else Call(epoch, 0)
        self._calls = Call(call.epoch, call.nth + 1)
        agreed = self.link.agree(call, how, value)
        if agreed is None:
            self._pause()
            agreed = self.link.agreed(call, how, value)
        self.end_wait()
        self._come_to_the_run()
        return agreed.result

    def _come_to_the_run(self) -> None:
        """Step schedules to where the others' are: they have trained on while this worker waited.

        Under `all-reduce` replicas stay equal only if all step with one rate.
        """
        if self.go is not None and self.run_used > self.used:
            for schedule in self.schedules:
                schedule.come_to(self.run_used)

    @undisturbed
    def _pause(self) -> None:
        self.holder.settle()
        self._awaits = time.monotonic()
        self.link.pauses(self.epoch)

    def shows(self, module: nn.Module) -> bool:
        """Return whether the module's tensors, or some of them, show versions of the run's."""
        return self.live and self.followed.has_some_of(module)

    def is_its_own(self) -> bool:
        """Return whether the parameters are the script's own: before its first step, or as it has written into them."""
        return not self.steps or bool(self.holder.changed())

    @property
    def shown(self) -> Compute | None:
        """The step on whose version the script sees the model. None: the script logs nothing now."""
        if self.step_discarded:
            return None
        return self.go or (self._declined if self.live else None)

    @property
    def here(self) -> bool:
        """Whether this is the thread that called `prepare` and trains. Another thread only fetches ahead."""
        return threading.get_ident() == self._thread

    def refuse(self, message: str) -> NoReturn:
        """End the run with this line."""
        self.context.refuse(message)

    def _await_release(self, since: float) -> None:
        self._awaits = since
        go = self._released()
        self._awaits = None
        if go is None:
            self.tell_values()
        self.go = go
        self.run_used = self.run_used if go is None else go.progress
        granted = time.monotonic()
        if self.go is None:
            self.holder.let_go()
            self.holder.hold_newest()
            self.link.raise_if_interrupted()
            return
        if self.steps or self.go.slot != self._place:  # the first version is shown already
            self.holder.install(self.go.slot, self.go.ahead)
        self.holder.use(self.go.area)
        self._released_at = self._began = time.monotonic()
        self._waited, self._pulled = granted - since, self._released_at - granted
        self._fetching, self.batches_in_step = 0.0, 0
        seed_step(self.link.seed, self.link.worker, self.go.step)

    def _released(self) -> Compute | None:
        """Wait for the order to go on. Make what steps of the replica are ordered before it."""
        while True:
            match self.link.released():
                case Arrives(slot=slot, ranges=ranges):
                    self.holder.bring(slot, ranges)
                case MakeStep() as order:
                    self.link.say(Stepped(order.step, self.holder.step_replica(order)))
                case Keep() as order:
                    self.keep([order])
                case HandOver() | PlateauMetrics() as order:
                    self.asked(order)
                case TakenUp(kept=kept):  # the replica is another worker's now, which has stepped meanwhile
                    if kept is not None:
                        self.context.load_optimizer(kept)
                case go:
                    return go

    @torch.no_grad()
    def _reset_buffers(self) -> None:
        """Discard what the script has made of its buffers since `prepare`, as in a step that counts for nothing."""
        for name, buffer in self.followed.buffers().items():
            if name in self._buffers:
                buffer.copy_(self._buffers[name])
        self._buffers.clear()

    @torch.no_grad()
    def _take_up(self, kept: bool) -> None:
        """In a run that goes on from a snapshot: give the script its buffers, and its optimizer's state.

        `kept`: its kept objects, too.
        """
        if self.resumed is None:
            return
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # past epochs step schedulers: none is to warn
        there, area = self.resumed.kept, self.resumed.buffers
        buffers = {} if there is None else there.buffers
        if area is not None:
            buffers = self.context.places.push_area(area).buffers
        for name, buffer in self.followed.buffers().items():
            if name in buffers:
                buffer.copy_(buffers[name])
        if there is None:
            return
        if self.holder.keeps_state:
            self.context.load_optimizer(there)
        if kept:
            try:
                self.kept.load(there)
            except ConfigError as error:
                self.refuse(str(error))
            for one in self.plateaus:
                one.catch_up()

    def _fill(self, number: int, file: Path) -> None:
        """Put a recorded version into that area."""
        places = self.context.places
        area = places.push_area(number)
        places.region.populate(area.start, area.stop)
        named = dict(zip((entry.name for entry in self.layout.moving), area.gradients, strict=True)) | area.buffers
        install(named, file)

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        """Return the function that autograd calls when this parameter has its gradient."""

        @uncompiled
        @undisturbed
        def take(_: Tensor) -> None:
            if self._keeps and self.here:
                self.send_kept()
            self.step_discarded = False
            if self.go is None:
                self.other_training.gradient(number, self.parameters[number])
            if self.batches.changed:
                self.batches.gradient(number)
                self._first_given = number
            if self.go is not None:
                self.holder.take(number)
            if number == self._first_given:
                self._accumulated = self._mark(number)

        return take

    def _tell_of_batches(self) -> None:
        """Have the user told once of what the script may not mean to do with its batches."""
        if self.batches.lost and not self._told_lost:
            self._told_lost = True
            self.link.remark(lost(self.batches.lost, "zeroed in a later loop"))
        if self.batches.unsure:
            self.remark_once("unsure", UNSURE)
        if self.batches.repeats and not self._told_of_repeats and self.link.worker == 0:
            self._told_of_repeats = True
            self.link.remark(REPEATS)

    def _mark(self, number: int) -> tuple[int, int] | None:
        """Tell this parameter's gradient from what the script makes of it."""
        gradient = self.parameters[number].grad
        return None if gradient is None else (id(gradient), gradient._version)

    def _zeroed(self) -> bool:
        """Whether the script has zeroed all gradients since the last backward: by `model.zero_grad()`, or by hand.

        A gradient that autograd has made zero counts. So values are looked at, which waits for a device, only if the
        script has written into the parameter's gradient that came first. The smallest gradients come first.
        """
        if self._mark(self._first_given) == self._accumulated:
            return False
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return not any(
            (gradient._values() if gradient.is_sparse else gradient).any()
            for gradient in sorted(gradients, key=torch.Tensor.numel)
        )

    def _has_gradient(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters)

    def _first_gradient(self, stands: Stands) -> str | None:
        """The first gradient's checksum, to compare workers; None if it is of data that no other worker has.

        A gradient of zero shows nothing: at the start of a schedule, or of a layer, all workers may have it.
        """
        if self.link.workers == 1 or stands.batches:
            return None
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
        return checksum(dense) if any(gradient.any() for gradient in dense) else None


def lost(batches: int, how: str) -> str:
    """What a worker does whose script has made gradients that are in no step."""
    what = "1 batch" if batches == 1 else f"{batches} batches"
    return (
        f"has made gradients of {what} that are in no step: they were {how}. Step after a worker's last batch of a "
        "loop: loader.last tells which one it is, while len(loader) counts the batches of all workers"
    )


def never_iterated(workers: int) -> str:
    """What a worker does that makes its first step without the loader that it was given."""
    what = "every worker trains on all of the data" if workers > 1 else "its samples are not counted"
    return (
        f"makes its first step and has not iterated over the loader that prepare() returned: {what}; write "
        "model, optimizer, loader = paceline.prepare(…) and iterate over that loader"
    )


def other_epochs(loops: int, planned: int, *, by_prepare: bool) -> str:
    """What a worker does that begins to count so many epochs, where another number was said before."""
    before = f"prepare(epochs={planned})" if by_prepare else f"paceline.epochs({planned})"
    if loops > planned:
        what = f"training ends after {planned} of them; say the same number in both"
    else:
        what = f"training is planned for {planned} of them; say the same number in both, unless another loop follows"
    return f"loops over paceline.epochs({loops}) after {before}: {what}"


def install(held: Mapping[str, Tensor], file: Path, added: Mapping[str, Tensor] | None = None) -> None:
    """Copy those of these tensors that a recorded version has, in place.

    `held` are tensors by their names in `prepare`, and `added` are later ones by their names now. Without these the
    model is as it was in `prepare`, and names are what counts.
    """
    with torch.no_grad(), safe_open(file, framework="pt") as recorded:
        _, names = structure_of(recorded.metadata())
        places = dict(held)
        if names and added is not None:
            places = {name: held[entry] for name, entry in names.items() if entry in held} | dict(added)
        for name in recorded.keys() & places.keys():  # further names of a tied parameter are not in both
            places[name].copy_(recorded.get_tensor(name))


def structure_of(metadata: Mapping[str, str] | None) -> tuple[int, dict[str, str]]:
    """Return a recorded version's structure, as its number and names; no names if it is as in `prepare`.

    A version that plain DDP has recorded has no metadata.
    """
    number, names = json.loads((metadata or {}).get(STRUCTURE, "[0, {}]"))
    return number, names
