"""The names that a user's script calls."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, overload

import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline.core.agreements import How, checked_value, result_of
from paceline.errors import ConfigError
from paceline.ipc.channel import path_of
from paceline.ipc.messages.worker import ParserEnded, ScalarsLogged, StopWanted
from paceline.launch.environment import ranks
from paceline.launch.ranks import become_run
from paceline.training.arguments import Arguments, Options, sorted_out
from paceline.training.checks import check, check_loader
from paceline.training.data.loader import PacedLoader, PacedStream, SharedStream
from paceline.training.data.loader_view import Iterated, as_prepared
from paceline.training.data.one_ahead import with_last
from paceline.training.data.probe import ENDLESS, leased_passes
from paceline.training.encoding import Encoding
from paceline.training.layout import Layout, Places
from paceline.training.link import Baseline, Evaluate, Link
from paceline.training.misuse import MULTIRUN, Unprepared, prepared_again, unjoined
from paceline.training.model.evaluating import check_name, end_evaluating, measure_of
from paceline.training.model.final import install_final, tell_of_structure
from paceline.training.model.state_dicts import STATE_DICTS
from paceline.training.model.structure import Followed
from paceline.training.offer import offer_of
from paceline.training.optim.clipping import Clip, OwnClipping, clip_before_steps, watch, watch_none
from paceline.training.optim.optimizer import pace
from paceline.training.optim.schedules import PLATEAUS, check_schedulers, plateaus_of, schedule_of, with_schedules
from paceline.training.process import ScriptProcess
from paceline.training.replaced import replace
from paceline.training.residual import Residual
from paceline.training.seeding import seed_between
from paceline.training.session import Session
from paceline.training.signals import undisturbed
from paceline.training.training_context import TrainingContext
from paceline.training.uncompiled import uncompiled
from paceline.training.user_state import UserState, check_kept

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741
L = TypeVar("L", bound=DataLoader[Any])
S = TypeVarTuple("S")


LONGEST_REASON = 200
"""Characters of what `stop` says, on a line of a terminal or two."""


def attach(link: Link) -> None:
    """Let `prepare` join the run behind this link. The runtime calls this before the script starts."""
    ScriptProcess.link, ScriptProcess.prepared = (
        link,
        False,
    )  # the launcher may be a program that has prepared a model alone
    if link.worker == 0:  # the others would say the same
        ScriptProcess.unprepared = Unprepared(link.remark)


def attach_baseline(baseline: Baseline) -> None:
    """Let `prepare` have the script trained by this. The runtime calls it before the script starts."""
    ScriptProcess.baseline, ScriptProcess.prepared = baseline, False


def refuse(message: str) -> None:
    """End the run that this process takes part in with this line: the script can't be trained in this way."""
    if (run := ScriptProcess.link or ScriptProcess.baseline) is not None:
        run.refuse(message)


def is_stopped() -> bool:
    """Whether the run that this process takes part in is over, or is to end."""
    return ScriptProcess.link is not None and ScriptProcess.link.is_stopped()


def ended_by_parser(code: int) -> None:
    """Tell the run that the script's own argument parser has ended the script, unless it trains by now."""
    if ScriptProcess.link is not None and not ScriptProcess.prepared:
        ScriptProcess.link.say(ParserEnded(code))


@overload
def prepare(
    model: M,
    optimizer: O,
    loader: None = None,
    *,
    epochs: int | None = None,
    evaluate: Evaluate | None = None,
    buffers: str | None = None,
    shards: str | None = None,
    keep: Mapping[str, Any] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
) -> tuple[M, O]: ...


@overload
def prepare(
    model: M,
    optimizer: O,
    loader: L,
    *schedulers: *S,
    epochs: int | None = None,
    evaluate: Evaluate | None = None,
    buffers: str | None = None,
    shards: str | None = None,
    keep: Mapping[str, Any] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
) -> tuple[M, O, L, *S]: ...


@overload
def prepare(
    model: Any,
    optimizer: Any,
    loader: Any = None,
    *schedulers: Any,
    epochs: int | None = None,
    evaluate: Evaluate | None = None,
    buffers: str | None = None,
    shards: str | None = None,
    keep: Mapping[str, Any] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
) -> tuple[Any, ...]: ...


def prepare(  # type: ignore[misc]  # mypy takes the schedulers of the second for any number of tuples
    model: Any,
    optimizer: Any,
    loader: Any = None,
    *schedulers: Any,
    epochs: int | None = None,
    evaluate: Evaluate | None = None,
    buffers: str | None = None,
    shards: str | None = None,
    keep: Mapping[str, Any] | None = None,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
) -> tuple[Any, ...]:
    """Join the run: the one line that a training script needs. In a script that runs alone it only clips.

    Args:
        model: the model to train. Every worker builds the same one, and all begin with the lowest worker's values.
        optimizer: any `torch.optim.Optimizer` over the model's parameters. It stays the same object. Its
            `step()` pushes the gradient, waits for the next release and installs that version. Before the first
            step the script may change parameters or load a state into the optimizer, if every worker does the same.
            After the first step that is an error.
        loader: a `DataLoader`, or nothing if the script draws its own batches. A map-style dataset is leased to
            workers batch by batch. With an `IterableDataset` each worker iterates its own stream. In a loop over the
            loader that `prepare` returns, `loader.last` is true for this worker's last batch.
        schedulers: any number of the optimizer's learning-rate schedulers. Calls of their `step()` in a loop over the
            loader step them to where the run is, by the batches of all workers. So a plan of `epochs * len(loader)`
            steps ends where it would in one process. A call between loops is one step. Snapshots keep them. A
            `ReduceLROnPlateau` is stepped by worker 0's metrics, in all workers.
        epochs: how many loops over the loader there will be, if known. Training ends with the last of them: a
            later loop over the loader gets no batches. `--epochs` wins over it.
        evaluate: `evaluate(model) -> {metric: value}`. It is called on each recorded version after training, and with
            `--stop-at-target` while workers train. With a `--target` worker 0 also calls it once before training, to
            learn the metrics' names. A script that measures in its own loop can `log` the metric instead.
        buffers: which buffers a version has: `mean` (default), `leader` or `local`.
        shards: how batches are shared out: `dynamic` (default) or `static`.
        keep: what else is to be saved with each snapshot, by name, so that a run can go on from it:
            `keep={"scheduler": scheduler, "ema": ema}`. Anything with `state_dict` and `load_state_dict` can be kept.
            Each worker's is saved, and `prepare` loads it in the worker's script when the run goes on.
        clip_grad_norm: the largest Euclidean norm that the gradients of a step may have together. Larger ones are
            scaled down to it, as by `torch.nn.utils.clip_grad_norm_`. What is clipped is the mean of the workers'
            gradients, or each gradient where the protocol applies each by itself. It takes the place of clipping in
            the script, and acts in a script that runs alone, too.
        clip_grad_value: the largest magnitude that an element of a gradient may have, instead of a norm. It is
            `torch.nn.utils.clip_grad_value_` for the same gradients.

    Model, optimizer, loader and schedulers may come in any order.

    Returns:
        The same objects in the order of the arguments: (model, optimizer, loader), say. The loader is another one.

    Raises:
        ConfigError: in one line, if model, optimizer and loader cannot be trained together.

    Example:
        >>> model, optimizer, loader = paceline.prepare(model, optimizer, loader)  # doctest: +SKIP
    """
    link = ScriptProcess.link
    if ScriptProcess.unprepared is not None:
        ScriptProcess.unprepared.end()
    with _refusing():
        given = sorted_out((model, optimizer, loader, *schedulers))
        if ScriptProcess.prepared and link is not None:  # alone it changes nothing: a notebook's cell may run again
            raise ConfigError(_again(given.model, given.optimizer))
        check(given.model, given.optimizer, epochs, buffers, shards)
        check_kept(keep or {}, given.model, given.optimizer)
        check_schedulers(given.schedulers, given.optimizer)
        clip = Clip.of(clip_grad_norm, clip_grad_value)
        if given.loader is not None:
            check_loader(given.loader)
    ScriptProcess.prepared = True
    options = Options(epochs=epochs, evaluate=evaluate, buffers=buffers, shards=shards, keep=keep or {}, clip=clip)
    if link is not None:
        return _in_run(link, given, options)
    clip_before_steps(given.optimizer, clip)
    watch_none()  # a notebook's cell may have asked for clipping before
    if clip is not None:
        watch(given.optimized, partial(_refuse_own, clip))
    return _alone(given) if ScriptProcess.baseline is None else _under(ScriptProcess.baseline, given, options)


def is_in_run(framework: str) -> bool:
    """Whether this process takes part in a run, for what prepares a framework's objects. See `_alone`, too."""
    with _refusing():
        if ScriptProcess.baseline is not None:
            raise ConfigError(f"{framework} can't be trained by the baseline ddp; compare Paceline's protocols")
    if ScriptProcess.link is None:
        _join_others()
    return ScriptProcess.link is not None


def _join_others() -> None:
    """Let the processes become one run if an engine has started the script in several. Then this doesn't return."""
    if (several := ranks(os.environ)) is not None:
        become_run(several)


def _alone(given: Arguments) -> tuple[Any, ...]:
    """Leave the script as it is."""
    _join_others()
    if line := unjoined(os.environ):
        print(line, file=sys.stderr)
    if given.loader is not None:
        with_last(given.loader)
    return given.returned(given.model, given.loader)


def _under(baseline: Baseline, given: Arguments, options: Options) -> tuple[Any, ...]:
    """Have the script trained otherwise, to compare it with runs."""
    evaluate = options.evaluate
    measure = measure_of(given.model, evaluate, baseline.seed)
    model, loader = baseline.prepare(given.model, given.optimizer, given.loader, measure, evaluate is not None)
    schedules = [schedule_of(scheduler) for scheduler in given.schedulers]
    baseline.plateaus = plateaus_of(schedules)
    for schedule in schedules:
        schedule.follow(baseline)
    return given.returned(model, loader)


def _in_run(link: Link, given: Arguments, options: Options) -> tuple[Any, ...]:
    """Join the run, and have the script's own objects follow it from now on."""
    model, optimizer, loader = given.model, given.optimizer, given.loader
    schedules = [schedule_of(scheduler) for scheduler in given.schedulers]
    with _refusing():
        kept = UserState(with_schedules(options.keep, schedules), optimizer)
        passes = None if loader is None else leased_passes(loader)
        layout = Layout.of(model, optimizer)
        if link.codec is not None:
            layout = layout.encoded(Encoding.of(link.codec, layout))
        offer = offer_of(link, layout, given, options, passes, len(plateaus_of(schedules)))
    started = link.start(offer)
    begin, followed = started.begin, Followed(model)
    residual = None
    if layout.encoding is not None and layout.encoding.codec.feedback:
        unapplied = 1 if begin.state == "replicas" else begin.areas
        residual = Residual(layout.flags_offset // 4, unapplied, layout.encoding.kept)
    context = TrainingContext(
        link=link,
        places=Places(layout, started.region, begin.slots, link.workers, begin.areas),
        followed=followed,
        optimizer=optimizer,
        parameters=[followed.parameters[entry.name] for entry in layout.moving],
        clip=options.clip,
        residual=residual,
    )
    session = ScriptProcess.session = Session(context, started, offer.offered, kept, schedules)
    pace(optimizer, session)
    replace(STATE_DICTS)
    session.begin()
    for schedule in schedules:
        schedule.follow(session.schedules)
    watch(given.optimized, session.script_clips)
    replace(PLATEAUS)
    if loader is None:
        return given.returned(model)
    paced: Iterated
    if passes is not None:
        paced = PacedLoader(loader, session, endless=passes == ENDLESS)
    else:
        paced = (PacedStream if offer.offered.streams else SharedStream)(loader, session)
        session.streams = True
    session.loop_is_due = not offer.offered.streams
    seed_between(session.link.seed, -1)
    return given.returned(model, as_prepared(paced))


@contextmanager
def _refusing() -> Iterator[None]:
    """End the run with the line of a ConfigError that is raised inside the block."""
    try:
        yield
    except ConfigError as error:
        refuse(str(error))
        raise


def _refuse_own(clip: Clip, own: OwnClipping) -> None:
    with _refusing():
        raise ConfigError(own.refused(clip))


def _again(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    session = ScriptProcess.session
    if session is None:  # the first call has failed, and the script went on
        return prepared_again(sys.argv[0], model=False, optimizer=False, steps=False, over=False)
    return prepared_again(
        sys.argv[0],
        model=model is session.followed.model,
        optimizer=optimizer is session.context.optimizer,
        steps=session.steps > 0,
        over=session.go is None and not session.joins,
        multirun="hydra" in sys.modules and any(word in MULTIRUN for word in sys.argv[1:]),
    )


def epochs(number: int) -> Iterator[int]:
    """Count epochs, as `range(number)` does, in `for epoch in paceline.epochs(number):`.

    In a run that goes on from a snapshot, begin with the epoch that it goes on in. `--epochs` wins over `number`.
    A run that is stopped has no further epochs. In a script that runs alone this is `range(number)`.
    """
    session = ScriptProcess.session
    if session is None:
        yield from range(number)
        return
    number = session.link.epochs or number
    for epoch in range(session.loops.goes_on(number, session.steps), number):
        session.come_by()
        if session.link.was_stopped:
            return
        yield epoch


def resumed() -> bool:
    """Return whether the run goes on from a snapshot, or went on while this worker was away. Alone it is false.

    Call this after `prepare`. Then parameters, buffers and kept objects are as they were saved, or as another worker
    has them. What the script loads or changes is discarded.
    """
    return ScriptProcess.session is not None and ScriptProcess.session.resuming.at is not None


@undisturbed
def finish() -> None:
    """Wait until every worker has ended its training, and install the final parameters and buffers.

    In a script that runs alone, and before `prepare`, it returns at once.
    """
    session = ScriptProcess.session
    if session is None:
        return
    session.come_by()
    session.resuming.go_on()
    session.done_computing()
    session.other_training.finishes()
    file, used = session.link.finish()
    session.schedules.come_to(used // session.link.pieces)
    if file is not None:
        with path_of(file) as path:
            install_final(session, path)


def script_ended() -> None:
    """The script has come to its end. The runtime calls this."""
    session = ScriptProcess.session
    if session is None:
        return
    session.end_wait()
    session.make_step_so_far()
    if session.live:
        session.other_training.ends()
        session.other_training.script_ends()
        tell_of_structure(session)
    session.snapshots.send()
    session.tell_values()


def session_now() -> Session | None:
    """Return what trains here; None if the script has not called `prepare`."""
    return ScriptProcess.session


def end_of_part() -> None:
    """Let the model be as the script has left it, for what the script has registered for its own end.

    The runtime calls this once the run asks nothing more of this process.
    """
    if ScriptProcess.session is not None:
        end_evaluating(ScriptProcess.session)


@uncompiled
def log(**scalars: float) -> None:
    """Record values of the present step in the run's ledger, as in `paceline.log(loss=loss.item())`.

    The trackers that `--log-to` names get them as well.

    A value that has the name of a `--target`'s metric counts for that target, as one of the version that the step is
    computed on. After the worker's last step it is of the version that the worker has then. After `finish` nothing is
    recorded.
    """
    for name in scalars:
        check_name("paceline.log() got a value named", name)
    session = ScriptProcess.session
    go = None if session is None else session.shown
    if session is not None and go is not None:
        session.link.say(ScalarsLogged(go.step, go.version, {name: float(value) for name, value in scalars.items()}))


@uncompiled
def weigh(number: float) -> None:
    """Say what the gradient that comes next weighs in a mean of several workers' gradients.

    Without this it weighs as many samples as its batches have, which is right for a loss that is a mean over samples.
    Call this before `backward()` where the loss is a mean over something else (`paceline.weigh(tokens)`), and where
    the script's own thread has fetched more batches than the loss is of (`paceline.weigh(len(x))`). A step of several
    batches weighs their sum. Protocols that apply each gradient by itself ignore this, and so does a script that runs
    alone.

    Args:
        number: what the loss is a mean over: tokens, pixels, samples. 0 or more, and finite.

    Raises:
        ConfigError: if `number` is none.
    """
    try:
        weight = math.nan if isinstance(number, bool | str | bytes) else float(number)
    except (TypeError, ValueError, RuntimeError):
        weight = math.nan
    with _refusing():
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(
                f"paceline.weigh() got {number!r}; it must be a finite number, 0 or more: the batch's tokens, say"
            )
    if ScriptProcess.session is not None:
        ScriptProcess.session.batches.weigh(weight)


@uncompiled
def stop(reason: str) -> None:
    """End the run for all workers, as one that is completed. It returns at once: workers end after their present steps.

    After it the loops of all workers get no more batches, and scripts go on after them: `finish()` installs the last
    version in each. So one worker's early stopping stops them all. In a script that runs alone it does nothing: leave
    the loop as well.

    Args:
        reason: one line, for the output and the summary.

    Raises:
        ConfigError: before `prepare`, or without a reason.

    Example:
        >>> if epochs_without_gain > patience:  # doctest: +SKIP
        ...     paceline.stop("val_acc has not risen for 5 epochs")
        ...     break
    """
    line = " ".join(reason.split()) if isinstance(reason, str) else ""
    with _refusing():
        if not line:
            raise ConfigError(f"paceline.stop() got {reason!r}; it must be a line that says why the run ends")
        _check_prepared("stop", "no training has begun that it could end")
    if ScriptProcess.session is not None and ScriptProcess.session.go is not None:
        ScriptProcess.session.link.say(StopWanted(line[:LONGEST_REASON]))


@uncompiled
def agree(value: Any, how: How = "any") -> Any:
    """Decide together with the other workers, between two loops over the loader. All get the same result.

    It waits until every worker that still trains has called it after the same epoch. The others' steps don't wait for
    those that wait here. A worker that has ended its training, or goes on to the next epoch without calling, takes no
    part. Once the run is stopped, each worker gets what its own value comes to.

    In a script that runs alone, what its value comes to is the result.

    Args:
        value: this worker's value. `any` and `all` take true or false, and `mean` takes a number. `first` takes a
            number, a string of at most 1,000 characters, true, false or None.
        how: what to make of the values. `any` says whether any is true, and `all` whether all are. `mean` is their
            mean, and `first` is the value of the lowest worker. All workers must give the same `how`.

    Raises:
        ConfigError: before `prepare`, inside a loop over the prepared loader, or with a value that doesn't fit.

    Example:
        >>> if paceline.agree(epochs_without_gain > patience):  # doctest: +SKIP
        ...     break
    """
    with _refusing():
        given = checked_value(value, how)
        _check_prepared("agree", "no training has begun yet")
    if ScriptProcess.session is not None:
        return ScriptProcess.session.agreements.agree(how, given)
    if ScriptProcess.baseline is not None:
        return ScriptProcess.baseline.agree(how, given)
    return result_of(how, {0: given})


def _check_prepared(function: str, why: str) -> None:
    """Raise ConfigError for a function that a run's script calls before `prepare`."""
    if ScriptProcess.link is not None and ScriptProcess.session is None:
        raise ConfigError(f"paceline.{function}() came before paceline.prepare(): {why}")


def worker() -> int:
    """Return this worker's index, from 0. In a script that runs alone it is 0."""
    run = ScriptProcess.link or ScriptProcess.baseline
    return run.worker if run else 0


def is_main() -> bool:
    """Return whether this worker prints, downloads and saves for all: worker 0 does, and a script that runs alone."""
    return worker() == 0


def workers() -> int:
    """Return how many workers there are at most. In a script that runs alone it is 1.

    It is how many the run began with, unless hosts may come later. Workers that come or go
    do not change it.
    """
    run = ScriptProcess.link or ScriptProcess.baseline
    return run.workers if run else 1
