"""Which holder a worker has and what it pushes, as the run said when training began."""

from __future__ import annotations

from paceline.core.machine import Pushes, State
from paceline.training.device import accelerator
from paceline.training.device.copier import Copier
from paceline.training.device.device_push import DeviceGradients, DeviceUpdates
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import DeviceParameters, OwnMemory, Windowed
from paceline.training.holders.push import AreaPush, NoPush, OverlappedPush
from paceline.training.holders.replica import DeviceReplica, ReplicaHolder
from paceline.training.holders.stored import OwnStep, WindowHolder
from paceline.training.training_context import TrainingContext


def holder_of(
    state: State, pushes: Pushes, context: TrainingContext, *, local_steps: bool = False, tells: bool = False
) -> Holder:
    """Make this worker's holder. `tells`: see `Started`; gradients on a device leave their host at the step."""
    device = accelerator.accelerator_of(context.parameters)
    if device is not None:
        return _on_device(state, pushes, context, Copier(context, device), local_steps=local_steps)
    places, layout = context.places, context.places.layout
    if state == "replicas":
        window = Windowed(places.region, layout.push_bytes, layout.moving, context.parameters)
        return ReplicaHolder(context, NoPush() if pushes == "nothing" else AreaPush(context), window)
    if local_steps:
        return OwnStep(context, AreaPush(context), OwnMemory(places, context.parameters))
    overlaps = tells and OverlappedPush.pays(layout)
    window = Windowed(places.region, layout.slot_bytes, layout.moving, context.parameters)
    return WindowHolder(context, OverlappedPush(context) if overlaps else AreaPush(context), window)


def _on_device(state: State, pushes: Pushes, context: TrainingContext, copier: Copier, *, local_steps: bool) -> Holder:
    layout = context.places.layout
    shown = DeviceParameters(context, copier, layout.push_bytes if state == "replicas" else layout.slot_bytes)
    if state == "replicas":
        push = NoPush() if pushes == "nothing" else DeviceGradients(context, copier)
        return DeviceReplica(context, push, shown, copier)
    if local_steps:
        return OwnStep(context, DeviceUpdates(context, copier), shown)
    return WindowHolder(context, DeviceGradients(context, copier), shown)
