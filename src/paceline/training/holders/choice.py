"""Which holder a worker has and what it pushes, as the run said when training began."""

from __future__ import annotations

from paceline.core.machine import WHOLE
from paceline.ipc.messages.worker import Begin, SwitchPart
from paceline.training.device import accelerator
from paceline.training.device.copier import Copier
from paceline.training.device.device_push import DeviceGradients, DeviceUpdates
from paceline.training.holders.encoded_push import EncodedPush
from paceline.training.holders.fragments import FragmentStep
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import DeviceParameters, OwnMemory, OwnParameters, Windowed
from paceline.training.holders.push import AreaPush, NoPush, OverlappedPush, UpdatePush
from paceline.training.holders.replica import DeviceReplica, ReplicaHolder
from paceline.training.holders.stored import OwnStep, WindowHolder
from paceline.training.training_context import TrainingContext


def copier_of(context: TrainingContext) -> Copier | None:
    """Make what copies to this worker's device and from it. None: its parameters are in memory."""
    device = accelerator.accelerator_of(context.parameters)
    return None if device is None else Copier(context, device)


def holder_of(begin: Begin | SwitchPart, context: TrainingContext, copier: Copier | None = None) -> Holder:
    """Make this worker's holder. Gradients on a device leave their host at the step. `copier`: one made before."""
    places, layout = context.places, context.places.layout
    encoded = None if layout.encoding is None else EncodedPush(context, layout.encoding)
    if (copier := copier or copier_of(context)) is not None:
        return _on_device(begin, context, copier, encoded)
    overlaps = begin.tells and OverlappedPush.pays(layout)
    if begin.state == "replicas":
        window = Windowed(places.region, layout.push_bytes, layout.moving, context.parameters)
        push = NoPush() if begin.pushes == "nothing" else encoded or (OverlappedPush if overlaps else AreaPush)(context)
        return ReplicaHolder(context, push, window)
    if begin.local_steps:
        return _own_step(begin, context, encoded or AreaPush(context), OwnMemory(places, context.parameters))
    window = Windowed(places.region, layout.slot_bytes, layout.moving, context.parameters)
    return WindowHolder(context, encoded or (OverlappedPush if overlaps else AreaPush)(context), window)


def _own_step(begin: Begin | SwitchPart, context: TrainingContext, push: UpdatePush, own: OwnParameters) -> OwnStep:
    if begin.fragments == WHOLE:
        return OwnStep(context, push, own, at_once=begin.at_once)
    version = begin.version if isinstance(begin, Begin) else None
    return FragmentStep(context, push, own, begin.fragments, version)


def _on_device(
    begin: Begin | SwitchPart, context: TrainingContext, copier: Copier, encoded: EncodedPush | None = None
) -> Holder:
    layout, owned = context.places.layout, begin.state == "replicas"
    shown = DeviceParameters(context, copier, layout.push_bytes if owned else layout.slot_bytes)
    if owned:
        push = NoPush() if begin.pushes == "nothing" else encoded or DeviceGradients(context, copier)
        return DeviceReplica(context, push, shown, copier)
    if begin.local_steps:
        return _own_step(begin, context, encoded or DeviceUpdates(context, copier), shown)
    return WindowHolder(context, encoded or DeviceGradients(context, copier), shown)
