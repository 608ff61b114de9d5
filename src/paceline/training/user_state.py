"""What a script keeps: packed for snapshots, and loaded again in a run that goes on from one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import ConfigError
from paceline.ipc.messages.worker import Handed, HandOver, Keep, Kept, StateGiven
from paceline.store.snapshots import OfWorker, pack
from paceline.store.store import packable, set_groups
from paceline.training.optim.schedules import Schedule, left_out, schedulers_of
from paceline.training.packing import Pieces, check

if TYPE_CHECKING:
    from paceline.training.session import Session

EMPTY: Mapping[str, torch.Tensor] = {}
KEEP = 'prepare(..., keep={"scheduler": ...})'


def check_kept(keep: Any, model: Any, optimizer: Any) -> None:
    """Raise ConfigError, in one line, for what can't be kept."""
    if not isinstance(keep, Mapping):
        raise ConfigError(f'prepare() got a {type(keep).__name__} as keep; it must be a dict, {{"name": object, ...}}')
    for name, kept in keep.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(
                f'prepare() got keep={{{name!r}: ...}}; a name must be an identifier, such as "scheduler"'
            )
        if kept is model or kept is optimizer:
            raise ConfigError(f'prepare() got keep={{"{name}": ...}} with what it keeps in any case; leave that out')
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(kept, method, None)):
                raise ConfigError(
                    f'prepare() got keep={{"{name}": ...}}, a {type(kept).__name__}, which has no {method}(); a kept '
                    "object must have state_dict() and load_state_dict()"
                )


class UserState:
    """A script's kept objects, by name, and its optimizer's hyperparameters."""

    def __init__(self, objects: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
        """Raises ConfigError for an object whose state can't be packed."""
        self._objects = dict(objects)
        self._optimizer = optimizer
        for name, kept in self._objects.items():
            check(kept.state_dict(), f'the kept object "{name}"')  # rather than fail at the first snapshot

    def packing(
        self,
        steps: OfWorker | None,
        buffers: Mapping[str, torch.Tensor] = EMPTY,
        residual: tuple[int, torch.Tensor] | None = None,
    ) -> tuple[Pieces, str | None]:
        """Return all of it as it is now, with what the optimizer had; or nothing, and why it can't be packed.

        `steps`: the optimizer's own, and parameters of the worker's own, where the worker steps them. `buffers`: the
        model's, if they are to go with it.
        `residual`: see `OfWorker`.
        """
        state, attributes = (steps.state, steps.attributes) if steps else (None, {})
        groups = [packable(group) for group in self._optimizer.param_groups]
        try:
            kept = {name: kept.state_dict() for name, kept in self._objects.items()}
            all_of_it = OfWorker(
                kept=kept,
                groups=groups,
                state=state,
                attributes=attributes,
                buffers=dict(buffers),
                residual=residual,
                own=steps.own if steps else None,
            )
            return pack(all_of_it), None
        except ConfigError as error:
            return (), str(error)
        except Exception as error:  # the script's own code
            return (), f"what the script keeps can't be had: {type(error).__name__}: {error}"

    def load(self, there: OfWorker) -> None:
        """Give the objects the states that they had. Raises ConfigError, which names it, for one that can't be loaded.

        The hyperparameters come back with the scheduler that has made them, if that is kept. Without one the script's
        own code says what they are.
        """
        if there.kept.keys() != self._objects.keys():
            raise ConfigError(
                f"the script keeps {_listed(self._objects)}, and the snapshot has {_listed(there.kept)}; keep the same "
                "to go on"
            )
        for name, kept in self._objects.items():
            try:
                kept.load_state_dict(copy.deepcopy(there.kept[name]))  # it may be loaded once more
            except Exception as error:
                said = " ".join(str(error).split())
                raise ConfigError(
                    f'the kept object "{name}" can\'t be loaded from the snapshot: {type(error).__name__}: {said}'
                ) from error
        if any(getattr(kept, "optimizer", None) is self._optimizer for kept in self._objects.values()):
            set_groups(self._optimizer, there.groups)

    def schedulers_left_out(self) -> list[str]:
        """The classes of the optimizer's learning-rate schedulers that aren't kept."""
        kept = [one.scheduler if isinstance(one, Schedule) else one for one in self._objects.values()]
        return left_out(schedulers_of(self._optimizer), kept)


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
        self.used = 0
        """Batches that the run had used as the last one was given."""

    def keep(self, orders: Sequence[Keep]) -> None:
        """Keep this as the script next comes by."""
        self.used = max([self.used, *(order.used for order in orders)])
        self.due += [(order, self._steps_kept()) for order in orders]
        if any(order.step < self._session.last_step for order, _ in self.due):
            self.send()

    def send(self, epoch: int | None = None) -> None:
        """Pack what is to be kept, and send it. `epoch`: only what is to be kept within that epoch."""
        session = self._session
        for order, optimizer in [one for one in self.due if epoch is None or one[0].epoch <= epoch]:
            self.due.remove((order, optimizer))
            lost = session.context.residual
            residual = None if lost is None else (session.link.worker, lost.as_of(order.applied))
            packing, why = self._kept.packing(optimizer, residual=residual)
            session.link.say(Kept(order.snapshot, session.last_step, session.epoch, why), packing)

    def give(self) -> None:
        """Pack what the worker's optimizer has, for the store's to go on with."""
        kept = self._session.context.optimizer_kept()
        groups = [packable(group) for group in self._session.context.optimizer.param_groups]
        try:
            packing, why = pack(replace(kept, groups=groups)), None
        except ConfigError as error:
            packing, why = (), str(error)
        self._session.link.say(StateGiven(why), packing)

    def hand_over(self, order: HandOver) -> None:
        """Pack what the script has for a worker that joins, as it is now: at the end of this worker's last step."""
        packing, why = self._kept.packing(self._optimizer_kept(), self._session.followed.buffers())
        self._session.link.say(Handed(order.worker, order.joining, why), packing)

    def _steps_kept(self) -> OfWorker | None:
        kept, own = self._optimizer_kept(), self._session.holder.own()
        return replace(kept, own=(self._session.link.worker, *own)) if kept is not None and own is not None else kept

    def _optimizer_kept(self) -> OfWorker | None:
        return self._session.context.optimizer_kept() if self._session.holder.keeps_state else None


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing"
