"""The chunks of a version: ranges that fit into a cache, each updated by itself.

A chunk has an optimizer of the user's class over its own slice of the parameters. If that optimizer computes each
element from that element alone, slices of parameters, and runs of whole ones, train exactly as the parameters would.
Any other optimizer gets one chunk with every parameter whole.
"""

from __future__ import annotations

import copy
import inspect
import math
import mmap
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from paceline.store.delayed_nesterov import DelayedNesterov
from paceline.store.gradient_reader import GradientRange, GradientReader, add_up
from paceline.training.layout import CHUNK, Entry, Layout
from paceline.training.optim.clipping import Limit

TELLS = 1 << 20  # bytes made between two calls of `made`: no more than hosts ask for at once (core.shards.PIECE)

ELEMENTWISE = {
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
    DelayedNesterov,
}
"""Optimizers that look at one element at a time: slices train as the whole, bit for bit (test_parts.py)."""

WHOLE = {getattr(torch.optim, name) for name in ("Adafactor", "Muon") if hasattr(torch.optim, name)}
"""Optimizers that look at one whole parameter at a time: runs of parameters train as the whole (test_parts.py). Older
versions of torch lack some."""

PASSING_ON = ELEMENTWISE - {torch.optim.Rprop}
"""Optimizers that pass a NaN or an infinity in a gradient on to the parameter. Others may look only at its sign."""

HEALTH_CHECKS = ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check")
"""A method that torch's optimizers call in each step, by its names in older and newer versions. It asks for a GPU, and
fails in the store's process if the worker that this was forked from has used one."""
CAPTURABLE = "capturable"
"""A hyperparameter that torch refuses on the CPU."""

T = TypeVar("T")
State = dict[int, dict[str, Any]]
"""An optimizer's state by the parameter's number: tensors and other values."""
PartState = list[tuple["ChunkSpan", dict[str, Any]]]
"""The state of each parameter's share of a part."""
STATE = "the optimizer's state"
"""Its name in messages."""


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """A piece's share of one parameter, in elements in the order of memory."""

    number: int
    """The parameter's number, in the optimizer's order."""
    in_parameter: int
    in_piece: int
    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What the optimizer treats as one parameter: a whole parameter, a slice of one, or a run of several."""

    entry: Entry
    spans: tuple[ChunkSpan, ...]

    def apart(self) -> list[tuple[int, Entry]]:
        """Return each parameter's elements by themselves, with its number."""
        if len(self.spans) == 1:  # keep its shape, which an optimizer of whole parameters looks at
            return [(self.spans[0].number, self.entry)]
        return [(s.number, self.entry.flat(s.in_piece, s.count)) for s in self.spans]


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A NaN or an infinity that a commit has found."""

    parameter: str
    worker: int | None
    """The worker whose gradient has it; None if the gradients were finite and the parameter is not."""


@dataclass(slots=True)
class Chunk:
    """Updates its pieces from one slot to another."""

    optimizer: torch.optim.Optimizer
    groups: list[int]
    """For each group of this optimizer, the number of the user's parameter group."""
    pieces: list[Piece]
    is_split: bool = False
    """Whether each parameter is stepped apart."""
    attributes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By parameter's number: what a script has set on its parameter, which an optimizer of the user's own may read."""
    _ranges: list[GradientRange] = field(default_factory=list)
    """For each piece, how its gradient is read from push areas."""
    _views: dict[int, list[Tensor]] = field(default_factory=dict)
    _bits: dict[int, list[Tensor]] = field(default_factory=dict)
    """As `_views`, but as integers."""
    _sums: dict[int, list[Tensor]] = field(default_factory=dict)
    """By lane: for each piece, where its gradients are summed."""
    _step: Callable[[torch.optim.Optimizer], Any] = field(init=False)
    _known: bool = field(init=False)
    """Whether the optimizer is one of torch's."""

    def __post_init__(self) -> None:
        self._become(self.pieces, {})
        kind = type(self.optimizer)
        self._known = kind.__module__.startswith("torch.")
        # torch's own steps are called without the profiler's wrapper and the gradient switch: both cost more than SGD
        self._step = inspect.unwrap(kind.step) if kind in ELEMENTWISE else kind.step

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's, one for each piece."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def first(self) -> tuple[int, int]:
        """The number of its first parameter, and the first element's index in that."""
        span = self.pieces[0].spans[0]
        return span.number, span.in_parameter

    @property
    def size(self) -> int:
        """Bytes from its first one to its last one."""
        return _span_of(self.pieces)

    @property
    def merged(self) -> bool:
        """Whether some piece is a run of several parameters."""
        return any(len(piece.spans) > 1 for piece in self.pieces)

    def commit(
        self,
        memory: memoryview,
        source: int,
        target: int,
        pushed: Sequence[GradientReader],
        whole: bool,
        lane: CommitLane,
        limit: Limit | None = None,
    ) -> None:
        """Make this chunk of the slot that starts at byte `target` from the one at `source`.

        `whole`: whether every contribution has a gradient for every parameter. With a `limit` gradients are clipped,
        and may lie in the target.
        """
        if not whole and self.merged and not self._all_present(pushed):
            self.split()
        new = self._in(memory, target)
        if limit is None:
            torch._foreach_copy_(new, self._in(memory, source))
            gradients = self._gradients(memory, pushed, lane)
        else:
            gradients = self._limited(limit, self._gradients(memory, pushed, lane), lane)
            torch._foreach_copy_(new, self._in(memory, source))
        for parameter, view, gradient in zip(self.parameters, new, gradients, strict=True):
            parameter.data = view
            # a user's own optimizer may keep its gradients, and replace the tensors that it steps
            parameter.grad = gradient if self._known or gradient is None else gradient.clone()
        self._step(self.optimizer)
        if not self._known:
            for parameter, view in zip(self.parameters, new, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    view.copy_(parameter)

    def can_step_aside(self, pushed: Sequence[GradientReader], whole: bool) -> bool:
        """Whether `aside` undoes all that `commit` would do. A user's own optimizer may keep more than its state."""
        return self._known and (whole or not self.merged or self._all_present(pushed))

    @contextmanager
    def aside(self) -> Iterator[defaultdict[Tensor, Any]]:
        """Have the optimizer step a copy of its state inside the block. See `take_early` for that."""
        before, copied = self.optimizer.state, defaultdict[Tensor, Any](dict)
        for parameter, state in before.items():
            copied[parameter] = {key: own(value) for key, value in state.items()}
        self.optimizer.state = copied
        try:
            yield copied
        finally:
            self.optimizer.state = before

    def take_early(self, state: defaultdict[Tensor, Any]) -> None:
        """The chunk that was made early counts: this is the optimizer's state from now on."""
        self.optimizer.state = state

    def find_not_finite(
        self, memory: memoryview, pushed: Sequence[GradientReader], names: Sequence[str]
    ) -> NotFinite | None:
        """Return the first NaN or infinity of the last commit, while its numbers are in the cache."""
        parameters = self.parameters
        looked_at = [p for p in parameters if p.grad is not None]
        if type(self.optimizer) not in PASSING_ON:
            looked_at += [p.grad for p in looked_at if p.grad is not None]
        if all(finite(tensor) for tensor in looked_at):
            return None
        for one in pushed:
            for piece, mine in zip(self.pieces, self._ranges, strict=True):
                for span in piece.spans:
                    if one.present[span.number] and not _of(mine.gradient(memory, one), piece, span).isfinite().all():
                        return NotFinite(names[span.number], one.worker)
        for piece, parameter in zip(self.pieces, parameters, strict=True):
            for span in piece.spans:
                if not _of(parameter.data, piece, span).isfinite().all():
                    return NotFinite(names[span.number], None)
        return None  # all numbers are finite, and only their sum overflowed

    def checksum(self, memory: memoryview, target: int) -> int:
        """Return the sum of the chunk's bits, as integers modulo 2**64, while they are in the cache."""
        found = self._bits.get(target)
        if found is None:
            found = self._bits[target] = [_bits(piece.entry, memory, target) for piece in self.pieces]
        return sum(int(bits.sum().item()) for bits in found) % (1 << 64)

    def split(self) -> None:
        """Step each parameter apart from now on, as their states begin to differ."""
        self.is_split = True
        pieces = [
            Piece(entry, (replace(span, in_piece=0),))
            for piece in self.pieces
            for span, (_, entry) in zip(piece.spans, piece.apart(), strict=True)
        ]
        self._become(pieces, {span.number: state for span, state in self.state()})

    def state(self, *, copied: bool = True) -> PartState:
        """Return the optimizer's state of each parameter's share: a copy, or what the next step changes."""
        as_it_is = own if copied else lambda value: value
        return [
            (span, {key: as_it_is(_of(value, piece, span)) for key, value in state.items()})
            for piece, parameter in zip(self.pieces, self.parameters, strict=True)
            if (state := self.optimizer.state.get(parameter))
            for span in piece.spans
        ]

    @torch.no_grad()
    def edit(self, edits: Mapping[int, list[tuple[str | None, Any]]]) -> None:
        """Edit the optimizer's state: by parameter, (key, value). See `core.state_edits.StateEdit`."""
        runs = [[edits.get(span.number) for span in piece.spans] for piece in self.pieces]
        if any(one != run[0] for run in runs for one in run):
            self.split()
        for piece, parameter in zip(self.pieces, self.parameters, strict=True):
            for key, value in edits.get(piece.spans[0].number, ()):
                if key is None:
                    self.optimizer.state.pop(parameter, None)
                elif key in (there := self.optimizer.state.get(parameter, {})):
                    if isinstance(there[key], Tensor) and value is not None:
                        there[key].fill_(value)
                    else:
                        there[key] = value

    def load(self, state: State, layout: Layout) -> None:
        """Take this state, of whole parameters."""
        if not all(_alike(piece, state, layout) for piece in self.pieces):
            self.split()
        pieces: State = {}
        for piece in self.pieces:
            shares = [
                {key: _share(value, layout.moving[span.number], piece.entry, span) for key, value in values.items()}
                for span in piece.spans
                if (values := state.get(span.number, {}))
            ]
            if shares:
                pieces[piece.spans[0].number] = shares[0] if len(piece.spans) == 1 else _merged(piece, shares)
        self._become(self.pieces, pieces)

    def _become(self, pieces: list[Piece], state: State) -> None:
        self._views.clear()
        self._bits.clear()
        self._sums.clear()
        self.pieces = pieces
        self._ranges = [GradientRange(piece.entry) for piece in pieces]
        self.optimizer.state = defaultdict(dict)
        for own, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            mine = [piece for piece in pieces if piece.entry.group == group]
            own["params"] = [
                nn.Parameter(torch.empty(piece.entry.shape, dtype=piece.entry.dtype), requires_grad=piece.entry.trains)
                for piece in mine
            ]
            for piece, parameter in zip(mine, own["params"], strict=True):
                vars(parameter).update(self.attributes.get(piece.spans[0].number, {}))
                if taken := state.get(piece.spans[0].number):
                    self.optimizer.state[parameter] = taken

    def _in(self, memory: memoryview, start: int) -> list[Tensor]:
        """Return the pieces in the slot that starts at that byte."""
        found = self._views.get(start)
        if found is None:
            found = self._views[start] = [piece.entry.over(memory, start) for piece in self.pieces]
        return found

    def _all_present(self, pushed: Sequence[GradientReader]) -> bool:
        return all(one.present[span.number] for one in pushed for piece in self.pieces for span in piece.spans)

    def _gradients(self, memory: memoryview, pushed: Sequence[GradientReader], lane: CommitLane) -> list[Tensor | None]:
        """Return Σ weight · gradient for each piece, over the contributions that have one; None if none has."""
        alone = len(pushed) == 1 and pushed[0].weight == 1.0
        sums = [] if alone else self._sums_in(lane)
        found: list[Tensor | None] = []
        for place, (piece, mine) in enumerate(zip(self.pieces, self._ranges, strict=True)):
            number = piece.spans[0].number
            terms = [(mine.gradient(memory, one), one.weight) for one in pushed if one.present[number]]
            if terms and not alone:
                add_up(terms, sums[place])
                found.append(sums[place])
            else:
                found.append(terms[0][0] if terms else None)
        return found

    def _limited(self, limit: Limit, gradients: list[Tensor | None], lane: CommitLane) -> list[Tensor | None]:
        """Clip these gradients, one for each piece, into the lane's own memory."""
        into = zip(gradients, self._sums_in(lane), strict=True)
        return [None if gradient is None else limit(gradient, clipped) for gradient, clipped in into]

    def _sums_in(self, lane: CommitLane) -> list[Tensor]:
        """Return where the lane sums the gradients of each piece."""
        if not (sums := self._sums.get(lane.number, [])):
            first = min(piece.entry.offset for piece in self.pieces)
            sums = self._sums[lane.number] = [piece.entry.over(lane.scratch, -first) for piece in self.pieces]
        return sums


def user_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the class of the script's optimizer, without the class that `prepare` derives from it."""
    kind = type(optimizer)
    return next(base for base in kind.__mro__ if not base.__dict__.get("paceline_made"))


@dataclass(frozen=True, slots=True)
class CommitLane:
    """The chunks that one thread makes, one after another. The lanes of a commit are made at the same time."""

    number: int
    parts: list[Chunk]
    scratch: memoryview
    """This lane's own memory for summing gradients, as long as any chunk."""


def parts_of(layout: Layout, optimizer: torch.optim.Optimizer, within: tuple[int, int]) -> list[Chunk]:
    """Return the chunks of a commit, in the order of their bytes. Each can be made apart from the others.

    `within`: the range of a version's bytes that they make, between two of `cuts_of`.
    """
    ranges = [pieces for pieces in _ranges_of(layout, optimizer) if _lies(pieces, *within)]
    return [_part(optimizer, pieces, layout.attributes) for pieces in ranges]


def dealt(items: Sequence[T], sizes: Sequence[int], lanes: int) -> list[list[T]]:
    """Deal items to that many lanes at most, in order, with about the same size in each lane."""
    total, before = sum(sizes), 0
    shares: list[list[T]] = [[] for _ in range(lanes)]
    for item, size in zip(items, sizes, strict=True):
        middle = before + size / 2  # an item's begin would put all items before a large one into its lane
        shares[min(lanes - 1, int(middle * lanes / max(1, total)))].append(item)
        before += size
    return [share for share in shares if share] or [[]]


def scratch_for(layout: Layout, optimizer: torch.optim.Optimizer) -> memoryview:
    """Return memory in which a lane sums gradients, long enough for any chunk."""
    longest = max((_span_of(pieces) for pieces in _ranges_of(layout, optimizer)), default=0)
    return memoryview(mmap.mmap(-1, max(1, longest)))  # takes memory only where it is used


def _part(optimizer: torch.optim.Optimizer, pieces: list[Piece], attributes: Mapping[int, Mapping[str, Any]]) -> Chunk:
    groups = list(range(len(optimizer.param_groups)))
    if type(optimizer) in ELEMENTWISE | WHOLE:
        groups = sorted({piece.entry.group for piece in pieces})
    twin = detached(optimizer)
    twin.param_groups = [twin.param_groups[group] for group in groups]
    part = Chunk(twin, groups, pieces, attributes=attributes)
    fused = any(group.get("fused") for group in twin.param_groups)
    if fused or any(piece.entry.dtype not in (torch.float32, torch.float64) for piece in pieces):
        part.split()  # these kernels treat a tensor's last few elements apart, which must stay the same elements
    return part


def detached(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return a copy of the optimizer without parameters and state, which steps on the CPU.

    The constructor isn't called, so this works for any class. The copy has no hooks, which belong to the script, and no
    `step` that a scheduler has patched.
    """
    twin = object.__new__(type(optimizer))
    attributes = {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "state")}
    twin.__dict__.update(_on_cpu(attributes))  # copy.copy would lose attributes of a user's own class
    twin.__dict__.pop("step", None)
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    twin.__dict__.update(dict.fromkeys(HEALTH_CHECKS, _healthy))
    twin.param_groups = [_for_cpu(group) for group in optimizer.param_groups]
    twin.state = defaultdict(dict)
    return twin


def _healthy() -> None:
    """Do nothing. See `HEALTH_CHECKS`."""


def _for_cpu(group: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter group without its parameters, with hyperparameters for the CPU."""
    fit = {key: _on_cpu(value) for key, value in group.items() if key != "params"}
    if fit.get(CAPTURABLE):
        fit[CAPTURABLE] = False
        if fit.get("foreach"):  # without "capturable", torch then refuses a learning rate that is a tensor
            fit["foreach"] = False
    return {**fit, "params": []}


def _on_cpu(value: Any) -> Any:
    """Return the value, or a copy on the CPU if some of its tensors are elsewhere."""
    if isinstance(value, Tensor):
        return value if value.is_cpu else own(value)
    kind = type(value)
    if kind in (list, tuple):
        items = [_on_cpu(item) for item in value]
        return kind(items) if any(ours is not theirs for ours, theirs in zip(items, value, strict=True)) else value
    if kind is dict:
        values = {key: _on_cpu(item) for key, item in value.items()}
        return values if any(values[key] is not value[key] for key in value) else value
    return value


def state_of(states: Iterable[PartState], layout: Layout, sliced: bool) -> State:
    """Join the states of all chunks. `sliced`: whether chunks have slices of parameters."""
    shares: dict[int, PartState] = {}
    for state in states:
        for share in state:
            shares.setdefault(share[0].number, []).append(share)
    if not sliced:
        return {number: shares[number][0][1] for number in sorted(shares)}
    return {number: _joined(shares.pop(number), layout.moving[number]) for number in sorted(shares)}


def _joined(shares: PartState, whole: Entry) -> dict[str, Any]:
    """Join the states of a parameter's slices, in the order of memory. What no slice has is zero."""
    joined = {}
    for key, value in shares[0][1].items():
        if isinstance(value, Tensor) and value.shape == (shares[0][0].count,):
            flat = torch.zeros(whole.count, dtype=value.dtype)
            for span, state in shares:
                flat[span.in_parameter : span.in_parameter + span.count] = state[key]
            value = flat.as_strided(whole.shape, whole.stride)
        joined[key] = value
    return joined


def _share(value: Any, whole: Entry, piece: Entry, span: ChunkSpan) -> Any:
    """Return a span's part of a value in a whole parameter's state."""
    if not isinstance(value, Tensor) or value.shape != whole.shape or piece.shape == whole.shape:
        return own(value)
    ordered = torch.empty_strided(whole.shape, whole.stride, dtype=value.dtype).copy_(value)
    flat = ordered.as_strided((whole.count,), (1,))
    return flat[span.in_parameter : span.in_parameter + span.count].clone()


def _alike(piece: Piece, state: State, layout: Layout) -> bool:
    """Return whether one state can stand for all of a run's parameters."""
    if len(piece.spans) == 1:
        return True
    wholes = [layout.moving[span.number].shape for span in piece.spans]
    states = [state.get(span.number, {}) for span in piece.spans]
    if not any(states):  # none has been stepped
        return True
    # a scalar parameter's step count has the same shape as its moments
    if () in wholes or any(one.keys() != states[0].keys() for one in states):
        return False
    return all(
        all(isinstance(one[key], Tensor) and one[key].shape == whole for one, whole in zip(states, wholes, strict=True))
        or all(_same(one[key], states[0][key]) for one in states)
        for key in states[0]
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _merged(piece: Piece, shares: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the states of a run's parameters. See `_alike`."""
    merged = dict(shares[0])
    for key, value in merged.items():
        if isinstance(value, Tensor) and value.dim():
            merged[key] = torch.zeros(piece.entry.shape, dtype=value.dtype)
            for span, share in zip(piece.spans, shares, strict=True):
                merged[key][span.in_piece : span.in_piece + span.count] = share[key]
    return merged


def _bits(entry: Entry, memory: memoryview, start: int) -> Tensor:
    """Return the entry's bytes as integers, of the greatest width that divides their number."""
    size = entry.stop - entry.offset
    if not size:
        return torch.empty(0, dtype=torch.int64)
    width, kind = next((w, kind) for w, kind in ((8, torch.int64), (4, torch.int32), (1, torch.uint8)) if size % w == 0)
    return torch.frombuffer(memory, dtype=kind, count=size // width, offset=start + entry.offset)


def _of(value: Any, piece: Piece, span: ChunkSpan) -> Any:
    """Return a span's part of a tensor with its piece's shape. Other values belong to all spans."""
    if len(piece.spans) == 1 or not isinstance(value, Tensor) or value.shape != piece.entry.shape:
        return value
    return value[span.in_piece : span.in_piece + span.count]


def own(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def finite(tensor: Tensor) -> bool:
    """Return whether the tensor is free of NaN and infinity. True is always right, False may be wrong.

    A sum costs half as much as looking at each element, or as a product with the gradient.
    """
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float32
    return not tensor.is_floating_point() or math.isfinite(tensor.sum(dtype=wide).item())


def chunks_of(layout: Layout) -> list[list[Piece]]:
    """Cut every arena into pieces of CHUNK elements or fewer: slices of large parameters, runs of small ones."""
    chunks: list[list[Piece]] = []
    ordered = sorted((entry.offset, number) for number, entry in enumerate(layout.moving) if entry.count)
    for _, arena in groupby((number for _, number in ordered), key=lambda n: _arena(layout.moving[n])):
        run: list[int] = []
        for number in arena:
            entry = layout.moving[number]
            if run and entry.stop - layout.moving[run[0]].offset > CHUNK * entry.dtype.itemsize:
                chunks.append([_run(layout, run)])
                run = []
            if entry.count > CHUNK:
                for first in range(0, entry.count, CHUNK):
                    count = min(CHUNK, entry.count - first)
                    chunks.append([Piece(entry.flat(first, count), (ChunkSpan(number, first, 0, count),))])
            else:
                run.append(number)
        if run:
            chunks.append([_run(layout, run)])
    return chunks


def cuts_of(layout: Layout, optimizer: torch.optim.Optimizer, *, whole: bool = False) -> list[int]:
    """Return the bytes at which a version may be cut into ranges: 0, each chunk's beginning, the end.

    If the optimizer may look across parameters, there is only one range. `whole`: cut no parameter.
    """
    ranges = _ranges_of(layout, optimizer)
    return _cut_at(layout, [one for one in ranges if not whole or one is ranges[0] or not one[0].spans[0].in_parameter])


def chunks_at(layout: Layout) -> list[int]:
    """Return 0, each chunk's beginning, and the end, in bytes."""
    return _cut_at(layout, chunks_of(layout))


def _cut_at(layout: Layout, ranges: list[list[Piece]]) -> list[int]:
    return [0, *(pieces[0].entry.offset for pieces in ranges[1:]), layout.flags_offset]


def _ranges_of(layout: Layout, optimizer: torch.optim.Optimizer) -> list[list[Piece]]:
    """Return the pieces that the optimizer steps in each of its calls, which together make a version."""
    if type(optimizer) in ELEMENTWISE:
        return chunks_of(layout)
    return runs_of(layout) if type(optimizer) in WHOLE else [_whole(layout)]


def runs_of(layout: Layout) -> list[list[Piece]]:
    """Cut every arena into runs of whole parameters, of CHUNK elements or fewer unless one parameter has more."""
    runs: list[list[Piece]] = []
    ordered = sorted((entry.offset, number) for number, entry in enumerate(layout.moving))
    for _, arena in groupby((number for _, number in ordered), key=lambda n: _arena(layout.moving[n])):
        left = -1
        for number in arena:
            entry = layout.moving[number]
            if entry.count > left:
                runs.append([])
                left = CHUNK
            runs[-1].append(Piece(entry, (ChunkSpan(number, 0, 0, entry.count),)))
            left -= entry.count
    return runs


def _run(layout: Layout, numbers: list[int]) -> Piece:
    """Join these neighbouring parameters into one piece, the padding between them included."""
    entries = [layout.moving[number] for number in numbers]
    first, size = entries[0].offset, entries[0].dtype.itemsize
    spans = [
        ChunkSpan(number, 0, (entry.offset - first) // size, entry.count)
        for number, entry in zip(numbers, entries, strict=True)
    ]
    return Piece(entries[0].flat(0, (entries[-1].stop - first) // size), tuple(spans))


def _whole(layout: Layout) -> list[Piece]:
    return [Piece(entry, (ChunkSpan(number, 0, 0, entry.count),)) for number, entry in enumerate(layout.moving)]


def _arena(entry: Entry) -> tuple[int, str]:
    return entry.group, str(entry.dtype)


def _lies(pieces: list[Piece], begin: int, end: int) -> bool:
    """Return whether the pieces lie between these bytes."""
    return all(begin <= piece.entry.offset and piece.entry.stop <= end for piece in pieces)


def _span_of(pieces: list[Piece]) -> int:
    """Return the bytes from the first piece's beginning to the last one's end."""
    return max(piece.entry.stop for piece in pieces) - min(piece.entry.offset for piece in pieces)
