"""Rows of words as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.core.phrases import printable
from paceline.errors import ConfigError
from paceline.files import write_whole

Rows = Sequence[Sequence[str]]


def as_text(heads: Sequence[str], rows: Rows, right: Sequence[str] = ()) -> str:
    """Return the rows in columns. Those in `right` are flush right. Much faster than rich for thousands of rows."""
    lines = [[word if word.isprintable() else printable(word) for word in line] for line in (heads, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    sides = [str.rjust if head in right else str.ljust for head in heads]
    return "\n".join(
        "  ".join(side(word, width) for side, word, width in zip(sides, line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(heads: Sequence[str], rows: Rows, right: Sequence[str] = ()) -> str:
    """Return a Markdown table. The columns in `right` are flush right."""
    rule = ["---:" if head in right else "---" for head in heads]
    lines = [[_escaped(word) for word in heads], rule, *([_escaped(word) for word in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(heads: Sequence[str], rows: Rows) -> str:
    """Return comma-separated values, with a line of headings."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([heads, *rows])
    return file.getvalue()


def check_exports(exports: Mapping[str, Path | None]) -> None:
    """Raise ConfigError, in one line, for the first of these files that can't be written. `exports`: by flag."""
    for flag, path in exports.items():
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK)):
            why = "it is a folder" if path.is_dir() else "its folder is not there, or can't be written to"
            raise ConfigError(f"{flag} {path}: {why}; name a file that can be written")


def export(flag: str, path: Path, text: str) -> None:
    """Write the file that `flag` names, whole or not at all. Raises ConfigError, in one line, if it can't be."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}; name a file that can be written") from None


def _escaped(word: str) -> str:
    return " ".join(word.replace("|", "\\|").split())
