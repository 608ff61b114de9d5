"""What the documentation's tools find: links out of the site, what it fetches, and what is large (`make sizes`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import sizes
from links_outside import rewritten
from no_network import fetched

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "link", "leads_to"),
    [
        (
            "scenarios.md",
            "../src/paceline/scenario/links.py",
            "https://host/us/blob/main/src/paceline/scenario/links.py",
        ),
        ("protocols/bsp.md", "../../examples", "https://host/us/tree/main/examples"),
        ("index.md", "https://elsewhere", "https://elsewhere"),
        ("index.md", "architecture.md#a", "https://host/us/blob/main/docs/architecture.md#a"),
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


def test_what_a_page_fetches_from_another_host_is_found_and_links_that_a_reader_follows_are_fine() -> None:
    fetches = '<link href="//host/a.css" rel="stylesheet"><img alt="x" src="https://host/a.png">'
    source = '<a href="https://host/us" title="Go to repository" class="md-source" data-md-component="source">'
    assert len(fetched(f'<script src="https://host/a.js"></script>{fetches}{source}')) == 4
    fine = '<a href="https://host/a">a</a><link rel="canonical" href="https://host/"><img src="a.svg">'
    assert fetched(f'{fine}<script src="../a.js"></script>') == []


def test_no_decision_record_has_more_than_300_words() -> None:
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {name: count for name, count in words.items() if count > 300} == {}


def test_no_two_public_classes_have_one_name() -> None:
    """A reader who looks for one finds it."""
    assert sizes.twice(sizes.modules()) == []


def test_what_is_large_has_a_reason_and_each_reason_is_for_something_large() -> None:
    large = {table: set(names) for table, names in sizes.questions(sizes.modules()).items()}
    assert {table: set(names) for table, names in sizes.reasons().items()} == large


def test_a_method_in_many_classes_is_named_unless_a_base_declares_it() -> None:
    def parsed(*texts: str) -> list[sizes.Module]:
        return [sizes.Module(Path(f"m{number}.py"), text, ast.parse(text)) for number, text in enumerate(texts)]

    plain = parsed(*(f"class C{number}:\n    def move(self): ...\n" for number in range(6)))
    declared = (f"class C{number}(Moves):\n    def move(self): ...\n" for number in range(6))
    assert sizes.undeclared(plain) == {"move": 6}
    assert sizes.undeclared(parsed("class Moves:\n    def move(self): ...\n", *declared)) == {"move": 1}
