"""Learning-rate schedules that follow the run.

A script plans a schedule in steps of one process: `epochs * len(loader)` of them. A worker makes a share of these, of a
size that is not known beforehand. So a worker's call steps a prepared scheduler as far as one process would have come
with as many batches as all workers have used since the worker's last call.
"""

from __future__ import annotations

import copyreg
import gc
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

from paceline.errors import ConfigError
from paceline.ipc.messages.worker import Decided, PlateauMetrics
from paceline.training.process import ScriptProcess
from paceline.training.replaced import Patch, mixed_into

if TYPE_CHECKING:
    from paceline.training.session import Session


class FollowedRun(Protocol):
    """What a schedule asks the run, and tells it."""

    def progress(self) -> tuple[int, int] | None:
        """Return how many batches all workers have used, and how many this one has.

        None outside of a loop over the prepared loader, and where batches are not counted: a call is a step then.
        """

    @property
    def absorbs(self) -> bool:
        """Whether the script's last step was one of several that make one step of the run, and not the last one."""

    @property
    def steps(self) -> int:
        """How many steps of the run this worker has made."""

    @property
    def streams(self) -> bool:
        """Whether the workers share a stream of batches, which are not counted."""

    def remark_once(self, key: str, line: str) -> None:
        """Tell the user once, by `key`, what this worker does."""

    def decides(self) -> bool | None:
        """Whether this worker's metrics step a ReduceLROnPlateau, in all workers.

        None: the call has no effect, in a past epoch or after the run was stopped.
        """

    def decided(self, scheduler: Plateau, metric: float) -> None:
        """Tell the other workers of the metric by which this deciding worker has stepped the scheduler."""


WINDOWS = 5
"""Calls that show how many batches a worker accumulates."""


class CallWindow(NamedTuple):
    """What was used between a worker's last call and this one."""

    of_run: int
    """Batches of all workers."""
    own: int
    """Batches of this worker, at least 1."""

    def steps(self, each: int) -> Fraction:
        """Return how many steps one process would have made of these, with a call for each so many batches.

        The first window may be a batch shorter or longer than the others, and what is left of an epoch is shorter. One
        of twice as many has a pause of the script's in it: it has called no `step` for a while, or not begun to. So it
        counts for as many calls as there are workers, as if all paused alike.
        """
        return Fraction(self.of_run, each if self.own < 2 * each else self.own)


class Schedule:
    """Steps one prepared scheduler to where the run is."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler
        self.optimizer = scheduler.optimizer
        self._name = type(scheduler).__name__
        self._step: Callable[..., object] = scheduler.step
        """The scheduler's own method."""
        self._run: FollowedRun | None = None
        """None until it follows one."""
        self._calls = 0
        """Calls in loops over the loader, one for each batch."""
        self._each = 1
        """Batches of this worker between two calls: several where it accumulates gradients."""
        self._windows: deque[CallWindow] = deque(maxlen=WINDOWS)
        """The last ones."""
        self._due_before = Fraction(0)
        """Steps that the windows before these have come to."""
        self._seen = 0
        """Batches that all workers had used at the last call."""
        self._used = 0
        """Batches that this worker had used at the last call."""
        self._before = 0
        """Batches that this worker had used before the run that goes on."""
        self._made = 0
        """Steps that the last batch's first call has made."""
        self._times = 1
        """Calls for that batch."""
        self._stepped = 0
        """Steps of the worker at the last call."""
        self._several = 0
        """Calls since the last one that came after less than two steps."""
        self._at = 0
        """Steps that the scheduler has made since `prepare`, or since the run that this one goes on from began."""

    def follow(self, run: FollowedRun) -> None:
        """Have the scheduler follow the run from now on, in place."""
        self._run = run
        mixed_into(self.scheduler, _Prepared, paceline_schedule=self)

    def called(self, *args: Any, **named: Any) -> None:
        """Step the scheduler to where the run is, as the script calls its `step`."""
        assert self._run is not None
        if args or named:
            self._run.remark_once("epoch of step", EXPLICIT)
            self._step(*args, **named)
            return
        progress = self._run.progress()
        if progress is None:
            self._tell_of(self._run, follows=False)
            self._made = 1
        else:
            of_run, own = progress[0], progress[1] + self._before
            if self._calls and own == self._used:  # one more for the same batch
                self._times += 1
                self._go_on(self._made)
                return
            self._tell_of(self._run, follows=True)
            self._made = self._due(of_run, own)
        self._at += self._go_on(self._made)

    def come_to(self, of_run: int, own: int) -> None:
        """Step to where a script alone would be after so many batches, between loops or at the end.

        `own`: how many of them are this worker's. After a pause the script calls `step` no more.
        """
        own += self._before
        if self._calls and of_run > self._used and own - self._used < 2 * self._each:
            steps = math.ceil(self._plan() + Fraction(of_run - self._seen, self._each)) - self._at
            self._at += self._go_on(steps)
            self._go_on(steps * (self._times - 1))

    def _go_on(self, steps: int) -> int:
        """Make so many steps, or as many as the plan has left. Return how many."""
        for made in range(steps):
            if self._is_over():
                return made
            self._step()
        return max(0, steps)

    def _due(self, of_run: int, own: int) -> int:
        """Return how many steps a script alone with all of the data would have made since the last call."""
        assert self._run is not None
        self._calls += 1
        if len(self._windows) == WINDOWS:
            self._due_before += self._windows[0].steps(self._each)
        self._windows.append(CallWindow(of_run - self._seen, max(1, own - self._used)))
        self._seen, self._used, self._times = of_run, own, 1
        sizes = [window.own for window in self._windows]
        if self._calls <= WINDOWS or len(set(sizes)) == 1:  # at a tie the larger: what is left of an epoch is smaller
            self._each = max(sizes, key=lambda size: (sizes.count(size), size))
        if self._run.absorbs:
            return 0
        if of_run <= own:  # no other worker has trained: each call is a step, whatever it comes after
            return 1
        # a plan that is late catches up here, while steps that came too early are never taken back
        return max(1, math.ceil(self._plan()) - self._at)

    def _plan(self) -> Fraction:
        """Return how many steps are due by the last call."""
        return self._due_before + sum((window.steps(self._each) for window in self._windows), Fraction(0))

    def _tell_of(self, run: FollowedRun, *, follows: bool) -> None:
        """Tell the user of calls that may be meant otherwise than they count."""
        steps, self._stepped = run.steps - self._stepped, run.steps
        if not follows:
            if steps == 1 and run.streams:
                run.remark_once("schedule of a stream", uncounted(self._name))
            return
        self._several = self._several + 1 if steps > 1 else 0
        if self._several == WINDOWS:
            run.remark_once("schedule of several", of_several(self._name, steps))

    def _is_over(self) -> bool:
        """Return whether the plan has no further step: the loop of one process would be over."""
        total = getattr(self.scheduler, "total_steps", None)
        return total is not None and self.scheduler.last_epoch >= total

    def state_dict(self) -> dict[str, Any]:
        """Return what a snapshot keeps."""
        plan = self._plan()
        due, seen = [plan.numerator, plan.denominator], self._seen
        return {"scheduler": self.scheduler.state_dict(), "at": self._at, "used": self._used, "due": due, "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._at, self._before, self._used = state["at"], state["used"], state["used"]
        self._due_before, self._seen = Fraction(*state["due"]), state["seen"]


class Plateau(Schedule):
    """A ReduceLROnPlateau, which makes the same steps in all workers: by one worker's metrics.

    The n-th call of a worker that decides is a step unless another worker, which decided before, has made as many.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        super().__init__(scheduler)
        self._told: dict[int, float] = {}
        """Metrics of other workers, by the number of the step."""
        self.begins_late = False
        """Whether this worker begins while others train, and has nothing of theirs that says how often they call."""

    def called(self, metrics: Any, epoch: int | None = None) -> None:
        """See `Schedule`."""
        assert self._run is not None
        metric, decides = float(metrics), self._run.decides()
        if decides is None:
            return
        if self.begins_late:
            self._calls, self.begins_late = self._at, False
        self._calls += 1
        if decides and self._calls > self._at:
            self._step(metrics, epoch)
            self._at += 1
            self._run.decided(self, metric)

    def told(self, number: int, metric: float) -> None:
        """Make the step of that number by this metric, which a worker that decides has told."""
        self._told[number] = metric
        self.catch_up()

    @property
    def made(self) -> int:
        """How many steps it has made."""
        return self._at

    def catch_up(self) -> None:
        """Make the steps whose metrics are known and that the scheduler has not made."""
        while self._at in self._told:
            self._step(self._told[self._at])
            self._at += 1

    def come_to(self, of_run: int, own: int) -> None:
        """See `Schedule`. It has no plan."""

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule`."""
        return {"scheduler": self.scheduler.state_dict(), "at": self._at, "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Schedule`."""
        self.scheduler.load_state_dict(state["scheduler"])
        self._at, self._calls = state["at"], state["calls"]


class RunSchedules:
    """A worker's schedulers that follow the run, and what they ask of it: a `FollowedRun`."""

    def __init__(self, session: Session, schedules: Sequence[Schedule]) -> None:
        self._session = session
        self._schedules = schedules
        self.plateaus = plateaus_of(schedules)
        """Those of these that are stepped by metrics."""
        self._decides = False
        """Whether this worker's metrics step them in all workers."""
        self._looked = False
        """Whether the optimizer was searched for schedulers that don't follow the run."""

    def progress(self) -> tuple[int, int] | None:
        """See `FollowedRun`."""
        session = self._session
        used = session.run_used if session.go is not None else max(session.run_used, session.snapshots.used)
        return (used, session.used) if session.looping else None

    @property
    def absorbs(self) -> bool:
        """See `FollowedRun`."""
        return self._session.absorbs

    def remark_once(self, key: str, line: str) -> None:
        """See `FollowedRun`."""
        self._session.remark_once(key, line)

    def decides(self) -> bool | None:
        """See `FollowedRun`."""
        session = self._session
        if session.here:
            session.end_wait()
        past = session.joins or (session.loops.past and not session.resuming.taken)
        stopped = session.go is None and session.link.was_stopped
        if past or (stopped and not session.snapshots.due):  # a snapshot may need one more call
            return None
        return self._decides

    def decided(self, scheduler: Plateau, metric: float) -> None:
        """See `FollowedRun`."""
        self._session.link.say(Decided(self.plateaus.index(scheduler), metric))

    def step_plateaus(self, news: PlateauMetrics) -> None:
        """Make the steps that were decided."""
        self._decides = news.decides
        for scheduler, number, metric in news.metrics:
            self.plateaus[scheduler].told(number, metric)

    @property
    def steps(self) -> int:
        """See `FollowedRun`."""
        return self._session.steps

    @property
    def streams(self) -> bool:
        """See `FollowedRun`."""
        return self._session.streams

    def come_to(self, of_run: int) -> None:
        """Step to where a script alone would be after so many batches, between loops or at the end."""
        for schedule in self._schedules:
            schedule.come_to(of_run, self._session.used)

    def rate_changed(self) -> None:
        """The rate has changed in a loop. Then a scheduler should follow the run."""
        if not self._looked:
            self._looked = True
            if line := unprepared(self._session.context.optimizer):
                self.remark_once("schedule", line)

    def script_steps_plateau(self, scheduler: ReduceLROnPlateau) -> None:
        """The script steps a scheduler that was not prepared, by this worker's metric."""
        session = self._session
        if session.go is not None and scheduler.optimizer is session.context.optimizer:
            self.remark_once("plateau", plateau_remark(session.holder.keeps_state, session.link.in_means))


def schedule_of(scheduler: LRScheduler) -> Schedule:
    """Return the schedule that has this scheduler follow a run."""
    return Plateau(scheduler) if isinstance(scheduler, ReduceLROnPlateau) else Schedule(scheduler)


def plateaus_of(schedules: Sequence[Schedule]) -> list[Plateau]:
    """Return the schedules that are stepped by metrics."""
    return [one for one in schedules if isinstance(one, Plateau)]


class _Prepared:
    """Mixed into the class of the user's own scheduler, which stays the same object."""

    paceline_schedule: Schedule

    def step(self, *args: Any, **named: Any) -> None:
        self.paceline_schedule.called(*args, **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or pickle is of the script's own class, as that of a prepared optimizer is."""
        return copyreg._reconstructor, (type(self).__mro__[2], object, None), self.__dict__  # type: ignore[attr-defined]


EXPLICIT = (
    "calls scheduler.step(...) with a number of its own, which goes to the scheduler as it is: it doesn't follow the "
    "run; call scheduler.step() without one"
)


ABSOLUTE = (CosineAnnealingWarmRestarts, CyclicLR, LambdaLR, OneCycleLR)
"""They compute rates from the first one, whatever another scheduler has made of them. Others multiply the last."""


def check_schedulers(schedulers: Sequence[Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError, in one line, for what `prepare` can't have follow the run."""
    for one in schedulers:
        if one.optimizer is not optimizer:
            raise ConfigError(
                f"prepare() got a {type(one).__name__} of another optimizer; give it the scheduler of the optimizer "
                "that it gets"
            )
    overriding = next((one for one in schedulers if isinstance(one, ABSOLUTE)), None)
    if overriding is not None and len(schedulers) > 1:
        other = next(one for one in schedulers if one is not overriding)
        raise ConfigError(
            f"prepare() got a {type(overriding).__name__}, which sets the learning rate whatever the "
            f"{type(other).__name__} beside it has made of it; chain them by torch's SequentialLR, or leave one out"
        )
    inner = {id(part) for one in schedulers for part in getattr(one, "_schedulers", ())}
    for one in schedulers:
        if id(one) in inner:
            raise ConfigError(
                f"prepare() got a {type(one).__name__} that is a part of another scheduler that it got; give it the "
                "outer one alone"
            )


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """All learning-rate schedulers of this optimizer."""
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), LRScheduler) and getattr(one, "optimizer", None) is optimizer
    ]


def left_out(schedulers: Sequence[LRScheduler], known: Sequence[Any]) -> list[str]:
    """The classes of those of an optimizer's schedulers that are none of the known ones, nor a part of another one."""
    parts = [scheduler for one in (*schedulers, *known) for scheduler in getattr(one, "_schedulers", ())]
    ids = {id(one) for one in (*known, *parts)}  # SequentialLR has its own ones
    return sorted(type(one).__name__ for one in schedulers if id(one) not in ids)


def uncounted(name: str) -> str:
    """What a worker does whose prepared scheduler steps with each batch of a stream."""
    return (
        f"steps {name} once for each of its own steps, since the batches of this loader are not counted: a plan of "
        "epochs * len(loader) steps doesn't come to its end; plan for a worker's share, which is "
        "1 / paceline.workers() of them where all are equally fast"
    )


def of_several(name: str, steps: int) -> str:
    """What a worker does whose prepared scheduler steps once in so many of its steps."""
    return (
        f"steps {name} once in {steps} of its own steps, within its loop: each call goes as far as all workers' "
        "batches since the last one. If a call ends an epoch that the script counts by its own steps, leave the "
        "scheduler out of prepare(): then a call is one step"
    )


BY_HAND = (
    "sets the optimizer's learning rate in its loop, and the workers share out the batches: a count of its own steps "
    "comes to a share of epochs * len(loader). Have a scheduler follow the run, such as "
    "torch.optim.lr_scheduler.LambdaLR: model, optimizer, loader, scheduler = "
    "paceline.prepare(model, optimizer, loader, scheduler)"
)


def unprepared(optimizer: torch.optim.Optimizer) -> str | None:
    """Return what a worker does whose rate changes in its loop without following the run.

    None if it has prepared all schedulers that it may have stepped.
    """
    found = schedulers_of(optimizer)
    if not found:
        return BY_HAND
    names = left_out(found, [one for one in found if isinstance(one, _Prepared | ReduceLROnPlateau)])
    if not names:
        return None
    return (
        f"steps {names[0]} in its loop, once for each of its own steps, and the workers share out the batches: a plan "
        "of epochs * len(loader) steps doesn't come to its end. Have it follow the run: model, optimizer, loader, "
        "scheduler = paceline.prepare(model, optimizer, loader, scheduler)"
    )


def with_schedules(keep: Mapping[str, Any], schedules: Sequence[Schedule]) -> dict[str, Any]:
    """Return what a snapshot keeps by name: what the script asks for, and each prepared scheduler."""
    of = {id(schedule.scheduler): schedule for schedule in schedules}
    kept = {name: of.pop(id(one), one) for name, one in keep.items()}
    names = (name for number in count(1) if (name := f"scheduler{number}") not in keep)
    return kept | dict(zip(names, of.values(), strict=False))


# --- ReduceLROnPlateau that was not prepared: each worker steps it by a metric of its own


def plateau_remark(keeps_state: bool, in_means: bool) -> str:
    """Return the remark about a worker, to follow its name. See `Holder.keeps_state`, and `Link` for `in_means`."""
    if keeps_state:
        counts = "Each worker's own optimizer steps with its own rate, so where their metrics differ the rates part"
    elif in_means:
        counts = "A version takes the rate of the lowest worker in it, so that worker's metric decides"
    else:
        counts = "Each update takes its own worker's rate, so where their metrics differ the rates do"
    return (
        f"steps ReduceLROnPlateau, and so does each worker, by its own metric. {counts}. Have one worker's metric "
        "decide for all: model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler)"
    )


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(scheduler: ReduceLROnPlateau, *arguments: Any, **named: Any) -> Any:
        session = ScriptProcess.session
        if session is not None and not isinstance(scheduler, _Prepared):
            session.schedules.script_steps_plateau(scheduler)
        return original(scheduler, *arguments, **named)

    return step


PLATEAUS = (Patch((ReduceLROnPlateau,), ("step",), _telling, "each worker would step it by a metric of its own"),)
