"""What the run asks a script to keep: in snapshots, and for a worker that takes part from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.ipc.messages.worker import Handed, HandOver, Keep, Kept
from paceline.store.snapshots import OfWorker
from paceline.training.user_state import UserState

if TYPE_CHECKING:
    from paceline.training.session import Session


class SnapshotOrders:
    """Packs what the script keeps once the script comes by. What its optimizer has is packed at once.

    A script calls its scheduler after the step in which the order is read. If it is a step further already, it has not
    called the scheduler for that step, and all is packed at once.
    """

    def __init__(self, session: Session, kept: UserState) -> None:
        self._session = session
        self._kept = kept
        self.due: list[tuple[Keep, OfWorker | None]] = []
        """The orders that wait for the script, and what the optimizer had when each came."""

    def keep(self, orders: Sequence[Keep]) -> None:
        """Keep this as the script next comes by."""
        self.due += [(order, self._optimizer_kept()) for order in orders]
        if any(order.step < self._session.last_step for order, _ in self.due):
            self.send()

    def send(self, epoch: int | None = None) -> None:
        """Pack what is to be kept, and send it. `epoch`: only what is to be kept within that epoch."""
        session = self._session
        for order, optimizer in [one for one in self.due if epoch is None or one[0].epoch <= epoch]:
            self.due.remove((order, optimizer))
            packing, why = self._kept.packing(optimizer)
            session.link.say(Kept(order.snapshot, session.last_step, session.epoch, why), packing)

    def hand_over(self, order: HandOver) -> None:
        """Pack what the script has for a worker that joins, as it is now: at the end of this worker's last step."""
        packing, why = self._kept.packing(self._optimizer_kept(), self._session.followed.buffers())
        self._session.link.say(Handed(order.worker, order.joining, why), packing)

    def _optimizer_kept(self) -> OfWorker | None:
        return self._session.context.optimizer_kept() if self._session.holder.keeps_state else None
