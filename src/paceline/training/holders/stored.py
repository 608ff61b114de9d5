"""Holders of versions that lie in slots: of those that the store steps, and of those that the worker steps itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import compress

import torch
from torch import Tensor

from paceline.ipc.messages.worker import SnapshotTaken
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import OwnParameters, ParameterViews
from paceline.training.holders.push import GradientPush, Push, UpdatePush
from paceline.training.holders.stepping import Stepping
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext


class StoredHolder(Holder):
    """Shows versions that lie in slots, and pushes what the store makes the next versions from."""

    has_buffers = False

    def __init__(self, context: TrainingContext, push: Push, shown: ParameterViews) -> None:
        super().__init__(context, push, shown)
        self.use(context.link.worker)

    @torch.no_grad()
    def put(self, place: int, buffers: Mapping[str, Tensor]) -> None:
        """See `Holder`."""
        for view, parameter in zip(self.context.places.slot(place), self.context.parameters, strict=True):
            view.copy_(parameter)

    @contextmanager
    def showing_newest(self) -> Iterator[None]:
        """See `Holder`."""
        link = self.context.link
        slot = link.snapshot(hold=False)
        try:
            with self.showing(slot):
                yield
        finally:
            link.say(SnapshotTaken())

    @abstractmethod
    def showing(self, slot: int) -> AbstractContextManager[None]:
        """Show that version inside the block, and then what was shown before."""

    def hold_newest(self) -> bool:
        """See `Holder`."""
        self.install(self.context.link.snapshot(hold=True))
        return True


class WindowHolder(StoredHolder):
    """Shows versions for the script to compute gradients on. Pushes these, and the store's optimizer steps.

    In memory it shows them through a window that moves from slot to slot, so a pull copies no byte.
    """

    keeps_state = False
    _push: GradientPush

    def __init__(self, context: TrainingContext, push: GradientPush, shown: ParameterViews) -> None:
        super().__init__(context, push, shown)
        self._place = 0

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. `ahead` is empty: the worker pushes gradients, and makes no updates."""
        self._place = place
        self._shown.show(self.context.places.slot_start(place))

    def bring(self, place: int, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Holder`."""
        self._shown.bring(self.context.places.slot_start(place), ranges)

    @contextmanager
    def showing(self, slot: int) -> Iterator[None]:
        """See `StoredHolder`."""
        before = self._place
        if slot == before:
            yield
            return
        self.show(slot)
        try:
            yield
        finally:
            self.show(before)

    def take(self, number: int) -> None:
        """See `Holder`. A large gradient is pushed while autograd goes on."""
        self._push.take(number)

    def step(self) -> None:
        """See `Holder`."""
        self._push.fill()


class OwnStep(StoredHolder):
    """Pushes updates: what the worker's own optimizer subtracts from its own parameters, which it sees at once.

    These are a version of the store's, less what this worker pushed and that version lacks. The push area has what they
    were before the first step of an update, until the update is made of that.
    """

    keeps_state = True
    _push: UpdatePush
    _shown: OwnParameters

    def __init__(
        self, context: TrainingContext, push: UpdatePush, shown: OwnParameters, *, at_once: bool = True
    ) -> None:
        """`at_once`: whether each step's update is made with the step."""
        super().__init__(context, push, shown)
        self._values = shown.values
        self._stepping = Stepping(context)
        self._at_once = at_once
        self._start = 0
        """Where the version begins that was shown last."""
        self._stepped: list[bool] | None = None
        """Which parameters had a gradient in the steps that are in no update; None: there is no such step."""
        self._sends = [True] * len(self._values)
        """Which parameters are in the next update."""
        self._last = -1
        """The last step that was made."""

    @torch.no_grad()
    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        start = self.context.places.slot_start(place)
        source = self._shown.version(start)
        for area, scale in ahead:
            for value, from_here, update in zip(self._values, source, self._push.pushed(area), strict=True):
                if update is not None:
                    torch.sub(from_here, update, alpha=scale, out=value)
                elif value is not from_here:
                    value.copy_(from_here)
            source = self._values
        if source is not self._values:
            torch._foreach_copy_(self._values, source)
        self._shown.shown(start, is_that_part=not ahead)
        self._start, self._stepped = start, None

    @property
    def has_steps_of_its_own(self) -> bool:
        """See `Holder`."""
        return self._stepped is not None

    def go_on(self) -> None:
        """See `Holder`."""
        torch.autograd.graph.increment_version(self.context.parameters)  # as in `install`
        self._shown.shown(self._start, is_that_part=False)

    @contextmanager
    def showing(self, slot: int) -> Iterator[None]:
        """See `StoredHolder`. Keep a copy of what is shown: its updates may be gone by then."""
        with torch.no_grad():
            before = [value.clone() for value in self._values]
            torch._foreach_copy_(self._values, self.context.places.slot(slot))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._values, before)

    def take(self, number: int) -> None:
        """See `Holder`. The step uses the gradient where it is."""

    def step(self) -> None:
        """See `Holder`. The script's own optimizer steps."""
        if self._stepped is None:
            self._stepped = [False] * len(self._values)
            self._begin_update()
        self._stepping.step(self._values)
        self._last = self.context.link.step
        for number, parameter in enumerate(self.context.parameters):
            self._stepped[number] |= parameter.grad is not None
        if self._at_once:
            self.make_update()

    @torch.no_grad()
    def _begin_update(self) -> None:
        """Keep what the parameters are before the first step of an update."""
        torch._foreach_copy_(self._push.room(), self._values)

    def _begun(self) -> list[Tensor]:
        """Return what was kept for the update that is made now, to subtract from it. Decide what that `_sends`."""
        return self._push.room()

    def make_update(self) -> bool:
        """See `Holder`. A parameter without a gradient is in it only if it has moved.

        A frozen one may be whole numbers, or NaN, which have no difference.
        """
        stepped, self._stepped = self._stepped, None
        if stepped is None:
            return False
        updates = self._begun()
        moved = [
            sends and (had_gradient or not same_bits(before, value))
            for sends, had_gradient, before, value in zip(self._sends, stepped, updates, self._values, strict=True)
        ]
        there = list(compress(zip(updates, self._values, strict=True), moved))
        if there:  # else the script has discarded all of its gradients
            with torch.no_grad():
                torch._foreach_sub_([update for update, _ in there], [value for _, value in there])
        self._push.made(moved, self._last)
        return True
