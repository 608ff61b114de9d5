"""What the holders of a store's versions have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from paceline.ipc.messages.worker import SnapshotTaken
from paceline.training.holders.holder import Holder
from paceline.training.parameter_views import ParameterViews
from paceline.training.push import Push
from paceline.training.training_context import TrainingContext


class StoredHolder(Holder):
    """Shows versions that lie in slots, and pushes what the store makes the next versions from."""

    def __init__(self, joined: TrainingContext, push: Push, shown: ParameterViews) -> None:
        super().__init__(joined, push, shown)
        self.use(joined.link.worker)

    @torch.no_grad()
    def put(self, place: int) -> None:
        """See `Holder`."""
        for view, parameter in zip(self.joined.places.slot(place), self.joined.parameters, strict=True):
            view.copy_(parameter)

    @contextmanager
    def showing_newest(self) -> Iterator[None]:
        """See `Holder`."""
        link = self.joined.link
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
        self.install(self.joined.link.snapshot(hold=True))
        return True
