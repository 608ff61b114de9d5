"""Writes HTML: every text is escaped here, and nowhere else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

NONE = "—"
DIGITS = 4
"""Significant digits of a number."""
MANY = 9
"""Columns, from which on those of a table are narrow."""
LAST_PLACE, LARGEST = 1e-4, 1e9
"""Numbers that are nearer to 0, and those from there on, are written with an exponent."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text in a table."""

    text: str
    about: str = ""
    """What a pointer over it is told."""
    code: bool = False
    """Whether it is written as code."""


def number(value: float | None) -> str:
    """Write a number as the page's charts do."""
    if value is None:
        return NONE
    if float(value).is_integer() and abs(value) < LARGEST:
        return f"{int(value):,}"
    if value and not LAST_PLACE <= abs(value) < LARGEST:
        return f"{value:.{DIGITS - 1}e}"
    places = min(6, max(0, DIGITS - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{places}f}".rstrip("0").rstrip(".")


def table(heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], of: str = "") -> str:
    """Return a table, whose rows begin with a heading each.

    On a narrow screen the rows of more than two columns become blocks, cell below cell. Many columns are set smaller.
    `of`: what the table is of, for readers that can't see it.
    """
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>'
        + "".join(
            f'<td data-head="{escape(head)}">{_cell(cell)}</td>' for head, cell in zip(heads[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    label = f' aria-label="{escape(of)}"' if of else ""
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    kinds = ["stack"] * (len(heads) > 2) + ["many"] * (len(heads) > MANY)
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<div class="scroll"><table{kind}{label}>{inner}</table></div>'


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph. What stands between backquotes in the text is code."""
    text = re.sub(
        r" (?=[±×]) ?|(?<=[±×]) |(?<=\d) (?=m?s\b|%)", "\N{NO-BREAK SPACE}", text
    )  # a figure stays on one line
    parts = re.split(r"`([^`]+)`", text)
    inner = "".join(f"<code>{escape(part)}</code>" if at % 2 else escape(part) for at, part in enumerate(parts))
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape(cell)
    inner = escape(cell.text)
    if cell.code:  # it may go on in another line after a comma or colon
        broken = re.sub(r"([,:])(?=.)", r"\1<wbr>", inner)
        inner = f'<code class="protocol">{broken}</code>'
    return f'<abbr title="{escape(cell.about)}">{inner}</abbr>' if cell.about else inner
