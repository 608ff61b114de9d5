"""A report's charts as PNG pictures for papers, drawn by Matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from paceline.records.report.contents import Contents

SIZE = (6.4, 3.6)  # inches
DOTS = 200  # in an inch
LONGEST = 120
"""Characters of a file's name before its ending."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5bd6", "#555d66")
"""The colours of Okabe and Ito, which colour-blind readers can tell apart. The last two are ours."""
DASHES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (4, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)))
PARTS = {"compute": "#2f78b7", "transfer": "#1a8a66", "wait": "#f6d9ae", "other": "#c3c9d1"}
PUSH, PULL, GROUP, SWITCH = "#b5480b", "#1a8a66", "#8a3f9e", "#b3202c"
SECONDS = "seconds since the run's start"


def draw(contents: Contents, folder: Path) -> list[Path]:
    """Write every chart that has contents to this existing folder. Return the files."""
    files: dict[Path, None] = {}
    for name, size, paint in _charts(contents["runs"]):
        figure = Figure(figsize=size, dpi=DOTS, layout="constrained")
        paint(figure.add_subplot())
        _as_it_stands(figure)
        stem = re.sub(r"[^A-Za-z0-9=.,_-]+", "-", name).strip("-")[:LONGEST]
        path = next(path for path in _paths(folder, stem) if path not in files)
        figure.savefig(path)
        files[path] = None
    return list(files)


def _paths(folder: Path, stem: str) -> Iterator[Path]:
    """Yield files for a chart, as names that differ may come to the same one."""
    yield folder / f"{stem}.png"
    yield from (folder / f"{stem}-{number}.png" for number in count(2))


def _as_it_stands(figure: Figure) -> None:
    """Have every text shown as it is: what stands between two dollar signs of a metric's name is no formula."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)


class NotebookFigure(Figure):
    """A figure that a notebook shows, also where nothing has imported pyplot, which would register plain figures."""

    def _repr_png_(self) -> bytes:
        with BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()


def curves(contents: Contents, metric: str | None) -> NotebookFigure:
    """Return a figure of this metric over time, with a curve for each run. None: of the steps that were finished."""
    runs = contents["runs"]
    points = [[(at, y) for at, _, y in run["metrics"].get(metric, [])] if metric else run["work"] for run in runs]
    figure = NotebookFigure(figsize=SIZE, layout="constrained")
    _curves(runs, points, SECONDS, metric or "steps finished by all workers")(figure.add_subplot())
    _as_it_stands(figure)
    return figure


def _charts(runs: list[Contents]) -> Iterator[tuple[str, tuple[float, float], Callable[[Axes], None]]]:
    """Yield each chart's name, its size in inches, and the function that draws it."""
    for metric in dict.fromkeys(metric for run in runs for metric in run["metrics"]):
        points = [run["metrics"].get(metric, []) for run in runs]
        yield f"{metric}-time", SIZE, _curves(runs, [[(at, y) for at, _, y in one] for one in points], SECONDS, metric)
        counted = [[(samples, y) for _, samples, y in one if samples is not None] for one in points]
        if any(counted):
            yield f"{metric}-samples", SIZE, _curves(runs, counted, "samples applied", metric)
    yield "work", SIZE, _curves(runs, [run["work"] for run in runs], SECONDS, "steps finished by all workers")
    yield "staleness", SIZE, lambda axes: _staleness(axes, runs)
    if any(run["consensus"] for run in runs):
        yield "consensus", SIZE, _curves(runs, [run["consensus"] for run in runs], SECONDS, "consensus distance")
    longest = max((cell for run in runs for row in run["waits"]["seconds"] for cell in row), default=0.0)
    for run in runs:
        lanes, label = len(run["timeline"]["lanes"]), run["label"]
        tall = (SIZE[0], min(0.9 + 0.3 * lanes, 20.0))
        yield f"timeline-{label}", (2 * SIZE[0], tall[1]), lambda axes, run=run: _timeline(axes, run)  # type: ignore[misc]
        yield f"time-{label}", tall, lambda axes, run=run: _time(axes, run)  # type: ignore[misc]
        yield f"lead-{label}", SIZE, lambda axes, run=run: _lead(axes, run)  # type: ignore[misc]
        yield f"waits-{label}", (4.8, 4.0), lambda axes, run=run: _waits(axes, run, longest)  # type: ignore[misc]


def _curves(runs: list[Contents], points: list[Any], x: str, y: str) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        groups = list(dict.fromkeys(run["group"] for run in runs))
        named: set[str] = set()
        for run, one in zip(runs, points, strict=True):
            if one:
                at, group = groups.index(run["group"]), run["group"]
                xs, ys = zip(*one, strict=True)
                label = None if group in named else group  # the seeds of a protocol have one entry
                named.add(group)
                axes.plot(xs, ys, color=COLORS[at % 8], linestyle=DASHES[(at + at // 8) % 8], label=label)
        _dress(axes, x, y)

    return paint


def _dress(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.5, color="#d9dee5")
    axes.set_axisbelow(True)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _staleness(axes: Axes, runs: list[Contents]) -> None:
    room = 0.84 / len(runs)
    for at, run in enumerate(runs):
        histogram = {int(value): times for value, times in run["summary"]["staleness"]["histogram"].items()}
        total = sum(histogram.values()) or 1
        places = [value + room * (at + 0.5) - 0.42 for value in histogram]
        heights = [100 * times / total for times in histogram.values()]
        axes.bar(places, heights, room, color=COLORS[at % 8], label=run["label"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, "staleness in versions", "% of updates")


def _lead(axes: Axes, run: Contents) -> None:
    leads = run["leads"]
    for at, one in enumerate(leads["workers"]):
        times = [leads["began"] + place * leads["width"] for place in range(len(one["lead"]))]
        values = [float("nan") if lead is None else lead for lead in one["lead"]]
        label = f"worker {one['worker']}" if len(leads["workers"]) <= 12 else None
        axes.step(times, values, where="post", color=COLORS[at % 8], linestyle=DASHES[(at + at // 8) % 8], label=label)
    axes.set_title(run["label"], fontsize=10)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, SECONDS, "steps ahead of the slowest worker")


def _time(axes: Axes, run: Contents) -> None:
    shown = {lane["worker"] for lane in run["timeline"]["lanes"]}
    rows = [row for row in run["summary"]["per_worker"] if row["worker"] in shown]
    names = [f"worker {row['worker']}" for row in rows]
    left = [0.0] * len(rows)
    for part, color in PARTS.items():
        values = [row[f"{part}_seconds"] for row in rows]
        axes.barh(names, values, left=left, color=color, label=part)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_title(run["label"], fontsize=10)
    _dress(axes, "seconds", "", legend=False)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8)


def _waits(axes: Axes, run: Contents, longest: float) -> None:
    """`longest`: the seconds of the strongest colour, in the pictures of all runs."""
    workers, seconds = run["waits"]["workers"], run["waits"]["seconds"]
    image = axes.imshow(seconds or [[0.0]], cmap="Oranges", vmin=0, vmax=longest or None)
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=axes, label="seconds")
    if len(workers) <= 16:
        axes.set_xticks(range(len(workers)), [str(worker) for worker in workers])
        axes.set_yticks(range(len(workers)), [str(worker) for worker in workers])
    axes.set_xlabel("worker that it waited for")
    axes.set_ylabel("worker that waited")
    axes.set_title(run["label"], fontsize=10)


def _timeline(axes: Axes, run: Contents) -> None:
    drawn = run["timeline"]
    tick, began = drawn["tick"], run["began"]
    lanes = drawn["lanes"]

    def bars(spans: list[tuple[int, int]], bottom: float, height: float, color: str, **more: Any) -> None:
        axes.broken_barh(
            [(began + at * tick, length * tick) for at, length in spans], (bottom, height), color=color, **more
        )

    for row, lane in enumerate(lanes):
        bars(
            [(since, until - since) for since, until, _ in lane["stays"]], row - 0.26, 0.52, PARTS["wait"], linewidth=0
        )
        if "blocks" in lane:
            blocks = lane["blocks"]
            spans = list(zip(blocks["began"], blocks["computing"], strict=True))
            bars(spans, row - 0.26, 0.52, PARTS["compute"], linewidth=0)
            continue
        ends = accumulate(gap + length for gap, length in zip(lane["gap"], lane["length"], strict=True))
        spans = [(end - length, length) for end, length in zip(ends, lane["length"], strict=True)]
        bars(spans, row - 0.26, 0.52, PARTS["compute"], edgecolor="w", linewidth=0.2)
        for way, bottom, color in (("push", row - 0.38, PUSH), ("pull", row + 0.28, PULL)):
            moved = zip(accumulate(lane[way]["began"]), lane[way]["length"], strict=True)
            bars(list(moved), bottom, 0.1, color, linewidth=0)
    rows = {lane["worker"]: row for row, lane in enumerate(lanes)}
    for _, since, until, members, _ in drawn["groups"]:
        for row in sorted(rows[worker] for worker in members if worker in rows):
            bars([(since, max(until - since, 1))], row + 0.28, 0.1, GROUP, linewidth=0.5)
    for _, at, to in drawn["switches"]:
        axes.axvline(began + at * tick, color=SWITCH, linewidth=1)
        axes.annotate(f"{to} from here on", (began + at * tick, -0.6), color=SWITCH, fontsize=8)
    for at, version in drawn["resumed"]:
        axes.axvline(began + at * tick, color=SWITCH, linewidth=1)
        axes.annotate(f"resumed from version {version}", (began + at * tick, -0.6), color=SWITCH, fontsize=8)
    axes.set_yticks(range(len(lanes)), [f"worker {lane['worker']}" for lane in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.8)
    names = {"computing": PARTS["compute"], "waiting, or between two steps": PARTS["wait"]}
    if any(lane["push"]["began"] or lane["pull"]["began"] for lane in lanes if "push" in lane):
        names |= {"push": PUSH, "pull": PULL}
    if drawn["groups"]:
        names["a group averages"] = GROUP
    patches = [Patch(color=color, label=name) for name, color in names.items()]
    axes.legend(handles=patches, frameon=False, ncols=5, loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    axes.set_xlim(began, began + max(drawn["ended"], 1) * tick)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(SECONDS)
    axes.set_title(run["label"], fontsize=10, loc="left")
