"""Copies of a model's parameters between a device and the memory that all processes map.

On the device they lie side by side as in that memory, so one copy takes many. A copy waits for what the script computed
before it. What the script computes later waits for a version that comes. Nothing else waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from paceline.training.device.accelerator import Accelerator, Mark
from paceline.training.holders.buckets import Bucket, buckets_of
from paceline.training.layout import Entry, PushArea
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext

BUCKET = 4 << 20
"""Bytes that leave the device together: they take a bus of 50 GB/s 0.1 ms, and beginning a copy takes far less."""
COLUMNS = 1024
"""Words of eight bytes in a row of an arena, whose bits are summed by rows and by columns."""
UNLOCKED = "copies to and from its device are slower, as memory can't be page-locked: {}"


class Arena:
    """A tensor for each parameter: those on the device lie there side by side, the others in memory of their own."""

    def __init__(self, entries: Sequence[Entry], on_device: Collection[int], size: int, device: torch.device) -> None:
        """`on_device`: the numbers of parameters on the device. `size`: bytes that a version takes."""
        self.bytes = torch.zeros(-(-size // (8 * COLUMNS)) * 8 * COLUMNS, dtype=torch.uint8, device=device)
        """Rounded up to whole rows of `COLUMNS` words."""
        self.views = [
            _over(self.bytes, entry)
            if number in on_device
            else torch.zeros(entry.count, dtype=entry.dtype, device="cpu").as_strided(entry.shape, entry.stride)
            for number, entry in enumerate(entries)
        ]


class Copier:
    """Copies between arenas and parts of the shared memory, and times the copies."""

    def __init__(self, context: TrainingContext, accelerator: Accelerator) -> None:
        self._context = context
        self._accelerator = accelerator
        self.layout = context.places.layout
        self._region = context.places.region
        self.on_device = frozenset(number for number, one in enumerate(context.parameters) if accelerator.has(one))
        """The numbers of parameters on the device."""
        self.in_memory = [number for number in range(len(context.parameters)) if number not in self.on_device]
        """The numbers of the others."""
        self._device = context.parameters[min(self.on_device)].device
        self._runs = buckets_of(self.layout, self.layout.flags_offset + 1, self.on_device)
        self._parts: dict[int, Tensor] = {}
        """A part's bytes, by its first one."""
        self._locked: set[int] = set()
        self._to: list[tuple[Mark, Mark]] = []
        """The begin and end of each copy to the device since `seconds` was last called."""
        self._from: list[tuple[Mark, Mark]] = []

    def buckets(self) -> list[Bucket]:
        """Return the parameters on the device, in buckets that leave together."""
        return buckets_of(self.layout, BUCKET, self.on_device)

    def arena(self) -> Arena:
        """Return a new arena of zeros."""
        return Arena(self.layout.moving, self.on_device, self.layout.flags_offset, self._device)

    def lock(self, start: int, size: int) -> None:
        """Page-lock that part of the memory, once, before its first copy."""
        if start in self._locked:
            return
        self._locked.add(start)
        why = self._accelerator.lock(self._region, start, start + size)
        if why is not None and len(self._locked) == 1:
            self._context.link.remark(UNLOCKED.format(why))

    def bring(self, arena: Arena, start: int, but: Sequence[tuple[int, int]] = ()) -> None:
        """Copy the parameters that begin at that byte to the arena. What the script computes from now on sees them.

        `but`: bytes that `bring_bytes` has copied.
        """
        runs = [(run.begin, run.end) for run in self._runs]
        self.bring_bytes(arena, start, without(runs, but) if but else runs)
        for number in self.in_memory:
            arena.views[number].copy_(self._part(number, start))

    def bring_bytes(self, arena: Arena, start: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy these bytes of parameters on the device."""
        stream = self._accelerator.to_device
        stream.after(self._accelerator.computed())
        began = stream.mark()
        for begin, end in ranges:
            stream.copy(arena.bytes[begin:end], self._bytes(start)[begin:end])
        ended = stream.mark()
        ended.hold_up()
        self._to.append((began, ended))

    def follow(self) -> None:
        """Have later copies from the device wait for what this thread's stream computes now."""
        self._accelerator.from_device.after(self._accelerator.computed())

    def take(self, arena: Arena, start: int, buckets: Sequence[Bucket] | None = None) -> None:
        """Copy the arena, or these buckets of it, to the part that begins at that byte. See `await_taken`."""
        stream = self._accelerator.from_device
        stream.after(self._accelerator.computed())
        began = stream.mark()
        for run in self._runs if buckets is None else buckets:
            stream.copy(self._bytes(start)[run.begin : run.end], arena.bytes[run.begin : run.end])
        self._from.append((began, stream.mark()))
        if buckets is None:
            for number in self.in_memory:
                self._part(number, start).copy_(arena.views[number])

    def take_others(self, gradients: Sequence[Tensor | None], start: int) -> None:
        """Copy the gradients of parameters in memory."""
        for number in self.in_memory:
            if (gradient := gradients[number]) is not None:
                self._part(number, start).copy_(gradient)

    def take_buffers(self, area: PushArea) -> None:
        """Copy the model's buffers to that area. See `await_taken`."""
        if not area.buffers:
            return
        stream = self._accelerator.from_device
        stream.after(self._accelerator.computed())
        began = stream.mark()
        for name, buffer in self._context.followed.buffers().items():
            stream.copy(area.buffers[name], buffer)
        self._from.append((began, stream.mark()))

    def captures(self) -> bool:
        """See `Accelerator`."""
        return self._accelerator.captures()

    def await_taken(self) -> None:
        """Wait until all that was taken from the device is in memory."""
        self._accelerator.from_device.mark().wait()

    def await_computed(self) -> None:
        """Wait until the device has done all of this thread's work."""
        self._accelerator.computed().wait()

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of copies to the device and from it since the last call. All must be done."""
        took = sum(end.since(begin) for begin, end in self._to), sum(end.since(begin) for begin, end in self._from)
        self._to.clear()
        self._from.clear()
        return took

    def differs(self, arena: Arena, start: int) -> list[int]:
        """Return the numbers of parameters whose bits in the arena are not those that begin at that byte."""
        return [
            number for number, view in enumerate(arena.views) if not same_bits(view.cpu(), self._part(number, start))
        ]

    def _bytes(self, start: int) -> Tensor:
        found = self._parts.get(start)
        if found is None:
            found = torch.frombuffer(
                self._region.memory, dtype=torch.uint8, count=self.layout.flags_offset, offset=start
            )
            self._parts[start] = found
        return found

    def _part(self, number: int, start: int) -> Tensor:
        return self.layout.moving[number].over(self._region.memory, start)


def without(ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is left of these ranges, each from a byte to another, when others are taken away.

    >>> without([(0, 4), (6, 20)], [(10, 12), (2, 7), (30, 40)])
    [(0, 2), (7, 10), (12, 20)]
    """
    left = []
    for begin, end in ranges:
        for first, last in sorted(taken):
            if first >= end:
                break
            if begin < first:
                left.append((begin, first))
            begin = max(begin, last)
        if begin < end:
            left.append((begin, end))
    return left


def _over(octets: Tensor, entry: Entry) -> Tensor:
    """The entry's tensor over these bytes, in a storage of its own: `torch.save` writes whole storages, of one type."""
    if not entry.count:
        return torch.empty(entry.shape, dtype=entry.dtype, device=octets.device)
    mine: Tensor = from_dlpack(octets[entry.offset : entry.stop])
    return mine.view(entry.dtype).as_strided(entry.shape, entry.stride)
