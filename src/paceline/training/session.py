"""One worker's training: what its model, optimizer and loader share."""

from __future__ import annotations

import copy
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.leases import Batch
from paceline.errors import ConfigError
from paceline.fabric.memory import keep_freed_memory
from paceline.training.averages import SharedMemoryGroups
from paceline.training.checksums import checksum
from paceline.training.layout import Layout, Places
from paceline.training.link import Finished, Go, Link, Started, Step
from paceline.training.own_step import OwnStep
from paceline.training.packing import packed, unpacked
from paceline.training.parts import State, user_class
from paceline.training.push import Push
from paceline.training.replica import Replica
from paceline.training.seeding import seed_step
from paceline.training.shown import Shown
from paceline.training.store import Scalars, scalars_of


class Session:
    """Takes the worker from step to step: pushes gradients, waits, installs versions, keeps the times.

    The worker's parameters lie in a window over the store's slots: a pull moves the window to another version,
    and no byte is copied (on a GPU they are). What the script writes into them reaches nobody else.
    """

    def __init__(self, link: Link, model: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
        self.link = link
        self.model = model
        self.optimizer = optimizer
        self.layout = layout
        self.go: Go | None = None
        """The step that is being computed; None when nothing is left to do."""
        self.live = True
        """Whether the store may be newer than the model; false once the final version is installed."""
        self.loads = False
        self.epochs: int | None = None
        self.steps = 0
        """Made by this worker."""
        self.fetched: deque[Batch] = deque()
        """Handed to the script since the last step, and in no gradient that was thrown away."""
        self.untouched: list[Batch] = []
        """Those of them that were handed out since the last gradient came."""
        self.skipped: list[Batch] = []
        self.backward_seen = False
        """Whether a gradient has come since the last step or `zero_grad`."""
        self.state_loaded = False
        """Whether the script has given the optimizer another state, which nobody has adopted yet."""
        self.sent: Scalars = scalars_of(optimizer)
        self.batches_in_step = 0
        self._own: OwnStep | None = None
        """Where the optimizer runs in this worker, and the store has the parameters."""
        self._replica: Replica | None = None
        """Where this worker owns a replica."""
        self._waited = self._pulled = 0.0
        """Seconds, for the present step's release and its version."""
        self._began = self._released_at = 0.0
        self._fetching = 0.0

    def begin(self, started: Started) -> None:
        """Install what everybody begins with, and take the first step's release."""
        self.places = Places(self.layout, started.region, started.slots, self.link.workers, started.areas)
        named = dict(self.model.named_parameters())
        self.buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in self.places.fixed().items():
                if name in self.buffers:
                    self.buffers[name].copy_(value)
        self.parameters: list[Tensor] = [named[entry.name] for entry in self.layout.moving]
        others = [entry for entry in self.layout.fixed if entry.name in named]
        self._push = Push(self.places, self.model, self.parameters, self.refuse)
        if not self.link.replicas:
            self._push.use(self.link.worker)
        region = started.region
        on_cpu = all(parameter.device.type == "cpu" for parameter in self.parameters)
        if (self.link.steps_here or self.link.replicas) and not on_cpu:
            self.refuse(
                "this protocol runs the optimizer in the workers, which is not there yet for parameters on a GPU"
            )
        if self.link.steps_here:
            self._own = OwnStep(self.places, self.optimizer, self.parameters, self.link.rate_scale)
            region = self._own.region
        elif self.link.replicas:
            scale = self.link.rate_scale
            self._replica = Replica(self.places, self.model, self.optimizer, self.parameters, scale)
            self.link.begin_to_average(SharedMemoryGroups(self.places, self.link.worker))
        else:
            self.optimizer.state.clear()  # the store has it
        self._moving = Shown(region, self.layout.slot_bytes, self.layout.moving, self.parameters)
        self._fixed = Shown(started.region, self.layout.fixed_bytes, others, [named[entry.name] for entry in others])
        self._show(0)
        self._fixed.show(self.places.fixed_start())
        self._attributes = _attributes(self.optimizer)
        keep_freed_memory()  # but not what the script's own parameters took
        for number, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
        self._await_release(time.monotonic())

    def step(self) -> None:
        """Push this step's gradient, wait for the next release, install its version."""
        if self.go is None:
            return
        step = self.go.step
        measured = time.monotonic() - self._began
        padding = self.link.stretched(step, measured) - measured
        if padding > 0:
            self.link.pause(padding)
        computed = time.monotonic()
        self._see_to_changes()
        gradient = self._first_gradient() if not self.steps else None
        self.steps += 1
        if self._own is None:
            if self.link.pushes:
                self._push.fill()
        else:
            self._own.step(self._push.area)
            self._push.flag([True] * len(self.parameters))
        scalars = scalars_of(self.optimizer)
        pushed = time.monotonic()
        self.link.pushed(
            Finished(
                step=step,
                version=self.go.version,
                batches=tuple(self.fetched) if self.loads else None,
                skipped=tuple(self.skipped),
                scalars=scalars if scalars != self.sent else None,
                began=self._began,
                compute=computed - self._began - self._fetching,
                push=pushed - computed,
                other=self._began - self._released_at + self._fetching,
                waited=self._waited,
                pulled=self._pulled,
                gradient=gradient,
            )
        )
        self.sent = scalars
        self.fetched.clear()
        self.skipped.clear()
        self.backward_seen = False
        self._await_release(pushed)

    def handed_out(self, batch: Batch | None, seconds: float) -> None:
        """The loader hands a batch to the script, after fetching it for so long. None: one that is not leased."""
        if self.go is None:
            return
        if self.backward_seen and all(parameter.grad is None for parameter in self.parameters):
            self.thrown_away()  # by model.zero_grad(), say
        if self.batches_in_step == 0:
            self._began = time.monotonic()
        else:
            self._fetching += seconds
        if batch is not None:
            self.fetched.append(batch)
            self.untouched.append(batch)
        seed_step(self.link.seed, self.link.worker, self.go.step, self.batches_in_step)
        self.batches_in_step += 1

    def loop_begins(self) -> None:
        """The script begins another loop. If it left the last one before it used what it was handed, that goes back."""
        if self.untouched and self.untouched[-1] in self.fetched:
            last = self.untouched.pop()
            self.fetched.remove(last)
            self.link.give_back((last,))
        self.loop_ended()

    def loop_ended(self) -> None:
        """The loop is through. What it was handed and made no gradient of, it only looked at: it is used up."""
        for batch in self.untouched:
            if batch in self.fetched:
                self.fetched.remove(batch)
                self.skipped.append(batch)
        self.untouched.clear()

    def thrown_away(self) -> None:
        """The script zeroes its gradients without a step: the batches in them are used up."""
        if self.backward_seen:
            self.skipped.extend(self.fetched)
            self.fetched.clear()
            self.backward_seen = False

    def done_computing(self) -> None:
        """Make no further step: nobody is to wait for this worker."""
        if self.go is not None:
            self.go = None
            self.link.done_computing()

    def hold_newest(self) -> None:
        """Show the newest version, and go on showing it: nothing moves this worker's parameters any more.

        A replica of its own is what it shows already.
        """
        if self._replica is None:
            self._install(self.link.hold())

    @contextmanager
    def newest(self) -> Iterator[dict[str, Tensor]]:
        """The newest version's parameters by name; views, valid inside the block only. A replica is its own."""
        if self._replica is not None:
            yield {entry.name: shown for entry, shown in zip(self.layout.moving, self.parameters, strict=True)}
            return
        version, slot = self.link.snapshot()
        try:
            yield {entry.name: view for entry, view in zip(self.layout.moving, self.places.slot(slot), strict=True)}
        finally:
            self.link.snapshot_taken(version)

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state is in the script's own object, rather than with the store."""
        return self.state_loaded or self._steps_here

    def optimizer_state(self) -> State:
        """The optimizer's state of the newest version, by the parameter's number."""
        return unpacked(self.link.optimizer_state())

    def refuse(self, message: str) -> None:
        """End the run with this line."""
        self.link.refuse(message)
        raise ConfigError(message)

    def _await_release(self, since: float) -> None:
        order = self.link.released()
        while isinstance(order, Step):
            assert self._replica is not None
            self.link.stepped(order.step, self._replica.step(order.source, order.target, order.gradients))
            order = self.link.released()
        self.go = order
        granted = time.monotonic()
        if self.go is None:
            if self.link.pushes:
                self._push.let_go()  # the store may still be at the last one
            self.hold_newest()
            return
        if self.steps or self.go.slot:
            self._install(self.go.slot, self.go.ahead)
        if self.link.pushes:
            self._push.use(self.go.area)
        self._released_at = self._began = time.monotonic()
        self._waited, self._pulled = granted - since, self._released_at - granted
        self._fetching, self.batches_in_step = 0.0, 0
        seed_step(self.link.seed, self.link.worker, self.go.step)

    def _install(self, slot: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        # a graph over the former version must not be used: autograd says so, as it does of any optimizer's step
        torch.autograd.graph.increment_version(self.parameters)
        self._show(slot, ahead)

    def _show(self, slot: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        if self._own is None:
            self._moving.show(self.places.slot_start(slot))
        else:
            self._own.install(slot, [(self._push.at(area), scale) for area, scale in ahead])
            self._moving.show(0)

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        """What autograd calls when this parameter has its gradient."""

        def take(_: Tensor) -> None:
            self.backward_seen = True
            self.untouched.clear()
            if self.go is not None and self._own is None and self.link.pushes:
                self._push.take(number)

        return take

    def _first_gradient(self) -> str | None:
        """Its checksum, for a comparison with other workers'; None if it is of data that no other worker has.

        A gradient of zero is no sign of anything: at the start of a schedule, or of a layer, all may have it.
        """
        if self.link.workers == 1 or self.fetched:
            return None
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
        return checksum(dense) if any(gradient.any() for gradient in dense) else None

    # --- what the script writes into its parameters --------------------------------------------------

    def _see_to_changes(self) -> None:
        """Before the first step, everybody adopts what the script wrote; later there is nobody to follow it."""
        changed = [*self._moving.changed(), *self._fixed.changed()]
        if self.steps == 0 and (changed or self.state_loaded):
            self._have_adopted()
        elif changed:
            self.refuse(
                f'the script changed the parameter "{changed[0]}" after the first step; others have begun '
                "with it as it was: change it before that, or in the model's forward (torch.nn.utils.parametrize); "
                "to swap other values in and back, keep your own with p.data.clone(), as state_dict() may be newer"
            )
        elif self.state_loaded:
            self.refuse(
                "the script called optimizer.load_state_dict() after the first step; it has another "
                "state by now: load it before the first step"
            )
        if not self._steps_here and (attributes := _attributes(self.optimizer)) != self._attributes:
            name = next(n for n in attributes.keys() | self._attributes if attributes.get(n) != self._attributes.get(n))
            self.refuse(
                f'the script changed the optimizer\'s attribute "{name}", which does not reach the store; keep what '
                "changes in its param_groups"
            )

    def _have_adopted(self) -> None:
        for shown in (self._moving, self._fixed):
            for entry, tensor in zip(shown.entries, shown.tensors, strict=True):
                if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
                    self.refuse(
                        f'the parameter "{entry.name}" is {tensor.dtype} {list(tensor.shape)} now and was '
                        f"{entry.dtype} {list(entry.shape)} in prepare(); give the model its final form before it"
                    )
        try:
            state = packed(self.numbered_state()) if self.state_loaded else b""
        except ConfigError as error:
            self.refuse(str(error))
        digest = hashlib.sha256(state)
        for tensor in (*self._moving.tensors, *self._fixed.tensors):
            digest.update(_bytes_of(tensor))
        slot = self.link.adopt(digest.hexdigest())
        if slot is not None:  # the first of the workers, who all wrote the same
            with torch.no_grad():
                for view, tensor in zip(self.places.slot(slot), self._moving.tensors, strict=True):
                    view.copy_(tensor)
                if self._replica is not None:
                    for name, view in self.places.push_area(slot).buffers.items():
                        view.copy_(self.buffers[name])
                fixed = self.places.fixed(adopted=True)
                for name, value in self.places.fixed().items():  # buffers too
                    fixed[name].copy_(value)
                for entry, tensor in zip(self._fixed.entries, self._fixed.tensors, strict=True):
                    fixed[entry.name].copy_(tensor)
            self.link.adopted(b"" if self._steps_here else state)
        self._moving.place_again()
        if self._own is not None:
            self._own.adopt()
            self._moving.show(0)
        self._fixed.place_again()
        self._fixed.show(self.places.fixed_start(adopted=True))
        self.state_loaded = False
        if not self._steps_here:
            self.optimizer.state.clear()

    @property
    def _steps_here(self) -> bool:
        return self._own is not None or self._replica is not None

    def numbered_state(self) -> State:
        """The state that the script's optimizer object itself has, by the parameter's number."""
        numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        return {numbers[parameter]: state for parameter, state in self.optimizer.state.items()}


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The plain values that an optimizer of the user's own class has besides its groups."""
    if user_class(optimizer).__module__.startswith("torch."):
        return {}
    return {
        name: copy.deepcopy(value)
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and name not in ("defaults", "param_groups", "state") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return value is None or isinstance(value, bool | int | float | str)


def _bytes_of(tensor: Tensor) -> Any:
    contiguous = tensor.detach().cpu().contiguous().reshape(-1)
    return contiguous.view(torch.uint8).numpy() if contiguous.numel() else b""
