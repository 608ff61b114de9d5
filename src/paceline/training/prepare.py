"""The names that a user's script calls."""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, TypeVarTuple, overload

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from paceline.core.agreements import How, checked_value, result_of
from paceline.errors import ConfigError
from paceline.ipc.channel import path_of
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import Offered, ParserEnded, ScalarsLogged, StopWanted
from paceline.store.chunks import chunks_at, cuts_of
from paceline.store.store import Store, scalars_of, unfit_rate
from paceline.training import accelerator
from paceline.training.arguments import check_name, sorted_out
from paceline.training.averages import POLICIES
from paceline.training.batches import Batches, in_variables
from paceline.training.clipping import Clip, OwnClipping, clip_before_steps, watch, watch_none
from paceline.training.evaluating import metric_names, metrics_of
from paceline.training.final import install_final, tell_of_structure
from paceline.training.layout import Layout, Places
from paceline.training.link import Baseline, Evaluate, Link, Measure, Offer
from paceline.training.loader import (
    Iterated,
    PacedLoader,
    PacedStream,
    SharedStream,
    as_prepared,
    checked,
    epoch_samples,
    leased_passes,
    length,
)
from paceline.training.misuse import TRAINERS_OPTIMIZER, Unprepared, prepared_again, unjoined, where_prepare_goes
from paceline.training.one_ahead import with_last
from paceline.training.optimizer import is_replaced, pace
from paceline.training.probe import ENDLESS
from paceline.training.schedules import check_schedulers, plateaus_of, schedule_of, watch_plateau, with_schedules
from paceline.training.seeding import mixed, seed_all
from paceline.training.session import Session, install, structure_of
from paceline.training.signals import undisturbed
from paceline.training.state_dicts import follow_state_dicts
from paceline.training.structure import Followed
from paceline.training.uncompiled import uncompiled
from paceline.training.user_state import UserState, check_kept

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741
L = TypeVar("L", bound=DataLoader[Any])
S = TypeVarTuple("S")


LONGEST_REASON = 200
"""Characters of what `stop` says, on a line of a terminal or two."""


class _Process:
    """This process's part in a run: none while a script runs alone."""

    link: Link | None = None
    baseline: Baseline | None = None
    session: Session | None = None
    unprepared: Unprepared | None = None
    """What watches for steps before `prepare`, in one of the run's workers."""
    prepared = False
    left: ClassVar[list[tuple[Tensor, Tensor]]] = []
    """The model's parameters and buffers, with what the script has left in them, if versions are evaluated there."""


def attach(link: Link) -> None:
    """Let `prepare` join the run behind this link. The runtime calls this before the script starts."""
    _Process.link, _Process.prepared = link, False  # the launcher may be a program that has prepared a model alone
    if link.worker == 0:  # the others would say the same
        _Process.unprepared = Unprepared(link.remark)


def attach_baseline(baseline: Baseline) -> None:
    """Let `prepare` have the script trained by this. The runtime calls it before the script starts."""
    _Process.baseline, _Process.prepared = baseline, False


def refuse(message: str) -> None:
    """End the run that this process takes part in with this line: the script can't be trained in this way."""
    if (run := _Process.link or _Process.baseline) is not None:
        run.refuse(message)


def is_stopped() -> bool:
    """Whether the run that this process takes part in is over, or is to end."""
    return _Process.link is not None and _Process.link.is_stopped()


def ended_by_parser(code: int) -> None:
    """Tell the run that the script's own argument parser has ended the script, unless it trains by now."""
    if _Process.link is not None and not _Process.prepared:
        _Process.link.say(ParserEnded(code))


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
    link = _Process.link
    if _Process.unprepared is not None:
        _Process.unprepared.end()
    try:
        given = sorted_out((model, optimizer, loader, *schedulers))
        model, optimizer, loader = given.model, given.optimizer, given.loader
        if _Process.prepared and link is not None:  # alone it changes nothing: a notebook's cell may run again
            raise ConfigError(_again(model, optimizer))
        _check(model, optimizer, epochs, buffers, shards)
        check_kept(keep or {}, model, optimizer)
        check_schedulers(given.schedulers, optimizer)
        clip = Clip.of(clip_grad_norm, clip_grad_value)
        checked_loader = None if loader is None else checked(loader)
    except ConfigError as error:
        refuse(str(error))
        raise
    _Process.prepared = True
    optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if link is None:
        clip_before_steps(optimizer, clip)
        watch_none()  # a notebook's cell may have asked for clipping before
        if clip is not None:
            watch(optimized, partial(_refuse_own, clip))
    if _Process.baseline is not None:
        measure = _measure(model, evaluate, _Process.baseline.seed)
        shown = _Process.baseline.prepare(model, optimizer, checked_loader, measure, evaluate is not None)
        schedules = [schedule_of(scheduler) for scheduler in given.schedulers]
        _Process.baseline.plateaus = plateaus_of(schedules)
        for schedule in schedules:
            schedule.follow(_Process.baseline)
        return given.returned(shown[0], *shown[2:])
    if link is None:
        if line := unjoined(os.environ):
            print(line, file=sys.stderr)
        if checked_loader is not None:
            with_last(checked_loader)
        return given.returned(model, loader)

    try:
        schedules = [schedule_of(scheduler) for scheduler in given.schedulers]
        kept = UserState(with_schedules(keep or {}, schedules), optimizer)
        passes = None if checked_loader is None else leased_passes(checked_loader)
        leased = passes is not None
        samples: int | None = None
        if checked_loader is not None and leased and link.wants_work:
            samples = epoch_samples(checked_loader, link.seed)
    except ConfigError as error:
        refuse(str(error))
        raise
    layout = Layout.of(model, optimizer)
    device = accelerator.device_of(optimized)
    workers, epochs = link.workers, link.epochs or epochs
    own_streams = checked_loader is not None and isinstance(checked_loader.dataset, IterableDataset)

    def make_store(region: Region, slots: int, areas: int, sums: int, steps: bool, within: tuple[int, int]) -> Store:
        return Store.of(model, optimizer, Places(layout, region, slots, workers, areas, sums), steps, within, clip)

    cuts, chunks = cuts_of(layout, optimizer, whole=clip is not None and clip.norm is not None), chunks_at(layout)
    offered = Offered(
        forms=layout.forms,
        fixed_bytes=layout.fixed_bytes,
        slot_bytes=layout.slot_bytes,
        push_bytes=layout.push_bytes,
        flags_bytes=len(layout.moving),
        buffers_bytes=layout.buffers_bytes,
        cuts=cuts,
        chunks=[] if chunks == cuts else chunks,
        state_bytes=_state_bytes(optimizer, layout),
        model_bytes=sum(entry.count * entry.dtype.itemsize for entry in layout.moving),
        optimizer=type(optimizer).__name__,
        scalars=scalars_of(optimizer),
        device="" if device is None else accelerator.name_of(device),
        deterministic=device is None or accelerator.is_deterministic(),
        loads=leased,
        epoch_samples=samples,
        passes=passes or 1,
        data=length(checked_loader) if checked_loader is not None and leased else None,
        streams=own_streams,
        shared_stream=None if leased or own_streams or checked_loader is None else type(checked_loader).__name__,
        epochs=epochs,
        buffers=buffers,
        shards=shards,
        evaluates=evaluate is not None,
        keeps=bool(keep or schedules),
        clip_grad_norm=None if clip is None else clip.norm,
        clip_grad_value=None if clip is None else clip.value,
        plateaus=len(plateaus_of(schedules)),
        metrics=metric_names(evaluate, model) if evaluate is not None and link.wants_metrics else None,
    )
    measure = _measure(model, evaluate, link.seed)
    started = link.start(Offer(offered=offered, make_store=make_store, evaluate=evaluate, measure=measure))
    session = _Process.session = Session(link, model, optimizer, layout, kept, clip)
    session.loads, session.epochs, session.evaluates = leased, epochs, evaluate is not None
    session.passes = passes or 1
    session.loop_is_due = checked_loader is not None and not own_streams
    session.batches = Batches(leased=leased, named=partial(in_variables, thread=threading.get_ident()))
    pace(optimizer, session)
    follow_state_dicts(session)
    session.schedules, session.plateaus = schedules, plateaus_of(schedules)
    session.begin(started)
    for schedule in schedules:
        schedule.follow(session)
    watch(optimized, session.script_clips)
    watch_plateau(optimizer, session.script_steps_plateau)
    if checked_loader is None:
        return given.returned(model)
    paced: Iterated
    if leased:
        paced = PacedLoader(checked_loader, session, endless=passes == ENDLESS)
    else:
        paced = (PacedStream if own_streams else SharedStream)(checked_loader, session)
    session.loader = weakref.ref(paced)
    return given.returned(model, as_prepared(paced))


def _refuse_own(clip: Clip, own: OwnClipping) -> None:
    message = own.refused(clip)
    refuse(message)
    raise ConfigError(message)


def _again(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    session = _Process.session
    if session is None:  # the first call has failed, and the script went on
        return prepared_again(sys.argv[0], model=False, optimizer=False, steps=False, over=False)
    return prepared_again(
        sys.argv[0],
        model=model is session.model,
        optimizer=optimizer is session.optimizer,
        steps=session.steps > 0,
        over=session.go is None and not session.joins,
    )


def epochs(number: int) -> Iterator[int]:
    """Count epochs, as `range(number)` does, in `for epoch in paceline.epochs(number):`.

    In a run that goes on from a snapshot, begin with the epoch that it goes on in. `--epochs` wins over `number`.
    A run that is stopped has no further epochs. In a script that runs alone this is `range(number)`.
    """
    session = _Process.session
    if session is None:
        yield from range(number)
        return
    number = session.link.epochs or number
    for epoch in range(session.goes_on(number), number):
        session.come_by()
        if session.link.was_stopped:
            return
        yield epoch


def resumed() -> bool:
    """Return whether the run goes on from a snapshot, or went on while this worker was away. Alone it is false.

    Call this after `prepare`. Then parameters, buffers and kept objects are as they were saved, or as another worker
    has them. What the script loads or changes is discarded.
    """
    return _Process.session is not None and _Process.session.resumed is not None


@undisturbed
def finish() -> None:
    """Wait until every worker has ended its training, and install the final parameters and buffers.

    In a script that runs alone, and before `prepare`, it returns at once.
    """
    session = _Process.session
    if session is None:
        return
    session.come_by()
    session.go_on()
    session.done_computing()
    session.other_training.finishes()
    file, used = session.link.finish()
    for schedule in session.schedules:
        schedule.come_to(used)
    if file is not None:
        with path_of(file) as path:
            install_final(session, path)


def script_ended() -> None:
    """The script has come to its end. The runtime calls this."""
    session = _Process.session
    if session is None:
        return
    session.end_wait()
    if session.live:
        session.other_training.ends()
        session.other_training.script_ends()
        tell_of_structure(session)
    session.send_kept()
    session.tell_values()


def session_now() -> Session | None:
    """Return what trains here; None if the script has not called `prepare`."""
    return _Process.session


def evaluated(evaluate: Evaluate, version: int, file: Path) -> dict[str, float]:
    """Return the metrics of a recorded version, after training, in the model that the script prepared.

    What `evaluate` draws depends on the version alone, whichever worker evaluates it and whatever was drawn before.
    """
    session = _Process.session
    assert session is not None  # a worker that evaluates has prepared
    session.live = False
    if not _Process.left:
        held = (*session.model.parameters(), *session.model.buffers())
        _Process.left += [(one, one.detach().clone()) for one in held]
    with safe_open(file, framework="pt") as recorded:
        number, _ = structure_of(recorded.metadata())
    now = session.followed.look() is None and number == session.followed.structure.number
    with nullcontext() if now else session.shapes[number].again():
        return _evaluated(session.followed, session.followed.added, evaluate, session.link.seed, version, file)


def end_of_part() -> None:
    """Let the model be as the script has left it, for what the script has registered for its own end.

    The runtime calls this once the run asks nothing more of this process.
    """
    session = _Process.session
    if session is not None:
        session.live = False
        with torch.no_grad():
            for one, value in _Process.left:
                one.copy_(value)


def _measure(model: nn.Module, evaluate: Evaluate | None, seed: int) -> Measure | None:
    """What evaluates a recorded version in a process that is forked while the script is in `prepare`.

    None where nothing is evaluated, or on a GPU, which no forked process can use.
    """
    if evaluate is None or any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return None
    followed = Followed(model)
    return lambda version, file: _evaluated(followed, None, evaluate, seed, version, file)


def _evaluated(
    followed: Followed, added: Mapping[str, Tensor] | None, evaluate: Evaluate, seed: int, version: int, file: Path
) -> dict[str, float]:
    seed_all(mixed("evaluate", seed, version))
    install(followed.held(), file, added)
    return metrics_of(evaluate, followed.model)


@uncompiled
def log(**scalars: float) -> None:
    """Record values of the present step in the run's ledger, as in `paceline.log(loss=loss.item())`.

    A value that has the name of a `--target`'s metric counts for that target, as one of the version that the step is
    computed on. After the worker's last step it is of the version that the worker has then. After `finish` nothing is
    recorded.
    """
    for name in scalars:
        check_name("paceline.log() got a value named", name)
    session = _Process.session
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
    if not (math.isfinite(weight) and weight >= 0):
        line = f"paceline.weigh() got {number!r}; it must be a finite number, 0 or more: the batch's tokens, say"
        refuse(line)
        raise ConfigError(line)
    if _Process.session is not None:
        _Process.session.batches.weigh(weight)


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
    problem = None
    if not line:
        problem = f"paceline.stop() got {reason!r}; it must be a line that says why the run ends"
    elif _Process.link is not None and _Process.session is None:
        problem = "paceline.stop() came before paceline.prepare(): no training has begun that it could end"
    if problem is not None:
        refuse(problem)
        raise ConfigError(problem)
    if _Process.session is not None and _Process.session.go is not None:
        _Process.session.link.say(StopWanted(line[:LONGEST_REASON]))


@uncompiled
def agree(value: Any, how: How = "any") -> Any:
    """Decide together with the other workers, between two loops over the loader. All get the same result.

    It waits until every worker that still trains has called it after the same epoch. The others' steps don't wait for
    those that wait here. A worker that has ended its training, or goes on to the next epoch without calling, takes no
    part. Once the run is stopped, each worker gets what its own value comes to.

    In a script that runs alone, what its value comes to is the result.

    Args:
        value: this worker's. For `any` and `all`: true or false; for `mean`: a number; for `first`: a number, a
            string of at most 1,000 characters, true, false or None.
        how: `any`: whether any worker's value is true; `all`: whether all are; `mean`: the mean of all; `first`: that
            of the lowest worker. All workers have to say the same.

    Raises:
        ConfigError: before `prepare`, inside a loop over the prepared loader, or with a value that doesn't fit.

    Example:
        >>> if paceline.agree(epochs_without_gain > patience):  # doctest: +SKIP
        ...     break
    """
    try:
        given = checked_value(value, how)
        if _Process.link is not None and _Process.session is None:
            raise ConfigError("paceline.agree() came before paceline.prepare(): no training has begun yet")
    except ConfigError as error:
        refuse(str(error))
        raise
    if _Process.session is not None:
        return _Process.session.agree(how, given)
    if _Process.baseline is not None:
        return _Process.baseline.agree(how, given)
    return result_of(how, {0: given})


def worker() -> int:
    """Return this worker's index, from 0. In a script that runs alone it is 0."""
    run = _Process.link or _Process.baseline
    return run.worker if run else 0


def is_main() -> bool:
    """Return whether this worker prints, downloads and saves for all: worker 0 does, and a script that runs alone."""
    return worker() == 0


def workers() -> int:
    """Return how many workers there are at most. In a script that runs alone it is 1.

    It is how many the run began with, unless hosts may come later. It stays the same, whoever comes or goes.
    """
    run = _Process.link or _Process.baseline
    return run.workers if run else 1


def _repeats(buffer: Tensor) -> bool:
    """Whether elements of it share memory, as `expand()` leaves them."""
    sizes = zip(buffer.stride(), buffer.shape, strict=True)
    return buffer.numel() > 0 and any(stride == 0 and size > 1 for stride, size in sizes)


def _check_layout(what: str, name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.").lstrip("_")
        raise ConfigError(f'the {what} "{name}" is {kind}, not dense; replace it by its to_dense()')


def _check(model: Any, optimizer: Any, epochs: int | None, buffers: str | None, shards: str | None) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"prepare() got a {type(model).__name__} as its model; it must be a torch.nn.Module"
            + where_prepare_goes(model)
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"prepare() got a {type(optimizer).__name__} as its optimizer; it must be a torch.optim.Optimizer"
            + (TRAINERS_OPTIMIZER if optimizer is None else where_prepare_goes(optimizer))
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError("LBFGS evaluates its closure several times a step; use an optimizer that takes one gradient")
    if why := unfit_rate(scalars_of(optimizer)):
        raise ConfigError(why)
    names = {parameter: name for name, parameter in model.named_parameters()}
    if not any(parameter.requires_grad for parameter in names):
        raise ConfigError("the model has no trainable parameters; at least one must have requires_grad=True")
    optimized = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    accelerator.device_of(optimized)  # before their addresses are compared, which a device without memory has none of
    taken: dict[int, str] = {}
    for parameter, name in names.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(f'the parameter "{name}" has no shape yet; run one batch through the model first')
        _check_layout("parameter", name, parameter)
        if parameter.numel() and taken.setdefault(parameter.data_ptr(), name) != name:
            raise ConfigError(
                f'the parameters "{taken[parameter.data_ptr()]}" and "{name}" share memory; '
                "tie them by making them one Parameter"
            )
    stored = {parameter.untyped_storage().data_ptr(): name for parameter, name in names.items() if parameter.numel()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter not in names:
                raise ConfigError(
                    f"the optimizer's parameter {place} of group {number}, of shape {list(parameter.shape)}, is not "
                    "one of the model's; build the optimizer from model.parameters(), once the model has its final form"
                )
    if not any(parameter.requires_grad for parameter in optimized):
        raise ConfigError("the optimizer has none of the model's trainable parameters; give it model.parameters()")
    for name, buffer in model.named_buffers():
        _check_layout("buffer", name, buffer)
        if buffer.numel() and (owner := stored.get(buffer.untyped_storage().data_ptr())):
            raise ConfigError(
                f'the buffer "{name}" shares the memory of the parameter "{owner}", which moves in prepare(); '
                "make it in the forward, or keep a copy"
            )
        if _repeats(buffer):
            raise ConfigError(
                f'elements of the buffer "{name}" share memory, as expand() leaves them; '
                "give it memory of its own by clone()"
            )
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state") and _holds_one_of(value, names):
            raise ConfigError(
                f'the optimizer keeps parameters in its attribute "{name}"; Paceline steps others in their place: '
                "let it find them in param_groups"
            )
    if any(not isinstance(key, Tensor) for key in optimizer.state):
        raise ConfigError("the optimizer's state has keys that are no parameters; keep them in its param_groups")
    if is_replaced(optimizer):
        raise ConfigError(
            "the optimizer's step() was replaced before prepare(), which gives it one of its own; replace it after "
            "prepare(), by a function that calls the one before, or write an optimizer class of your own"
        )
    if any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values()):
        raise ConfigError(
            f"the optimizer, of class {type(optimizer).__name__}, wraps another one, and Paceline can't tell which of "
            "them has the parameters; give prepare() an optimizer of its own" + where_prepare_goes(optimizer)
        )
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        raise ConfigError(
            f"the optimizer, of class {type(optimizer).__name__}, changes the parameters in its train() and eval(), "
            "which does not reach the other workers; use an optimizer that changes them in step() only"
        )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ConfigError(
                f'the layer "{name}" makes sparse gradients, which can\'t be pushed; build it with sparse=False'
            )
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or not 1 <= epochs <= 2**53):
        bound = f"{2**53} or less" if isinstance(epochs, int) and epochs > 1 else "1 or more"
        raise ConfigError(f"prepare() got epochs={epochs!r}; it must be a whole number, {bound}")
    if buffers is not None and buffers not in POLICIES:
        raise ConfigError(f'prepare() got buffers="{buffers}"; allowed: {", ".join(POLICIES)}')
    if shards is not None and shards not in ("dynamic", "static"):
        raise ConfigError(f'prepare() got shards="{shards}"; allowed: dynamic, static')


def _holds_one_of(value: Any, parameters: Any) -> bool:
    if isinstance(value, Tensor):
        return value in parameters
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(_holds_one_of(item, parameters) for item in items)


def _state_bytes(optimizer: torch.optim.Optimizer, layout: Layout) -> int:
    """Bytes that the optimizer's state will take: at most three tensors a parameter, for torch's own optimizers."""
    stateless = isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups)
    one = isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad)
    # Adam's largest second moments; RMSprop's mean gradient and momentum, beside its mean square
    three = any(g.get("amsgrad") or (g.get("centered") and g.get("momentum")) for g in optimizer.param_groups)
    return layout.slot_bytes * (0 if stateless else 1 if one else 3 if three else 2)
