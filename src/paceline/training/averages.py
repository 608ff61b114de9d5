"""A group's average, over memory that all of its members map; averages of buffers.

Each member works through the areas chunk by chunk, so that sums stay in a cache. A chunk belongs to one share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from paceline.store.chunks import TELLS, NotFinite, Piece, chunks_of, finite, runs_of
from paceline.store.gradient_reader import GradientRange, GradientReader, add_up, decode
from paceline.training.layout import Entry, Places, PushArea

Policy = Literal["mean", "leader", "local"]
"""Which buffers a version has, when every worker has its own (BatchNorm's statistics, say).

`mean`    floating-point buffers are averaged over the workers; whole numbers become the largest one
`leader`  the lowest worker's
`local`   each worker keeps its own in its script; a recorded version has the lowest worker's
"""
POLICIES: tuple[str, ...] = get_args(Policy)
NARROW = (torch.bfloat16, torch.float16)
"""Types averaged in float32. A sum of weighted gradients is made in their own type, as in a commit."""


@dataclass(frozen=True, slots=True)
class _Share:
    """The chunks that one member works on, each by its flat pieces."""

    runs: list[GradientRange]
    """Runs of parameters, or slices of large ones."""
    apart: list[list[tuple[int, GradientRange]]]
    """By run: the same elements by parameter, as (its number, its slice)."""
    buffers: bool
    """Whether this share also has the buffers."""
    flags: bool
    """Whether it also has the flags."""


class AreaAverages:
    """Averages push areas into other areas, with their padding.

    The members of a group make one share each, in any order and at the same time. Sums go in the order of `sources`, so
    the bits don't depend on how shares are dealt. No source changes: once all shares are made, the run makes `target`
    each member's value.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        encoding = places.layout.encoding  # each of its parts is decoded by one member
        cut = chunks_of if encoding is None or not encoding.codec.whole else runs_of
        self._pieces = [piece for chunk in cut(places.layout) for piece in chunk]
        self._shares: dict[tuple[int, int, tuple[int, int] | None], _Share] = {}
        self._views: dict[tuple[int, int], Tensor] = {}
        """By area and first byte of the entry, and number of elements."""
        self._areas: dict[int, PushArea] = {}
        self._scratch: dict[tuple[str, torch.dtype], Tensor] = {}

    def share(
        self,
        sources: Sequence[int],
        target: int,
        weights: Sequence[float] | None,
        part: int,
        parts: int,
        *,
        of: int | None = None,
        within: tuple[int, int] | None = None,
        flags: bool = True,
    ) -> None:
        """Write share `part` of `parts` of the average of the areas `sources`, summed in that order, into `target`.

        `of`: by how many members to divide, where sources are sums of several; 0: write the sum. `within`: the bytes to
        average, from the first to the one after the last; both begin chunks.

        Without weights it is the mean of parameters and buffers, and all flags are set. With weights it is, for each
        parameter, the weighted sum over the sources whose flag for it is 1, bit for bit as a commit makes it. What is
        encoded is decoded before. If no source has it, the target's flag is 0 and its value untouched. Buffers are
        averaged either way, as `merged` does. The first share makes buffers and flags, which go with the first bytes.
        Flags are also made by themselves, `within` their own bytes. They don't go with the first bytes then: `flags`.
        Raises ValueError if the target is a source.
        """
        _check(sources, target)
        mine, of = self._share(part, parts, within), len(sources) if of is None else of
        if weights is None:
            for run in mine.runs:
                self._plain_mean([self._in(area, run.entry) for area in sources], self._in(target, run.entry), of)
        else:
            contributions = zip(sources, weights, strict=True)
            pushed = [GradientReader.of(self._places, area, self._area(area), weight) for area, weight in contributions]
            for run, apart in zip(mine.runs, mine.apart, strict=True):
                decode(self._places.layout, self._places.region.memory, pushed, run.entry.offset, run.entry.stop)
                self._weighted(pushed, target, run, apart)
        own = self._area(target)
        if mine.buffers:
            copies = [self._area(area).buffers for area in sources]
            for name, value in (merged(copies, "mean") if of == len(sources) else added(copies, of)).items():
                own.buffers[name].copy_(value)
        if mine.flags and flags:
            if weights is None:
                own.present.fill_(1)
            else:
                own.present.copy_(_present(pushed))

    def sum_up(
        self,
        terms: Sequence[tuple[int, float]],
        target: int,
        names: Sequence[str],
        *,
        look: bool,
        made: Callable[[int, int], object],
    ) -> NotFinite | None:
        """Write Σ weight · gradient of these (area, weight) into `target`, and its flags, as `share` does with weights.

        The flags come first. Then `made(begin, end)` is called as bytes of the sum are there, in order. If `look`, the
        first NaN or infinity in a gradient is returned, by parameters' `names`. Raises ValueError if the target is
        among the areas.
        """
        _check([area for area, _ in terms], target)
        pushed = [GradientReader.of(self._places, area, self._area(area), weight) for area, weight in terms]
        self._area(target).present.copy_(_present(pushed))
        mine, found, told = self._share(0, 1), None, 0
        ends = [run.entry.offset for run in mine.runs[1:]] + [self._places.layout.flags_offset]
        for run, apart, end in zip(mine.runs, mine.apart, ends, strict=False):
            self._weighted(pushed, target, run, apart)
            if look and found is None and not finite(self._in(target, run.entry)):
                found = self._not_finite(pushed, apart, names)
            if end - told >= TELLS or end == ends[-1]:
                made(told, end)
                told = end
        return found

    def mean(self, sources: Sequence[int], target: int) -> float:
        """Write the mean of these replicas into `target`: x₀ + Σ(xₖ − x₀)/n, so exact where all are equal.

        Returns the consensus distance: the root mean square, over the replicas, of the Euclidean distance of their
        parameters from the mean. Raises ValueError if the target is one of the sources.
        """
        _check(sources, target)
        squares = 0.0
        for piece in self._pieces:
            entry = piece.entry
            squares += self._centre([self._in(area, entry) for area in sources], self._in(target, entry))
        own = self._area(target)
        for name, buffer in own.buffers.items():
            self._centre([self._area(area).buffers[name] for area in sources], buffer)
        own.present.fill_(1)
        return math.sqrt(squares / len(sources))

    def _plain_mean(self, values: list[Tensor], target: Tensor, of: int) -> None:
        """(x₀ + x₁ + …)/n, or the sum if that is 0; for whole numbers, the largest one."""
        if not _continuous(target):
            _discrete(values, target)
            return
        total = self._like(target, "total") if target.dtype in NARROW else target
        if len(values) == 1:
            target.copy_(values[0])
            return
        if total is target:
            torch.add(values[0], values[1], out=total)
        else:
            total.copy_(values[0]).add_(values[1])
        for value in values[2:]:
            total.add_(value)
        if of:
            total.div_(of)
        if total is not target:
            target.copy_(total)

    def _weighted(
        self,
        pushed: Sequence[GradientReader],
        target: int,
        run: GradientRange,
        apart: Sequence[tuple[int, GradientRange]],
    ) -> None:
        """Σ weight · gradient of a run, by parameter where some gradient is missing."""
        whole = all(one.present[number] for one in pushed for number, _ in apart)
        # kernels treat the last few elements of narrow types apart: those must be the same as in a commit
        if whole and run.entry.dtype not in NARROW:
            self._sum(pushed, target, run)
            return
        for number, parameter in apart:
            self._sum([one for one in pushed if one.present[number]], target, parameter)

    def _not_finite(
        self, pushed: Sequence[GradientReader], apart: Sequence[tuple[int, GradientRange]], names: Sequence[str]
    ) -> NotFinite | None:
        """Return the first NaN or infinity of these gradients. None: only their sum has one, or what lay there."""
        for one in pushed:
            for number, parameter in apart:
                gradient = parameter.gradient(self._places.region.memory, one)
                if one.present[number] and not gradient.isfinite().all():
                    return NotFinite(names[number], one.worker)
        return None

    def _sum(self, pushed: Sequence[GradientReader], target: int, run: GradientRange) -> None:
        """Σ weight · gradient of these. Without any of them the target stays as it is."""
        terms = [(run.gradient(self._places.region.memory, one), one.weight) for one in pushed]
        if len(terms) == 1 and terms[0][1] == 1.0:
            self._in(target, run.entry).copy_(terms[0][0])
        elif terms:
            add_up(terms, self._in(target, run.entry))

    def _centre(self, values: list[Tensor], target: Tensor) -> float:
        """The mean as x₀ + Σ(xₖ − x₀)/n; returns the sum of squared distances from it."""
        if not _continuous(target):
            _discrete(values, target)
            return 0.0
        mean, apart = self._like(target, "total"), self._like(target, "apart")
        mean.zero_()
        for value in values[1:]:
            mean.add_(self._less(value, values[0], apart))
        mean.div_(len(values)).add_(values[0])
        squares = sum(_square(self._less(value, mean, apart)) for value in values)
        if not math.isfinite(squares):  # in a frozen mask, say, infinity minus itself gives NaN
            return self._centre_where_apart(values, target, mean)
        target.copy_(mean)
        return squares

    def _centre_where_apart(self, values: list[Tensor], target: Tensor, mean: Tensor) -> float:
        """The same as `_centre`, but elements that are equal in all replicas stay as they are."""
        same = torch.ones(target.shape, dtype=torch.bool)
        for value in values[1:]:
            same &= (value == values[0]) | (value.isnan() & values[0].isnan())
        target.copy_(torch.where(same, values[0], mean))
        return sum(_square(torch.where(same, 0, value - mean)) for value in values)

    def _less(self, value: Tensor, centre: Tensor, out: Tensor) -> Tensor:
        return out.copy_(value).sub_(centre) if value.dtype in NARROW else torch.sub(value, centre, out=out)

    def _like(self, target: Tensor, name: str) -> Tensor:
        """Scratch of the target's form, in float32 if the target's type is narrow."""
        dtype = torch.float32 if target.dtype in NARROW else target.dtype
        found = self._scratch.get((name, dtype))
        if found is None or found.numel() < target.numel():
            found = self._scratch[name, dtype] = torch.empty(target.numel(), dtype=dtype)
        return found[: target.numel()].as_strided(target.shape, target.stride())

    def _share(self, part: int, parts: int, within: tuple[int, int] | None = None) -> _Share:
        """Deal chunks one after another, so that shares are about equal. A small model is all in the first share."""
        found = self._shares.get((part, parts, within))
        if found is None:
            begin, end = within or (0, self._places.layout.flags_offset)
            pieces = [piece for piece in self._pieces if begin <= piece.entry.offset < end]
            total, before = sum(_bytes(piece) for piece in pieces), 0
            mine: list[Piece] = []
            for piece in pieces:
                if before * parts // total == part:
                    mine.append(piece)
                before += _bytes(piece)
            runs = [GradientRange(piece.entry) for piece in mine]
            apart = [[(number, GradientRange(entry)) for number, entry in piece.apart()] for piece in mine]
            first, flags_at = part == 0, self._places.layout.flags_offset
            found = _Share(runs, apart, first and begin == 0, first and begin in (0, flags_at))
            self._shares[part, parts, within] = found
        return found

    def _in(self, area: int, entry: Entry) -> Tensor:
        """Return the entry's tensor in that area."""
        start = self._places.push_start(area) + entry.offset
        found = self._views.get((start, entry.count))
        if found is None:
            found = entry.over(self._places.region.memory, start - entry.offset)
            self._views[start, entry.count] = found
        return found

    def _area(self, area: int) -> PushArea:
        found = self._areas.get(area)
        if found is None:
            found = self._areas[area] = self._places.push_area(area)
        return found


def merged(copies: list[dict[str, Tensor]], policy: Policy) -> dict[str, Tensor]:
    """Merge the workers' copies into one set of buffers. Copies ascend by worker, and there is at least one."""
    if policy != "mean" or len(copies) == 1:
        return dict(copies[0])
    return {name: _mean([copy[name] for copy in copies]) for name in copies[0]}


def added(copies: list[dict[str, Tensor]], of: int) -> dict[str, Tensor]:
    """Return the sums of these buffers, divided by `of` unless it is 0.

    Whole numbers become the largest one, and truth values the first.
    """
    return {name: _added([copy[name] for copy in copies], of) for name in copies[0]}


def _added(values: list[Tensor], of: int) -> Tensor:
    if not (values[0].is_floating_point() or values[0].is_complex()):
        return _mean(values)
    total = torch.stack(values).sum(dim=0)
    return total / of if of else total


def _mean(values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    if stacked.is_floating_point() or stacked.is_complex():
        return stacked.mean(dim=0)
    if stacked.dtype == torch.bool:
        return values[0]
    return stacked.amax(dim=0)


def _check(sources: Sequence[int], target: int) -> None:
    if target in sources:
        raise ValueError(f"area {target} is averaged, so the average can't be written there")


def _present(pushed: Sequence[GradientReader]) -> Tensor:
    """By parameter: 1 where any of these has a gradient."""
    flags = torch.tensor([one.present for one in pushed], dtype=torch.uint8)
    return flags.reshape(len(pushed), -1).amax(dim=0)


def _continuous(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _discrete(values: list[Tensor], target: Tensor) -> None:
    """Average whole numbers and truth values, as `merged` does."""
    target.copy_(values[0])
    if target.dtype != torch.bool:
        for value in values[1:]:
            torch.maximum(target, value, out=target)


def _square(tensor: Tensor) -> float:
    """The tensor's squared norm."""
    if tensor.dtype == torch.float32 and tensor.ndim == 1:  # accurate enough for a chunk, at a tenth of the cost
        return float(torch.dot(tensor, tensor).item())
    double = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor, dtype=double).item()) ** 2


def _bytes(piece: Piece) -> int:
    return piece.entry.stop - piece.entry.offset
