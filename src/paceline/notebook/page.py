"""A report's page as a notebook shows it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from paceline.files import read_file

HEIGHT = 720
"""Of the frame in the notebook, in pixels. The page scrolls inside."""


class Page:
    """A page that was written to a file. In a notebook it shows itself, in a frame of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The file, which any browser opens."""

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<Page {self.path}>"

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles and names stay apart from the notebook's."""
        text = escape(read_file(self.path).decode())
        return f'<iframe srcdoc="{text}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
