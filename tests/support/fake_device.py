"""A device of which nothing is there, so that what runs beside the processor on a real one can be tested without.

Its tensors lie in memory, and what the script computes is done at once. A copy is done as late as its marks allow, or
at any moment before, as a seed says: one that computing waits for is done when next something is computed. If nothing
has made its stream wait for what the script computed last, it brings nothing good. So a guard that is missing shows in
what is trained.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.host import version_streaming
from paceline.ipc.memory import Region
from paceline.store import store
from paceline.training.device import accelerator

POISON = 0xA5
"""What a copy brings that does not wait for what it copies."""


class Clock(TorchDispatchMode):
    """Counts what this thread computes, on any device. Views compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.copies = False
        """Whether it is a stream that computes."""
        self.held: list[Mark] = []
        """What computing waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = all(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        if not self.copies and not views:
            self.catch_up()
            self.now += 1
        return func(*args, **(kwargs or {}))

    def catch_up(self) -> None:
        held, self.held = self.held, []
        for mark in held:
            mark.wait()


_CLOCKS: list[Clock] = []
"""The one that counts, if any does."""


def the_clock() -> Clock:
    """Have everything counted from now on, until `stop_counting`."""
    if not _CLOCKS:
        _CLOCKS.append(Clock().__enter__())
    return _CLOCKS[0]


def stop_counting() -> None:
    while _CLOCKS:
        _CLOCKS.pop().__exit__(None, None, None)


class Mark:
    """See `accelerator.Mark`."""

    def __init__(self, clock: Clock, stream: Stream | None, computed: int, place: int = 0) -> None:
        self._clock = clock
        self._stream = stream
        self.computed = computed
        """What the script had computed by then, as far as it is known here."""
        self._place = place

    def wait(self) -> None:
        if self._stream is None:
            self._clock.catch_up()
        else:
            self._stream.run(self._place)

    def hold_up(self) -> None:
        self._clock.held.append(self)

    def since(self, earlier: Any) -> float:
        assert self._stream is None or self._stream.done >= self._place, "a mark is asked that was not waited for"
        return 0.001 * (self._place - earlier._place)


class Stream:
    """See `accelerator.DeviceStream`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._asked: list[tuple[Tensor, Tensor, bool]] = []
        self.done = 0
        self._asked_in_all = 0
        self._knows = -1
        """What the script had computed at the last mark that this waits for."""

    def after(self, mark: Any) -> None:
        self._knows = max(self._knows, mark.computed)

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert target.shape == source.shape
        self._asked.append((target, source, self._knows >= self._device.clock.now))
        self._asked_in_all += 1
        self._device.copies += 1
        if self._device.any_moment.random() < 0.3:
            self.run(self.done + self._device.any_moment.randrange(len(self._asked) + 1))

    def mark(self) -> Mark:
        return Mark(self._device.clock, self, self._knows, self._asked_in_all)

    def run(self, place: int) -> None:
        """Do what was asked up to there."""
        with self._device.turn, torch.no_grad():
            self._device.clock.copies = True
            try:
                while self.done < place:
                    target, source, guarded = self._asked.pop(0)
                    target.copy_(source)
                    if not guarded and target.numel():
                        octets = target.as_strided((target.numel(),), (1,)).view(torch.uint8)
                        octets.fill_(POISON)
                    self.done += 1
            finally:
                self._device.clock.copies = False


class FakeDevice:
    """See `accelerator.Accelerator`."""

    def __init__(self, seed: int = 0, without: Sequence[Tensor] = ()) -> None:
        """`without`: tensors that are in memory."""
        self.any_moment = random.Random(seed)
        self.turn = threading.RLock()
        self.clock = the_clock()
        self.copies = 0
        self.capturing = False
        self.locked: list[tuple[int, int]] = []
        self._without = [id(tensor) for tensor in without]
        self.to_device: Any = Stream(self)
        self.from_device: Any = Stream(self)

    def has(self, tensor: Tensor) -> bool:
        return id(tensor) not in self._without

    def computed(self) -> Any:
        return Mark(self.clock, None, self.clock.now)

    def captures(self) -> bool:
        return self.capturing

    def lock(self, region: Region, start: int, stop: int) -> str | None:
        self.locked.append((start, stop))
        return None


def install(seed: int = 0) -> None:
    """Have the models of this process, and of those forked from it, trained on such devices.

    Workers are told of each piece of a version, however small.
    """
    accelerator.accelerator_of = lambda tensors: FakeDevice(seed)  # type: ignore[assignment,misc]
    accelerator.device_of = lambda tensors: torch.device("cpu")  # type: ignore[assignment]
    version_streaming.TOLD, store.TELLS = 0, 1


DIES = """
import os, signal
from paceline.training.device.copier import Copier
import paceline
begin, left = Copier.{way}, [{copies}]
def dying(*given):
    begin(*given)
    if paceline.worker() == 1:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
Copier.{way} = dying
"""
"""What a launcher executes first for worker 1 to die as that many copies were begun, `take`n from its device or brought
there (`bring_bytes`), and nothing has waited for the last."""
