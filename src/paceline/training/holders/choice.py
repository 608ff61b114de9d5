"""Which holder a worker has and what it pushes, as the run said when training began."""

from __future__ import annotations

from typing import assert_never

from paceline.core.machine import HolderKind, Pushes
from paceline.training.device import accelerator
from paceline.training.device.copier import Copier
from paceline.training.device.device_push import DeviceGradients, DeviceUpdates
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import DeviceParameters, OwnMemory, Windowed
from paceline.training.holders.push import AreaPush, NoPush, OverlappedPush
from paceline.training.holders.replica import DeviceReplica, ReplicaHolder
from paceline.training.holders.stored import OwnStep, WindowHolder
from paceline.training.training_context import TrainingContext


def holder_of(kind: HolderKind, pushes: Pushes, context: TrainingContext, *, tells: bool = False) -> Holder:
    """Make this worker's holder. `tells`: see `Started`; gradients on a device leave their host at the step."""
    device = accelerator.accelerator_of(context.parameters)
    if device is not None:
        return _on_device(kind, pushes, context, Copier(context, device))
    places, layout = context.places, context.places.layout
    match kind:
        case "window":
            overlaps = tells and OverlappedPush.pays(layout)
            window = Windowed(places.region, layout.slot_bytes, layout.moving, context.parameters)
            return WindowHolder(context, OverlappedPush(context) if overlaps else AreaPush(context), window)
        case "own-step":
            return OwnStep(context, AreaPush(context), OwnMemory(places, context.parameters))
        case "replica":
            window = Windowed(places.region, layout.push_bytes, layout.moving, context.parameters)
            return ReplicaHolder(context, NoPush() if pushes == "nothing" else AreaPush(context), window)
        case _:
            assert_never(kind)


def _on_device(kind: HolderKind, pushes: Pushes, context: TrainingContext, copier: Copier) -> Holder:
    layout = context.places.layout
    match kind:
        case "window":
            shown = DeviceParameters(context, copier, layout.slot_bytes)
            return WindowHolder(context, DeviceGradients(context, copier), shown)
        case "own-step":
            shown = DeviceParameters(context, copier, layout.slot_bytes)
            return OwnStep(context, DeviceUpdates(context, copier), shown)
        case "replica":
            shown = DeviceParameters(context, copier, layout.push_bytes)
            push = NoPush() if pushes == "nothing" else DeviceGradients(context, copier)
            return DeviceReplica(context, push, shown, copier)
        case _:
            assert_never(kind)
