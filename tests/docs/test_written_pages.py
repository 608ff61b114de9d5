"""The parts of pages that `docs/tools/references.py` writes: they are current, and have all that the code has."""

from __future__ import annotations

import argparse
import re

import pytest
from references import DOCS, PAGES, commands, docstring, signature, written

import paceline
from paceline.cli.main import parser


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_command_writes(name: str) -> None:
    page = (DOCS / name).read_text()
    assert written(page) == page, "if it is to say so: python docs/tools/references.py"
    assert "<!-- written: " in page


def test_every_command_and_every_flag_has_its_line() -> None:
    page = commands(parser())
    subcommands = next(one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    for name, command in subcommands.items():
        section = page.partition(f"## paceline {name}\n")[2].partition("\n## ")[0]
        flags = [flag for one in command._actions if one.help != argparse.SUPPRESS for flag in one.option_strings]
        assert [flag for flag in flags if f"`{flag}" not in section and flag not in ("-h", "--help")] == []


def test_a_command_s_own_commands_have_sections_too() -> None:
    root = argparse.ArgumentParser(prog="paceline")
    above = root.add_subparsers().add_parser("runs", description="List runs.")
    inner = above.add_subparsers().add_parser("rm", description="Remove <one> | all.")
    inner.add_argument("--keep", "-k", type=int, help="K")
    inner.add_argument("run", metavar="RUN")
    page = commands(root)
    assert page.index("## paceline runs\n") < page.index("## paceline runs rm\n")
    assert "Remove \\<one\\> \\| all." in page
    assert "- `--keep KEEP`, `-k KEEP`: K\n" in page
    assert "paceline runs rm [FLAGS] RUN\n" in page


def test_the_python_page_has_every_public_name() -> None:
    told = re.findall(r"^### (\w+)$", (DOCS / "reference/python.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(set(paceline.__all__) - {"__version__"})


def test_a_docstring_s_sections_become_lists_and_its_examples_code() -> None:
    def thing() -> None:
        """First.

        Args:
            one: the first
                of two.
            two: `x`.

        Example:
            >>> for x in y:
            ...     f["a"]  # doctest: +SKIP
            1
        """

    assert docstring(thing) == (
        "First.\n\n**Args**\n\n- `one`: the first of two.\n- `two`: `x`.\n\n"
        '**Example**\n\n```pycon\n>>> for x in y:\n...     f["a"]\n1\n```'
    )


def test_a_long_signature_has_a_line_for_each_argument() -> None:
    def thing(one: int, *, two: str = "x" * 80) -> None: ...

    assert signature("f", lambda self, one=1: None) == "f(one=1)"
    assert signature("f", thing) == f'f(\n    one,\n    *,\n    two="{"x" * 80}",\n)'
