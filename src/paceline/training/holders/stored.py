"""What the holders of a store's versions have in common: where a version lies, and how the newest one is had."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from paceline.ipc.messages.worker import SnapshotTaken
from paceline.training.holders.holder import Holder
from paceline.training.push import Push
from paceline.training.training_context import TrainingContext


class StoredHolder(Holder):
    """Shows versions that lie in slots, and pushes what the store makes the next ones of."""

    def __init__(self, joined: TrainingContext, push: Push) -> None:
        super().__init__(joined)
        self._push = push
        self._push.use(joined.link.worker)

    def use(self, area: int) -> None:
        """See `Holder`."""
        self._push.use(area)

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

    def let_go(self) -> None:
        """See `Holder`. The store may still read the last push."""
        self._push.let_go()

    def hold_newest(self) -> bool:
        """See `Holder`."""
        self.install(self.joined.link.snapshot(hold=True))
        return True
