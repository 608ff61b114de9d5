"""The mean of the curves of several seeds, and the band that they lie in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

Curve = Sequence[tuple[float, float]]
"""Points, ascending in x."""
POINTS = 120
"""Points of a mean."""
PLACES = 6
"""Significant digits of a point."""


def bands(groups: Iterable[tuple[str, Curve]]) -> dict[str, list[list[float]]]:
    """Return [x, mean, least, greatest] for each group of two curves or more, by group.

    A group's mean spans where all of its curves have values, so that no curve's end bends it. Between its points a
    curve is a straight line.
    """
    curves: dict[str, list[Curve]] = {}
    for group, curve in groups:
        if curve:
            curves.setdefault(group, []).append(curve)
    return {group: found for group, of in curves.items() if len(of) > 1 and (found := _band(of))}


def _band(curves: Sequence[Curve]) -> list[list[float]]:
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if begin > end:
        return []
    xs = sorted({begin, end, *(x for curve in curves for x, _ in curve if begin <= x <= end)})
    if len(xs) > POINTS:
        xs = [begin + (end - begin) * at / (POINTS - 1) for at in range(POINTS)]
    rows = ((x, [value_at(curve, x) for curve in curves]) for x in xs)
    return [[float(f"{one:.{PLACES}g}") for one in (x, fmean(ys), min(ys), max(ys))] for x, ys in rows]


def value_at(curve: Curve, x: float) -> float:
    """Return the curve's value at x, which lies within it; of several points there, the last one's."""
    after = bisect_right(curve, x, key=lambda point: point[0])
    if after == len(curve):
        return curve[-1][1]
    (left, low), (right, high) = curve[after - 1], curve[after]
    return low + (high - low) * (x - left) / (right - left)


def of_metric(
    points: Sequence[Sequence[Sequence[float | None]]], groups: Sequence[str]
) -> Mapping[str, dict[str, list[list[float]]]]:
    """Return the bands of a metric against time and against samples.

    `points`: each run's [moment, samples, value]; None: unknown, or not finite.
    """
    ways = {"time": 0, "samples": 1}
    return {way: bands(zip(groups, (_curve(one, at) for one in points), strict=True)) for way, at in ways.items()}


def _curve(points: Iterable[Sequence[float | None]], at: int) -> Curve:
    return [(x, y) for point in points if (x := point[at]) is not None and (y := point[2]) is not None]
