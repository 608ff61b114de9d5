"""For mkdocstrings: examples in a docstring are shown as code wherever they stand, not only under `Examples:`."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent) +\S.*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with a fence around each run of examples, at their own indentation."""

    def fence(found: re.Match[str]) -> str:
        lines = ["```pycon", *textwrap.dedent(found[0]).replace("  # doctest: +SKIP", "").splitlines(), "```"]
        return textwrap.indent("\n".join(lines), found["indent"])

    return EXAMPLE.sub(fence, docstring)


class Doctests(griffe.Extension):
    """Griffe calls this with each object that it has read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
