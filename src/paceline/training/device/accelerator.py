"""An accelerator, such as a GPU: its streams, marks in their work, and page-locked memory.

A stream does its work later, in order. Only marks order two streams: a stream, the script's computation or this thread
waits until another stream has reached a mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.ipc.memory import Region

LOCKED_ALREADY = 712  # cudaErrorHostMemoryAlreadyRegistered


def accelerator_of(tensors: Sequence[Tensor]) -> Accelerator | None:
    """Return the accelerator that these parameters are on; None if all are in memory. See `device_of` for errors."""
    device = device_of(tensors)
    return None if device is None else Accelerator(device)


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
    """Return whether torch is set to raise an error where it can't compute the same bits each time."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


class Accelerator:
    """A device of torch's, of any maker, with a stream for copies in each direction."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.to_device = DeviceStream(device)
        self.from_device = DeviceStream(device)

    def has(self, tensor: Tensor) -> bool:
        """Return whether the tensor is on this device."""
        return tensor.device == self._device

    def computed(self) -> Mark:
        """Mark the end of what this thread's stream computes so far."""
        return Mark(torch.accelerator.current_stream(self._device))

    def captures(self) -> bool:
        """Return whether this thread only records its work, in a graph that runs later. No copy may wait for it."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def lock(self, region: Region, start: int, stop: int) -> str | None:
        """Page-lock these bytes, which begin a page, so that copies run at the bus's speed and beside other work.

        Return why that fails, or None. Without it copies are correct, and slower. Only CUDA can lock memory that it has
        not allocated, and so does ROCm under its name.
        """
        if self._device.type != "cuda":
            return f"torch can't lock memory for the device {self._device}"
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(cudart.cudaHostRegister(region.address + start, stop - start, 0))
        if not error:
            return None
        with suppress(RuntimeError):  # torch would raise CUDA's last error, this one, in a later call
            torch.zeros(1, device=self._device)
        if error == LOCKED_ALREADY:
            return None
        return str(cudart.cudaGetErrorString(cudart.cudaError(error)))


class Mark:
    """A point in a stream's work."""

    def __init__(self, stream: torch.Stream) -> None:
        self._stream = stream
        self.event = torch.Event(stream.device, enable_timing=True)  # torch ignores `blocking`: who waits keeps a core
        self.event.record(stream)

    def wait(self) -> None:
        """Wait in this thread until the stream has reached this mark."""
        self.event.synchronize()

    def hold_up(self) -> None:
        """Have what this thread computes from now on begin after this mark."""
        torch.accelerator.current_stream(self._stream.device).wait_event(self.event)

    def since(self, earlier: Mark) -> float:
        """Return the seconds between two marks that the stream has passed."""
        return max(0.0, float(earlier.event.elapsed_time(self.event)) / 1000.0)  # below 0 if a stream was ahead


class DeviceStream:
    """Copies between the device and memory, one after another."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.Stream(device)

    def after(self, mark: Mark) -> None:
        """Begin later copies once another stream has reached that mark."""
        self._stream.wait_event(mark.event)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy a tensor. Neither may be freed or written until the stream has reached a later mark."""
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(self._stream)
        try:
            target.copy_(source, non_blocking=True)
        finally:
            torch.accelerator.set_stream(before)

    def mark(self) -> Mark:
        """Mark the end of the copies so far."""
        return Mark(self._stream)
