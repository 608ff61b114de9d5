"""The holder of a worker that exchanges one fragment of its parameters at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import torch
from torch import Tensor

from paceline.core.machine import Fragments
from paceline.core.shards import fragments as cut
from paceline.store.chunks import own as copied
from paceline.training.holders.parameter_views import OwnParameters
from paceline.training.holders.push import UpdatePush
from paceline.training.holders.stored import OwnStep
from paceline.training.training_context import TrainingContext


class FragmentStep(OwnStep):
    """Pushes what its own steps have subtracted from one fragment of a version, and takes that of the next version.

    The worker keeps its own values of the others. So it has the newest version, which differences are taken from, in
    memory of its own.
    """

    def __init__(
        self,
        context: TrainingContext,
        push: UpdatePush,
        shown: OwnParameters,
        fragments: Fragments,
        version: int | None,
    ) -> None:
        """`version`: the number of what is shown first; None: another version comes before the first step."""
        super().__init__(context, push, shown, at_once=False)
        self._fragments = fragments
        self._version = version
        layout = context.places.layout
        cuts = cut(layout.starts, layout.flags_offset, fragments.total)
        self._fragment = [
            next((n for n, ranges in enumerate(cuts) if any(begin <= one.offset < end for begin, end in ranges)), 0)
            for one in layout.moving
        ]
        """By parameter: its fragment."""
        self._pushed: int | None = None
        """The version that the last update's difference was taken from."""
        self._newest = [torch.empty_like(value) for value in self._values]
        """The parameters of that version."""
        self._left: tuple[int, list[Tensor]] | None = None
        """What `own` has returned at last, once the script is shown the run's final version."""

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. All of the version is shown."""
        super().show(place, ahead)
        torch._foreach_copy_(self._newest, self._values)

    def adopt(self) -> None:
        """See `Holder`."""
        super().adopt()
        torch._foreach_copy_(self._newest, self._values)

    @torch.no_grad()
    def install(self, place: int, ahead: Sequence[tuple[int, float]] = (), version: int | None = None) -> None:
        """See `Holder`. Only the fragments are taken that have changed, unless the worker begins or ends with it."""
        if version is None:
            self._left = self.own()
        before, self._version = self._version, version
        if before is None or version is None:
            super().install(place, ahead)
            return
        changed = self._changed(before, version)
        start = self.context.places.slot_start(place)
        for number in changed:
            self._newest[number].copy_(self.context.places.parameter(number, start))
        self._take(changed)
        self.go_on()

    def own(self) -> tuple[int, list[Tensor]] | None:
        """See `Holder`."""
        return self._left if self._version is None else (self._version, [copied(value) for value in self._values])

    @torch.no_grad()
    def go_on_from(self, version: int, own: list[Tensor]) -> None:
        """See `Holder`."""
        assert self._version is not None
        torch._foreach_copy_(self._values, own)
        self._take(self._changed(version, self._version))
        self.go_on()

    def _begin_update(self) -> None:
        """See `OwnStep`. Differences are taken from the newest version."""

    @torch.no_grad()
    def _begun(self) -> list[Tensor]:
        """See `OwnStep`. The update is of the fragment that the next version changes.

        An update that ends before that version has come, as the script has no data left for all steps of an overlap,
        has nothing: what the one before has had would be in it once more.
        """
        assert self._version is not None
        again, self._pushed = self._pushed == self._version, self._version
        changed = self._version % self._fragments.total
        self._sends = [fragment == changed and not again for fragment in self._fragment]
        updates = self._push.room()
        for number in compress(range(len(updates)), self._sends):
            updates[number].copy_(self._newest[number])
        return updates

    def _changed(self, since: int, version: int) -> list[int]:
        changed = self._fragments.between(since, version)
        return [number for number, fragment in enumerate(self._fragment) if fragment in changed]

    def _take(self, numbers: Iterable[int]) -> None:
        """Mix these parameters of the newest version into the worker's own."""
        for number in numbers:
            value, newest = self._values[number], self._newest[number]
            if self._fragments.mix and (value.is_floating_point() or value.is_complex()):
                value.lerp_(newest, 1 - self._fragments.mix)
            else:
                value.copy_(newest)
