"""Which holder a worker has and what it pushes, as the run said when training began."""

from __future__ import annotations

from typing import assert_never

from paceline.core.machine import HolderKind, Pushes
from paceline.training import accelerator
from paceline.training.copier import Copier
from paceline.training.holders.device import DeviceOwnStep, DeviceReplica, DeviceWindow
from paceline.training.holders.holder import Holder
from paceline.training.holders.own_step import OwnStep
from paceline.training.holders.replica import ReplicaHolder
from paceline.training.holders.window import WindowHolder
from paceline.training.push import AreaPush, NoPush, OverlappedPush
from paceline.training.training_context import TrainingContext


def holder_of(kind: HolderKind, pushes: Pushes, joined: TrainingContext, *, tells: bool = False) -> Holder:
    """Make this worker's holder. `tells`: see `Started`; gradients on a device leave their host at the step."""
    device = accelerator.accelerator_of(joined.parameters)
    if device is not None:
        return _on_device(kind, pushes, joined, Copier(joined, device))
    match kind:
        case "window":
            overlaps = tells and OverlappedPush.pays(joined.places.layout)
            return WindowHolder(joined, OverlappedPush(joined) if overlaps else AreaPush(joined))
        case "own-step":
            return OwnStep(joined, AreaPush(joined))
        case "replica":
            return ReplicaHolder(joined, NoPush() if pushes == "nothing" else AreaPush(joined))
        case _:
            assert_never(kind)


def _on_device(kind: HolderKind, pushes: Pushes, joined: TrainingContext, copier: Copier) -> Holder:
    match kind:
        case "window":
            return DeviceWindow(joined, copier)
        case "own-step":
            return DeviceOwnStep(joined, copier)
        case "replica":
            return DeviceReplica(joined, copier, pushes)
        case _:
            assert_never(kind)
