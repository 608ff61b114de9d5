"""A run's timeline as one SVG file without other files: a lane for each worker, the time from left to right.

What is drawn depends on the timeline and the arguments alone, to the last byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from paceline.core.phrases import cut, listed, workers_named
from paceline.errors import ConfigError
from paceline.records.ledger import connect, read_facts
from paceline.records.run_model import Stay, Switch
from paceline.records.timeline import (
    AveragingSpan,
    ComputingSpan,
    Timeline,
    TransferSpan,
    WorkerLane,
    read_timeline,
)

WIDTH = 900
LEFT, RIGHT = 78, 20  # margins beside the lanes
HEAD = 104  # what is above the lanes: the title, the legend, the versions' numbers
LANE = 46  # from one lane to the next
BAR = 20  # height of a bar of computing
THIN = 6  # height of a push, a pull or an average
GAP = 2  # between a bar and a thin one
FOOT = 48  # what is below the lanes: the axis

STALE = (
    (0, "0", "#d3e5f5", "#1b2a3a"),
    (1, "1", "#a3cbe8", "#1b2a3a"),
    (2, "2–3", "#639fd0", "#0d1620"),
    (4, "4–7", "#2f6fae", "#ffffff"),
    (8, "8 or more versions", "#0f3c73", "#ffffff"),
)
"""By the least number of versions: its name, the bar's fill, the colour of its text."""
NEVER = ("never applied", "#d0d0d0", "#444444")
PUSH, PULL = "#d9641e", "#3f9b45"
AVERAGES = ("#7b3fb5", "#c2378f", "#8a7a12", "#0f8b8d")
"""Groups take these in turn, so those at the same time can be told apart."""
VERSION, SWITCH = "#7d8590", "#b3202c"
INK, FAINT = "#24292f", "#57606a"
DARK = (
    "<style>@media (prefers-color-scheme: dark) {"
    'rect[fill="#ffffff"] { fill: #16191f } [stroke="#ffffff"] { stroke: #16191f } '
    '[stroke="#d0d7de"] { stroke: #30363d } '
    f'text[fill="{INK}"] {{ fill: #e6edf3 }} text[fill="{FAINT}"] {{ fill: #9aa4af }} '
    f'path[stroke="{FAINT}"] {{ stroke: #9aa4af }}'
    "}</style>"
)
"""For a reader whose system or page is dark: ground and ink change, the colours of bars and marks stay."""
CAPITAL = 0.36  # of a text's size: from its middle down to its base
LETTER = 0.58  # of a text's size: about the width of a letter
TICKS_AT_MOST = 12
NUMBERED_APART = 26  # pixels between two versions' numbers, at least


@dataclass(frozen=True, slots=True)
class _Scale:
    """Seconds to pixels."""

    began: float
    ended: float

    def x(self, at: float) -> float:
        inner = min(max(at, self.began), self.ended)
        return LEFT + (inner - self.began) / (self.ended - self.began) * (WIDTH - LEFT - RIGHT)

    def shows(self, began: float, ended: float) -> bool:
        return began < self.ended and ended > self.began


def timeline_of(path: Path) -> Timeline:
    """The timeline of the run with this ledger, with every step, finished or not."""
    with closing(connect(path)) as ledger:
        return read_timeline(ledger, read_facts(path))


def draw(timeline: Timeline, title: str = "", began: float | None = None, ended: float | None = None) -> str:
    """The SVG of a window of a timeline: from `began` to `ended`, in seconds since the run's start (default: all).

    `title` is the protocol's name if empty. Raises ConfigError for a window without extent.
    """
    scale = _Scale(timeline.began if began is None else began, timeline.ended if ended is None else ended)
    if not scale.ended > scale.began:
        raise ConfigError(
            f"a picture from {scale.began:g} s to {scale.ended:g} s: its end must be after its beginning; "
            f"the run is from {timeline.began:g} s to {timeline.ended:g} s"
        )
    bottom = HEAD + LANE * len(timeline.lanes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + FOOT}" width="{WIDTH}" '
        f'height="{bottom + FOOT}" font-family="Helvetica, Arial, sans-serif" role="img">',
        f"<title>{escape(title or timeline.protocol)}</title>",
        DARK,
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{bottom + FOOT - 1}" rx="8" fill="#ffffff" '
        'stroke="#d0d7de"/>',
        _text(16, 27, title or timeline.protocol, 15, weight="bold"),
        *_legend(averages=any(lane.averaging for lane in timeline.lanes)),
        *_axis(scale, bottom),
        *_versions(timeline, scale, bottom),
        *_joined(timeline, scale),
    ]
    for place, lane in enumerate(timeline.lanes):
        lines += ["<g>", *_lane(lane, timeline.hosts, HEAD + LANE * place, scale), "</g>"]
    for switch in timeline.switches:
        if scale.shows(switch.since, switch.at) or scale.began <= switch.at <= scale.ended:
            lines += _switch(switch, scale, bottom)
    for one in timeline.resumed:
        if scale.began <= one.at <= scale.ended:
            lines += _here(scale.x(one.at), "resumed", bottom)
    return "\n".join([*lines, "</svg>", ""])


def _legend(averages: bool) -> Iterator[str]:
    """Without a store there are averages. Otherwise there are pushes, pulls and versions."""
    x, y = 16.0, 50
    yield _text(x, y, "computing; the update will be stale by", 12, fill=FAINT)
    x += 230
    for _, name, fill, _ in STALE:
        yield _box(x, y - 6, 14, 12, fill)
        yield _text(x + 18, y, name, 12, fill=FAINT)
        x += 34 + 0.5 * 12 * len(name)
    x += 8
    if averages:
        for fill in AVERAGES:
            yield _box(x, y - 3, 6, THIN, fill)
            x += 8
        yield _text(x + 3, y, "average, and its group's number", 12, fill=FAINT)
        return
    for name, fill in (("push", PUSH), ("pull", PULL)):
        yield _box(x, y - 3, 18, THIN, fill)
        yield _text(x + 23, y, name, 12, fill=FAINT)
        x += 60
    yield _line(x + 4, y - 7, y + 7, VERSION, 1)
    yield _text(x + 11, y, "version made", 12, fill=FAINT)


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    step = _round_step((scale.ended - scale.began) / TICKS_AT_MOST)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for number in range(math.ceil(scale.began / step - 1e-9), math.floor(scale.ended / step + 1e-9) + 1):
        x = scale.x(number * step)
        yield _line(x, bottom + 2, bottom + 8, FAINT, 1)
        yield _text(x, bottom + 18, f"{number * step:.{digits}f}", 12, anchor="middle", fill=FAINT)
    yield f'<path d="M{LEFT} {bottom + 2.5}H{WIDTH - RIGHT}" stroke="{FAINT}"/>'
    yield _text(WIDTH - RIGHT, bottom + 36, "seconds since the run's start", 12, anchor="end", fill=FAINT)


def _versions(timeline: Timeline, scale: _Scale, bottom: int) -> Iterator[str]:
    """A line for each version, numbered where there is room."""
    taken = [scale.x(switch.at) for switch in timeline.switches]
    free = 0.0
    for version in timeline.versions:
        if not scale.began <= version.at <= scale.ended:
            continue
        x = scale.x(version.at)
        numbered = x >= free and all(abs(x - other) > NUMBERED_APART / 2 for other in taken)
        yield _line(x, HEAD - (8 if numbered else 2), bottom, VERSION, 1, opacity=0.55)
        if numbered:
            free = x + NUMBERED_APART
            yield _text(x, HEAD - 15, str(version.version), 11, anchor="middle", fill=FAINT)


def _lane(lane: WorkerLane, hosts: Mapping[int, str], top: int, scale: _Scale) -> Iterator[str]:
    bar = top + (LANE - BAR) // 2
    yield _text(16, top + LANE / 2, f"worker {lane.worker}", 13)
    if host := hosts.get(lane.worker, ""):
        yield _text(16, top + LANE / 2 + 14, cut(host, 10), 11, fill=FAINT)
    for stay in lane.stays:
        if scale.shows(stay.began, stay.ended):
            yield from _stay(stay, bar, scale)
    for step in lane.computing:
        if scale.shows(step.began, step.ended):
            yield from _computing(step, bar, scale)
    for transfer in lane.transfers:
        if scale.shows(transfer.began, transfer.ended):
            yield _transfer(transfer, bar, scale)
    starts = [scale.x(one.began) for one in lane.averaging]
    for one, free in zip(lane.averaging, [*starts[1:], float(WIDTH - RIGHT)], strict=False):
        if scale.shows(one.began, one.ended):
            yield from _averaging(one, hosts, bar, scale, free)


def _stay(stay: Stay, bar: int, scale: _Scale) -> Iterator[str]:
    """A thin line under what the worker does, as long as it is there, and how it left."""
    x, end = scale.x(stay.began), scale.x(stay.ended)
    yield f'<path d="M{x:.1f} {bar + BAR / 2:.1f}H{end:.1f}" stroke="#d0d7de"/>'
    if stay.left is None or stay.ended > scale.ended:
        return
    color = FAINT if stay.left == "finished" else SWITCH
    yield _line(end, bar - 4, bar + BAR + 4, color, 2)
    wide = LETTER * 12 * len(stay.left) + 6
    inside = end + wide > WIDTH - RIGHT
    yield _text(end - 6 if inside else end + 6, bar + BAR / 2, stay.left, 12, "end" if inside else "start", color)


def _computing(step: ComputingSpan, bar: int, scale: _Scale) -> Iterator[str]:
    x, end = scale.x(step.began), scale.x(step.ended)
    stale = step.staleness
    name, fill, ink = NEVER
    if stale is not None:
        _, name, fill, ink = next(shade for shade in reversed(STALE) if max(stale, 0) >= shade[0])
        name = f"its update is version {step.made}, stale by {stale}"
    about = f"step {step.step}, computed on version {step.version}: {name}"
    if step.copies:
        took = (f"{seconds * 1000:.3g} ms {way}" for way, seconds in step.copies.items())
        about += f"; copies overlap it: {' and '.join(took)}"
    yield (
        f'<rect x="{x:.1f}" y="{bar}" width="{end - x:.1f}" height="{BAR}" rx="2" fill="{fill}" stroke="#ffffff" '
        f'stroke-width="0.8"><title>{escape(about)}</title></rect>'
    )
    written = "" if stale is None else str(stale)
    if written and end - x > LETTER * 11 * len(written) + 6:
        yield _text((x + end) / 2, bar + BAR / 2, written, 11, "middle", ink)


def _transfer(transfer: TransferSpan, bar: int, scale: _Scale) -> str:
    x, end = scale.x(transfer.began), scale.x(transfer.ended)
    if transfer.direction == "push":
        y, fill, about = bar - GAP - THIN, PUSH, f"push of step {transfer.number}"
    else:
        y, fill, about = bar + BAR + GAP, PULL, f"pull of version {transfer.number}"
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{THIN}" fill="{fill}" stroke="#ffffff" '
        f'stroke-width="0.6"><title>{escape(about)}</title></rect>'
    )


def _averaging(one: AveragingSpan, hosts: Mapping[int, str], bar: int, scale: _Scale, free: float) -> Iterator[str]:
    """A bar wide enough to be seen, and its group's number, if there is room up to `free`."""
    x, y, fill = scale.x(one.began), bar + BAR + GAP, _color(one)
    end = min(max(scale.x(one.ended), x + len(AVERAGES)), WIDTH - RIGHT)
    there = listed([*dict.fromkeys(hosts[worker] for worker in one.members)]) if hosts else ""
    whose = f"{workers_named(one.members)}{' on ' if there else ''}{there}"
    about = f"group {one.group} averages {one.what} of {whose}: {one.outcome or 'not ended'}"
    paint = f'fill="#ffffff" stroke="{fill}"' if one.outcome == "failed" else f'fill="{fill}"'
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{THIN}" {paint}><title>{escape(about)}</title></rect>'
    )
    if end + 2 + LETTER * 9 * len(str(one.group)) <= free:
        yield _text(end + 2, y + THIN / 2, str(one.group), 9, fill=fill)


def _joined(timeline: Timeline, scale: _Scale) -> Iterator[str]:
    """A line for each group, from its first member's average down to its last one's. Bars in between hide it."""
    places = {lane.worker: place for place, lane in enumerate(timeline.lanes)}
    groups = {one.group: one for lane in timeline.lanes for one in lane.averaging}
    for one in groups.values():
        if len(one.members) > 1 and scale.shows(one.began, one.ended):
            top, bottom = (
                HEAD + LANE * places[worker] + (LANE + BAR) // 2 + GAP for worker in (one.members[0], one.members[-1])
            )
            x = scale.x(one.began) + 0.5 + one.group % len(AVERAGES)  # lines of different colours stay side by side
            yield _line(x, top, bottom + THIN, _color(one), 1)


def _color(one: AveragingSpan) -> str:
    return AVERAGES[one.group % len(AVERAGES)]


def _switch(switch: Switch, scale: _Scale, bottom: int) -> Iterator[str]:
    """A shade while the previous protocol finished its steps, and a line where the new one began."""
    since, x = scale.x(switch.since), scale.x(switch.at)
    if x - since >= 0.1:
        yield (
            f'<rect x="{since:.1f}" y="{HEAD - 4}" width="{x - since:.1f}" height="{bottom - HEAD + 4}" '
            f'fill="{SWITCH}" fill-opacity="0.12"/>'
        )
    yield from _here(x, f"{switch.to} from here on", bottom)


def _here(x: float, label: str, bottom: int) -> Iterator[str]:
    """A line through all lanes, with a label."""
    yield _line(x, HEAD - 38, bottom + 2, SWITCH, 2)
    inside = x + LETTER * 12 * len(label) + 6 > WIDTH - RIGHT
    yield _text(x - 6 if inside else x + 6, HEAD - 32, label, 12, "end" if inside else "start", SWITCH, "bold")


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is `least` or more."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _text(
    x: float, middle: float, text: str, size: int, anchor: str = "start", fill: str = INK, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{middle + CAPITAL * size:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
    )


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" fill="{fill}"/>'


def _line(x: float, top: float, bottom: float, color: str, width: int, opacity: float = 1) -> str:
    return (
        f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{color}" stroke-width="{width}" '
        f'stroke-opacity="{opacity}"/>'
    )
