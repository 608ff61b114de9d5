"""One worker's training: what its model, optimizer and loader share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paceline.core.leases import Batch
from paceline.errors import ConfigError
from paceline.training.layout import Layout, PushArea
from paceline.training.link import Finished, Go, Link, Started
from paceline.training.seeding import seed_step
from paceline.training.store import Scalars, scalars_of


class Session:
    """Takes the worker from step to step: pushes gradients, waits, installs versions, keeps the times.

    The worker's parameters are its own; a pull copies a version's slot into them.
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
        self.sent: Scalars = scalars_of(optimizer)
        self.batches_in_step = 0
        self._released_at = self._began = 0.0
        self._fetching = 0.0

    def begin(self, started: Started) -> None:
        """Install what everybody begins with, and take the first step's release."""
        self.slots = [self.layout.slot(started.region, slot) for slot in range(started.slots)]
        self.push: PushArea = self.layout.push_area(started.region, started.slots, self.link.worker)
        started.region.populate(self.push.start, self.push.stop)
        named = dict(self.model.named_parameters())
        self.parameters: list[Tensor] = [named[entry.name] for entry in self.layout.moving]
        self.buffers = dict(self.model.named_buffers())
        held = {**named, **self.buffers}
        with torch.no_grad():
            for name, value in self.layout.fixed_tensors(started.region).items():
                held[name].copy_(value)
        for parameter in self.parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note_backward)  # type: ignore[no-untyped-call]
        self._await_release(time.monotonic())

    def step(self) -> None:
        """Push this step's gradient, wait for the next release, install its version."""
        if self.go is None:
            return
        step = self.go.step
        self.steps += 1
        measured = time.monotonic() - self._began
        padding = self.link.stretched(step, measured) - measured
        if padding > 0:
            self.link.pause(padding)
        computed = time.monotonic()
        self._fill_push_area()
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
            )
        )
        self.sent = scalars
        self.fetched.clear()
        self.skipped.clear()
        self.backward_seen = False
        self._await_release(pushed)

    def handed_out(self, batch: Batch, seconds: float) -> None:
        """The loader hands a batch to the script, after fetching it for so long."""
        if self.go is None:
            return
        if self.batches_in_step == 0:
            self._began = time.monotonic()
        else:
            self._fetching += seconds
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

    @contextmanager
    def newest(self) -> Iterator[dict[str, Tensor]]:
        """The newest version's parameters by name; views, valid inside the block only."""
        version, slot = self.link.snapshot()
        try:
            yield {entry.name: view for entry, view in zip(self.layout.moving, self.slots[slot], strict=True)}
        finally:
            self.link.snapshot_taken(version)

    def _await_release(self, since: float) -> None:
        self.go = self.link.released()
        granted = time.monotonic()
        if self.go is None:
            return
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.slots[self.go.slot])
        self._released_at = self._began = time.monotonic()
        self.link.taken(self.go.version, granted - since, self._released_at - granted)
        self._fetching, self.batches_in_step = 0.0, 0
        seed_step(self.link.seed, self.link.worker, self.go.step)

    @torch.no_grad()
    def _fill_push_area(self) -> None:
        present = []
        for entry, parameter, view in zip(self.layout.moving, self.parameters, self.push.gradients, strict=True):
            gradient = parameter.grad
            present.append(gradient is not None)
            if gradient is None:
                continue
            if gradient.layout != torch.strided:
                self.refuse(
                    f'the gradient of "{entry.name}" is sparse; only dense gradients can be pushed: '
                    "build its layer with sparse=False"
                )
            view.copy_(gradient)
        self.push.present.copy_(torch.tensor(present, dtype=torch.uint8))
        if self.push.buffers:
            buffers = dict(self.model.named_buffers())  # afresh: a forward may put new tensors in their places
            for name, view in self.push.buffers.items():
                view.copy_(buffers[name])

    def refuse(self, message: str) -> None:
        """End the run with this line."""
        self.link.refuse(message)
        raise ConfigError(message)

    def _note_backward(self, _: Tensor) -> None:
        self.backward_seen = True
        self.untouched.clear()
