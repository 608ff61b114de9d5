"""What the site's build does to pages beyond MkDocs: links out of the site, and no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from links_outside import rewritten
from no_network import fetched
from sizes import modules, twice

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
        ("index.md", "architecture.md#a", "https://host/us/blob/main/docs/architecture.md#a"),
        ("protocols/bsp.md", "../decisions/README.md", "https://host/us/blob/main/docs/decisions/README.md"),
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


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://host/a.js"></script>',
        '<link href="//host/a.css" rel="stylesheet">',
        '<img alt="x" src="https://host/a.png">',
        '<a href="https://host/us" title="Go to repository" class="md-source" data-md-component="source">',
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


def test_no_decision_record_has_more_than_300_words() -> None:
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {name: count for name, count in words.items() if count > 300} == {}


def test_no_two_public_classes_have_one_name() -> None:
    """A reader who looks for one finds it."""
    assert twice(modules()) == []
