"""Where every tensor of a model lies in shared memory.

    region = [ slot 0 | slot 1 | … | push area of worker 0 | push area of worker 1 | … | fixed | fixed ]

A slot holds one version of the optimizer's parameters, in flat arenas by parameter group and dtype. A push
area holds one gradient in the layout of a slot. It also has a byte for each parameter that says whether it has a
gradient (None is not zero), and the worker's buffers as of that step. In a run with a codec what is pushed is encoded
behind these, and the store's process decodes it to where gradients lie otherwise. If workers have several areas, the
first areas of all workers come first, then the second ones. `fixed` holds what is set once: parameters that the
optimizer does not have, and the first buffers. Areas for sums of several workers' gradients may follow. Each part
begins a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.ipc.memory import Mapping, Region, whole_pages

if TYPE_CHECKING:
    from paceline.training.encoding import Encoding

ALIGNMENT = 64  # bytes: a cache line, and what vectorised kernels like best
CHUNK = 512 * 1024  # elements: 256k to 1M cost the same; smaller chunks lose to Python, larger ones to the cache


def aligned(size: int) -> int:
    """Return the least multiple of `ALIGNMENT` that is no smaller."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its name, form, and offset in bytes from the start of its part."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    group: int
    """The optimizer's parameter group; -1 outside of it."""
    trains: bool = False
    """Whether it requires a gradient."""

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """Where the tensor's bytes end. They begin at `offset`."""
        return self.offset + self.count * self.dtype.itemsize

    def over(self, memory: memoryview, start: int = 0) -> Tensor:
        """The tensor over the memory, in a part that starts there. Each has a storage of its own."""
        if self.count == 0:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        flat = torch.frombuffer(memory, dtype=self.dtype, count=self.count, offset=start + self.offset)
        return flat.as_strided(self.shape, self.stride)

    def flat(self, first: int, count: int) -> Entry:
        """Return so many elements from the `first` on, in the order of memory, in one dimension."""
        return replace(self, shape=(count,), stride=(1,), offset=self.offset + first * self.dtype.itemsize)

    @property
    def form(self) -> str:
        """Name, dtype and shape, as they are compared and shown."""
        return f"{self.name}: {str(self.dtype).removeprefix('torch.')}{list(self.shape)} in group {self.group}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one model and optimizer. Equal for every worker that has the same ones."""

    moving: tuple[Entry, ...]
    """The optimizer's parameters, in its order."""
    fixed: tuple[Entry, ...]
    """The other parameters, then the buffers."""
    buffers: tuple[Entry, ...]
    """The buffers once more, with offsets in a push area."""
    names: tuple[str, ...]
    """`named_parameters()`, in order: the order of the hash."""
    aliases: dict[str, str]
    """Further names of tied parameters, to the first."""
    saved_buffers: frozenset[str]
    """Buffers that `state_dict()` has."""
    flags_offset: int
    """Where the flags lie in a push area: right behind the gradients."""
    fixed_bytes: int
    slot_bytes: int
    push_bytes: int
    attributes: dict[int, dict[str, Any]] = field(compare=False)
    """By the number of an optimizer's parameter that has some: what the script has set on it."""
    encoding: Encoding | None = None
    """What is pushed in place of gradients and updates, at the end of a push area; None: they go as they are."""

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> Layout:
        """The layout for this model and optimizer."""
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = [
            (names[parameter], parameter, number)
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        ]
        by_arena = sorted(groups, key=lambda item: (item[2], str(item[1].dtype)))
        moving: dict[str, Entry] = {}
        end = 0
        for _, arena in groupby(by_arena, key=lambda item: (item[2], item[1].dtype)):
            entries, end = _lay(arena, end)
            moving |= {entry.name: entry for entry in entries}
        buffers = [(name, buffer, -1) for name, buffer in model.named_buffers()]
        others = [(name, parameter, -1) for parameter, name in names.items() if name not in moving]
        fixed, fixed_end = _lay([*others, *buffers], 0)
        pushed, push_end = _lay(buffers, aligned(end + len(moving)))
        every = list(model.named_parameters(remove_duplicate=False))
        saved = model.state_dict(keep_vars=True)
        return cls(
            moving=tuple(moving[name] for name, _, _ in groups),
            fixed=tuple(fixed),
            buffers=tuple(pushed),
            names=tuple(names.values()),
            aliases={name: names[parameter] for name, parameter in every if name != names[parameter]},
            saved_buffers=frozenset(name for name, _, _ in buffers if name in saved),
            flags_offset=end,
            fixed_bytes=whole_pages(fixed_end),
            slot_bytes=whole_pages(end),
            push_bytes=whole_pages(push_end),
            attributes={number: own for number, (_, parameter, _) in enumerate(groups) if (own := vars(parameter))},
        )

    def encoded(self, encoding: Encoding) -> Layout:
        """Return it with room for what is encoded."""
        return replace(self, encoding=encoding, push_bytes=self.push_bytes + whole_pages(encoding.size))

    @property
    def encoded_offset(self) -> int:
        """Where encoded values begin in a push area."""
        return self.push_bytes - (0 if self.encoding is None else whole_pages(self.encoding.size))

    @property
    def starts(self) -> list[int]:
        """Where parameters begin in a version, in bytes, ascending, but for those without elements."""
        return sorted(entry.offset for entry in self.moving if entry.count)

    @property
    def buffers_bytes(self) -> int:
        """What buffers take in a push area, from the flags to the last buffer; 0 if there are none."""
        flags_end = self.flags_offset + len(self.moving)
        return max((entry.stop for entry in self.buffers), default=flags_end) - flags_end

    @property
    def forms(self) -> list[str]:
        """What must agree between workers, one line for each tensor."""
        return [entry.form for entry in (*self.moving, *self.fixed)]


@dataclass(frozen=True, slots=True)
class PushArea:
    """One worker's update on its way."""

    gradients: list[Tensor]
    present: Tensor
    """uint8[parameters]: 1 where there is a gradient."""
    buffers: dict[str, Tensor]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Places:
    """A layout laid over a region with so many slots and push areas.

    It has the fixed part twice: as it was offered, and as it was adopted if the script changed it since.
    """

    layout: Layout
    region: Region
    slots: int
    workers: int
    areas: int = 1
    """Push areas of each worker."""
    sums: int = 0
    """Areas for sums, whose numbers follow those of the workers' areas."""

    @classmethod
    def new(cls, layout: Layout, slots: int, workers: int) -> Places:
        """Lay the layout over a new region that is just large enough."""
        size = slots * layout.slot_bytes + workers * layout.push_bytes + 2 * layout.fixed_bytes
        return cls(layout, Region.create(size), slots, workers)

    @property
    def owned(self) -> int:
        """How many push areas belong to workers."""
        return self.workers * self.areas

    def worker_of(self, area: int) -> int | None:
        """The worker that the push area belongs to. None: it is for sums."""
        return area % self.workers if area < self.owned else None

    def slot_start(self, slot: int) -> int:
        """The first byte of a version's place: a slot, or a push area behind all slots."""
        return slot * self.layout.slot_bytes if slot < self.slots else self.push_start(slot - self.slots)

    def fixed_start(self, adopted: bool = False) -> int:
        """The fixed part's first byte."""
        start = self.slots * self.layout.slot_bytes + self.owned * self.layout.push_bytes
        return start + (self.layout.fixed_bytes if adopted else 0)

    def slot(self, slot: int) -> list[Tensor]:
        """The parameters of the version in that slot, in the optimizer's order."""
        return [entry.over(self.region.memory, self.slot_start(slot)) for entry in self.layout.moving]

    def parameter(self, number: int, start: int) -> Tensor:
        """The parameter of that number, in a version that begins at that byte."""
        return self.layout.moving[number].over(self.region.memory, start)

    def fixed(self, adopted: bool = False) -> dict[str, Tensor]:
        """The fixed part, by name."""
        start = self.fixed_start(adopted)
        return {entry.name: entry.over(self.region.memory, start) for entry in self.layout.fixed}

    def push_start(self, area: int) -> int:
        """The first byte of that push area."""
        behind = 2 * self.layout.fixed_bytes if area >= self.owned else 0
        return self.slots * self.layout.slot_bytes + area * self.layout.push_bytes + behind

    def push_area(self, area: int, mapping: Mapping | None = None) -> PushArea:
        """The push area of that number; with a `mapping`, at the address where that maps it."""
        layout, start = self.layout, self.push_start(area)
        memory, first = (self.region.memory, start) if mapping is None else (mapping.memory, 0)
        flags = Entry("present", torch.uint8, (len(layout.moving),), (1,), layout.flags_offset, -1)
        return PushArea(
            gradients=[entry.over(memory, first) for entry in layout.moving],
            present=flags.over(memory, first),
            buffers={entry.name: entry.over(memory, first) for entry in layout.buffers},
            start=start,
            stop=start + layout.push_bytes,
        )


def _lay(tensors: Iterable[tuple[str, Tensor, int]], start: int) -> tuple[list[Entry], int]:
    entries = []
    for name, tensor, group in tensors:
        form: Any = tensor if _dense(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        shape, stride = tuple(tensor.shape), tuple(form.stride())
        entries.append(Entry(name, tensor.dtype, shape, stride, start, group, tensor.requires_grad))
        start = aligned(start + tensor.numel() * tensor.element_size())
    return entries, start


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill their memory without gaps or overlaps, in any order of dimensions."""
    expected = 1
    for extent, step in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if extent == 1:
            continue
        if step != expected:
            return False
        expected *= extent
    return True
