"""One worker's training: what its model, optimizer and loader share."""

from __future__ import annotations

import copy
import hashlib
import threading
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
from paceline.training.loop import Loop
from paceline.training.own_step import OwnStep
from paceline.training.packing import packed, unpacked
from paceline.training.parts import State, user_class
from paceline.training.push import Push
from paceline.training.replica import Replica
from paceline.training.seeding import seed_step
from paceline.training.shown import Shown
from paceline.training.store import Scalars, scalars_of, unfit_rate


class Session:
    """Takes the worker from step to step: pushes gradients, waits, installs versions, keeps the times.

    The worker's parameters lie in a window over the store's slots. A pull moves the window to another version
    and copies no byte, except on a GPU. No other worker sees what the script writes into them.
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
        """Steps that this worker has made."""
        self.fetched: deque[Batch] = deque()
        """Batches handed to the script since the last step, and in no gradient that was thrown away."""
        self.untouched: list[Batch] = []
        """Those of `fetched` that were handed out since the last gradient came."""
        self.skipped: list[Batch] = []
        self.backward_seen = False
        """Whether a gradient has come since the last step or `zero_grad`."""
        self.state_loaded = False
        """Whether the script has given the optimizer another state, which is not adopted yet."""
        self._state_shown: bytes | None = None
        """The store's state of the optimizer when the script last asked for it, before the first step."""
        self.sent: Scalars = scalars_of(optimizer)
        self.batches_in_step = 0
        self._thread = threading.get_ident()
        self._own: OwnStep | None = None
        """Set if the optimizer runs in this worker, and the store has the parameters."""
        self._replica: Replica | None = None
        """Set if this worker owns a replica."""
        self._waited = self._pulled = 0.0
        """Seconds, for the present step's release and its version."""
        self._began = self._released_at = 0.0
        self._fetching = 0.0

    def begin(self, started: Started) -> None:
        """Install what all workers begin with, and take the first step's release."""
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
        keep_freed_memory()  # from here on, so that the memory of the script's own parameters goes back
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
        self._state_shown = None
        if self._own is None:
            if self.link.pushes:
                self._push.fill()
        else:
            self._push.flag(self._own.step(self._push.area))
        scalars = scalars_of(self.optimizer)
        if scalars != self.sent and (why := unfit_rate(scalars)):
            self.refuse(why)
        batches = tuple(self.fetched)
        pushed = time.monotonic()
        self.link.pushed(
            Finished(
                step=step,
                version=self.go.version,
                batches=batches if self.loads else None,
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
        for _ in batches:  # another thread may have fetched more
            self.fetched.popleft()
        self.skipped.clear()
        self.backward_seen = False
        self._await_release(pushed)

    def handed_out(self, batch: Batch | None, seconds: float) -> None:
        """The loader hands a batch to the script, after fetching it for `seconds`. None: the batch is not leased."""
        if self.go is None:
            return
        if not self.here:  # the script fetches ahead: the next step counts what it has fetched by then
            if batch is not None:
                self.fetched.append(batch)
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

    def loop_begins(self, last: Loop) -> bool:
        """The script begins another loop. A last batch of the previous loop that it did not use goes back.

        Return whether the script only looked at that loop's data, and made no gradient of any. Then all of that data
        goes back, with what had been fetched ahead for it, as if the loop had never been.
        """
        if not self.here:
            return False
        if last.handed_out and self.only_looked(last):
            return True
        if self.untouched and self.untouched[-1] in self.fetched:
            batch = self.untouched.pop()
            self.fetched.remove(batch)
            self.link.give_back((batch,))
        self.loop_ended()
        return False

    def only_looked(self, loop: Loop) -> bool:
        """Return whether no gradient came of this loop's batches. Then they go back, with what was fetched ahead."""
        before = len(self.fetched) - len(loop.handed_out)
        if loop.handed_out != self.untouched or loop.handed_out != list(self.fetched)[max(0, before) :]:
            return False
        for _ in loop.handed_out:
            self.fetched.pop()
        self.untouched.clear()
        if not self.fetched:
            self.batches_in_step, self._fetching = 0, 0.0  # draws and times are now as without the look
        self.link.looked_at(loop.epoch, loop.batches, loop.ran_out)
        return True

    def loop_ended(self) -> None:
        """The loop is over. Batches that the script made no gradient of were only looked at: they are used up."""
        if not self.here:
            return
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
        """Make no further step: no worker is to wait for this one."""
        if self.go is not None:
            self.go = None
            self.link.done_computing()

    def hold_newest(self) -> None:
        """Show the newest version, and go on showing it: nothing moves this worker's parameters any more.

        A worker with its own replica shows that already.
        """
        if self._replica is None:
            self._install(self.link.hold())

    def rewritten(self) -> bool:
        """Whether the script has put values of its own into its parameters."""
        return bool(self._moving.changed())

    @contextmanager
    def newest(self) -> Iterator[dict[str, Tensor]]:
        """Yield the newest version's parameters by name: views, valid only inside the block. A replica is its own."""
        if self._replica is not None:
            shown = zip(self.layout.moving, self.parameters, strict=True)
            yield {entry.name: parameter.detach() for entry, parameter in shown}
            return
        version, slot = self.link.snapshot()
        try:
            yield {entry.name: view for entry, view in zip(self.layout.moving, self.places.slot(slot), strict=True)}
        finally:
            self.link.snapshot_taken(version)

    @property
    def here(self) -> bool:
        """Whether this is the thread that called `prepare` and trains. Another thread only fetches ahead."""
        return threading.get_ident() == self._thread

    @property
    def has_state(self) -> bool:
        """Whether the optimizer's state is in the script's own object, rather than with the store."""
        return self.state_loaded or self._steps_here

    def optimizer_state(self) -> State:
        """The optimizer's state of the newest version, by the parameter's number."""
        state = self.link.optimizer_state()
        if not self.steps:
            self._state_shown = state
        return unpacked(state)

    def state_came(self) -> None:
        """The script has loaded a state into the optimizer. If that is what it was last shown, nothing has changed.

        Wrappers of optimizers (Accelerate's, so transformers' Trainer too) load back what they were shown. Another
        worker may have trained meanwhile, so each may be shown another state, and the store has a newer one.
        """
        if self._state_shown is not None and _packed_alike(self.numbered_state(), self._state_shown):
            self.state_loaded = False
            self.optimizer.state.clear()
        else:
            self.state_loaded = True

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
                self._push.let_go()  # the store may still read the last gradient
            self.hold_newest()
            self.link.raise_if_interrupted()
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
        # A graph over the former version must not be used: autograd refuses it, as after any optimizer's step.
        torch.autograd.graph.increment_version(self.parameters)
        self._show(slot, ahead)

    def _show(self, slot: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        if self._own is None:
            self._moving.show(self.places.slot_start(slot))
        else:
            self._own.install(slot, [(self._push.at(area), scale) for area, scale in ahead])
            self._moving.show(0)

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        """Return the function that autograd calls when this parameter has its gradient."""

        def take(_: Tensor) -> None:
            self.backward_seen = True
            self.untouched.clear()
            if self.go is not None and self._own is None and self.link.pushes:
                self._push.take(number)

        return take

    def _first_gradient(self) -> str | None:
        """The first gradient's checksum, to compare workers; None if it is of data that no other worker has.

        A gradient of zero shows nothing: at the start of a schedule, or of a layer, all workers may have it.
        """
        if self.link.workers == 1 or self.fetched:
            return None
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
        return checksum(dense) if any(gradient.any() for gradient in dense) else None

    # --- what the script writes into its parameters --------------------------------------------------

    def _see_to_changes(self) -> None:
        """Adopt what the script wrote, before the first step. Refuse it later, when other workers can't follow."""
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
        if slot is not None:  # this is the first of the workers, which all wrote the same
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
        """The state in the script's own optimizer object, by the parameter's number."""
        numbers = {parameter: number for number, parameter in enumerate(self.parameters)}
        return {numbers[parameter]: state for parameter, state in self.optimizer.state.items()}


def _packed_alike(state: State, packing: bytes) -> bool:
    try:
        return packed(unpacked(packing)) == packed(state)
    except ConfigError:  # a value that can't be passed on: the first step says so
        return False


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The plain values that an optimizer of the user's own class has in addition to its groups."""
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
