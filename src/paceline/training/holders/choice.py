"""Which holder a worker has, and what it pushes: as the run said when training began."""

from __future__ import annotations

from typing import assert_never

from paceline.core.machine import HolderKind, Pushes
from paceline.training.holders.device import Device
from paceline.training.holders.holder import Holder
from paceline.training.holders.own_step import OwnStep
from paceline.training.holders.replica import Replica
from paceline.training.holders.window import Window
from paceline.training.joined import Joined
from paceline.training.push import AreaPush, NoPush
from paceline.training.told import ToldPush


def holder_of(kind: HolderKind, pushes: Pushes, joined: Joined, *, tells: bool = False) -> Holder:
    """Make this worker's holder. Raises ConfigError if the parameters are on a device where it can't work.

    `tells`: see `Started`.
    """
    on_device = [number for number, parameter in enumerate(joined.parameters) if parameter.device.type != "cpu"]
    if on_device and kind != "window":
        joined.refuse("this protocol runs the optimizer in the workers, which is not there yet for parameters on a GPU")
    match kind:
        case "window":
            push = ToldPush(joined) if tells and ToldPush.pays(joined.places.layout) else AreaPush(joined)
            return Device(joined, push, on_device) if on_device else Window(joined, push)
        case "own-step":
            return OwnStep(joined, AreaPush(joined))
        case "replica":
            return Replica(joined, NoPush() if pushes == "nothing" else AreaPush(joined))
        case _:
            assert_never(kind)
