"""A report as one HTML page that works alone: without a network, a server or another file."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files

from paceline.records.report.contents import Contents


def page(contents: Contents) -> str:
    """Return the page that shows these contents, which it has as JSON."""
    names = [run["label"] for run in contents["runs"]]
    title = "Training with " + (", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others")
    data = json.dumps(contents, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    template = files("paceline.records.report").joinpath("page.html").read_text(encoding="utf-8")
    parts = {"__TITLE__": escape(title), "__DATA__": data}
    return re.sub("|".join(parts), lambda found: parts[found.group()], template)
