"""A device that computes beside the processor, such as a GPU: its streams, marks in their work, and page-locked memory.

What is asked of a stream is done later, in order. Nothing orders two streams but marks: a stream, the script's
computing, or this thread waits until another stream has come to its mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.ipc.memory import Region

LOCKED_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


class Mark(Protocol):
    """A point in a stream's work."""

    def wait(self) -> None:
        """Wait in this thread until the stream has come here."""

    def hold_up(self) -> None:
        """What the script computes from now on, as this thread has it computed, begins after this."""

    def since(self, earlier: Mark) -> float:
        """Return the seconds between two marks that the stream has passed."""


class DeviceStream(Protocol):
    """Copies between the device and memory, one after another."""

    def after(self, mark: Mark) -> None:
        """Do what is asked from now on once another stream has come to that mark."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy a tensor to another. Both stay, and are not written, until the stream has come to a mark behind this."""

    def mark(self) -> Mark:
        """Mark what was asked so far."""


class Accelerator(Protocol):
    """A device, with a stream for copies in each direction."""

    to_device: DeviceStream
    from_device: DeviceStream

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor is on it."""

    def computed(self) -> Mark:
        """Mark what the script has had computed so far, in this thread's stream."""

    def captures(self) -> bool:
        """Whether what this thread computes is only noted, in a graph that is done later: no copy may wait for it."""

    def lock(self, region: Region, start: int, stop: int) -> str | None:
        """Page-lock these bytes, which begin a page, so that copies go at the bus's speed and hold up nobody.

        Return why that can't be. Copies are right without it, and slower.
        """


def accelerator_of(tensors: Sequence[Tensor]) -> Accelerator | None:
    """Return what these parameters are on; None if all are in memory. Raises ConfigError as `device_of` does."""
    device = device_of(tensors)
    return None if device is None else OfTorch(device)


def device_of(tensors: Sequence[Tensor]) -> torch.device | None:
    """Return the device that these parameters are on; None if all are in memory.

    Raises ConfigError if no worker can train there.
    """
    devices = sorted({str(tensor.device) for tensor in tensors if tensor.device.type != "cpu"})
    if not devices:
        return None
    if len(devices) > 1:
        raise ConfigError(
            f"the model's parameters are on {' and '.join(devices)}; a worker trains on one device: move them there"
        )
    device = torch.device(devices[0])
    present = torch.accelerator.current_accelerator()
    if present is None or present.type != device.type:
        raise ConfigError(f"the model's parameters are on the device {device}, which no worker can train on")
    return device


def name_of(device: torch.device) -> str:
    """Return the device's model, as its maker names it."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None else device.type


def is_deterministic() -> bool:
    """Whether torch was told to compute the same bits each time, wherever it can't."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


class OfTorch:
    """The device as torch has it, whatever its maker: CUDA, say. See `Accelerator`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.to_device: DeviceStream = _Stream(device)
        self.from_device: DeviceStream = _Stream(device)

    def has(self, tensor: Tensor) -> bool:
        """See `Accelerator`."""
        return tensor.device == self._device

    def computed(self) -> Mark:
        """See `Accelerator`."""
        return _Mark(torch.accelerator.current_stream(self._device))

    def captures(self) -> bool:
        """See `Accelerator`."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def lock(self, region: Region, start: int, stop: int) -> str | None:
        """See `Accelerator`. Only CUDA can lock memory that it has not allocated, and so does ROCm under its name."""
        if self._device.type != "cuda":
            return f"torch can't lock memory for the device {self._device}"
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(cudart.cudaHostRegister(region.address + start, stop - start, 0))
        if not error:
            return None
        with suppress(RuntimeError):  # the failed call stays CUDA's last error, which torch raises from what comes next
            torch.zeros(1, device=self._device)
        if error == LOCKED_ALREADY:
            return None
        return str(cudart.cudaGetErrorString(cudart.cudaError(error)))


class _Mark:
    def __init__(self, stream: torch.Stream) -> None:
        self._stream = stream
        self._event = torch.Event(stream.device, enable_timing=True)  # torch ignores `blocking`: who waits keeps a core
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def hold_up(self) -> None:
        torch.accelerator.current_stream(self._stream.device).wait_event(self._event)

    def held_up(self, stream: torch.Stream) -> None:
        stream.wait_event(self._event)

    def since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _Mark)
        return max(0.0, float(earlier._event.elapsed_time(self._event)) / 1000.0)  # below 0 if a stream was ahead


class _Stream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.Stream(device)

    def after(self, mark: Mark) -> None:
        assert isinstance(mark, _Mark)
        mark.held_up(self._stream)

    def copy(self, target: Tensor, source: Tensor) -> None:
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(self._stream)
        try:
            target.copy_(source, non_blocking=True)
        finally:
            torch.accelerator.set_stream(before)

    def mark(self) -> Mark:
        return _Mark(self._stream)
