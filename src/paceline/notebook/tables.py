"""Tables as a notebook shows them, and as data frames of whichever library is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import import_module
from typing import Any, Literal, get_args

from paceline.errors import ConfigError

Frame = Literal["pandas", "polars", "rows"]
"""What a table is returned as: a data frame of that library, or a list with a dict for each row."""


def as_frame(columns: Mapping[str, Sequence[Any]], kind: Frame | None = None) -> Any:
    """Return a table as a data frame of pandas, else of polars, else as a list with a dict for each row.

    `columns` has the values by column, all of one length. `kind` asks for one of the three.
    Raises ConfigError if that is not installed, or none of them.
    """
    if kind is not None and kind not in get_args(Frame):
        raise ConfigError(f"frame is {kind!r}; allowed: {', '.join(get_args(Frame))}")
    if kind == "rows":
        return _rows(columns)
    for name in ("pandas", "polars") if kind is None else (kind,):
        with suppress(ImportError):
            return import_module(name).DataFrame(dict(columns))
    if kind is not None:
        raise ConfigError(f'{kind} is not installed: pip install {kind}; "rows" needs neither pandas nor polars')
    return _rows(columns)


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], remarks: Iterable[str] = ()) -> str:
    """Return HTML: a title, one row for each, and remarks below. All of it is text, and is escaped."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = "".join(f"<div>{escape(one)}</div>" for one in remarks)
    return f"<div><b>{escape(title)}</b></div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
