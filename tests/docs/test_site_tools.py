"""What the site's build does to pages beyond MkDocs: links out of `docs`, the command line's page, no network."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from doctests import fenced
from from_code import MARKS, decisions, on_page_markdown, reference, tables
from links_outside import rewritten
from no_network import fetched
from sizes import modules, twice

from paceline.cli.main import parser
from paceline.records.ledger import TABLES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "link", "leads_to"),
    [
        (
            "scenarios.md",
            "../src/paceline/scenario/network.py",
            "https://host/us/blob/main/src/paceline/scenario/network.py",
        ),
        ("protocols/bsp.md", "../../examples", "https://host/us/tree/main/examples"),
        ("scenarios.md", "../README.md#protocols", "https://host/us/blob/main/README.md#protocols"),
        ("protocols/bsp.md", "../compare.md", "../compare.md"),
        ("index.md", "https://elsewhere", "https://elsewhere"),
    ],
)
def test_a_link_out_of_the_pages_leads_to_the_repository_and_others_stay(page: str, link: str, leads_to: str) -> None:
    missing: list[str] = []
    assert rewritten(f"see [it]({link})", page, "https://host/us/", ROOT, missing.append) == f"see [it]({leads_to})"
    assert missing == []


@pytest.mark.parametrize("link", ["../src/nothing.py", f"../../{ROOT.name}"])
def test_a_link_to_a_file_that_the_repository_lacks_is_told(link: str) -> None:
    missing: list[str] = []
    rewritten(f"see [it]({link})", "index.md", "https://host/us", ROOT, missing.append)
    assert missing == [link]


def test_the_page_of_the_command_line_has_every_command_and_every_flag() -> None:
    page = reference()
    commands = next(one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    for name, command in commands.items():
        section = page.partition(f"## paceline {name}\n")[2].partition("\n## ")[0]
        flags = [flag for one in command._actions if one.help != argparse.SUPPRESS for flag in one.option_strings]
        assert [flag for flag in flags if f"`{flag}" not in section and flag not in ("-h", "--help")] == []


def test_a_command_s_own_commands_have_sections_too() -> None:
    root = argparse.ArgumentParser(prog="paceline")
    above = root.add_subparsers().add_parser("runs", description="List runs.")
    above.add_subparsers().add_parser("rm", description="Remove <one> | all.").add_argument(
        "--keep", type=int, help="K"
    )
    page = reference(root)
    assert page.index("## paceline runs\n") < page.index("## paceline runs rm\n")
    assert "Remove \\<one\\> \\| all." in page
    assert "| `--keep KEEP` | K |" in page


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://host/a.js"></script>',
        '<link href="//host/a.css" rel="stylesheet">',
        '<img alt="x" src="https://host/a.png">',
    ],
)
def test_what_a_page_fetches_from_another_host_is_found(html: str) -> None:
    assert len(fetched(html)) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://host/a">a</a>',
        '<link rel="canonical" href="https://host/">',
        '<script src="../a.js"></script>',
        '<img src="a.svg">',
    ],
)
def test_links_that_a_reader_follows_and_the_site_s_own_files_are_fine(html: str) -> None:
    assert fetched(html) == []


def test_examples_in_a_docstring_become_code_with_what_they_print() -> None:
    text = 'First.\n\n>>> for x in y:\n...     f["a"]\n1\n\nMore:\n    >>> g()  # doctest: +SKIP\n'
    assert fenced(text) == (
        'First.\n\n```pycon\n>>> for x in y:\n...     f["a"]\n1\n```\n\nMore:\n    ```pycon\n    >>> g()\n    ```\n'
    )


def test_the_ledger_s_page_has_its_tables_and_no_indexes() -> None:
    page = tables()
    assert re.findall(r"CREATE TABLE (\w+)", page) == re.findall(r"CREATE TABLE (\w+)", TABLES)
    assert "INDEX" not in page
    assert "VIEW" not in page


def test_the_list_of_decisions_has_each_record() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert re.findall(r"\]\((.+?)\)", decisions()) == [path.name for path in records]


def test_no_decision_record_has_more_than_300_words() -> None:
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {name: count for name, count in words.items() if count > 300} == {}


def test_every_mark_is_in_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert [mark for mark in MARKS if mark not in pages] == []
    assert all(mark not in on_page_markdown(pages) for mark in MARKS)


def test_no_two_public_classes_have_one_name() -> None:
    """A reader who looks for one finds it."""
    assert twice(modules()) == []
