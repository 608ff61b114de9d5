"""What a run goes on with, given to a script: of a snapshot, or of workers that have trained without this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from paceline.errors import ConfigError
from paceline.ipc.channel import path_of
from paceline.training.data.loop import Loops
from paceline.training.holders.holder import Holder
from paceline.training.link import Started, TakenUp
from paceline.training.model.recorded_version import install
from paceline.training.optim.pre_training_edits import PreTrainingEdits
from paceline.training.optim.schedules import Plateau
from paceline.training.training_context import TrainingContext
from paceline.training.user_state import UserState


class Resuming:
    """Gives the script its buffers, its optimizer's state and its kept objects. What it has changed by then is gone."""

    def __init__(
        self,
        context: TrainingContext,
        started: Started,
        holder: Holder,
        changes: PreTrainingEdits,
        loops: Loops,
        kept: UserState,
        plateaus: list[Plateau],
    ) -> None:
        self.at = started.resumed
        """What the run goes on with; None if it began here."""
        self.taken = self.at is None
        """Whether the script has got that, and no longer can change it."""
        self._context = context
        self.holder = holder
        self._changes = changes
        self._loops = loops
        self._kept = kept
        self._plateaus = plateaus
        self._place = started.begin.place
        buffers = context.followed.buffers().items()
        self._buffers = {name: buffer.clone() for name, buffer in buffers} if started.begin.joins else {}
        """Of a worker that joins: the buffers as its script had made them by `prepare`."""

    def begin(self) -> None:
        """Give it to a script that does not join later. Its kept objects may ask what can be asked after `prepare`."""
        self._give(kept=True)

    def go_on(self) -> None:
        """The script has its first batch, or it gets none: what it has changed by now, in past loops too, is gone."""
        if not self.taken:
            self.taken = True
            self._changes.discard(self._place)
            self._give(kept=self._loops.past > 0)

    @torch.no_grad()
    def join(self, taken: TakenUp) -> None:
        """The script takes part from now on, with this: what it has changed by now, in past loops too, is gone."""
        assert self.at is not None
        self.taken = True
        self._changes.discard(self._place)
        self.at = replace(self.at, buffers=taken.area, kept=taken.kept)
        if taken.area is not None and taken.file is not None:
            with path_of(taken.file) as file:
                self._fill(taken.area, file)
        for name, buffer in self._context.followed.buffers().items():
            if name in self._buffers:  # as in a step that counts for nothing
                buffer.copy_(self._buffers[name])
        self._buffers.clear()
        self._give(kept=True)
        for one in self._plateaus:
            one.begins_late = taken.kept is None

    @torch.no_grad()
    def _give(self, kept: bool) -> None:
        """`kept`: give the script its kept objects, too."""
        if self.at is None:
            return
        context, there = self._context, self.at.kept
        context.optimizer._opt_called = True  # type: ignore[attr-defined]  # past epochs step schedulers: none is to warn
        buffers = {} if there is None else there.buffers
        if self.at.buffers is not None:
            buffers = context.places.push_area(self.at.buffers).buffers
        for name, buffer in context.followed.buffers().items():
            if name in buffers:
                buffer.copy_(buffers[name])
        if there is None:
            return
        if self.holder.keeps_state and there.state is not None:  # else a switch brings it
            context.load_optimizer(there)
        if context.residual is not None and there.residual is not None and there.residual[0] == context.link.worker:
            now, lost = context.residual.now, there.residual[1]  # another worker's is that one's to make up for
            now[: len(lost)].copy_(lost[: len(now)])  # what another codec has kept behind it may be more, or less
        if there.own is not None and there.own[0] == context.link.worker:
            self.holder.go_on_from(*there.own[1:])
        if kept:
            try:
                self._kept.load(there)
            except ConfigError as error:
                context.refuse(str(error))
            for one in self._plateaus:
                one.catch_up()

    def _fill(self, number: int, file: Path) -> None:
        """Put a recorded version into that area."""
        places = self._context.places
        area = places.push_area(number)
        places.region.populate(area.start, area.stop)
        install(
            dict(zip((entry.name for entry in places.layout.moving), area.gradients, strict=True)) | area.buffers, file
        )
