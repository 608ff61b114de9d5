"""The parts of pages that `docs/tools/references.py` writes: they are current, and have all that the code has."""

from __future__ import annotations

import re

import pytest
from references import DOCS, PAGES, written

import paceline


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_command_writes(name: str) -> None:
    page = (DOCS / name).read_text()
    assert written(page) == page, "if it is to say so: python docs/tools/references.py"
    assert "<!-- written: " in page


def test_the_python_page_has_every_public_name() -> None:
    told = re.findall(r"^### (\w+)$", (DOCS / "reference/python.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(set(paceline.__all__) - {"__version__"})
