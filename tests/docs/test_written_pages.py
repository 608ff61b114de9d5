"""The parts of pages that `docs/tools/references.py` writes: they are current, and have all that the code has."""

from __future__ import annotations

import argparse
import re

import pytest
from references import DOCS, PAGES, commands, written

import paceline
from paceline.cli.main import parser


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_command_writes(name: str) -> None:
    page = (DOCS / name).read_text()
    assert written(page) == page, "if it is to say so: python docs/tools/references.py"
    assert "<!-- written: " in page


def test_every_command_and_every_flag_has_its_line() -> None:
    page = commands(parser())
    commands_of = next(one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    for name, command in commands_of.items():
        section = page.partition(f"## paceline {name}\n")[2].partition("\n## ")[0]
        flags = [flag for one in command._actions if one.help != argparse.SUPPRESS for flag in one.option_strings]
        assert [flag for flag in flags if f"`{flag}" not in section] == ["-h", "--help"]


def test_the_python_page_has_every_public_name() -> None:
    told = re.findall(r"^### (\w+)$", (DOCS / "reference/python.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(set(paceline.__all__) - {"__version__"})
