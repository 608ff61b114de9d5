"""Formats a view for a terminal of a given width. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from paceline.display.state import WAITING, Row, Score, State, View, duration, ranges

SHOWN = 16
"""The most lines of workers, or of groups of workers in a like state."""
LEAST = 4
"""The same on a terminal with few lines."""
AROUND = 8
"""Lines of the terminal above and below the workers, with the prompt."""
WIDEST = 100
"""The most columns of the bar and the curve."""
STATE = 26
"""The least columns for a state."""
LONGEST = 60
"""The most columns for the names of a group's workers."""
BLOCKS = "▁▂▃▄▅▆▇█"
ORDER = ("computing", "pushing", "idle", WAITING, "starting")
"""The order of states' lines. Other states follow."""
STYLES = {"computing": "green", "pushing": "cyan", WAITING: "yellow", "died": "bold red"}
"""By what a worker does. Other states are dim."""
AWAITED = "bold magenta"
"""The style of a worker that others wait for, and of its name in their states."""


def screen(view: View, title: str, folder: str, width: int, height: int) -> Text:
    """Return the whole screen: progress, logged values, a line for each worker or group, and the folder.

    A table of rich's would take twenty times as long to make.
    """
    lines = [_head(view, title, width), _bar(view, width), _logged(view, width)]
    lines += _workers(view, width, max(LEAST, min(SHOWN, height - AROUND)))
    lines += [_scores(view.scores), Text(f"folder: {folder}", "dim")]
    return Text("\n").join(line for line in lines if line.plain)


def _head(view: View, title: str, width: int) -> Text:
    """Return the title, time and speed. The title is cut if the line is too long."""
    workers = len(view.rows)
    rest = f" · {workers} worker{'' if workers == 1 else 's'} · {duration(view.seconds)} · {view.steps} steps"
    if view.trains:
        rest += f" · {view.speed:.1f} steps/s"
    room = max(width - len(rest), 12)
    return Text(title if len(title) <= room else f"{title[: room - 1]}…", "bold") + Text(rest)


def _bar(view: View, width: int) -> Text:
    """Return a progress bar with the time left."""
    share = view.done
    if view.evaluated is not None and view.evaluates:
        share = view.evaluated[0] / view.evaluated[1]
        said = f"{view.evaluated[0]} of {view.evaluated[1]} versions evaluated"
    elif share is not None:
        left = "" if view.left is None or share == 1 else f", about {duration(view.left)} left"
        said = f"{share:.0%}{f' of {view.until}' if view.until else ''}{left}"
    if share is None:
        return Text()
    room = max(0, min(width - len(said) - 1, WIDEST))
    halves = round(2 * room * share)
    done = "━" * (halves // 2) + "╸" * (halves % 2)
    return Text.assemble((done, "green"), ("─" * (room - len(done)), "dim"), f" {said}")


def _logged(view: View, width: int) -> Text:
    """Return the logged value's present mean, and its curve with the least and the greatest mean."""
    if view.logged is None:
        return Text()
    name, value = view.logged
    said = f"{name} {value:.4g}"
    if not view.curve:
        return Text(said)
    low, high = min(view.curve), max(view.curve)
    scale = f" {low:.3g} to {high:.3g}"
    line = sparkline(view.curve, min(width - len(said) - len(scale) - 1, WIDEST))
    return Text.assemble(f"{said} ", (line, "cyan"), (scale, "dim"))


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as a row of at most `width` blocks. Of more values, each block is a mean."""
    width = max(0, min(width, len(values)))
    edges = [at * len(values) // width for at in range(width + 1)] if width else [0]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    if low == high:
        return BLOCKS[0] * width
    return "".join(BLOCKS[round((mean - low) / (high - low) * (len(BLOCKS) - 1))] for mean in means)


@dataclass(frozen=True, slots=True)
class _Group:
    """Workers that share a line."""

    rows: Sequence[Row]
    state: State

    @property
    def awaited_by(self) -> int:
        return max(row.awaited_by for row in self.rows)


def _workers(view: View, width: int, most: int) -> list[Text]:
    if not view.rows:
        return []
    alone = len(view.rows) <= most
    groups = [_Group([row], row.state) for row in view.rows] if alone else grouped(view.rows, most)
    name = None if view.logged is None else view.logged[0]
    heads = ["steps", "steps/s", "lead", "stale", *([] if name is None else [name])]
    cells = [_numbers(group.rows, name) for group in groups[:most]]
    if not alone:
        heads = ["n", *heads]
        cells = [[str(len(group.rows)), *numbers] for group, numbers in zip(groups, cells, strict=False)]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    room = max(8, min(width - sum(widths) - 2 * len(widths) - 2 - STATE, LONGEST))
    names = [_cut(group.rows, room) for group in groups[:most]]
    first = max(len("workers"), *map(len, names))
    lines = [Text(_padded("workers", first, heads, widths))]
    for group, who, numbers in zip(groups, names, cells, strict=False):
        line = Text(_padded(who, first, numbers, widths) + "  ").append_text(_state(group))
        if group.awaited_by:
            line.stylize(AWAITED, 0, len(who))
        lines.append(line)
    if rest := sum(len(group.rows) for group in groups[most:]):
        lines.append(Text(f"and {rest} more workers", "dim"))
    return lines


def _state(group: _Group) -> Text:
    """Return the group's state in colour, and how many workers wait for it."""
    if group.awaited_by:
        who = "others wait" if len(group.rows) > 1 else f"{_waiting(group.awaited_by)} for it"
        return Text(f"{group.state}; {who}", AWAITED)
    state = group.state
    text = Text(str(state), STYLES.get(state.doing, "dim"))
    if state.awaited:
        text.stylize(AWAITED, len(text) - len(state.awaited))
    return text


def _waiting(workers: int) -> str:
    return "1 waits" if workers == 1 else f"{workers} wait"


def grouped(rows: Iterable[Row], most: int) -> list[_Group]:
    """Group workers in like states. If there are too many groups, merge the smallest that wait."""
    alike: dict[tuple[State, bool], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.state, row.awaited_by > 0), []).append(row)
    groups = [_Group(members, state) for (state, _), members in alike.items()]
    if len(groups) > most:
        waiting = sorted((one for one in groups if one.state.doing == WAITING), key=lambda one: len(one.rows))
        few, many = waiting[: len(groups) - most + 1], waiting[len(groups) - most + 1 :]
        groups = [one for one in groups if one.state.doing != WAITING] + many
        if others := sorted((row for one in few for row in one.rows), key=lambda row: row.worker):
            groups.append(_Group(others, State(WAITING, awaited="others")))
    return sorted(groups, key=_place)


def _place(group: _Group) -> tuple[bool, int, int]:
    """Sort awaited groups first, then by state."""
    rank = ORDER.index(group.state.doing) if group.state.doing in ORDER else len(ORDER)
    return not group.awaited_by, rank, group.rows[0].worker


def _numbers(rows: Sequence[Row], name: str | None) -> list[str]:
    """Return steps, speed, lead, staleness and the logged value; of several workers as ranges or means.

    `name`: what the value was logged as; None if nothing was logged, which then has no column.
    """
    logged = [row.logged[1] for row in rows if row.logged is not None and row.logged[0] == name]
    return [
        _between([row.steps for row in rows]),
        f"{sum(row.speed for row in rows) / len(rows):.1f}",
        _between([row.lead for row in rows if row.lead is not None]),
        _between([row.stale for row in rows if row.stale is not None]),
        *([] if name is None else [f"{sum(logged) / len(logged):.4g}" if logged else "-"]),
    ]


def _between(numbers: Sequence[int]) -> str:
    """Format as `150`, `148-152`, or `-` for no numbers."""
    if not numbers:
        return "-"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _padded(first: str, width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"{first:<{width}}" + "".join(f"  {cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))


def _cut(rows: Sequence[Row], room: int) -> str:
    """Return the workers' numbers, cut to `room` columns."""
    said = ranges([row.worker for row in rows], len(rows))
    return said if len(said) <= room else said[: room - 1].rpartition(",")[0] + ",…"


def _scores(scores: Sequence[Score]) -> Text:
    """Return the targets, or else the metrics of the last evaluated version."""
    line = Text()
    for score in scores:
        if line:
            line.append(" · ")
        if score.met is not None:
            line.append(f"{score.target}: after {score.met:.1f} s", "green").append(f", best {score.value:.4g}")
        elif score.target is not None:
            line.append(f"{score.target}: " + ("" if score.value is None else f"best {score.value:.4g}"))
            line.append("not evaluated yet" if score.value is None else " so far")
        else:
            line.append(f"{score.metric} {score.value:.4g}")
    return line
